"""The command's groups and global options, and the border where errors become words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from perdure import __version__
from perdure.cli import (
    artifacts,
    ask,
    audit,
    bank,
    conformance,
    context,
    costs,
    doctor,
    examples,
    export,
    forget,
    importing,
    index,
    keys,
    memory,
    metrics,
    models,
    recall,
    reference,
    renditions,
    schema,
    sessions,
    share,
    show,
    simulate,
    tail,
    terminal,
    verify,
)
from perdure.cli.options import BankOption, ConfigOption, DebugOption, Settings
from perdure.core.errors import PerdureError

if TYPE_CHECKING:
    from typer.models import Context


class Border(TyperGroup):
    """Shows errors of Perdure's own tree as one line; usage errors are typer's business."""

    def invoke(self, ctx: Context) -> Any:  # type: ignore[override]  # typer's inner Context
        try:
            return super().invoke(ctx)
        except PerdureError as exc:
            settings = ctx.obj if isinstance(ctx.obj, Settings) else Settings()
            if settings.debug:
                raise
            terminal.complain(exc)
            if settings.json:
                terminal.emit({"error": terminal.described(exc)})
            raise typer.Exit(1) from exc


app = typer.Typer(
    name="perdure",
    cls=Border,
    help="Persistent memory for LLM agents.",
    epilog="The bank is the one of --bank, else of PERDURE_BANK, else of the configuration file,"
    " else a file in your data folder.",
    no_args_is_help=True,
    # Plain help: loading rich would double the time that --help takes.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("import")(importing.import_)
app.command("sessions")(sessions.sessions)
app.command("show")(show.show)
app.command("turn")(show.turn)
app.command("tail")(tail.tail)
app.command("fork")(sessions.fork)
app.command("export")(export.export)
app.command("forget")(forget.forget)
app.command("ask")(ask.ask)
app.command("models")(models.models)
app.command("costs")(costs.costs)
app.command("context")(context.context)
app.command("recall")(recall.recall)
app.add_typer(memory.app, name="memory")
app.add_typer(reference.app, name="reference")
app.add_typer(index.app, name="index")
app.command("share")(share.share)
app.command("renditions")(renditions.renditions)
app.command("simulate")(simulate.simulate)
app.add_typer(bank.app, name="bank")
app.add_typer(schema.app, name="schema")
app.add_typer(keys.app, name="keys")
app.add_typer(artifacts.app, name="artifacts")
app.command("verify")(verify.verify)
app.command("audit")(audit.audit)
app.command("metrics")(metrics.metrics)
app.command("conformance")(conformance.conformance)
app.command("doctor")(doctor.doctor)
examples.attach(app)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"perdure {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    ctx: typer.Context,
    bank: BankOption = None,
    config: ConfigOption = None,
    debug: DebugOption = False,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    ctx.obj = Settings(bank, config, debug=debug)
