"""Whatever the command can read, the API can."""

from __future__ import annotations

from perdure.cli.app import COMMANDS
from perdure.server.operations import Operation, SocketOperation
from tests.server.conftest import RunningServer

#: What reads, and where the API does so.
READS = {
    "sessions": "GET /api/v1/sessions",
    "show": "GET /api/v1/sessions/{agent}/{name}/turns",
    "turn": "GET /api/v1/sessions/{agent}/{name}/turns/{turn}",
    "tail": "/api/v1/live",
    "export": "GET /api/v1/sessions/{agent}/{name}/export",
    "models": "GET /api/v1/models",
    "costs": "GET /api/v1/costs",
    "batches": "GET /api/v1/batches",
    "context": "POST /api/v1/sessions/{agent}/{name}/context/preview",
    "recall": "POST /api/v1/sessions/{agent}/{name}/recall",
    "share": "GET /api/v1/sessions/{agent}/{name}/readers",
    "renditions": "GET /api/v1/renditions",
    "verify": "GET /api/v1/checks/bank",
    "audit": "GET /api/v1/audit",
    "metrics": "GET /metrics",
    "memory list": "GET /api/v1/memories",
    "memory show": "GET /api/v1/memories/{agent}/{key}",
    "memory audit": "GET /api/v1/checks/memories/{agent}",
    "reflect list": "GET /api/v1/reflections",
    "reflect show": "GET /api/v1/reflections/{agent}/{run}",
    "inbox list": "GET /api/v1/inbox",
    "inbox show": "GET /api/v1/inbox/{agent}/{message}",
    "memory history": "GET /api/v1/memories/{agent}/{key}/history",
    "reference list": "GET /api/v1/references",
    "reference show": "GET /api/v1/references/{layer}",
    "reference check": "GET /api/v1/checks/references",
    "agent list": "GET /api/v1/registry",
    "agent show": "GET /api/v1/registry/{registered}",
    "agent versions": "GET /api/v1/agents/{agent}/versions",
    "agent messages": "GET /api/v1/agents/{agent}/messages",
    "agent questions": "GET /api/v1/agents/{agent}/questions",
    "agent schedules": "GET /api/v1/agents/{agent}/schedules",
    "agent stats": "GET /api/v1/agents/{agent}/stats",
    "agent evolve show": "GET /api/v1/agents/{agent}/evolution",
    "agent episodes": "GET /api/v1/agents/{agent}/episodes",
    "canon list": "GET /api/v1/canon",
    "canon show": "GET /api/v1/canon/{entry}",
    "canon history": "GET /api/v1/canon/{entry}/history",
    "index check": "GET /api/v1/checks/index",
    "bank info": "GET /api/v1/bank",
    "schema list": "GET /api/v1/schemas",
    "schema show": "GET /api/v1/schemas/{collection}",
    "schema check": "GET /api/v1/checks/schemas/{collection}",
    "schema proto": "GET /api/v1/schemas/{collection}/proto",
    "keys list": "GET /api/v1/keys",
    "artifacts list": "GET /api/v1/artifacts",
    "artifacts check": "GET /api/v1/checks/artifacts",
}
#: What changes something, where the API does so, too.
CHANGES = {
    "fork": "POST /api/v1/sessions/{agent}/{name}/forks",
    "forget": "DELETE /api/v1/sessions/{agent}/{name}",
    "ask": "POST /api/v1/sessions/{agent}/{name}/chat",
    "memory add": "POST /api/v1/memories/{agent}",
    "memory edit": "PATCH /api/v1/memories/{agent}/{key}",
    "memory merge": "POST /api/v1/memories/{agent}/merge",
    "memory pin": "PATCH /api/v1/memories/{agent}/{key}",
    "memory unpin": "PATCH /api/v1/memories/{agent}/{key}",
    "memory retire": "POST /api/v1/memories/{agent}/{key}/retire",
    "memory restore": "POST /api/v1/memories/{agent}/{key}/restore",
    "memory delete": "DELETE /api/v1/memories/{agent}/{key}",
    "reflect run": "POST /api/v1/reflections/{agent}",
    "reflect undo": "POST /api/v1/reflections/{agent}/{run}/undo",
    "inbox accept": "POST /api/v1/inbox/{agent}/{message}/accept",
    "inbox dismiss": "POST /api/v1/inbox/{agent}/{message}/dismiss",
    "agent ask": "POST /api/v1/agents/{agent}/messages",
    "agent send": "POST /api/v1/agents/{agent}/messages",
    "agent retry": "POST /api/v1/agents/{agent}/messages/{number}/retry",
    "agent cancel": "DELETE /api/v1/agents/{agent}/messages/{number}",
    "agent pause": "POST /api/v1/agents/{agent}/pause",
    "agent resume": "POST /api/v1/agents/{agent}/resume",
    "agent remove": "DELETE /api/v1/agents/{agent}",
    "agent answer": "POST /api/v1/agents/{agent}/messages/{number}/questions/{question}",
    "agent schedule": "POST /api/v1/agents/{agent}/schedules",
    "agent unschedule": "DELETE /api/v1/agents/{agent}/schedules/{schedule}",
    "agent rate": "POST /api/v1/outcomes/{outcome}/feedback",
    "agent evolve accept": "POST /api/v1/agents/{agent}/evolution/accept",
    "agent evolve dismiss": "POST /api/v1/agents/{agent}/evolution/dismiss",
    "agent evolve revert": "POST /api/v1/agents/{agent}/evolution/revert",
    "canon write": "PUT /api/v1/canon/{entry}",
    "canon promote": "POST /api/v1/canon/{entry}/promote",
    "canon restore": "POST /api/v1/canon/{entry}/restore",
    "canon remove": "DELETE /api/v1/canon/{entry}",
    "reference add": "POST /api/v1/references",
    "reference remove": "DELETE /api/v1/references/{layer}",
}
#: What looks at the machine's own files, or works on the bank as a whole: not over HTTP.
APART = {
    *("import", "simulate", "doctor", "conformance", "serve", "proxy", "index rebuild"),
    *("run", "runs", "agent add", "mcp"),
    *(f"task {name}" for name in ("add", "list", "ready", "claim", "release", "done", "block")),
    *(f"task {name}" for name in ("unblock", "edit", "reopen", "note", "show", "graph")),
    *("task import", "task export", "task sync"),
    *(f"project {name}" for name in ("show", "checkpoint", "link", "unlink")),
    *(f"project {name}" for name in ("preamble", "refresh", "sessions", "journal", "note")),
    *(f"project {name}" for name in ("set", "share", "unshare", "repair", "merge-driver")),
    *(f"project goal {name}" for name in ("add", "edit", "done")),
    *(f"project milestone {name}" for name in ("add", "edit", "finish")),
    *(f"team {name}" for name in ("run", "list", "show", "recap", "replay", "decide", "undo")),
    *("project init", "project remove"),
    *("bank init", "bank backup", "bank backups", "bank restore", "bank copy"),
    *("bank encrypt", "bank decrypt", "bank migrate", "keys make", "keys rotate", "keys shred"),
    *("artifacts collect", "artifacts move", "token make", "token list", "token revoke"),
}


async def test_every_command_has_its_operation(server: RunningServer) -> None:
    routes = server.app.state.routes
    there = {f"{route.method} {route.path}" for route in routes if isinstance(route, Operation)}
    there |= {route.path for route in routes if isinstance(route, SocketOperation)}
    assert {*READS.values(), *CHANGES.values()} <= there
    placed = READS.keys() | CHANGES.keys() | APART
    assert COMMANDS.keys() <= placed
