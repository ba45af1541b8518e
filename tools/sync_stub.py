"""Writes the stubs for type checkers, in src/perdure: sync.pyi, what `perdure.open_sync` gives,
remote/connect_sync.pyi, what `perdure.connect_sync` gives, and __init__.pyi, the public names from
the table in `__init__.py`.

The synchronous bridge forwards at run time; nothing is written twice. This derives its types from
the async classes: the same methods without `await`. `make check` fails if a stub is not current.

    python tools/sync_stub.py [--check]
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

SRC = Path(__file__).resolve().parent.parent / "src"
STUB = SRC / "perdure" / "sync.pyi"
REMOTE_STUB = SRC / "perdure" / "remote" / "connect_sync.pyi"
PUBLIC = SRC / "perdure" / "__init__.pyi"
#: The classes that a synchronous program gets in its hands.
CLASSES = {
    "Bank": "perdure.bank.bank",
    "SessionReader": "perdure.sessions.session_reader",
    "Session": "perdure.sessions.session",
    "CollectionReader": "perdure.storage.collection_reader",
    "Collection": "perdure.storage.collection",
    "QueryBuilder": "perdure.storage.finder",
    "Transaction": "perdure.storage.transaction",
    "StateRecords": "perdure.storage.state_records",
    "MemoryWindows": "perdure.storage.memory_windows",
    "ContextFigures": "perdure.bank.contexts",
    "ContextQuery": "perdure.bank.contexts",
    "Contexts": "perdure.bank.contexts",
    "TransactionEvents": "perdure.bank.bank_transaction",
    "BankTransaction": "perdure.bank.bank_transaction",
    "AgentMemory": "perdure.agents.agent_memory",
    "Canon": "perdure.agents.canon",
    "Episodes": "perdure.agents.episodes",
    "Identities": "perdure.agents.agent_identity",
    "Interactions": "perdure.agents.interactions",
    "WorkingMemory": "perdure.agents.working_memory",
    "ArtifactStore": "perdure.artifacts.artifact_store",
    "Memories": "perdure.recall.memories.memories",
    "References": "perdure.recall.references.references",
    "OneShotRuns": "perdure.agents.one_shot.one_shot_runs",
    "Gateway": "perdure.gateway.gateway",
    "ReplyStream": "perdure.gateway.reply_stream",
    "AgentState": "perdure.agents.agent_state",
    "AgentReply": "perdure.agents.agent",
    "AgentStream": "perdure.agents.agent",
    "Agent": "perdure.agents.agent",
    "AgentWorker": "perdure.agents.agent_worker",
    "Agents": "perdure.agents.agents",
}
REMOTE_CLASSES = {
    "RemoteBank": "perdure.remote.remote_bank",
    "RemoteSession": "perdure.remote.remote_session",
    "RemoteMemories": "perdure.remote.remote_memories",
    "RemoteReferences": "perdure.remote.remote_references",
    "RemoteArtifacts": "perdure.remote.remote_artifacts",
}
#: Attributes that constructors set, where that is how callers reach another of these.
ATTRIBUTES = {
    "Bank": {
        "config": "Config",
        "url": "str",
        "artifacts": "SyncArtifactStore",
        "contexts": "SyncContexts",
        "windows": "SyncMemoryWindows",
    },
    "AgentMemory": {
        "agent": "str",
        "working": "SyncWorkingMemory",
        "interactions": "SyncInteractions",
        "episodes": "SyncEpisodes",
    },
    "BankTransaction": {
        "contexts": "SyncContexts",
        "memories": "SyncMemoryWindows",
        "events": "SyncTransactionEvents",
    },
    "CollectionReader": {"name": "str"},
    "RemoteBank": {
        "url": "str",
        "memories": "SyncRemoteMemories",
        "references": "SyncRemoteReferences",
        "artifacts": "SyncRemoteArtifacts",
    },
    "Agent": {
        "agents": "SyncAgentWorker",
        "tools": "dict[str, AgentTool[..., Any]]",
        "record": "AgentRecord",
        "version": "AgentVersion",
        "state": "SyncAgentState[Any]",
    },
    "AgentReply": {"message": "AgentMessage", "questions": "tuple[AgentQuestion, ...]"},
}
#: Set by hand: the function runs in the calling thread.
BY_HAND = {"Bank": {"transact"}, "Session": {"answer"}}


class Module:
    def __init__(self, name: str) -> None:
        path = SRC.joinpath(*name.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        self.name, self.tree = name, ast.parse(path.read_text(encoding="utf-8"))
        self.imports: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = (
                        f"from {node.module} import {alias.name}"
                        + (f" as {alias.asname}" if alias.asname else "")
                    )
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = f"import {alias.name}"

    def origin(self, name: str) -> str:
        return self.imports.get(name, f"from {self.name} import {name}")


def sync(annotation: str) -> str:
    names = "|".join((*CLASSES, *REMOTE_CLASSES))
    annotation = re.sub(rf"\b({names})\b", r"Sync\1", annotation)
    annotation = re.sub(r"\bAsyncGenerator\[(\w+), None\]", r"Iterator[\1]", annotation)
    return annotation.replace("AsyncIterator[", "Iterator[").replace("async_", "")


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef, used: set[str]) -> list[str]:
    name = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__anext__": "__iter__"}
    lines = [
        f"    @{ast.unparse(each)}"
        for each in node.decorator_list
        if ast.unparse(each) in {"property", "overload", "staticmethod", "classmethod"}
    ]
    for default in (*node.args.defaults, *node.args.kw_defaults):
        if default is not None:
            default.__class__ = ast.Name
            default.id, default.ctx = "...", ast.Load()  # type: ignore[attr-defined]
    arguments, returns = (
        sync(ast.unparse(node.args)),
        sync(ast.unparse(node.returns or ast.Name("None"))),
    )
    if node.name == "__anext__":
        returns = f"Iterator[{returns}]"
    if any("contextmanager" in ast.unparse(each) for each in node.decorator_list):
        returns = f"AbstractContextManager[{returns.removeprefix('Iterator[')[:-1]}]"
    used.update(
        re.findall(r"\b[A-Za-z_]\w*", re.sub(r"'[^']*'|\b\w+(?=:)", " ", f"{arguments} {returns}"))
    )
    lines.append(f"    def {name.get(node.name, node.name)}({arguments}) -> {returns}: ...")
    return lines


def class_stub(name: str, module: Module, used: set[str]) -> list[str]:
    (node,) = [n for n in module.tree.body if isinstance(n, ast.ClassDef) and n.name == name]
    generic = [
        sync(ast.unparse(base))
        for base in node.bases
        if ast.unparse(base).partition("[")[0] in {"Generic", *CLASSES, *REMOTE_CLASSES}
    ]
    used.update(re.findall(r"\w+", " ".join(generic)))
    lines = [f"class Sync{name}({', '.join(generic)}):" if generic else f"class Sync{name}:"]
    for attribute, type in ATTRIBUTES.get(name, {}).items():
        used.update(re.findall(r"\w+", type))
        lines.append(f"    {attribute}: {type}")
    overloaded = set[str]()
    for member in node.body:
        if not isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if any(ast.unparse(each) == "overload" for each in member.decorator_list):
            overloaded.add(member.name)
        elif member.name in overloaded:
            continue  # a stub has no implementations
        dunder = member.name in {"__aenter__", "__aexit__", "__anext__", "__call__"}
        if (member.name.startswith("_") and not dunder) or member.name in BY_HAND.get(name, ()):
            continue
        lines += signature(member, used)
    if name == "Bank":
        lines.append(
            "    def transact(self, body: Callable[[SyncBankTransaction], R], *options: Options)"
            " -> R: ..."
        )
    if name == "Session":
        lines.append(
            "    def answer(self, *, model: str = ..., resume: Partial | None = ...) -> Any: ..."
        )
    return [*lines, ""]


def classes(wanted: dict[str, str]) -> tuple[list[str], set[str]]:
    """The lines of some classes, and the imports that they need."""
    body, imports = list[str](), set[str]()
    for name, path in wanted.items():
        module, used = Module(path), set[str]()
        body += class_stub(name, module, used)
        known = {
            "self",
            "None",
            "str",
            "int",
            "bool",
            "bytes",
            "float",
            "object",
            "dict",
            "list",
            "tuple",
            "type",
            "set",
            "frozenset",
            "cls",
            "T",
            "R",
            *(f"Sync{each}" for each in (*CLASSES, *REMOTE_CLASSES)),
        }
        for each in sorted(used - known):
            if each in module.imports or re.search(
                rf"^(class )?{each}\b", ast.unparse(module.tree), re.MULTILINE
            ):
                imports.add(module.origin(each))
    return body, imports


def render() -> str:
    body, imports = classes(CLASSES)
    fixed = {
        "from asyncio import AbstractEventLoop",
        "from collections.abc import Callable, Iterator, Sequence",
        "from contextlib import AbstractContextManager",
        "from typing import Any, Generic, Self, TypeVar, overload",
        "import msgspec",
        "from perdure.config import Config",
        "from perdure.history.answer_drafts import Partial",
        "from perdure.storage.encryption.master_keys import Source",
        "from perdure.storage.middleware import Middleware",
        "from perdure.storage.options import Options",
        "from perdure.storage.store import Progress",
    }
    head = [
        "# Made by tools/sync_stub.py from the async classes. Do not edit.",
        *sorted(fixed | imports),
        "",
        'T = TypeVar("T", bound=msgspec.Struct)',
        'R = TypeVar("R")',
        "",
        "def open_sync(",
        "    url: str | None = ...,",
        "    *,",
        "    config: Config | None = ...,",
        "    middleware: Sequence[Middleware] = ...,",
        "    master_key: Source | None = ...,",
        "    progress: Progress | None = ...,",
        ") -> SyncBank: ...",
        "",
        "def sync_loop() -> AbstractEventLoop: ...",
        "",
        "class Bridge:",
        "    def __init__(self, target: Any) -> None: ...",
        "    def __getattr__(self, name: str) -> Any: ...",
        "",
    ]
    return formatted("\n".join([*head, *body]))


def render_remote() -> str:
    body, imports = classes(REMOTE_CLASSES)
    head = [
        "# Made by tools/sync_stub.py from the async classes. Do not edit.",
        *sorted({*imports, "from collections.abc import Iterator", "from typing import overload"}),
        "",
        "def connect_sync(",
        "    url: str, *, token: str | None = ..., timeout: float = ...",
        ") -> SyncRemoteBank: ...",
        "",
    ]
    return formatted("\n".join([*head, *body]))


def render_public() -> str:
    """A line for each public name, and the module that it is imported from."""
    tree = ast.parse(PUBLIC.with_suffix(".py").read_text(encoding="utf-8"))
    table = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_NAMES"
    )
    lines = [
        f"from {module} import {name} as {name}"
        for module, names in table.items()
        for name in names.split()
    ]
    head = "# Made by tools/sync_stub.py from the table in __init__.py. Do not edit."
    tail = ["", "__version__: str", "", "def __dir__() -> list[str]: ..."]
    return formatted("\n".join([head, *lines, *tail]))


def formatted(text: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--stdin-filename", "sync.pyi", "-"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def main() -> int:
    stale = 0
    stubs = ((STUB, render()), (REMOTE_STUB, render_remote()), (PUBLIC, render_public()))
    for path, made in stubs:
        if "--check" not in sys.argv:
            path.write_text(made, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != made:
            print(f"{path.relative_to(SRC.parent)} is not current: run python tools/sync_stub.py")
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
