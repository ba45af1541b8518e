"""The command's groups and global options, and how errors are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from perdure import __version__
from perdure.cli import (
    artifact_commands,
    ask_commands,
    audit_commands,
    bank_commands,
    check_commands,
    context_commands,
    cost_commands,
    forget_commands,
    index_commands,
    key_commands,
    memory_commands,
    metrics_commands,
    model_commands,
    recall_commands,
    reference_commands,
    rendition_commands,
    schema_commands,
    session_commands,
    show_commands,
    simulate_commands,
    terminal,
    transfer_commands,
)
from perdure.cli.command_options import BankOption, CommandSettings, ConfigOption, DebugOption
from perdure.core.errors import PerdureError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typer.models import CommandInfo, Context


class Border(TyperGroup):
    """Shows Perdure's errors as one line; usage errors are typer's business."""

    def invoke(self, ctx: Context) -> Any:  # type: ignore[override]  # typer's inner Context
        try:
            return super().invoke(ctx)
        except PerdureError as exc:
            settings = ctx.obj if isinstance(ctx.obj, CommandSettings) else CommandSettings()
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
app.command("import")(transfer_commands.import_)
app.command("sessions")(session_commands.sessions)
app.command("show")(show_commands.show)
app.command("turn")(show_commands.turn)
app.command("tail")(show_commands.tail)
app.command("fork")(session_commands.fork)
app.command("export")(transfer_commands.export)
app.command("forget")(forget_commands.forget)
app.command("ask")(ask_commands.ask)
app.command("models")(model_commands.models)
app.command("costs")(cost_commands.costs)
app.command("context")(context_commands.context)
app.command("recall")(recall_commands.recall)
app.add_typer(memory_commands.app, name="memory")
app.add_typer(reference_commands.app, name="reference")
app.add_typer(index_commands.app, name="index")
app.command("share")(session_commands.share)
app.command("renditions")(rendition_commands.renditions)
app.command("simulate")(simulate_commands.simulate)
app.add_typer(bank_commands.app, name="bank")
app.add_typer(schema_commands.app, name="schema")
app.add_typer(key_commands.app, name="keys")
app.add_typer(artifact_commands.app, name="artifacts")
app.command("verify")(check_commands.verify)
app.command("audit")(audit_commands.audit)
app.command("metrics")(metrics_commands.metrics)
app.command("conformance")(check_commands.conformance)
app.command("doctor")(check_commands.doctor)


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
    ctx.obj = CommandSettings(bank, config, debug=debug)


EXAMPLES = {
    "import": "perdure import claude-code --watch",
    "sessions": "perdure sessions --agent planner --tree",
    "show": "perdure show planner/auth --since 3d",
    "turn": "perdure turn planner/auth T-12 --level S",
    "tail": "perdure tail planner/auth --from T-12",
    "fork": "perdure fork planner/auth coder/auth --at T-50",
    "export": "perdure export planner/auth --format markdown -o auth.md",
    "forget": "perdure forget planner/auth --turn T-4",
    "ask": 'git diff | perdure ask "Review this." -',
    "models": "perdure models --reach",
    "costs": "perdure costs --by day --since 30d",
    "context": 'perdure context planner/auth -p "What did we decide?" --text',
    "recall": 'perdure recall planner/auth "token refresh bug" -k 5 --role user --since 30d',
    "share": "perdure share planner/auth coder",
    "renditions": "perdure renditions",
    "simulate": "perdure simulate ~/.claude/projects --budget 60000",
    "verify": "perdure verify",
    "audit": "perdure audit notes/ada/1 --since 7d",
    "metrics": "perdure metrics --prometheus",
    "conformance": "perdure conformance memory://",
    "doctor": "perdure doctor",
    "memory add": 'perdure memory add planner "The staging port is 8123." --kind fact',
    "memory list": 'perdure memory list planner --words "staging port"',
    "memory show": "perdure memory show planner/M-7",
    "memory edit": 'perdure memory edit planner/M-7 "The staging port is 8124."',
    "memory merge": "perdure memory merge planner/M-7 planner/M-9",
    "memory pin": "perdure memory pin planner/M-7",
    "memory unpin": "perdure memory unpin planner/M-7",
    "memory retire": "perdure memory retire planner/M-7 --superseded-by planner/M-9",
    "memory restore": "perdure memory restore planner/M-7",
    "memory delete": "perdure memory delete planner/M-7",
    "memory history": "perdure memory history planner/M-7",
    "reference add": "perdure reference add oauth.md",
    "reference list": "perdure reference list",
    "reference show": "perdure reference show oauth",
    "reference check": "perdure reference check",
    "reference remove": "perdure reference remove oauth",
    "index check": "perdure index check",
    "index rebuild": "perdure index rebuild",
    "bank init": "perdure bank init --bank sqlite:///memory.db",
    "bank info": "perdure bank info --json",
    "bank backup": "perdure bank backup ~/backups --keep 7",
    "bank backups": "perdure bank backups ~/backups",
    "bank restore": "perdure bank restore ~/backups --bank sqlite:///restored.db",
    "bank copy": "perdure bank copy postgresql://localhost/perdure",
    "bank encrypt": "perdure bank encrypt --key file:master.key",
    "bank decrypt": "perdure bank decrypt --key file:master.key",
    "bank migrate": "perdure bank migrate --import my_app.records --dry-run",
    "schema list": "perdure schema list",
    "schema show": "perdure schema show notes",
    "schema proto": "perdure schema proto notes -o notes.proto",
    "schema check": "perdure schema check notes",
    "keys make": "perdure keys make master.key",
    "keys list": "perdure keys list --rows",
    "keys rotate": "perdure keys rotate --master",
    "keys shred": "perdure keys shred collection:diaries",
    "artifacts list": "perdure artifacts list --limit 20",
    "artifacts check": "perdure artifacts check --orphans",
    "artifacts collect": "perdure artifacts collect --dry-run",
    "artifacts move": "perdure artifacts move s3://bucket/artifacts",
}


def _attach_examples(app: typer.Typer) -> None:
    """Give every command its example. Raises `KeyError` for one that has none."""
    for words, command in _all_commands(app):
        # The mark in front keeps the line as it is, however wide the terminal.
        command.epilog = f"\b\nExample:\n  {EXAMPLES[words]}"


def _all_commands(app: typer.Typer, before: str = "") -> Iterator[tuple[str, CommandInfo]]:
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "")
        yield f"{before}{name}", command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            yield from _all_commands(group.typer_instance, f"{before}{group.name} ")


_attach_examples(app)
