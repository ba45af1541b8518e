"""``perdure proxy``: runs a client whose requests go through a proxy over the bank."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import terminal
from perdure.cli.command_options import CommandSettings
from perdure.cli.serve_commands import (
    BudgetOption,
    RecallOption,
    StrictOption,
    ToolsOption,
    UpstreamOption,
    UsageOption,
    ViaGatewayOption,
    proxy_changes,
    run_server,
    with_changes,
)

if TYPE_CHECKING:
    from perdure.config import Config


def proxy(
    settings: CommandSettings,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND…", help="The client, and its own arguments."),
    ] = None,
    *,
    upstream: UpstreamOption = None,
    via_gateway: ViaGatewayOption = None,
    budget: BudgetOption = None,
    recall: RecallOption = None,
    tools: ToolsOption = None,
    usage: UsageOption = None,
    strict: StrictOption = None,
) -> None:
    """Run claude, codex, opencode or any client with a history that never ends.

    Its requests go through a proxy on loopback, which keeps every turn in the bank. Beyond the
    budget, old turns are sent shorter. The client's own files and its login are left alone. Its
    exit code is the command's; 127 if there is no such command, 126 if it cannot be run. What was
    kept and saved is said at the end, on stderr.
    """
    from perdure.server.proxy.client_launch import find_command, own_upstreams

    with _exit_code_of_shells(settings):
        found = find_command(command or [])
    changes = proxy_changes(
        upstream, via_gateway=via_gateway, budget=budget, recall=recall, tools=tools, usage=usage,
        strict=strict,
    )  # fmt: skip
    config = settings.load()
    given = own_upstreams(found, os.environ) | dict(config.proxy.upstreams)
    changes["upstreams"] = given | (changes["upstreams"] or {})
    server = {"host": "127.0.0.1", "port": 0}
    changed = with_changes(config, server=server, proxy=changes)
    with _exit_code_of_shells(settings):
        raise typer.Exit(run_server(_run(settings, changed, found)))


@contextmanager
def _exit_code_of_shells(settings: CommandSettings) -> Iterator[None]:
    """For a client that cannot be started."""
    from perdure.server.proxy.client_launch import CommandNotRun

    try:
        yield
    except CommandNotRun as exc:
        if settings.debug:
            raise
        terminal.complain(exc)
        if settings.json:
            terminal.emit({"error": terminal.described(exc)})
        raise typer.Exit(exc.code) from exc


async def _run(settings: CommandSettings, config: Config, command: tuple[str, ...]) -> int:
    import msgspec

    from perdure.bank import Bank
    from perdure.config import data_folder
    from perdure.core.actors import system_user
    from perdure.server.http_server import serving
    from perdure.server.operations import Caller, TokenScope
    from perdure.server.proxy.client_launch import launch_for, run_client
    from perdure.server.proxy.proxy_handler import Proxy
    from perdure.server.proxy.run_report import KeptTurns, RunReport, logging_to
    from perdure.server.server_app import make_app

    with logging_to(data_folder()) as log:
        async with Bank(config=config) as bank:
            kept = KeptTurns()
            bank.join(kept.note)
            async with serving(make_app(bank)) as server:
                folder, scopes = str(Path.cwd()), frozenset({TokenScope.PROXY})
                caller = Caller(system_user(), scopes=scopes, folder=folder)
                address = f"{server.url}/t/{server.app.run_tokens.make(caller)}"
                launch = launch_for(command, address, os.environ, folder)
                code = await run_client(launch)
                figures = server.app.state.part(Proxy).report.figures
            report = RunReport.of(figures, kept, log.file)
        if settings.json:
            terminal.note(msgspec.json.encode(report).decode())
        else:
            for line in report.lines():
                terminal.note(line)
    return code
