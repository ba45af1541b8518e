"""The web page: its files, who is logged in, what each agent does now."""

from __future__ import annotations

import msgspec
from starlette.responses import JSONResponse, Response

from perdure import __version__
from perdure.server.agent_activity import AgentActivity, describe_activity
from perdure.server.operations import Operation, ServerCall, TokenScope
from perdure.server.page_files import INDEX, WORKER, PageFiles
from perdure.storage.cache.cache_middleware import bank_name


class Signpost(msgspec.Struct, frozen=True):
    """Where things are. The same for everybody."""

    server: str = "perdure"
    page: str = "/"
    api: str = "/api/v1"
    description: str = "/openapi.json"
    proxy: str = "/v1"
    access: str = "By a token: see `perdure token make`, and what `perdure serve` prints."
    docs: str = "docs/server.md of Perdure."


class CurrentCaller(msgspec.Struct, frozen=True, kw_only=True):
    """Whose token this is, and what it opens."""

    name: str
    #: The only agent that it sees; null: all.
    agent: str | None
    scopes: tuple[TokenScope, ...]
    #: Names this very bank: one made anew in the same place has another name.
    bank: str
    version: str


async def show_page(call: ServerCall) -> Response:
    """The web page; for programs that do not ask for HTML, where the API is."""
    if "text/html" in call.request.headers.get("accept", ""):
        return call.server.part(PageFiles).answer(INDEX, call.request)
    return JSONResponse(msgspec.to_builtins(Signpost()), headers={"vary": "accept"})


async def get_worker(call: ServerCall) -> Response:
    """The part of the page that shows it while the server is away."""
    return call.server.part(PageFiles).answer(WORKER, call.request)


async def get_page_file(call: ServerCall) -> Response:
    """A script or a style of the page."""
    return call.server.part(PageFiles).answer(call.path["file"], call.request)


async def get_caller(call: ServerCall) -> CurrentCaller:
    """Whose token this is."""
    caller, store = call.caller, call.bank.store
    return CurrentCaller(
        name=caller.name,
        agent=caller.agent,
        scopes=tuple(sorted(caller.scopes)),
        bank=await bank_name(store, call.bank.url),
        version=__version__,
    )


async def get_activity(call: ServerCall) -> list[AgentActivity]:
    """All agents, and what each does now."""
    return await describe_activity(call.bank.store, call.caller.agent)


_SCRIPT = "text/javascript, text/css"
OPERATIONS = (
    Operation.of(
        "GET",
        "/",
        show_page,
        TokenScope.OPEN,
        produces="text/html, application/json",
        is_page=True,
    ),
    Operation.of("GET", f"/{WORKER}", get_worker, TokenScope.OPEN, produces=_SCRIPT),
    Operation.of("GET", "/page/{file}", get_page_file, TokenScope.OPEN, produces=_SCRIPT),
    Operation.of("GET", "/api/v1/caller", get_caller, TokenScope.READ),
    Operation.of("GET", "/api/v1/activity", get_activity, TokenScope.READ),
)
