"""What this process knows about the stocks it reads and writes."""

from __future__ import annotations

import zstandard

from perdure.storage.compression.dictionaries import Edition, Samples

#: Stocks of single scopes that are remembered; there may be as many as there are agents.
_MOST = 512


class State:
    """Compression of one stock, as far as this process knows."""

    def __init__(self, edition: Edition) -> None:
        self.training = False
        self.adopt(edition)

    def adopt(self, edition: Edition) -> None:
        """Write with this edition from now on.

        Samples of before are dropped: somebody may want to have forgotten what is in them.
        """
        self.edition = edition
        self.samples = Samples()
        self.decompressors = {0: zstandard.ZstdDecompressor()}
        if edition.learnt:
            self.decompressors[edition.number] = edition.decompressor()

    def follow(self, edition: Edition, before: Edition, seen: int) -> None:
        """Write with an edition that was made here, after so many bytes had been seen.

        What was noted while it was being made is kept, unless somebody has replaced it already, or
        no other will be trained.
        """
        meanwhile = self.samples
        self.adopt(edition)
        if edition.row.version == before.row.version + 1 and edition.train_at is not None:
            meanwhile.seen += seen
            self.samples = meanwhile

    def note(self, value: bytes) -> bool:
        """Keep a value to train with; whether that can be done now.

        Nothing is kept once no other dictionary will be trained by itself.
        """
        if self.edition.train_at is None:
            return False
        self.samples.note(value)
        return self.due

    @property
    def due(self) -> bool:
        enough = self.edition.train_at
        return enough is not None and not self.training and self.samples.suffice(enough)


class States(dict[str, State]):
    """States by stock. Of single scopes, those that were looked up long ago are forgotten."""

    def keep(self, stock: str, state: State) -> State:
        """The state of a stock: this one, unless there is one already."""
        if stock not in self and "/" in stock and len(self) >= _MOST:
            idle = (name for name, each in self.items() if "/" in name and not each.training)
            self.pop(next(idle, ""), None)
        return self.setdefault(stock, state)

    def of(self, collection: str) -> dict[str, State]:
        """The states of a collection's stocks."""
        return {name: self[name] for name in self if name.partition("/")[0] == collection}
