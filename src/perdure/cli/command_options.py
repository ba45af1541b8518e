"""The options of every command, before or after its name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from datetime import datetime
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from perdure.cli import terminal
from perdure.core import clock
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.config import Config

BankOption = Annotated[
    str | None,
    typer.Option("--bank", metavar="URL", help="The bank's address, such as sqlite:///memory.db."),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Read this configuration file."),
]
DebugOption = Annotated[
    bool, typer.Option("--debug", help="Show a traceback when something goes wrong.")
]
_JSON = "Print one JSON object, and nothing else, on stdout."


YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
LimitOption = Annotated[
    int, typer.Option("--limit", min=0, help="Show at most so many; 0 shows all.")
]


@dataclass
class CommandSettings:
    """The global options. One per run, in `typer.Context.obj`."""

    bank: str | None = None
    config: Path | None = None
    json: bool = False
    debug: bool = False

    def load(self) -> Config:
        """The configuration, with the bank of the command line. Raises `InvalidConfig`, and
        `InvalidURL` if the command line names no address.
        """
        import msgspec

        from perdure import config
        from perdure.storage import registry

        loaded = config.load(self.config)
        if self.bank is None:
            return loaded
        registry.parse(self.bank)  # an empty one, such as of an unset variable, is not the default
        return msgspec.structs.replace(loaded, bank=self.bank)

    def confirm(self, question: str, *words: str, done: str, yes: bool) -> None:
        """Ask, after some lines about it, unless `yes` was given. Raises `typer.Exit` if the answer
        is no, also if nobody is there to give it, and `InvalidInput` with ``--json``.
        """
        if yes:
            return
        if self.json:
            raise InvalidInput("With --json nobody is asked.", hint="Add --yes to do it.")
        for line in words:
            terminal.note(line)
        try:
            agreed = typer.confirm(question, err=True)
        except typer.Abort:
            agreed = False
        if not agreed:
            terminal.note(f"Nothing was {done}.")
            raise typer.Exit(1)


def moment_of(since: str) -> datetime:
    """The time of ``--since``. Raises `typer.BadParameter`."""
    try:
        return clock.to_datetime(clock.moment(since, clock.now()))
    except InvalidInput as exc:
        raise typer.BadParameter(str(exc), param_hint="--since") from exc


#: A command's function; its first argument are the `CommandSettings`.
Command: TypeAlias = Callable[..., Coroutine[Any, Any, None] | None]


def common_options(
    work: Command, *, without: Collection[str] = (), json: str | None = None
) -> Callable[..., None]:
    """A command as typer takes it, with ``--bank``, ``--config``, ``--json`` and ``--debug``.
    `json` is the help for ``--json`` where it means something else.
    """
    options: dict[str, tuple[Any, Any]] = {
        "bank": (BankOption, None),
        "config": (ConfigOption, None),
        "json": (Annotated[bool, typer.Option("--json", help=json or _JSON)], False),
        "debug": (DebugOption, False),
    }
    common = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in options.items()
        if name not in without
    ]
    context = Parameter("ctx", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    _, *own = inspect.signature(work, eval_str=True).parameters.values()
    parameters = [context, *own, *common]

    @functools.wraps(work)
    def command(ctx: typer.Context, **options: Any) -> None:
        settings = _refined(ctx.obj, {each.name: options.pop(each.name) for each in common})
        done = work(settings, **options)
        if done is not None:
            import asyncio

            asyncio.run(done)

    # This is where typer looks for options.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _refined(settings: CommandSettings, options: dict[str, Any]) -> CommandSettings:
    """The global options, overridden by those after the command's name."""
    if options.get("bank") is not None:
        settings.bank = options["bank"]
    settings.config = options.get("config") or settings.config
    settings.json = options["json"]
    settings.debug = settings.debug or options["debug"]
    return settings
