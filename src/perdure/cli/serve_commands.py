"""``perdure serve``: the server over a bank, until it is told to stop."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from perdure.cli import terminal
from perdure.cli.command_options import CommandSettings

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from perdure.config import Config
    from perdure.server.http_server import HttpServer

T = TypeVar("T")

#: More than anybody needs; macOS refuses to be asked for more.
_MOST_FILES = 10_240

UpstreamOption = Annotated[
    list[str] | None,
    typer.Option(
        "--upstream",
        metavar="WIRE=URL",
        help="Where the proxy sends requests: anthropic=URL or openai=URL; may be repeated.",
    ),
]
ViaGatewayOption = Annotated[
    bool | None,
    typer.Option("--via-gateway", help="Answer the proxy's clients with the gateway's models."),
]
BudgetOption = Annotated[
    int | None,
    typer.Option("--budget", min=500, help="Tokens of a history that the proxy sends."),
]
RecallOption = Annotated[
    bool | None, typer.Option("--recall", help="Put what is recalled beside the prompt.")
]
ToolsOption = Annotated[
    bool | None, typer.Option("--tools", help="Offer history tools to the model.")
]
UsageOption = Annotated[
    str | None,
    typer.Option(
        "--usage",
        metavar="window|whole",
        help="Tell the client the tokens of the window, or of its whole history.",
    ),
]
StrictOption = Annotated[
    bool | None, typer.Option("--strict", help="Refuse a request if Perdure's own part fails.")
]


def serve(
    settings: CommandSettings,
    *,
    host: Annotated[str | None, typer.Option("--host", help="The address to listen on.")] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65_535, help="The port; 0 takes any that is free."),
    ] = None,
    upstream: UpstreamOption = None,
    via_gateway: ViaGatewayOption = None,
    budget: BudgetOption = None,
    recall: RecallOption = None,
    tools: ToolsOption = None,
    usage: UsageOption = None,
    strict: StrictOption = None,
) -> None:
    """Serve the bank over HTTP: a page, an API, and a proxy for unchanged clients.

    Listens on loopback. Prints a link to the page, which logs in once, within a minute, and an
    address for clients of the proxy, which ends with this run; tokens of `perdure token make` last.
    With --json, the first line is a JSON object: url, code, page, proxy.
    """
    changes = proxy_changes(
        upstream, via_gateway=via_gateway, budget=budget, recall=recall, tools=tools, usage=usage,
        strict=strict,
    )  # fmt: skip
    server = {"host": host, "port": port}
    run_server(_serve(settings, with_changes(settings.load(), server=server, proxy=changes)))


def proxy_changes(upstream: list[str] | None, **given: Any) -> dict[str, Any]:
    """What the options of the proxy change in its section of the configuration."""
    if given["usage"] not in {None, "window", "whole"}:
        raise typer.BadParameter("It is 'window' or 'whole'.", param_hint="--usage")
    return {**given, "upstreams": parse_upstreams(upstream)}


def with_changes(config: Config, **sections: dict[str, Any]) -> Config:
    """The configuration, with what the command line says; None says nothing."""
    import msgspec

    changed = {
        name: msgspec.structs.replace(
            getattr(config, name), **{key: new for key, new in given.items() if new is not None}
        )
        for name, given in sections.items()
    }
    return msgspec.structs.replace(config, **changed)


def parse_upstreams(given: list[str] | None) -> dict[str, str] | None:
    if not given:
        return None
    found = dict[str, str]()
    for text in given:
        wire, _, url = text.partition("=")
        if wire not in {"anthropic", "openai"} or not url.startswith(("http://", "https://")):
            raise typer.BadParameter(
                f"{text!r} is not anthropic=URL or openai=URL.", param_hint="--upstream"
            )
        found[wire] = url.rstrip("/")
    return found


def run_server(work: Coroutine[Any, Any, T]) -> T:
    """Run it on the faster event loop, where there is one, and with as many connections as the
    system allows.
    """
    import asyncio

    with suppress(ImportError, OSError, ValueError):  # not on Windows; not where it is forbidden
        import resource

        allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(allowed, min(most, _MOST_FILES)), most))
    try:
        from uvloop import new_event_loop
    except ImportError:  # not on Windows and PyPy
        return asyncio.run(work)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


async def _serve(settings: CommandSettings, config: Config) -> None:
    import gc

    from perdure.bank import Bank
    from perdure.server.http_server import serving
    from perdure.server.server_app import make_app

    async with Bank(config=config) as bank, serving(make_app(bank)) as server:
        # What is there now stays: the collector need not look at it in the middle of a stream.
        gc.collect()
        gc.freeze()
        server.listen_to_signals()
        _announce(server, as_json=settings.json)
        await server.asked_to_stop()
        if not settings.json:
            grace = f"{config.server.grace:g} seconds"
            terminal.note(f"Stopping. What is under way has {grace} to end; ^C again ends it now.")


def _announce(server: HttpServer, *, as_json: bool) -> None:
    from perdure.core.actors import system_user
    from perdure.server.operations import Caller, TokenScope
    from perdure.server.page_files import is_built

    tokens = server.app.run_tokens
    code = tokens.login_code(system_user())
    secret = tokens.make(Caller(system_user(), None, frozenset({TokenScope.PROXY})))
    proxy, page = f"{server.url}/t/{secret}", f"{server.url}/#code={code}"
    if not server.is_loopback:
        terminal.note(
            "Others can reach this server, and read along: traffic is not encrypted."
            " Put a TLS proxy in front, or listen on 127.0.0.1.",
            "yellow",
        )
    if as_json:
        terminal.emit({"url": server.url, "code": code, "page": page, "proxy": proxy})
        return
    terminal.say(f"Serving on {server.url}")
    if server.outer_url not in {"", server.url}:
        terminal.say(f"For other machines: {server.outer_url}")
    terminal.say("The page; once, within a minute:")
    terminal.say(f"  {page}")
    if not is_built():
        terminal.note("  This clone has not built it yet: `make page` does, once.", "yellow")
    terminal.say("Or a token of this run, for the API:")
    terminal.say(
        f"  curl {server.url}/api/v1/login -H 'content-type: application/json'"
        f""" -d '{{"code": "{code}"}}'"""
    )
    terminal.say("Address for clients of the proxy, until the server stops:")
    terminal.say(f"  {proxy}")
    terminal.say("Tokens that last: perdure token make NAME --scope proxy (or read, write, admin)")
