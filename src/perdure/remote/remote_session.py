"""A session behind a server: what `RemoteBank.session` returns.

The methods are those of `perdure.Session`, which documents them: the same arguments, results and
errors. The server keeps nothing between two requests. What a writer knows (the turn
that it wrote to last, the turns that its prompts opened) is here, and sent along.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, overload

from perdure import wire
from perdure.context.board import BoardEntry
from perdure.context.context import Context, checked_tools
from perdure.context.injection_records import prompt_digest
from perdure.context.prompt_encoder import PromptEncoder
from perdure.context.session_tools import Rendering
from perdure.core import clock
from perdure.core.band_marks import BandMarks, parse_profile
from perdure.core.clock import When
from perdure.core.input_types import require_mapping, require_text
from perdure.core.levels import Level, parse_level
from perdure.core.messages import Message, sound
from perdure.core.turns import Position, Turn
from perdure.gateway.calls import Tool
from perdure.history.answer_drafts import Partial
from perdure.history.epochs import Epoch
from perdure.history.intake import resolved
from perdure.history.log_records import Head, checked_agent
from perdure.history.turn_search import FoundTurn
from perdure.recall.sharing import EVERYBODY
from perdure.recall.values import Recalled
from perdure.remote.api_client import ApiClient, segment
from perdure.remote.api_results import (
    AppendedTurns,
    EpochSummary,
    ExplainedContext,
    SharedSession,
    ToolAnswer,
    TurnPage,
    UndoneNumbers,
)
from perdure.remote.remote_artifacts import RemoteArtifacts
from perdure.sessions.session_info import SessionInfo
from perdure.sessions.session_writer import answer_in
from perdure.sessions.validation import (
    budget_in,
    count_in,
    flag_in,
    lines_in,
    prompt_in,
    tags_of,
    text_in,
    turn_number,
)

_PAGE = 1_000  # Turns that a request asks for at most.
_READ = 100  # … while all are read.
_BEGUN = 1_000  # Prompts whose turns are remembered.


class RemoteSession:
    """One conversation, on a server. Made by `RemoteBank.session`."""

    def __init__(self, api: ApiClient, info: SessionInfo) -> None:
        self._api = api
        self._info = info
        agent, _, name = info.name.partition("/")
        self._path = f"/sessions/{segment(agent)}/{segment(name)}"
        self._encoder = PromptEncoder()
        self._writing = asyncio.Lock()  # Held while writing: the next goes on from there.
        self._continues: int | None = None  # The turn that this writer wrote to last.
        self._fresh = False  # The next message opens a turn, whatever is open.
        self._closed = 0  # The turn that was closed by hand.
        self._begun = dict[tuple[int, bytes], int]()  # Turns by expected turn and prompt.

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} at {self._api.url}>"

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def agent(self) -> str:
        return self._info.agent

    @property
    def state(self) -> dict[str, Any]:
        """The state that `describe` stores, as this object last saw it."""
        return self._info.state

    async def head(self) -> Head:
        return await self._api.get(f"{self._path}/head", Head)

    # Writing ----------------------------------------------------------------------------------

    async def append(
        self,
        messages: Any,
        *,
        context: Context | None = None,
        key: str | None = None,
        tags: Mapping[str, str] | None = None,
        expected: str | int | Position | None = None,
        fresh: bool = False,
    ) -> Turn | list[Turn]:
        body: dict[str, Any] = {
            "key": None if key is None else require_text(key, "key"),
            "tags": tags_of(tags) or None,
            "expected": None if expected is None else turn_number(expected),
        }
        place, known, prompted = None, None, False
        if context is None:
            body["canonical"] = wire.decode(messages)
        else:
            body["canonical"] = answer_in(messages, context, self.name)
            place, prompted = (context.turn, prompt_digest(context.prompt)), bool(context.prompt)
            known = self._begun.get(place)
            names = ("turn", "prompt", "model", "injection")
            body["context"] = {name: getattr(context, name) for name in names} | {"begun": known}
        async with self._writing:
            if known is not None:
                opens = self._fresh and known == self._closed
            else:  # with its prompt, the server knows whether an answer opens a turn
                opens = self._fresh and not prompted
            body["continues"], body["fresh"] = self._continues, opens or fresh
            found = await self._api.call("POST", f"{self._path}/turns", AppendedTurns, body)
            turns = found.turns
            self._continues, self._fresh = turns[-1].number, False
        if place is not None and prompted and not (opens and known is not None):
            self._begun[place] = turns[0].number
            while len(self._begun) > _BEGUN:
                self._begun.pop(next(iter(self._begun)))
        return turns[0] if len(turns) == 1 else turns

    async def close_turn(self) -> None:
        async with self._writing:
            head = await self._api.call("POST", f"{self._path}/close", Head)
            self._continues, self._fresh, self._closed = None, True, head.turn

    async def undo(self, turns: int = 1, *, numbers: Sequence[int] | None = None) -> list[int]:
        turns = count_in(turns, "undone") if numbers is None else turns
        body = {"turns": turns, "numbers": None if numbers is None else list(numbers)}
        async with self._writing:
            found = await self._api.call("POST", f"{self._path}/undo", UndoneNumbers, body)
            undone = frozenset(found.turns)
            self._begun = {place: at for place, at in self._begun.items() if at not in undone}
            if found.newest or self._continues in undone:
                self._continues, self._fresh = None, found.newest
        return found.turns

    async def resume(self, turn: str | int | Position) -> None:
        number = turn_number(turn)
        async with self._writing:
            self._continues, self._fresh = number, False

    async def describe(self, facts: Mapping[str, Any]) -> None:
        await self._change({"state": dict(require_mapping(facts, "facts"))})

    async def archive(self) -> None:
        self._info = await self._api.call("POST", f"{self._path}/archive", SessionInfo)

    async def change_strategy(
        self,
        strategy: str | None = None,
        *,
        budget: int | None = None,
        profile: str | Mapping[str, float] | BandMarks | None = None,
    ) -> None:
        body = {
            "strategy": None if strategy is None else require_text(strategy, "strategy"),
            "budget": budget_in(budget),
            "profile": None if profile is None else parse_profile(profile),
        }
        await self._change(body)

    async def _change(self, body: Mapping[str, Any]) -> None:
        self._info = await self._api.call("PATCH", self._path, SessionInfo, body)

    async def fork(self, name: str, at: str | int | Position | None = None) -> RemoteSession:
        body = {
            "name": require_text(name, "name"),
            "at": None if at is None else f"T-{turn_number(at)}",
        }
        return RemoteSession(
            self._api, await self._api.call("POST", f"{self._path}/forks", SessionInfo, body)
        )

    async def partials(self) -> list[Partial]:
        return await self._api.get(f"{self._path}/partials", list[Partial])

    async def close_partial(self, partial: Partial) -> Turn:
        path = f"{self._path}/partials/T-{partial.turn}/close"
        return await self._api.call("POST", path, Turn)

    async def drop_partial(self, partial: Partial) -> None:
        await self._api.call("DELETE", f"{self._path}/partials/T-{partial.turn}", type(None))

    # Reading ----------------------------------------------------------------------------------

    async def turns(
        self,
        limit: int = 20,
        *,
        before: str | int | Position | None = None,
        since: When | None = None,
        until: When | None = None,
        tags: Mapping[str, str] | None = None,
        undone: bool = False,
        resolve: bool = False,
        prune: bool = False,
    ) -> list[Turn]:
        left, found = count_in(limit, "read"), list[Turn]()
        front = None if before is None else f"T-{number}" if (number := turn_number(before)) else 0
        while left:
            page = await self._api.get(
                f"{self._path}/turns",
                TurnPage,
                limit=min(left, _PAGE),
                before=front,
                since=_moment(since),
                until=_moment(until, last=True),
                tag=[f"{name}={value}" for name, value in tags_of(tags).items()],
                undone=undone,
                resolve=resolve,
                prune=prune,
            )
            found = [*page.turns, *found]
            left, front = left - len(page.turns), page.before
            if front is None:
                break
        return found

    @overload
    async def turn(
        self,
        id: str | int | Position,
        *,
        level: None = None,
        resolve: bool = False,
        prune: bool = False,
    ) -> Turn: ...
    @overload
    async def turn(self, id: str | int | Position, *, level: Level | str) -> Rendering: ...
    async def turn(
        self,
        id: str | int | Position,
        *,
        level: Level | str | None = None,
        resolve: bool = False,
        prune: bool = False,
    ) -> Turn | Rendering:
        path = f"{self._path}/turns/{_place(id)}"
        if level is not None:
            return await self._api.get(f"{path}/levels/{parse_level(level)}", Rendering)
        return await self._api.get(path, Turn, resolve=resolve, prune=prune)

    async def read(
        self, first: int = 1, last: int | None = None, *, undone: bool = False
    ) -> AsyncIterator[Turn]:
        after: str | None = f"T-{first - 1}" if first > 1 else "0"
        while after is not None:
            page = await self._api.get(
                f"{self._path}/turns", TurnPage, after=after, undone=undone, limit=_READ
            )
            for turn in page.turns:
                if last is not None and turn.number > last:
                    return
                yield turn
            after = page.after if page.turns else None

    async def search(self, query: str, *, limit: int = 20) -> list[FoundTurn]:
        query = sound(require_text(query, "query"))
        return await self._api.get(
            f"{self._path}/search", list[FoundTurn], query=query, limit=limit
        )

    async def resolve(self, messages: Iterable[Message]) -> tuple[Message, ...]:
        return await resolved(messages, RemoteArtifacts(self._api))

    # Contexts ---------------------------------------------------------------------------------

    async def context(
        self,
        prompt: Any = None,
        *,
        system: str | None = "",
        tools: Iterable[Tool | Mapping[str, Any]] | None = (),
        model: str | None = "",
        budget: int | None = None,
        recall: bool = True,
        keep: bool = True,
        reminders: Iterable[str] | None = (),
        strategy: str | None = None,
    ) -> Context:
        body = {
            "canonical": prompt_in(prompt),
            "system": text_in(system, "system"),
            "canonical_tools": checked_tools(() if tools is None else tools),
            "model": text_in(model, "model"),
            "budget": budget_in(budget),
            "recall": flag_in(recall, "recall"),
            "reminders": lines_in(reminders, "reminders"),
            "strategy": None if strategy is None else require_text(strategy, "strategy"),
            "continues": self._continues,
            "parts": True,
        }
        path = f"{self._path}/context" + ("" if flag_in(keep, "keep") else "/preview")
        return self._put_together(await self._api.call("POST", path, ExplainedContext, body))

    async def past_context(self, at: str | int | Position) -> Context:
        path = f"{self._path}/turns/{_place(at)}/context"
        return self._put_together(await self._api.get(path, ExplainedContext, parts=True))

    def _put_together(self, found: ExplainedContext) -> Context:
        parts = found.parts
        assert parts is not None  # noqa: S101 (it was asked for)
        return parts.context(self._encoder)

    async def set_fidelity(
        self, id: str | int | Position, level: Level | str, *, now: bool = False
    ) -> str:
        body = {"level": parse_level(level), "now": now}
        path = f"{self._path}/turns/{_place(id)}/fidelity"
        return (await self._api.call("POST", path, ToolAnswer, body)).text

    async def board(self) -> Sequence[BoardEntry]:
        return await self._api.get(f"{self._path}/board", tuple[BoardEntry, ...])

    async def run_tool(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        given = dict(arguments) if isinstance(arguments, Mapping) else arguments
        path = f"{self._path}/tools/{segment(name)}"
        return (await self._api.call("POST", path, ToolAnswer, {"arguments": given})).text

    async def epochs(self) -> list[Epoch]:
        path = f"{self._path}/epochs"
        made = await self._api.get(path, list[EpochSummary])
        return [await self._api.get(f"{path}/{each.number}", Epoch) for each in made]

    # Recall -----------------------------------------------------------------------------------

    async def recall(
        self,
        query: str,
        *,
        limit: int = 10,
        kinds: str | Iterable[str] | None = None,
        agents: str | Iterable[str] | None = None,
        sessions: str | Iterable[str] | None = None,
        line: bool = False,
        roles: str | Iterable[str] | None = None,
        tools: str | Iterable[str] | None = None,
        branch: str = "",
        task: str = "",
        outcome: str = "",
        tags: Mapping[str, str] | None = None,
        since: When | None = None,
        until: When | None = None,
        deadline: float | None = None,
        wide: bool = False,
        judged: bool = False,
    ) -> Recalled:
        body = {
            "query": text_in(query, "query"),
            "limit": limit,
            "kinds": _as_list(kinds),
            "agents": _as_list(agents),
            "sessions": _as_list(sessions),
            "line": flag_in(line, "line"),
            "roles": _as_list(roles),
            "tools": _as_list(tools),
            "branch": text_in(branch, "branch"),
            "task": text_in(task, "task"),
            "outcome": text_in(outcome, "outcome"),
            "tags": tags_of(tags) or None,
            "since": _moment(since),
            "until": _moment(until, last=True),
            "deadline": deadline,
            "wide": flag_in(wide, "wide"),
            "judged": flag_in(judged, "judged"),
        }
        return await self._api.call("POST", f"{self._path}/recall", Recalled, body)

    async def share(self, *agents: str) -> None:
        path, body = f"{self._path}/readers", {"agents": _readers(agents)}
        await self._api.call("POST", path, SharedSession, body)

    async def unshare(self, *agents: str) -> None:
        path, body = f"{self._path}/readers/remove", {"agents": _readers(agents)}
        await self._api.call("POST", path, SharedSession, body)

    async def unshare_all(self) -> None:
        await self._api.call("DELETE", f"{self._path}/readers", SharedSession)

    async def shared_with(self) -> list[str]:
        return (await self._api.get(f"{self._path}/readers", SharedSession)).shared_with


def _readers(agents: Iterable[str]) -> list[str]:
    return [agent if agent == EVERYBODY else checked_agent(agent) for agent in agents]


def _place(id: str | int | Position) -> str:
    """A turn or a round in a path. Raises `InvalidInput` for what names none."""
    if not isinstance(id, str):
        return str(Position.parse(id))
    session, mark, place = id.rpartition("#")
    return segment(f"{session}{mark}{Position.parse(place)}")


def _moment(given: When | None, *, last: bool = False) -> str | None:
    """As the caller's clock and time zone have it. Raises `InvalidInput`."""
    if given is None:
        return None
    return clock.to_datetime(clock.moment(given, clock.now(), last=last)).isoformat()


def _as_list(given: str | Iterable[str] | None) -> Any:
    if given is None or isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        return given
    return list(given)
