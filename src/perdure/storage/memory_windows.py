"""Memory windows: the entries of a context over time.

Entries are added one by one and never changed. `compress` lets a strategy replace older entries
with fewer; the originals are *folded*, not deleted: ``get_window(…, folded=True)`` shows them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, TypeAlias, overload

import msgspec

from perdure.core import clock
from perdure.core.errors import InvalidInput, InvalidKey
from perdure.storage import record_keys
from perdure.storage.collection import Collection
from perdure.storage.options import Options
from perdure.storage.records import Compressed, Indexed, Key, system_record
from perdure.storage.rows import Index
from perdure.storage.store import Store, join
from perdure.storage.transaction import Transaction


@system_record("entries", indexes=[Index(("context", "at"))])
class WindowEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing remembered."""

    id: Annotated[str, Key()]  # context/number
    context: Annotated[str, Indexed()]
    at: datetime
    text: Annotated[str, Compressed()]
    kind: str = "note"
    data: dict[str, Any] = {}
    #: How many original entries this one stands for; 0 for an original.
    covers: int = 0
    #: The entry that stands for this one now; empty while it stands for itself.
    folded: Annotated[str, Indexed()] = ""


class Replacement(msgspec.Struct, frozen=True):
    """A strategy's decision: these neighbours become one entry with this text."""

    entries: Sequence[WindowEntry]
    text: str
    kind: str = "summary"


#: Looks at a context's standing entries, oldest first, and says what to fold. May be async.
Strategy: TypeAlias = Callable[
    [Sequence[WindowEntry]], "Sequence[Replacement] | Awaitable[Sequence[Replacement]]"
]


class TimeWindow(msgspec.Struct, frozen=True):
    """A span of time: start <= at < end; open without an end."""

    start: datetime
    end: datetime | None = None


_EVER = TimeWindow(datetime(1970, 1, 1, tzinfo=UTC))


def fold_oldest(keep: int, length: int = 400) -> Strategy:
    """A strategy without a model: all but the newest `keep` become one digest."""

    def strategy(entries: Sequence[WindowEntry]) -> Sequence[Replacement]:
        old = entries[: max(0, len(entries) - keep)]
        if len(old) < 2:
            return []
        share = max(20, length // len(old))
        lines = [" ".join(entry.text.split())[:share] for entry in old]
        return [Replacement(old, "\n".join(line for line in lines if line)[:length])]

    return strategy


class MemoryWindows:
    """The entries of all contexts, in a store or in a transaction of it."""

    def __init__(self, executor: Store | Transaction) -> None:
        self._executor = executor
        self._entries = Collection(executor, WindowEntry)

    @overload
    async def append(
        self, context: str, text: str, *, kind: str = "note", data: dict[str, Any] | None = None
    ) -> WindowEntry: ...
    @overload
    async def append(
        self,
        context: str,
        text: list[str] | tuple[str, ...],
        *,
        kind: str = "note",
        data: dict[str, Any] | None = None,
    ) -> list[WindowEntry]: ...
    async def append(
        self,
        context: str,
        text: str | list[str] | tuple[str, ...],
        *,
        kind: str = "note",
        data: dict[str, Any] | None = None,
    ) -> WindowEntry | list[WindowEntry]:
        """Add an entry, or several, all or none. Entries of one context are numbered in the order
        they were added.
        """
        folder = _folder(context)

        async def body(transaction: Transaction) -> list[WindowEntry]:
            entries = transaction.collection(WindowEntry)
            last, now = await _last_number(entries, folder), clock.to_datetime(transaction.now())
            added = [
                WindowEntry(
                    id=folder + record_keys.numbered(number),
                    context=context,
                    at=now,
                    text=each,
                    kind=kind,
                    data=data or {},
                )
                for number, each in enumerate([text] if isinstance(text, str) else text, last + 1)
            ]
            await entries.put_many(added, Options(expected=0))
            return added

        added = await join(self._executor, body)
        return added[0] if isinstance(text, str) else added

    async def get(self, context: str) -> list[WindowEntry]:
        """The current entries, oldest first."""
        return await self.get_window(context, _EVER)

    async def get_window(
        self, context: str, window: TimeWindow, *, folded: bool = False
    ) -> list[WindowEntry]:
        """The entries of a span, oldest first: the current ones, or all the originals."""
        finder = (
            self._entries.query()
            .where("context", "=", context)
            .between("at", window.start, window.end)
            .order_by("at")
        )
        if not folded:
            return await finder.where("folded", "=", "").values()
        return [entry for entry in await finder.values() if not entry.covers]

    async def compress(self, context: str, strategy: Strategy) -> int:
        """Fold what the strategy says, all or nothing; returns how many entries were folded."""
        folder = _folder(context)

        async def body(transaction: Transaction) -> int:
            entries = transaction.collection(WindowEntry)
            standing = (
                await entries.query()
                .where("context", "=", context)
                .where("folded", "=", "")
                .order_by("at")
                .values()
            )
            decided = strategy(standing)
            replacements = await decided if isinstance(decided, Awaitable) else decided
            number = await _last_number(entries, folder)
            known = {entry.id for entry in standing}
            count = 0
            for replacement in replacements:
                number += 1
                await self._fold(entries, replacement, folder + record_keys.numbered(number), known)
                count += len(replacement.entries)
            return count

        return await join(self._executor, body)

    async def _fold(
        self, entries: Collection[WindowEntry], replacement: Replacement, id: str, known: set[str]
    ) -> None:
        folded = replacement.entries
        if not folded or not known.issuperset(entry.id for entry in folded):
            raise InvalidInput(
                "The strategy wants to fold entries that do not stand in this context.",
                hint="Fold each entry once, and only entries that the strategy was given.",
            )
        known.difference_update(entry.id for entry in folded)
        digest = WindowEntry(
            id=id,
            context=folded[-1].context,
            at=folded[-1].at,
            text=replacement.text,
            kind=replacement.kind,
            covers=sum(entry.covers or 1 for entry in folded),
        )
        await entries.put_many(
            [digest, *(msgspec.structs.replace(entry, folded=id) for entry in folded)]
        )


async def _last_number(entries: Collection[WindowEntry], folder: str) -> int:
    page = await entries.list(folder, limit=1, descending=True)
    return int(page.items[0].key.removeprefix(folder)) if page.items else 0


def _folder(context: str) -> str:
    """The key prefix of a context. The tilde keeps it apart from ``context/…``."""
    record_keys.check(context)
    if "~" in context.split("/"):
        raise InvalidKey(f"The context {context!r} has a part '~'.", hint="Rename it.")
    return f"{context}/~/"
