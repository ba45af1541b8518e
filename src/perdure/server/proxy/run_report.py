"""What one run of ``perdure proxy`` kept and saved, and where its log is."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

import msgspec

from perdure.core.display import plural
from perdure.gateway.prices import dollars
from perdure.history.turn_log import Written
from perdure.server.proxy.proxy_report import ProxyFigures
from perdure.storage.transaction import Transaction


class KeptTurns:
    """Notes which turns were written: `Bank.join` its `note`."""

    def __init__(self) -> None:
        self.turns: set[tuple[str, int]] = set()

    async def note(self, _: Transaction, written: Written) -> None:
        self.turns.update((written.session.id, each.turn) for each in written.rounds)

    @property
    def sessions(self) -> int:
        return len({session for session, _ in self.turns})


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is said at the end. Tokens are those that providers counted."""

    requests: int
    turns: int
    sessions: int
    figures: ProxyFigures
    #: What it cost at list prices, and what it would have cost if the client had sent its whole
    #: history each time: picodollars; None if a price is not known.
    cost: int | None = None
    alone: int | None = None
    #: The file with what went wrong; empty if nothing did.
    log: str = ""

    @classmethod
    def of(cls, figures: ProxyFigures, kept: KeptTurns, log: Path | None) -> RunReport:
        return cls(
            requests=sum(figures.requests.values()),
            turns=len(kept.turns),
            sessions=kept.sessions,
            figures=figures,
            cost=None if figures.unpriced else figures.cost,
            alone=None if figures.unpriced else figures.cost_alone,
            log=str(log or ""),
        )

    def lines(self) -> Iterator[str]:
        figures = self.figures
        if not self.requests:
            yield "perdure: no request came. Does the client's own configuration name an address?"
        else:
            kept = f"{plural(self.turns, 'turn')} in {plural(self.sessions, 'session')}"
            cached = _share(figures.cache_read, figures.input)
            yield (
                f"perdure: kept {kept}; {plural(self.requests, 'request')}, {figures.input:,}"
                f" tokens in ({cached} from the cache), {figures.output:,} out."
            )
            if figures.failed_upstream:
                yield f"perdure: {plural(figures.failed_upstream, 'request')} failed upstream."
            if figures.without_usage:
                yield (
                    f"perdure: {plural(figures.without_usage, 'answer')} told no usage and"
                    f" {'is' if figures.without_usage == 1 else 'are'} not in these figures: about"
                    f" {figures.input_estimated:,} tokens in, without system text and tools."
                )
            if figures.input_alone > figures.input:
                saved = figures.input_alone - figures.input
                yield f"perdure: the client alone would have sent {saved:,} tokens more."
            if self.cost is not None and figures.answers:
                yield f"perdure: {self._price()}."
        if figures.paused:
            yield f"perdure: {plural(figures.paused, 'request')} passed unrecorded, in a pause."
        if figures.failures:
            yield (
                f"perdure: {plural(figures.failures, 'request')} could not be recorded"
                f" ({figures.failure}); the client was served all the same."
            )
        if self.log:
            yield f"perdure: what went wrong is in {self.log}"

    def _price(self) -> str:
        said = f"{dollars(self.cost or 0)} at list prices"
        if self.alone is None or self.alone == self.cost:
            return said
        return f"{said}; the client alone: about {dollars(self.alone)}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "none"


class RunLog(logging.FileHandler):
    """A log file that is made when something is written to it, for its owner alone."""

    def __init__(self, folder: Path) -> None:
        name = time.strftime(f"proxy-%Y%m%d-%H%M%S-{os.getpid()}.log")
        super().__init__(folder / name, delay=True, encoding="utf-8")
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    @property
    def file(self) -> Path | None:
        path = Path(self.baseFilename)
        return path if path.exists() else None

    def _open(self) -> TextIOWrapper:
        path = Path(self.baseFilename)
        path.parent.mkdir(parents=True, exist_ok=True)
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return os.fdopen(made, "a", encoding="utf-8")


@contextmanager
def logging_to(folder: Path) -> Iterator[RunLog]:
    """All warnings and errors of this process go to a file: the terminal is the client's."""
    root, log = logging.getLogger(), RunLog(folder)
    before, root.handlers = root.handlers, [log]
    logging.captureWarnings(capture=True)
    try:
        yield log
    finally:
        logging.captureWarnings(capture=False)
        root.handlers = before
        log.close()
