"""``perdure ask``: one question to a model, streamed.

The answer goes to stdout, unchanged when that is a file or a pipe; thoughts and costs go to
stderr. Nothing is written to a session; the outcome and the budgets are in the bank.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, TypeAlias

import typer

from perdure.cli import readable, terminal
from perdure.cli.command_options import CommandSettings
from perdure.cli.terminal import ProgressBar
from perdure.core.errors import InvalidInput, StreamBroken

if TYPE_CHECKING:
    from perdure.core.messages import Message
    from perdure.gateway import calls
    from perdure.gateway.calls import Reply, Request
    from perdure.gateway.catalog import ModelCandidate
    from perdure.gateway.reply_stream import ReplyStream

STDIN = "-"


#: As in `perdure.gateway.calls`, which takes time to load. Nothing is answered for `embed`.
AskPurpose: TypeAlias = Literal["chat", "compress", "filter", "judge", "reflect"]
AskComplexity: TypeAlias = Literal["simple", "moderate", "complex"]


async def ask(
    settings: CommandSettings,
    question: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[QUESTION]...",
            help="What to ask; - stands for what is on stdin. Without it, stdin is the question.",
        ),
    ] = None,
    *,
    model: Annotated[
        str,
        typer.Option(
            "--model", "-m", metavar="PROVIDER/MODEL", help="This one alone, without fallback."
        ),
    ] = "",
    purpose: Annotated[
        AskPurpose, typer.Option("--purpose", help="Whose models are asked.")
    ] = "chat",
    task: Annotated[
        str, typer.Option("--task", metavar="NAME", help="The kind of work, such as code-review.")
    ] = "",
    complexity: Annotated[
        AskComplexity | None,
        typer.Option("--complexity", help="How hard it is; else as is known of the task."),
    ] = None,
    system: Annotated[
        str, typer.Option("--system", "-s", metavar="TEXT", help="Instructions for the model.")
    ] = "",
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", min=1, metavar="N", help="The longest answer allowed."),
    ] = None,
    agent: Annotated[
        str, typer.Option("--agent", metavar="NAME", help="Who asks, for budgets and costs.")
    ] = "",
    cache: Annotated[
        bool | None,
        typer.Option(
            "--cache/--no-cache",
            help="Whether the same answer may be used again; else as is configured.",
            show_default=False,
        ),
    ] = None,
    reasoning: Annotated[
        bool, typer.Option("--reasoning", help="Show what the model thinks, on stderr.")
    ] = False,
) -> None:
    """Ask a model, and print its answer as it arrives.

    Exits with 0 if it answered, with 1 if it could not, with 2 if nothing was asked, with 130 if it
    was interrupted.
    """
    import time

    request = _request(_question(question or []), system, max_tokens)

    from perdure.bank import Bank
    from perdure.gateway.calls import CallOptions
    from perdure.gateway.catalog import ModelCatalog

    asked = CallOptions(
        purpose=purpose, task=task, complexity=complexity, agent=agent, model=model, cache=cache
    )
    voice = AnswerPrinter(reasoning=reasoning, silent=settings.json)
    config = settings.load()
    candidates = ModelCatalog(config.gateway).candidates(asked)  # before a bank is made for nothing
    try:
        async with Bank(config=config) as bank:
            start = time.perf_counter()
            reply = await _listen(bank.gateway.stream(request, asked), voice, candidates)
            took = time.perf_counter() - start
    except StreamBroken as exc:
        if settings.debug:
            raise
        where = "in `partial`" if settings.json else "above"
        told = StreamBroken(exc.message, hint=f"What arrived is {where}. Ask again.")
        if settings.json:
            partial = getattr(exc.partial, "text", "")
            terminal.emit({"error": terminal.described(told), "partial": partial})
        else:
            terminal.complain(told)
        raise typer.Exit(1) from exc
    if settings.json:
        terminal.emit(reply_json(reply))
    else:
        terminal.note(reply_summary(reply, took), "dim")


def reply_json(reply: Reply) -> dict[str, Any]:
    usage = reply.usage
    counted = ("input", "output", "cache_read", "cache_write", "reasoning")
    return {
        "text": reply.text,
        "reasoning": _thoughts(reply.message),
        "finish": reply.finish,
        "provider": reply.provider,
        "model": reply.model,
        "usage": None if usage is None else {kind: getattr(usage, kind) for kind in counted},
        "cost": reply.cost,
        "dollars": readable.in_dollars(reply.cost),
        "cached": reply.cached,
        "fallback": reply.fallback,
        "first_token": reply.first_token,
        "latency": reply.latency,
        "outcome": reply.outcome,
    }


def reply_summary(reply: Reply, took: float) -> str:
    """What an answer took, in one line; `took` is in seconds, retries included."""
    usage = reply.usage
    joint = "#" if "://" in reply.provider else "/"
    facts = [f"{reply.provider}{joint}{reply.model}"]
    if reply.cached:
        facts.append("cached")
    elif usage is None or (usage.input is None and usage.output is None):
        facts.append("tokens unknown")
    else:
        cached = f" ({usage.cache_read:,} from its cache)" if usage.cache_read else ""
        facts.append(f"{_count(usage.input)} in{cached}, {_count(usage.output)} out")
    facts += [readable.cost_in_words(reply.cost), f"{took:.2f} s"]
    if reply.fallback:
        facts.append(f"fallback, after {terminal.plural(reply.fallback, 'other')}")
    if reply.finish in _CUT:
        facts.append(_CUT[reply.finish])
    return " · ".join(facts)


_CUT = {
    "length": "cut off: it reached the limit of length",
    "filter": "stopped by the provider's filter",
    "other": "cut off",
}


class AnswerPrinter:
    """Prints the answer on stdout and thoughts on stderr. On a terminal, control characters are
    escaped. Elsewhere the answer is left as it is: it may be a program's source.
    """

    def __init__(self, *, reasoning: bool = False, silent: bool = False) -> None:
        self._reasoning = reasoning and not silent
        self._silent = silent
        self._careful = sys.stdout.isatty()
        self._held = ""
        self._open: str | None = None  # the stream whose last line has not ended

    def say(self, delta: calls.Delta, before: Callable[[], object]) -> None:
        """Print a piece, if it is one that is shown; then `before` is called first."""
        from perdure.gateway.calls import ReasoningDelta, TextDelta

        if isinstance(delta, ReasoningDelta) and self._reasoning:
            before()
            self._think(delta.text)
        elif isinstance(delta, TextDelta) and not self._silent:
            before()
            self._tell(delta.text)

    def close(self) -> None:
        """Complete the last line."""
        if self._held:
            held, self._held = self._held, ""
            sys.stdout.write(terminal.visible(held))
        self._break()

    def _tell(self, text: str) -> None:
        if self._open == "stderr":
            self._break()
        if self._careful:
            # A line may end in two characters, and a chunk between them.
            text, self._held = self._held + text, ""
            if text.endswith("\r"):
                text, self._held = text[:-1], "\r"
            rows = text.replace("\r\n", "\n").split("\n")
            text = "\n".join(terminal.visible(row.replace("\t", "    ")) for row in rows)
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._open = None if text.endswith("\n") else "stdout"

    def _think(self, text: str) -> None:
        if self._open == "stdout":
            self._break()
        terminal.murmur(text)
        self._open = None if text.endswith("\n") else "stderr"

    def _break(self) -> None:
        if self._open == "stdout":
            sys.stdout.write("\n")
            sys.stdout.flush()
        elif self._open == "stderr":
            terminal.murmur("\n")
        self._open = None


def waiting_for(candidates: Sequence[ModelCandidate]) -> ProgressBar:
    first, *others = candidates
    more = f", or {terminal.plural(len(others), 'other')}" if others else ""
    return ProgressBar(f"waiting for {first.name}{more} …")


async def _listen(
    stream: ReplyStream, voice: AnswerPrinter, candidates: Sequence[ModelCandidate]
) -> Reply:
    with contextlib.closing(voice):
        async with waiting_for(candidates) as bar, stream:
            async for delta in stream:
                voice.say(delta, bar.close)
            return stream.reply


def _question(words: list[str]) -> str:
    """The words of the command line, with stdin in the place of ``-``. Raises
    `typer.BadParameter` if there are none, and `InvalidInput` if stdin is no text.
    """
    stdin: TextIO | None = sys.stdin  # none, if the shell closed it
    if not words and stdin is not None and not stdin.isatty():
        words = [STDIN]
    parts = list[str]()
    for is_stdin, said in groupby(words, key=lambda word: word == STDIN):
        if not is_stdin:
            parts.append(" ".join(said))
        elif stdin is not None:
            parts.append(_text(stdin.buffer.read()))
    question = "\n\n".join(part for part in parts if part.strip())
    if not question.strip():
        raise typer.BadParameter(
            'There is no question. Write it behind the command, perdure ask "…", or give it on'
            " stdin.",
            param_hint="QUESTION",
        )
    return question


def _text(given: bytes) -> str:
    try:
        return given.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise InvalidInput(
            f"What is on stdin is not text in UTF-8, from its byte {exc.start:,} on.",
            hint="Give text; what is in another encoding, iconv -f LATIN1 -t UTF-8 converts.",
        ) from None


def _request(question: str, system: str, max_tokens: int | None) -> Request:
    from perdure.core.messages import Message, Text, user
    from perdure.gateway.calls import Request

    instructions = (Message("system", (Text(system),)),) if system else ()
    return Request(messages=(*instructions, user(question)), max_tokens=max_tokens)


def _thoughts(message: Message) -> str:
    from perdure.core.messages import Reasoning, words_of

    said = (words_of(part) for part in message.parts if isinstance(part, Reasoning))
    return "\n\n".join(words for words in said if words)


def _count(tokens: int | None) -> str:
    return "?" if tokens is None else f"{tokens:,}"
