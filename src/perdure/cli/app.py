"""The command's groups and global options, and how errors are shown."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from perdure import __version__
from perdure.cli import (
    agent_ask_commands,
    agent_commands,
    agent_evolve_commands,
    agent_stats_commands,
    artifact_commands,
    ask_commands,
    audit_commands,
    backup_commands,
    bank_commands,
    batch_commands,
    canon_commands,
    check_commands,
    context_commands,
    cost_commands,
    forget_commands,
    inbox_commands,
    index_commands,
    job_commands,
    key_commands,
    mcp_commands,
    memory_commands,
    metrics_commands,
    model_commands,
    pause_commands,
    project_history_commands,
    project_recall_commands,
    project_setup_commands,
    project_state_commands,
    project_work_commands,
    proxy_commands,
    recall_commands,
    reference_commands,
    reflection_commands,
    rendition_commands,
    run_commands,
    schema_commands,
    serve_commands,
    session_commands,
    show_commands,
    simulate_commands,
    task_commands,
    team_commands,
    terminal,
    token_commands,
    transfer_commands,
    uninstall_commands,
)
from perdure.cli.command_options import (
    BankOption,
    Command,
    CommandSettings,
    ConfigOption,
    DebugOption,
    common_options,
)
from perdure.core.errors import PerdureError

if TYPE_CHECKING:
    from typer.models import Context


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


def _with_default(name: str) -> type[TyperGroup]:
    class DefaultGroup(TyperGroup):
        """Runs one of its commands if none is named."""

        def parse_args(self, ctx: Context, args: list[str]) -> list[str]:  # type: ignore[override]
            if not args or (args[0].startswith("-") and args[0] != "--help"):
                args = [name, *args]
            return super().parse_args(ctx, args)

    return DefaultGroup


#: Every command: its function, and what its example gives it.
COMMANDS: dict[str, tuple[Command, str]] = {
    "import": (transfer_commands.import_, "claude-code --watch"),
    "sessions": (session_commands.sessions, "--agent planner --tree"),
    "show": (show_commands.show, "planner/auth --since 3d"),
    "turn": (show_commands.turn, "planner/auth T-12 --level S"),
    "tail": (show_commands.tail, "planner/auth --from T-12"),
    "fork": (session_commands.fork, "planner/auth coder/auth --at T-50"),
    "export": (transfer_commands.export, "planner/auth --format markdown -o auth.md"),
    "forget": (forget_commands.forget, "planner/auth --turn T-4"),
    "ask": (ask_commands.ask, '"What is a turn?" --model ollama/qwen3'),
    "models": (model_commands.models, "--reach"),
    "batches": (batch_commands.batches, ""),
    "costs": (cost_commands.costs, "--by day --since 30d"),
    "context": (context_commands.context, 'planner/auth -p "What did we decide?" --text'),
    "recall": (
        recall_commands.recall,
        'planner/auth "token refresh bug" -k 5 --role user --since 30d',
    ),
    "proxy": (proxy_commands.proxy, "--budget 60000 -- claude"),
    "serve": (serve_commands.serve, "--upstream anthropic=https://api.anthropic.com"),
    "worker": (job_commands.worker, "--queues renditions,agents --concurrency 8"),
    "mcp": (mcp_commands.mcp, "--folder ~/demo"),
    "run": (run_commands.run, 'SPEC.md --tasks TASKS.md --check "make test" -- claude -p'),
    "runs": (run_commands.runs, ""),
    "share": (session_commands.share, "planner/auth coder"),
    "renditions": (rendition_commands.renditions, ""),
    "simulate": (simulate_commands.simulate, "~/.claude/projects --budget 60000"),
    "verify": (check_commands.verify, ""),
    "audit": (audit_commands.audit, "notes/ada/1 --since 7d"),
    "metrics": (metrics_commands.metrics, "--prometheus"),
    "conformance": (check_commands.conformance, "memory://"),
    "doctor": (check_commands.doctor, ""),
    "pause": (pause_commands.pause, "--for 2h"),
    "resume": (pause_commands.resume, ""),
    "uninstall": (uninstall_commands.uninstall, "--dry-run"),
    "agent add": (agent_commands.add, ".claude/agents/router.md"),
    "agent list": (agent_commands.list_, "--skill triage"),
    "agent show": (agent_commands.show, "router"),
    "agent ask": (agent_ask_commands.ask, 'router "Where does this go?" --task email_routing'),
    "agent send": (agent_commands.send, 'router "Sort the inbox." --key inbox-2026-12-01'),
    "agent messages": (agent_commands.messages, "router --state parked"),
    "agent retry": (agent_commands.retry, "router/00000012"),
    "agent cancel": (agent_commands.cancel, "router/00000012"),
    "agent questions": (agent_commands.questions, ""),
    "agent answer": (agent_commands.answer, 'router/00000012/0001.c1 "Twelve."'),
    "agent schedule": (agent_commands.schedule, 'router "0 9 * * 1-5" "Sort the inbox."'),
    "agent schedules": (agent_commands.schedules, "router"),
    "agent unschedule": (agent_commands.unschedule, "router/019c…"),
    "agent versions": (agent_commands.versions, "router --use 2"),
    "agent pause": (agent_commands.pause, "router"),
    "agent resume": (agent_commands.resume, "router"),
    "agent remove": (agent_commands.remove, "router"),
    "memory add": (memory_commands.add, 'planner "The staging port is 8123." --kind fact'),
    "memory list": (memory_commands.list_, 'planner --words "staging port"'),
    "memory show": (memory_commands.show, "planner/M-7"),
    "memory edit": (memory_commands.edit, 'planner/M-7 "The staging port is 8124."'),
    "memory merge": (memory_commands.merge, "planner/M-7 planner/M-9"),
    "memory pin": (memory_commands.pin, "planner/M-7"),
    "memory unpin": (memory_commands.unpin, "planner/M-7"),
    "memory retire": (memory_commands.retire, "planner/M-7 --superseded-by planner/M-9"),
    "memory restore": (memory_commands.restore, "planner/M-7"),
    "memory delete": (memory_commands.delete, "planner/M-7"),
    "memory history": (memory_commands.history, "planner/M-7"),
    "memory audit": (memory_commands.audit, "planner --propose"),
    "memory import": (memory_commands.import_, "mem0 export.json --agent planner"),
    "reflect run": (reflection_commands.run, "--agent planner --dry-run"),
    "reflect list": (reflection_commands.list_, "--agent planner"),
    "reflect show": (reflection_commands.show, "planner/R-3"),
    "reflect undo": (reflection_commands.undo, "planner/R-3"),
    "inbox list": (inbox_commands.list_, "planner --kind proposal"),
    "inbox show": (inbox_commands.show, "planner/I-2"),
    "inbox accept": (inbox_commands.accept, "planner/I-2"),
    "inbox dismiss": (inbox_commands.dismiss, "planner/I-2"),
    "task add": (task_commands.add, '"Rotate the signing keys" -p 1 --needs 3'),
    "task list": (task_commands.list_, "--state waiting"),
    "task ready": (task_commands.ready, "--limit 5"),
    "task claim": (task_commands.claim, "12 --as codex --for 1h"),
    "task release": (task_commands.release, "12 --token 3"),
    "task done": (task_commands.done, "12 --token 3 --commit HEAD"),
    "task block": (task_commands.block, '12 "The keys are not here yet."'),
    "task unblock": (task_commands.unblock, "12"),
    "task edit": (task_commands.edit, "12 --priority 0"),
    "task reopen": (task_commands.reopen, "12"),
    "task note": (task_commands.note, '12 "The old keys expire on Friday."'),
    "task show": (task_commands.show, "12"),
    "task graph": (task_commands.graph, "--mermaid"),
    "task import": (task_commands.import_, ".beads/issues.jsonl"),
    "task export": (task_commands.export, "tasks.jsonl"),
    "task sync": (task_commands.sync, ""),
    "project init": (project_setup_commands.init, "--clients claude-code,codex"),
    "project remove": (project_setup_commands.remove, ""),
    "project status": (project_history_commands.status, "--entries"),
    "project reconcile": (project_history_commands.reconcile, "--policy rebase"),
    "project rewind": (project_history_commands.rewind, '"Tests run in CI" --dry-run'),
    "project plugin": (project_setup_commands.plugin, ""),
    "project recall": (project_recall_commands.recall, '"how long do we wait" --at v1.2'),
    "project index": (project_recall_commands.index, ""),
    "project show": (project_state_commands.show, ""),
    "project goal add": (project_state_commands.goal_add, '"Deploy every day"'),
    "project goal edit": (project_state_commands.goal_edit, '"Deploy every day" --text "…"'),
    "project goal done": (project_state_commands.goal_done, '"Deploy every day"'),
    "project milestone add": (
        project_state_commands.milestone_add,
        '"Tests run in CI" --goal "Deploy every day" --needs 12',
    ),
    "project milestone edit": (project_state_commands.milestone_edit, "ms_9f2 --needs 12"),
    "project milestone finish": (project_state_commands.milestone_finish, '"Tests run in CI"'),
    "project checkpoint": (project_state_commands.checkpoint, '"Before the rewrite"'),
    "project link": (project_state_commands.link, "docs/deploy.md --to ms_9f2"),
    "project unlink": (project_state_commands.unlink, "ln_9f2"),
    "project preamble": (project_work_commands.preamble, "--budget 800"),
    "project refresh": (project_work_commands.refresh, ""),
    "project sessions": (project_work_commands.sessions, "--limit 5"),
    "project journal": (project_work_commands.journal, "--day 2026-11-18"),
    "project note": (project_work_commands.note, '"The old keys expire on Friday."'),
    "project set": (project_work_commands.set_, "journal=off preamble=2000"),
    "project share": (project_work_commands.share, ""),
    "project unshare": (project_work_commands.unshare, ""),
    "project repair": (project_work_commands.repair, ""),
    "project merge-driver": (project_work_commands.merge_driver, "%O %A %B %P"),
    "team run": (
        team_commands.run,
        '"Rotate the keys, then deploy." --check "make test" -- claude -p',
    ),
    "team list": (team_commands.list_, ""),
    "team show": (team_commands.show, "3"),
    "team recap": (team_commands.recap, "3"),
    "team replay": (team_commands.replay, "3"),
    "team decide": (team_commands.decide, '3 "#12 priority" planner'),
    "team undo": (team_commands.undo, "3"),
    "reference add": (reference_commands.add, "oauth.md"),
    "reference list": (reference_commands.list_, ""),
    "reference show": (reference_commands.show, "oauth"),
    "reference check": (reference_commands.check, ""),
    "reference remove": (reference_commands.remove, "oauth"),
    "canon list": (canon_commands.list_, "--agent planner"),
    "canon show": (canon_commands.show, "refunds --version 2"),
    "canon write": (canon_commands.write, "refunds refunds.md --reader planner"),
    "canon promote": (canon_commands.promote, "planner/M-7 staging-port"),
    "canon history": (canon_commands.history, "refunds"),
    "canon restore": (canon_commands.restore, "refunds 2"),
    "canon remove": (canon_commands.remove, "refunds"),
    "agent stats": (agent_stats_commands.stats, "planner --table agent_performance --since 30d"),
    "agent rate": (
        agent_evolve_commands.rate,
        '0195f3a2c4d8 0.9 "Just what I asked for."',
    ),
    "agent evolve show": (agent_evolve_commands.show, "planner"),
    "agent evolve accept": (agent_evolve_commands.accept, "planner"),
    "agent evolve dismiss": (agent_evolve_commands.dismiss, "planner"),
    "agent evolve revert": (agent_evolve_commands.revert, "planner"),
    "agent episodes": (agent_stats_commands.episodes, "planner --failed --since 7d"),
    "index check": (index_commands.check, ""),
    "index rebuild": (index_commands.rebuild, ""),
    "jobs list": (job_commands.list_, "--limit 20"),
    "jobs retry": (job_commands.retry, "renditions/planner/auth/7"),
    "bank init": (bank_commands.init, "--bank sqlite:///memory.db"),
    "bank info": (bank_commands.info, "--json"),
    "bank backup": (backup_commands.backup, "~/backups --keep 7"),
    "bank backups": (backup_commands.list_, "~/backups"),
    "bank restore": (backup_commands.restore, "~/backups --bank sqlite:///restored.db"),
    "bank copy": (backup_commands.copy, "postgresql://localhost/perdure"),
    "bank encrypt": (key_commands.encrypt, "--key file:master.key"),
    "bank decrypt": (key_commands.decrypt, "--key file:master.key"),
    "bank migrate": (bank_commands.migrate, "--import my_app.records --dry-run"),
    "schema list": (schema_commands.list_, ""),
    "schema show": (schema_commands.show, "notes"),
    "schema proto": (schema_commands.proto, "notes -o notes.proto"),
    "schema check": (schema_commands.check, "notes"),
    "keys make": (key_commands.make, "master.key"),
    "keys list": (key_commands.list_, "--rows"),
    "keys rotate": (key_commands.rotate, "--master"),
    "keys shred": (key_commands.shred, "collection:diaries"),
    "token make": (token_commands.make, "laptop --scope read --scope write --expires 30d"),
    "token list": (token_commands.list_, ""),
    "token revoke": (token_commands.revoke, "laptop"),
    "artifacts list": (artifact_commands.list_, "--limit 20"),
    "artifacts check": (artifact_commands.check, "--orphans"),
    "artifacts collect": (artifact_commands.collect, "--dry-run"),
    "artifacts move": (artifact_commands.move, "s3://bucket/artifacts"),
}
GROUPS = {
    "agent": "Make agents, talk to them, and see what they do, wait for and have learnt.",
    "memory": "Look at memories, what an agent has learnt, and correct them.",
    "reflect": "Distil memories from past turns; `perdure reflect` alone is `reflect run`.",
    "inbox": "Read messages of reflection, decide on proposals; alone, it lists them.",
    "team": "Let supervisor, planner, historian and executor keep the tasks of a project.",
    "project": "Keep the memory of a repository: state, sessions, journal, anchors.",
    "project goal": "Say what a project is for, and when that is reached.",
    "project milestone": "Keep the steps on the way to a goal; each leaves a checkpoint.",
    "task": "Plan and share work: tasks, what they wait for, who has claimed them.",
    "reference": "Look at reference layers: knowledge that is loaded when it matters.",
    "canon": "Look at the canon, knowledge that agents share, and write it.",
    "agent evolve": "Look at tests of how an agent works, and decide on what won.",
    "index": "Look after the index that recall searches in.",
    "jobs": "Look at background work, and try again what failed; alone, it lists.",
    "bank": "Make a bank, look at one, keep it safe, move it.",
    "schema": "Show what record types look like, and check records against them.",
    "keys": "Make a master key; look at keys, replace or destroy them.",
    "token": "Say who may call the server, and for how long.",
    "artifacts": "Look at artifacts: content that is kept by its hash.",
}
#: Groups that do something without a further word.
_DEFAULTS = {"reflect": "run", "inbox": "list", "jobs": "list"}
#: Where the common options are not all of use, or --json means something else.
_WITHOUT = {
    "pause": ("bank", "config"),
    "resume": ("bank", "config"),
    "project plugin": ("bank", "config"),
    "simulate": ("bank",),
    "bank backups": ("bank",),
    "conformance": ("bank", "config"),
    "keys make": ("bank", "config"),
}
_JSON = {
    "mcp": "Changes nothing: all that is printed is JSON.",
    "proxy": "Print what was kept and saved as a JSON object, in the last line on stderr.",
    "run": "Print the run as a JSON object on stdout when it stops; progress goes to stderr.",
    "serve": "Print the addresses as a JSON object, in the first line on stdout.",
    "worker": "Print what it does as a JSON object when it begins, and what it did when it ends.",
    "tail": "Print one JSON object a line for each message.",
    "export": "With -o: print what was written as a JSON object.",
}


#: The arguments of a client are its own, also without two dashes in front of it.
_PARSING: dict[str, dict[str, Any]] = {"proxy": {"allow_interspersed_args": False}}


def make_app(only: str = "") -> typer.Typer:
    """All commands; with `only`, one command or those of a group: typer takes as long to make them
    all as a command takes to open a bank.
    """
    made = typer.Typer(
        name="perdure",
        cls=Border,
        help="Persistent memory for LLM agents.",
        epilog="The bank is the one of --bank, else of PERDURE_BANK, else of the configuration"
        " file, else a file in your data folder.",
        no_args_is_help=True,
        # Plain help: loading rich would double the time that --help takes.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    groups = {"": made}
    for name, about in GROUPS.items():
        if not _is_made(name, only) and not f"{only} ".startswith(f"{name} "):
            continue
        default = _DEFAULTS.get(name)
        groups[name] = typer.Typer(
            cls=TyperGroup if default is None else _with_default(default),
            help=about,
            no_args_is_help=default is None,
            rich_markup_mode=None,
        )
        parent, _, last = name.rpartition(" ")
        groups[parent].add_typer(groups[name], name=last)
    for words, (work, example) in COMMANDS.items():
        if not _is_made(words, only):
            continue
        group, _, name = words.rpartition(" ")
        # The mark in front keeps the line as it is, however wide the terminal.
        epilog = f"\b\nExample:\n  perdure {words} {example}".rstrip()
        command = common_options(work, without=_WITHOUT.get(words, ()), json=_JSON.get(words))
        parsing = _PARSING.get(words)
        groups[group].command(name, epilog=epilog, context_settings=parsing)(command)
    made.callback()(_global_options)
    return made


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"perdure {__version__}")
        raise typer.Exit


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


def _is_made(words: str, only: str) -> bool:
    return not only or f"{words} ".startswith(f"{only} ")


def run_command() -> None:
    """The command line of this process."""
    make_app(_asked_for(sys.argv[1:]))(prog_name="perdure")


def _asked_for(arguments: Sequence[str]) -> str:
    """The command or the first group that is named; empty if neither is."""
    for count in (3, 2, 1):
        words = " ".join(arguments[:count])
        if words in COMMANDS:
            return words
    return arguments[0] if arguments and arguments[0] in GROUPS else ""


if TYPE_CHECKING:
    app: typer.Typer


def __getattr__(name: str) -> typer.Typer:
    """`app`, all commands, for whoever asks: a command that runs does not pay for the others."""
    if name != "app":
        raise AttributeError(name)
    return globals().setdefault("app", make_app())  # type: ignore[no-any-return]
