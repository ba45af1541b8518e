"""``perdure batches``: requests that were sent in providers' batch modes, and how they stand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import readable, terminal
from perdure.cli.bank_access import existing_bank
from perdure.cli.command_options import CommandSettings
from perdure.core import clock

if TYPE_CHECKING:
    from perdure.gateway.batches.batch_records import BatchResult, BatchView

#: Items that did not succeed, of which so many are told.
_MOST = 20


async def batches(
    settings: CommandSettings,
    batch: Annotated[
        str, typer.Argument(metavar="[BATCH]", help="One of them: its id, or the beginning of it.")
    ] = "",
    *,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Want no more of it. A running process does it.")
    ] = False,
) -> None:
    """Show batches of requests to models, or one of them with its items.

    Exits with 0 also if a batch failed.
    """
    from perdure.gateway.batches.batch_records import BatchView

    if cancel and not batch:
        raise typer.BadParameter("Say which batch.", param_hint="--cancel")
    async with existing_bank(settings) as bank:
        service, now = bank.gateway.batch, bank.store.now()
        if not batch:
            found = [BatchView.of(record) for record in await service.list()]
            _list(settings, found, now)
            return
        record = await service.find(batch)
        if cancel:
            record = await service.cancel(record)
        results = [each async for each in service.results(record)]
    _show(settings, BatchView.of(record), results, now)


def _list(settings: CommandSettings, found: list[BatchView], now: int) -> None:
    if settings.json:
        terminal.emit({"batches": found})
    elif not found:
        terminal.say("There are no batches.")
    else:
        headings = ("Id", "State", "Model", "For", "Done", "Cost", "Written")
        rows = [
            (
                view.id[:12],
                _state(view),
                f"{view.provider}/{view.model}",
                view.task or view.purpose,
                f"{view.items - _waiting(view)} of {view.items}",
                _cost(view),
                readable.relative_time(view.written, now),
            )
            for view in found
        ]
        terminal.listing(headings, rows)


def _show(settings: CommandSettings, view: BatchView, results: list[BatchResult], now: int) -> None:
    import msgspec

    if settings.json:
        items = [
            {"custom_id": r.custom_id, "state": r.state, "error": r.error or None, "why": r.reason}
            for r in results
        ]
        terminal.emit({**msgspec.to_builtins(view), "results": items})
        return
    terminal.say(f"Batch {view.id}: {_state(view)}, {readable.relative_time(view.written, now)}")
    counted = ", ".join(f"{count} {state}" for state, count in view.counts.items())
    terminal.say(f"  {view.provider}/{view.model} ({view.mode}): {counted}; {_cost(view)}")
    for part in view.parts:
        known = f" as {part.remote}" if part.remote else ""
        terminal.say(f"  {terminal.plural(part.items, 'item')}{known}: {part.state}")
    if view.next_look is not None:
        ahead = readable.time_ahead(clock.from_datetime(view.next_look), now)
        terminal.say(f"  looked at {ahead}")
    if view.error:
        terminal.prose(f"  {view.error}")
    failed = [each for each in results if each.error]
    for each in failed[:_MOST]:
        terminal.prose(f"  {each.custom_id}: {each.state}. {each.reason}".rstrip())
    if len(failed) > _MOST:
        terminal.say(f"  and {len(failed) - _MOST} more")


def _state(view: BatchView) -> str:
    return "cancelling" if view.cancelling else view.state.replace("_", " ")


def _waiting(view: BatchView) -> int:
    return next((count for state, count in view.counts.items() if state == "waiting"), 0)


def _cost(view: BatchView) -> str:
    if not view.cost:
        return readable.UNKNOWN_COST if view.unknown_costs else "nothing"
    return readable.cost_in_words(view.cost) + (" or more" if view.unknown_costs else "")
