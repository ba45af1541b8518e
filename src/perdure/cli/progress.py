"""Progress bars for work that takes longer than a second."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from perdure.cli.terminal import console, printable

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from rich.progress import Progress

#: Seconds after which a bar appears.
PATIENCE = 1.0


class Bar:
    """A progress bar on stderr, for work on an event loop that takes longer than `PATIENCE`.

    A `perdure.storage.store.Progress`: call it with what is being done, how much of it is done, and
    of how much. Silent where stderr is not a terminal.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._done, self._total = 0, 0
        self._timer: asyncio.TimerHandle | None = None
        self._shown: Progress | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        self._what, self._done, self._total = what, done, total
        self._update()

    def pause(self) -> None:
        """Take the bar away, so that a line can be printed; it comes back with the next call."""
        if self._shown is not None:
            self._shown.stop()

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._show)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.pause()

    def _show(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

        self._shown = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            console=console(error=True),
            transient=True,
            # Or rich would catch what is printed on stdout, and print it on stderr.
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._shown.add_task("", total=None)
        self._update()

    def _update(self) -> None:
        if self._shown is not None:
            (task,) = self._shown.task_ids
            self._shown.update(
                task,
                description=printable(self._what),
                completed=self._done,
                total=self._total or None,
            )
            self._shown.start()
