"""``perdure metrics``: what the processes of a bank have done, and what it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from perdure.cli import readable, terminal
from perdure.cli.bank_access import existing_bank
from perdure.cli.command_options import CommandSettings

if TYPE_CHECKING:
    from perdure.storage.metrics import Measure, OperationCounts
    from perdure.storage.metrics.metrics_publisher import ProcessMetrics
    from perdure.storage.rows import Size


class Told(NamedTuple):
    """What was found."""

    processes: list[ProcessMetrics]
    sizes: list[Size]
    now: int

    @property
    def counted(self) -> OperationCounts:
        from perdure.storage.metrics.metrics_middleware import together

        return together(each.counted for each in self.processes)


async def metrics(
    settings: CommandSettings,
    *,
    prometheus: Annotated[
        bool,
        typer.Option("--prometheus", help="Print it as Prometheus reads it, process by process."),
    ] = False,
) -> None:
    """Show what processes have done in the bank, and what it holds.

    Each process leaves its counters in the bank every metrics.publish_every seconds; those of the
    last day are added up. Processes that lived for less may have left none.
    """
    from perdure.storage.metrics.metrics_publisher import published

    if prometheus and settings.json:
        raise typer.BadParameter("Either this or --json.", param_hint="--prometheus")
    async with existing_bank(settings) as bank:
        store = bank.store
        told = Told(await published(store), await store.adapter.sizes(), store.now())
    if prometheus:
        _print_for_prometheus(told)
    elif settings.json:
        terminal.emit(_described(told))
    else:
        _show(told)


def _print_for_prometheus(told: Told) -> None:
    from perdure.storage.metrics.prometheus_text import MetricsSource, render

    sources = [MetricsSource(each.counted, each.cache, each.process) for each in told.processes]
    print(render(sources, told.sizes), end="")


def _described(told: Told) -> dict[str, Any]:
    return {
        "processes": [
            {"process": each.process, "started": each.started, "at": each.at, "cache": each.cache}
            for each in told.processes
        ],
        "operations": [
            {
                "operation": each.operation,
                "collection": each.collection,
                **_figures(each.measure),
            }
            for each in told.counted.figures
        ],
        "total": _figures(told.counted.totals()),
        "sizes": told.sizes,
    }


def _figures(measure: Measure) -> dict[str, Any]:
    return {
        "calls": measure.count,
        "errors": measure.errors,
        "cancelled": measure.cancelled,
        "rows": measure.rows,
        "bytes_read": measure.bytes_read,
        "bytes_written": measure.bytes_written,
        "seconds": measure.seconds,
        **{f"p{share}": _finite(measure.quantile(share / 100)) for share in (50, 95, 99)},
    }


def _finite(seconds: float) -> float | None:
    """None for infinity, which JSON lacks: beyond the last bucket."""
    return None if seconds == float("inf") else seconds


def _show(told: Told) -> None:
    if not told.processes:
        terminal.say("No process has left its counters here within the last day.")
    else:
        _show_operations(told)
    if told.sizes:
        from perdure.cli.bank_commands import show_collections

        largest = sorted(told.sizes, key=lambda size: (-(size.bytes or 0), -size.rows))
        terminal.say()
        show_collections([size for size in largest if size.rows])


def _show_operations(told: Told) -> None:
    newest = readable.relative_time(told.processes[0].at, told.now)
    count = len(told.processes)
    terminal.say(f"{count} process{'es' if count > 1 else ''} within the last day, {newest} last.")
    terminal.say()
    headings = ("Operation", "Collection", "Calls", "Errors", "p50", "p95", "Rows", "Read", "Wrote")
    terminal.table(
        headings,
        [
            (each.operation, each.collection or "–", *_cells(each.measure))
            for each in told.counted.figures
        ],
        right=7,
    )
    total = told.counted.totals()
    for name, errors in sorted(total.errors.items()):
        terminal.say(f"{terminal.plural(errors, name)}")


def _cells(measure: Measure) -> tuple[str, ...]:
    return (
        f"{measure.count:,}",
        f"{measure.failures:,}",
        _milliseconds(measure.quantile(0.5)),
        _milliseconds(measure.quantile(0.95)),
        f"{measure.rows:,}",
        terminal.format_size(measure.bytes_read),
        terminal.format_size(measure.bytes_written),
    )


def _milliseconds(seconds: float) -> str:
    return "> 30 s" if seconds == float("inf") else f"{seconds * 1e3:,.2f} ms"
