"""``perdure reflect``: distil memories from past turns, look at runs, take one back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import readable, terminal
from perdure.cli.bank_access import (
    changed_bank,
    existing_bank,
    find_session,
    require_agent,
    working_bank,
)
from perdure.cli.command_options import CommandSettings, LimitOption
from perdure.core.display import plural

if TYPE_CHECKING:
    from perdure.reflection.reflection_records import ReflectionRun, RunPreview

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Its name: planner/R-3.")]
AgentOption = Annotated[str | None, typer.Option("--agent", help="Only for this agent.")]


async def run(
    settings: CommandSettings,
    *,
    agent: AgentOption = None,
    session: Annotated[
        str | None, typer.Option("--session", help="Only what is new in this session.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Read everything once more, not only what is new.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tell what it would read and may spend; ask nobody.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the answers of a batch, which may take hours.")
    ] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Ask at once, for the full price, not by batch.")
    ] = False,
) -> None:
    """Distil memories from what is new, with the models of `reflect` or without.

    What it spent is shown, and what is left of the day's budget; over it nothing starts. Where the
    provider has a batch mode, its answers come later, for half the price; run it again then.
    """
    # A batch is sent, and looked after, by the bank's background work.
    asks = bool(settings.load().gateway.models.reflect) and not dry_run
    async with working_bank(settings) if asks else changed_bank(settings) as bank:
        if agent is not None:
            await require_agent(bank, agent)
        name = None if session is None else (await find_session(bank, session)).name
        reflection = bank.reflection

        def foresee(expected: RunPreview) -> None:
            if not settings.json:
                for line in _foreseen(expected, waits=wait and not dry_run).splitlines():
                    terminal.note(line)

        if dry_run:
            expected = await reflection.preview(agent, session=name, again=again, live=live)
            for each in expected:
                foresee(each)
            _end(settings, _plain(expected))
            return
        runs = await reflection.reflect(
            agent, session=name, again=again, live=live, wait=wait, foresee=foresee
        )
        if not settings.json:
            for done in runs:
                terminal.say(_told(done))
        _end(settings, [_as_json(done) for done in runs])


def _end(settings: CommandSettings, runs: list[dict[str, Any]]) -> None:
    if settings.json:
        terminal.emit({"runs": runs})
    elif not runs:
        terminal.note("Nothing is new.")


async def list_(
    settings: CommandSettings, *, agent: AgentOption = None, limit: LimitOption = 50
) -> None:
    """List runs, the newest first."""
    async with existing_bank(settings) as bank:
        if agent is not None:
            await require_agent(bank, agent)
        found = await bank.reflection.list(agent, limit=limit or 10**9)
        now = bank.store.now()
    if settings.json:
        terminal.emit({"runs": [_as_json(each) for each in found]})
        return
    if not found:
        terminal.say("There are no runs yet. `perdure reflect` begins one.")
        return
    rows = [
        (
            each.name,
            each.state,
            readable.relative_time(each.started, now),
            f"{sum(each.counts.applied.values()):,}",
            f"{each.tokens:,}",
            readable.cost_in_words(each.cost) if each.mode else "no model",
        )
        for each in found
    ]
    terminal.table(("Run", "State", "When", "Operations", "Tokens", "Cost"), rows)


async def show(settings: CommandSettings, name: RunArgument) -> None:
    """Show a run: its questions, its operations, what was refused and why."""
    async with existing_bank(settings) as bank:
        found, changes = await bank.reflection.get(name)
    operations = () if changes is None else changes.operations
    if settings.json:
        told = _plain(operations)
        terminal.emit({**_as_json(found), "operations": told, "undoable": changes is not None})
        return
    terminal.say(_told(found))
    for call in found.calls:
        where = f" {call.span.session}" if call.span else ""
        spent = f"{call.tokens:,} tokens" if call.tokens else call.error
        terminal.say(f"  {call.id}{where}: {call.state} {spent}".rstrip())
    rows = [
        (
            each.op,
            ", ".join(each.keys),
            f"refused: {each.refused}" if each.refused else each.text,
            ", ".join(each.evidence),
        )
        for each in operations
    ]
    if rows:
        terminal.table(("Operation", "Memory", "What", "Evidence"), rows)
    else:
        terminal.say("It has no operations.")
    if changes is not None and found.is_finished:
        terminal.note(f"`perdure reflect undo {found.name}` takes it back.")


async def undo(settings: CommandSettings, name: RunArgument) -> None:
    """Put back what a run changed, with its open messages; give up one that waits."""
    async with changed_bank(settings) as bank:
        _, changes = await bank.reflection.get(name)
        done = await bank.reflection.undo(name)
        if settings.json:
            terminal.emit(_as_json(done))
        elif changes is None:
            terminal.say(f"{done.name} is given up: what it was to read stays new.")
        elif changes.is_empty:
            terminal.say(f"{done.name} had changed nothing: there was nothing to put back.")
        else:
            terminal.say(f"{done.name} is undone: memories are as they were before it.")


def _plain(value: object) -> Any:
    from msgspec import to_builtins

    return to_builtins(value)


def _as_json(found: ReflectionRun) -> dict[str, Any]:
    data: dict[str, Any] = _plain(found)
    defaults = {"trigger": found.trigger, "mode": found.mode, "tokens": found.tokens}
    return {"run": found.name, **defaults, **data, "dollars": readable.in_dollars(found.cost)}


def _foreseen(expected: RunPreview, *, waits: bool) -> str:
    from perdure.reflection.run_messages import told_waiting

    what = f"{plural(expected.turns, 'turn')} of {plural(expected.sessions, 'session')}"
    if not expected.mode:
        known = "".join(f"\n  {each}" for each in expected.operations)
        return f"{expected.agent}: {what}; no model is configured for reflect.{known}"
    asked = plural(expected.questions, "question")
    asked += " by batch, at half the price" if expected.mode == "batch" else ""
    price = "" if expected.cost is None else f", {readable.cost_in_words(expected.cost)}"
    left = _left(expected.left, expected.cost_left)
    told = f"{expected.agent}: {what}; {asked}, at most {expected.tokens:,} tokens{price}{left}."
    told += f"\n{told_waiting(expected)}" if expected.waiting_turns else ""
    if waits and expected.mode == "batch":
        told += (
            "\nAnswers may take hours. `perdure batches` shows how it stands; Ctrl-C loses nothing."
        )
    return told


def _left(tokens: int | None, cost: int | None) -> str:
    """What is left of the day's budget, in words."""
    limits = [] if tokens is None else [f"{tokens:,} tokens"]
    limits += [] if cost is None else [readable.cost_in_words(cost)]
    return f"; {' and '.join(limits)} are left today" if limits else ""


def _told(found: ReflectionRun) -> str:
    done = ", ".join(f"{count} {op}" for op, count in found.counts.applied.items())
    left = found.counts.messages
    unchanged = "no memory changed" if left else "nothing changed"
    facts = [f"{found.name} is {found.state}", done or unchanged]
    if found.counts.proposed:
        facts.append(f"{found.counts.proposed} proposed")
    if left:
        facts.append(f"{plural(left, 'message')} in the inbox (`perdure inbox`)")
    if refused := sum(found.counts.refused.values()):
        facts.append(f"{refused} refused")
    if found.mode:
        facts.append(f"{found.tokens:,} tokens, {readable.cost_in_words(found.cost)}")
    if not found.is_finished:
        later = "it waits for answers; `perdure reflect` goes on when they are there"
        return f"{facts[0]}; {later}." if not found.why else f"{facts[0]}; {found.why}"
    if found.waiting_turns:
        facts.append(f"{plural(found.waiting_turns, 'turn')} wait for the next run")
    told = "; ".join(facts) + _left(found.left_after, found.cost_left_after)
    return f"{told}; {found.why}" if found.why else f"{told}."
