"""``perdure renditions``: state of the shortened forms of turns, and making missing ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import readable, terminal
from perdure.cli.bank_access import existing_bank, find_session
from perdure.cli.command_options import CommandSettings
from perdure.cli.terminal import ProgressBar

if TYPE_CHECKING:
    from perdure.history.renditions.rendition_status import RenditionStatus

_MAKE = "make"
_NAMES = {"S": "smoothed", "C": "compressed", "T": "tiny"}
_STATES = ("missing", "pending", "failed", "given_up", "stale")


async def renditions(
    settings: CommandSettings,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[make] [SESSION]",
            help="The session, or the beginning or end of its name if unique; all, if none is"
            " named. With `make`, what is missing of it is made.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show how the shortened forms of turns stand, and what they cost.

    Rounds have a smoothed and a compressed form, turns a tiny one. They are made in the background,
    and at once when they are needed: `perdure renditions make SESSION` makes them now. Shares are
    of the tokens that the same rounds and turns have as they were said.
    """
    make, session = _parsed(words or [])
    made = None
    async with ProgressBar("looking at renditions") as bar, existing_bank(settings) as bank:
        record = None if session is None else (await find_session(bank, session)).record
        if make and record is not None:
            made = await bank.services.renditions.catch_up(record, bar)
        found = await bank.services.renditions.status(None if record is None else record.id)
    found = [each for each in found if each.turns or session is not None]
    if settings.json:
        terminal.emit({"made": made, "sessions": [_described(each) for each in found]})
    else:
        if made is not None:
            terminal.say(f"Looked at {terminal.plural(made, 'turn')}: nothing is missing now.")
        _show(found, alone=session is not None)


def _parsed(words: list[str]) -> tuple[bool, str | None]:
    """Whether to make something, and of which session. `make` alone is not a session's name."""
    make = bool(words) and words[0] == _MAKE
    names = words[1:] if make else words
    if len(names) > 1 or (make and not names):
        raise typer.BadParameter(
            "Write `perdure renditions [SESSION]`, or `perdure renditions make SESSION`."
        )
    return make, names[0] if names else None


def _show(found: list[RenditionStatus], *, alone: bool) -> None:
    if not found:
        terminal.say("No session has turns yet.")
        return
    if alone:
        _show_one(found[0])
        return
    rows = [
        [
            each.session,
            *(_number(getattr(each, state)) for state in _STATES),
            _number(each.by_model),
            *(_share(each, level) for level in _NAMES),
            readable.cost_in_words(each.cost) if each.calls else "",
        ]
        for each in found
    ]
    headings = ["session", "missing", "pending", "failed", "given up", "stale", "by model"]
    terminal.table([*headings, *_NAMES, "cost"], rows, right=len(headings) + 3)


def _show_one(status: RenditionStatus) -> None:
    turns = terminal.plural(status.turns, "turn")
    terminal.say(f"{status.session}: {turns}, {terminal.plural(status.rounds, 'round')}.")
    made = status.by_algorithm + status.by_model
    terminal.say(f"{made:,} made, {status.by_model:,} of them by a model.")
    states = [
        f"{count:,} {state.replace('_', ' ')}"
        for state in _STATES
        if (count := getattr(status, state))
    ]
    terminal.say(f"{', '.join(states)}." if states else "Nothing is missing, waits or has failed.")
    if status.levels:
        rows = [
            [f"{level} {name}", f"{found.tokens:,}", f"{found.raw:,}", _share(status, level)]
            for level, name in _NAMES.items()
            if (found := status.levels.get(level)) is not None
        ]
        terminal.table(["level", "tokens", "of", "share"], rows, right=3)
    for problem, count in status.problems.items():
        terminal.say(f"{count:,} × {problem}")
    if status.calls:
        calls = terminal.plural(status.calls, "model call")
        terminal.say(f"{calls}: {readable.cost_in_words(status.cost)}.")


def _number(count: int) -> str:
    return f"{count:,}" if count else ""


def _share(status: RenditionStatus, level: str) -> str:
    found = status.levels.get(level)
    ratio = None if found is None else found.ratio
    return "" if ratio is None else f"{ratio:.1%}"


def _described(status: RenditionStatus) -> dict[str, Any]:
    import msgspec

    levels = {
        name: {"tokens": level.tokens, "raw": level.raw, "ratio": level.ratio}
        for name, level in status.levels.items()
    }
    plain = {**msgspec.structs.asdict(status), "levels": levels}
    return {**plain, "dollars": readable.in_dollars(status.cost)}
