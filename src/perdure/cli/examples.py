"""An example for each command, which stands at the end of its help."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import typer
    from typer.models import CommandInfo

#: By the words that call a command.
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


def attach(app: typer.Typer) -> None:
    """Give every command its example. Raises `KeyError` for one that has none."""
    for words, command in _commands(app):
        # The mark in front keeps the line as it is, however wide the terminal.
        command.epilog = f"\b\nExample:\n  {EXAMPLES[words]}"


def _commands(app: typer.Typer, before: str = "") -> Iterator[tuple[str, CommandInfo]]:
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "")
        yield f"{before}{name}", command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            yield from _commands(group.typer_instance, f"{before}{group.name} ")
