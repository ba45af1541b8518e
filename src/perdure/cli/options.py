"""What every command takes, before or after its name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object, and nothing else, on stdout.")
]


@dataclass
class Settings:
    """What was asked for on the command line. One per run, in `typer.Context.obj`."""

    bank: str | None = None
    config: Path | None = None
    json: bool = False
    debug: bool = False

    def load(self) -> Config:
        """The configuration in force, with the bank of the command line put into it.

        Raises `InvalidConfig`, and `InvalidURL` if the command line names no address.
        """
        import msgspec

        from perdure import config
        from perdure.storage import urls

        loaded = config.load(self.config)
        if self.bank is None:
            return loaded
        urls.parse(self.bank)  # an empty one, such as of an unset variable, is not the default
        return msgspec.structs.replace(loaded, bank=self.bank)


def refine(
    ctx: typer.Context,
    *,
    bank: str | None = None,
    config: Path | None = None,
    json: bool = False,
    debug: bool = False,
) -> Settings:
    """The global options with those that stand behind the command's name put over them."""
    settings: Settings = ctx.obj
    settings.bank = settings.bank if bank is None else bank
    settings.config = config or settings.config
    settings.json = json
    settings.debug = settings.debug or debug
    return settings
