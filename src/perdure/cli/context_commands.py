"""``perdure context``: the prompt that a model would be sent, or was sent, and why."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from perdure.cli import readable, terminal
from perdure.cli.bank_access import SessionArgument, existing_bank, find_session, searched_bank
from perdure.cli.command_options import CommandSettings
from perdure.cli.terminal import ProgressBar
from perdure.core import clock
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.context.context import Context
    from perdure.core.messages import Part
    from perdure.history.epochs import Epoch
    from perdure.sessions.session import Session

#: Stands for the prompt that is still to come.
PLACEHOLDER = "…"

Wire = Literal["chat", "responses", "messages"]


class PromptOptions(NamedTuple):
    """Which prompt is asked for."""

    prompt: str | None = None
    system: str = ""
    tools: bool = False
    budget: int | None = None
    model: str = ""
    at: str | None = None
    strategy: str | None = None

    @property
    def is_new(self) -> bool:
        return self._replace(at=None) != PromptOptions()


async def context(
    settings: CommandSettings,
    session: SessionArgument,
    *,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            "-p",
            metavar="TEXT",
            help=f"The next prompt. Without it an open turn goes on; else “{PLACEHOLDER}” stands"
            " for it.",
        ),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option("--budget", metavar="N", help="Tokens of messages; else the session's own."),
    ] = None,
    system: Annotated[
        str, typer.Option("--system", "-s", metavar="TEXT", help="Instructions for the model.")
    ] = "",
    tools: Annotated[
        bool, typer.Option("--tools", help="Offer the tools by which a model reaches its past.")
    ] = False,
    model: Annotated[
        str,
        typer.Option("--model", metavar="NAME", help="Who is asked: tells which reasoning holds."),
    ] = "",
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="T-120", help="What was sent for this turn, or for T-120.3."),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option("--strategy", metavar="NAME", help="Show it so; else as the session does."),
    ] = None,
    wire: Annotated[
        Wire | None, typer.Option("--wire", help="Print the body of a request to such an API.")
    ] = None,
    text: Annotated[
        bool, typer.Option("--text", help="Its words, too. Off a terminal they always follow.")
    ] = False,
    epochs: Annotated[
        bool, typer.Option("--epochs", help="List when and why the gradient was recalculated.")
    ] = False,
) -> None:
    """Show the prompt that a model would be sent next, and why it is so.

    Looking changes nothing: no epoch is recorded. With --at it is a prompt that was sent, put
    together again byte for byte; turns that were forgotten since are tombstones in it.
    """
    asked = PromptOptions(prompt, system, tools, budget, model, at, strategy)
    if epochs:
        if asked != PromptOptions() or wire is not None or text:
            raise InvalidInput("--epochs lists all of them.", hint="Give it alone, or with --json.")
        async with existing_bank(settings) as bank:
            looked_at = await find_session(bank, session)
            _show_epochs(settings, looked_at.name, await looked_at.epochs())
        return
    if at is not None and asked.is_new:
        raise InvalidInput(
            "--at shows a prompt as it was sent.",
            hint="Leave out --prompt, --system, --tools, --budget, --strategy and --model.",
        )
    async with searched_bank(settings) as bank, ProgressBar("putting it together"):
        found = await _context(await find_session(bank, session), asked)
    if settings.json:
        terminal.emit(context_json(found, wire, text=text))
    elif wire is not None:
        terminal.emit(request_body(found, wire))
    else:
        _show(found, text=text)


def request_body(found: Context, wire: Wire) -> dict[str, Any]:
    if wire == "chat":
        return found.to_chat()
    return found.to_responses() if wire == "responses" else found.to_messages()


def context_json(found: Context, wire: Wire | None, *, text: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "session": found.session,
        "turn": f"T-{found.turn}",
        "budget": found.budget,
        "tokens": found.tokens,
        "raw": sum(band.raw for band in found.bands),
        "epoch": found.shown.epoch,
        "bands": found.bands,
        "blocks": found.explain(),
    }
    if text:
        fields["text"] = "\n".join(_lines(found))
    return fields if wire is None else {**fields, "wire": wire, "body": request_body(found, wire)}


async def _context(session: Session, asked: PromptOptions) -> Context:
    from perdure.cli.show_commands import position
    from perdure.context.history_tools import HISTORY_TOOLS

    if asked.at is not None:
        return await session.past_context(position(asked.at))
    prompt = asked.prompt
    if prompt is None:
        head = await session.head()
        is_open = head.turn and not (head.closed or head.mark.fresh or head.mark.closed)
        prompt = None if is_open else PLACEHOLDER
    elif not prompt.strip():
        raise InvalidInput("The prompt is empty.", hint="Write something, or leave out --prompt.")
    return await session.context(
        prompt,
        system=asked.system,
        tools=HISTORY_TOOLS if asked.tools else (),
        model=asked.model,
        budget=asked.budget,
        keep=False,
        strategy=asked.strategy,
    )


def _show(found: Context, *, text: bool) -> None:
    from perdure.cli.charts import BandChart

    terminal.say(
        f"{found.session} T-{found.turn}: {found.tokens:,} of {found.budget:,} tokens"
        + (f", epoch {found.shown.epoch}" if found.shown.epoch else ""),
        "bold",
    )
    terminal.say()
    terminal.render(BandChart(found.bands, found.budget))
    terminal.say()
    terminal.table(
        ("Block", "", "Why", "Tokens", "Raw"),
        [
            (
                f"{block.name}-{block.level}" if block.level else block.name,
                "" if block.kind in {"block", "native"} else block.kind,
                block.why,
                f"{block.tokens:,}",
                f"{block.raw:,}" if block.level else "",
            )
            for block in found.explain()
        ],
        right=2,
    )
    if text or not sys.stdout.isatty():
        terminal.verbatim(_lines(found))


def _lines(found: Context) -> Iterator[str]:
    """The words of a prompt, each message below the name of who says it."""
    if found.system:
        yield from ("", "── system", *_split(found.system))
    for message in found.messages:
        yield from ("", f"── {message.role}")
        for part in message.parts:
            yield from _split(_said(part))


def _split(text: str) -> list[str]:
    return text.replace("\r\n", "\n").expandtabs(4).split("\n")


def _said(part: Part) -> str:
    from perdure.core.messages import Media, Text, ToolCall, ToolResult, words_of
    from perdure.history import gist

    if isinstance(part, Text):
        return part.text
    if isinstance(part, ToolCall):
        return f"[{part.id}] {part.name}({part.arguments})"
    if isinstance(part, ToolResult):
        content = "\n".join(map(_said, part.content))
        return f"[{part.call}]{' failed:' if part.is_error else ''} {content}"
    if isinstance(part, Media):
        return f"[{gist.described(part)}]"
    return words_of(part)


def _show_epochs(settings: CommandSettings, name: str, made: list[Epoch]) -> None:
    if settings.json:
        terminal.emit({"session": name, "epochs": [_epoch(each) for each in made]})
        return
    if not made:
        terminal.say(f"{name} has no epochs yet: all that was sent stood there as it was said.")
        return
    now = clock.now()
    terminal.table(
        ("Epoch", "For", "Reason", "", "When", "Budget", "Before", "After"),
        [
            (
                str(each.number),
                str(each.at),
                each.reason,
                "forced" if each.forced else "",
                readable.relative_time(each.time, now),
                f"{each.budget:,}",
                f"{each.before:,}" if each.before else "",
                f"{each.after:,}",
            )
            for each in made
        ],
        right=3,
    )


def _epoch(made: Epoch) -> dict[str, Any]:
    return {
        "number": made.number,
        "at": str(made.at),
        "reason": made.reason,
        "forced": made.forced,
        "time": made.time,
        "model": made.model,
        "budget": made.budget,
        # It was more than was worth counting.
        "before": made.before or None,
        "after": made.after,
    }
