# Made by tools/sync_stub.py from the async classes. Do not edit.
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from perdure.artifacts import Artifact
from perdure.bank.bank_info import BankInfo
from perdure.context.board import BoardEntry
from perdure.context.context import Context
from perdure.context.session_tools import Rendering
from perdure.core.band_marks import BandMarks
from perdure.core.clock import When
from perdure.core.levels import Level
from perdure.core.messages import Message
from perdure.core.turns import Position
from perdure.core.turns import Turn
from perdure.gateway.calls import Tool
from perdure.history.answer_drafts import Partial
from perdure.history.epochs import Epoch
from perdure.history.forget_sessions import Forgotten
from perdure.history.log_records import Head
from perdure.history.log_records import Link
from perdure.history.turn_search import FoundTurn
from perdure.recall.memory_records import Anchor
from perdure.recall.memory_records import Author
from perdure.recall.memory_records import FormerMemory
from perdure.recall.memory_records import Memory
from perdure.recall.references.files import LayerProblem
from perdure.recall.references.layers import Layer
from perdure.recall.values import Recalled
from perdure.remote.api_results import LayerInfo
from perdure.sessions.session_info import SessionInfo
from perdure.sessions.session_listing import AgentInfo
from typing import Any
from typing import Self
from typing import overload
import builtins

def connect_sync(url: str, *, token: str | None = ..., timeout: float = ...) -> SyncRemoteBank: ...

class SyncRemoteBank:
    url: str
    memories: SyncRemoteMemories
    references: SyncRemoteReferences
    artifacts: SyncRemoteArtifacts
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...
    def session(
        self,
        name: str,
        *,
        strategy: str | None = ...,
        budget: int | None = ...,
        profile: str | Mapping[str, float] | BandMarks | None = ...,
        type: str = ...,
        state: Mapping[str, Any] | None = ...,
        tags: Mapping[str, str] | None = ...,
        link: Link | None = ...,
    ) -> SyncRemoteSession: ...
    def existing_session(self, name: str) -> SyncRemoteSession: ...
    def sessions(self, *, agent: str | None = ..., archived: bool = ...) -> list[SessionInfo]: ...
    def agents(self) -> list[AgentInfo]: ...
    def forget(
        self,
        session: str,
        *,
        turns: str | int | Position | Iterable[str | int | Position] | None = ...,
        reroot: bool = ...,
    ) -> Forgotten: ...
    def forget_agent(self, name: str, *, reroot: bool = ...) -> Forgotten: ...
    def info(self) -> BankInfo: ...

class SyncRemoteSession:
    @property
    def name(self) -> str: ...
    @property
    def agent(self) -> str: ...
    @property
    def state(self) -> dict[str, Any]: ...
    def head(self) -> Head: ...
    def append(
        self,
        messages: Any,
        *,
        context: Context | None = ...,
        key: str | None = ...,
        tags: Mapping[str, str] | None = ...,
        expected: str | int | Position | None = ...,
        fresh: bool = ...,
    ) -> Turn | list[Turn]: ...
    def close_turn(self) -> None: ...
    def undo(self, turns: int = ..., *, numbers: Sequence[int] | None = ...) -> list[int]: ...
    def resume(self, turn: str | int | Position) -> None: ...
    def describe(self, facts: Mapping[str, Any]) -> None: ...
    def archive(self) -> None: ...
    def change_strategy(
        self,
        strategy: str | None = ...,
        *,
        budget: int | None = ...,
        profile: str | Mapping[str, float] | BandMarks | None = ...,
    ) -> None: ...
    def fork(self, name: str, at: str | int | Position | None = ...) -> SyncRemoteSession: ...
    def partials(self) -> list[Partial]: ...
    def close_partial(self, partial: Partial) -> Turn: ...
    def drop_partial(self, partial: Partial) -> None: ...
    def turns(
        self,
        limit: int = ...,
        *,
        before: str | int | Position | None = ...,
        since: When | None = ...,
        until: When | None = ...,
        tags: Mapping[str, str] | None = ...,
        undone: bool = ...,
        resolve: bool = ...,
        prune: bool = ...,
    ) -> list[Turn]: ...
    @overload
    def turn(
        self, id: str | int | Position, *, level: None = ..., resolve: bool = ..., prune: bool = ...
    ) -> Turn: ...
    @overload
    def turn(self, id: str | int | Position, *, level: Level | str) -> Rendering: ...
    def read(
        self, first: int = ..., last: int | None = ..., *, undone: bool = ...
    ) -> Iterator[Turn]: ...
    def search(self, query: str, *, limit: int = ...) -> list[FoundTurn]: ...
    def resolve(self, messages: Iterable[Message]) -> tuple[Message, ...]: ...
    def context(
        self,
        prompt: Any = ...,
        *,
        system: str | None = ...,
        tools: Iterable[Tool | Mapping[str, Any]] | None = ...,
        model: str | None = ...,
        budget: int | None = ...,
        recall: bool = ...,
        keep: bool = ...,
        reminders: Iterable[str] | None = ...,
        strategy: str | None = ...,
    ) -> Context: ...
    def past_context(self, at: str | int | Position) -> Context: ...
    def set_fidelity(
        self, id: str | int | Position, level: Level | str, *, now: bool = ...
    ) -> str: ...
    def board(self) -> Sequence[BoardEntry]: ...
    def run_tool(self, name: str, arguments: str | Mapping[str, Any]) -> str: ...
    def epochs(self) -> list[Epoch]: ...
    def recall(
        self,
        query: str,
        *,
        limit: int = ...,
        kinds: str | Iterable[str] | None = ...,
        agents: str | Iterable[str] | None = ...,
        sessions: str | Iterable[str] | None = ...,
        line: bool = ...,
        roles: str | Iterable[str] | None = ...,
        tools: str | Iterable[str] | None = ...,
        branch: str = ...,
        task: str = ...,
        outcome: str = ...,
        tags: Mapping[str, str] | None = ...,
        since: When | None = ...,
        until: When | None = ...,
        deadline: float | None = ...,
        wide: bool = ...,
        judged: bool = ...,
    ) -> Recalled: ...
    def share(self, *agents: str) -> None: ...
    def unshare(self, *agents: str) -> None: ...
    def unshare_all(self) -> None: ...
    def shared_with(self) -> list[str]: ...

class SyncRemoteMemories:
    def get(self, key: str, /, *, agent: str = ...) -> Memory | None: ...
    def list(
        self,
        agent: str | None = ...,
        *,
        kind: str | None = ...,
        tag: str | None = ...,
        status: str | None = ...,
        weight: float = ...,
        words: str = ...,
        limit: int | None = ...,
    ) -> builtins.list[Memory]: ...
    def history(self, key: str, *, agent: str = ...) -> builtins.list[FormerMemory]: ...
    def add(
        self,
        agent: str,
        text: str,
        *,
        kind: str = ...,
        weight: float | None = ...,
        tags: Iterable[str] = ...,
        provenance: Iterable[str] = ...,
        anchor: Anchor | Mapping[str, str] | None = ...,
        shared: Iterable[str] = ...,
        pinned: bool = ...,
        time: int | None = ...,
        by: Author | None = ...,
    ) -> Memory: ...
    def edit(
        self,
        key: str,
        *,
        text: str | None = ...,
        kind: str | None = ...,
        weight: float | None = ...,
        tags: Iterable[str] | None = ...,
        shared: Iterable[str] | None = ...,
        anchor: Anchor | Mapping[str, str] | None = ...,
        provenance: Iterable[str] = ...,
        expected: int | None = ...,
        agent: str = ...,
        by: Author | None = ...,
    ) -> Memory: ...
    def merge(
        self,
        keys: Sequence[str],
        *,
        text: str | None = ...,
        agent: str = ...,
        by: Author | None = ...,
    ) -> Memory: ...
    def pin(self, key: str, *, agent: str = ..., by: Author | None = ...) -> Memory: ...
    def unpin(self, key: str, *, agent: str = ..., by: Author | None = ...) -> Memory: ...
    def retire(
        self,
        key: str,
        *,
        superseded_by: str | None = ...,
        agent: str = ...,
        by: Author | None = ...,
    ) -> Memory: ...
    def restore(self, key: str, *, agent: str = ..., by: Author | None = ...) -> Memory: ...
    def delete(self, key: str, *, agent: str = ..., by: Author | None = ...) -> bool: ...

class SyncRemoteReferences:
    def get(self, name: str, /) -> Layer | None: ...
    def list(self) -> builtins.list[LayerInfo]: ...
    def add(self, text: str, *, name: str = ..., replace: bool = ...) -> LayerInfo: ...
    def remove(self, name: str) -> bool: ...
    def check(self) -> builtins.list[LayerProblem]: ...

class SyncRemoteArtifacts:
    def read(self, artifact: Artifact | str) -> bytes: ...
    def stream(self, artifact: Artifact | str) -> Iterator[bytes]: ...
