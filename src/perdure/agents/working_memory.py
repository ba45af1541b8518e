"""Working memory: what an agent has in mind right now, per session, and soon forgets.

Recent messages, the current task, the active context. It is kept for an hour after its last use
(1 to 24 hours), in the bank or in the store of `agents.working_store`, such as a Valkey. An agent
has about 1 MB (`agents.working_bytes`): of a session the oldest messages go first, of an agent the
sessions that were used longest ago. It is a convenience: the session's log has every word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec

from perdure.core import clock
from perdure.core.errors import InvalidInput, TooLarge
from perdure.core.input_types import require_mapping, require_text
from perdure.history.log_records import agent_of, checked_agent
from perdure.services import Services
from perdure.storage.options import DEFAULT
from perdure.storage.records import Compressed, Key, system_record
from perdure.storage.transaction import Transaction

#: What a TTL may be, in seconds.
SHORTEST, LONGEST = 3_600.0, 86_400.0
#: Recent messages of a session.
MOST_MESSAGES = 100


class WorkingMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Something that was said lately."""

    role: str
    text: str
    time: int = 0  # Microseconds.


@system_record("working_memory", ttl="1h")
class WorkingSession(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What an agent has in mind in one session."""

    id: Annotated[str, Key()]  # the session
    agent: str
    #: Oldest first.
    messages: Annotated[tuple[WorkingMessage, ...], Compressed()] = ()
    task: dict[str, Any] = {}
    context: dict[str, Any] = {}
    updated: int = 0  # Microseconds.


class WorkingShare(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the working memory of one session takes."""

    session: str
    bytes: int
    updated: int
    expires: int


@system_record("working_sizes", ttl="1h")
class WorkingSizes(msgspec.Struct, frozen=True):
    """What an agent's working memory takes, by session."""

    agent: Annotated[str, Key()]
    shares: tuple[WorkingShare, ...] = ()


def checked_ttl(ttl: Any) -> int:
    """Microseconds of a TTL: seconds, ``"2h"``, a timedelta. Raises `InvalidInput` if it is not
    from 1 to 24 hours.
    """
    span = clock.duration(ttl)
    if not SHORTEST * clock.SECOND <= span <= LONGEST * clock.SECOND:
        raise InvalidInput(
            f"Working memory cannot be kept for {ttl!r}.",
            hint="Give 1 to 24 hours, such as '1h' or 3600. What is to last belongs in a memory.",
        )
    return span


class WorkingMemory:
    """The working memory of one agent."""

    def __init__(
        self,
        services: Services,
        agent: str,
        *,
        ttl: Any = None,
        most_bytes: int | None = None,
    ) -> None:
        settings = services.config.agents
        self._mask = services.mask_data
        self._side = services.side_store
        self._agent = checked_agent(agent)
        self._ttl = checked_ttl(settings.working_ttl if ttl is None else ttl)
        self._most = settings.working_bytes if most_bytes is None else most_bytes

    async def get(self, session: str) -> WorkingSession:
        """What it has in mind in a session; nothing, if that has expired."""
        name = self._named(session)
        found = await (await self._side.opened()).collection(WorkingSession).get(name)
        return found or WorkingSession(id=name, agent=self._agent)

    async def sessions(self) -> list[WorkingShare]:
        """Sessions that it has something in mind of, the last used first."""
        store = await self._side.opened()
        found = await store.collection(WorkingSizes).get(self._agent)
        living = () if found is None else _living(found, store.now())
        return sorted(living, key=lambda share: -share.updated)

    async def update(
        self,
        session: str,
        *,
        messages: Iterable[tuple[str, str]] = (),
        task: Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> WorkingSession:
        """Add messages (role and text), and put the task and the context in the place of what
        they were; an empty one ends them. It is kept for its TTL from now on.

        Secrets are masked. Raises `TooLarge` if task and context alone are more than an agent's
        working memory holds.
        """
        name = self._named(session)
        said = [
            {"role": require_text(r, "role"), "text": require_text(t, "text")} for r, t in messages
        ]
        given: dict[str, Any] = {"messages": said}
        if task is not None:
            given["task"] = dict(require_mapping(task, "task"))
        if context is not None:
            given["context"] = dict(require_mapping(context, "context"))
        masked = self._mask(_plain(given))

        async def body(transaction: Transaction) -> WorkingSession:
            now = transaction.now()
            sessions = transaction.collection(WorkingSession)
            found = await sessions.get(name) or WorkingSession(id=name, agent=self._agent)
            new = [WorkingMessage(m["role"], m["text"], now) for m in masked["messages"]]
            kept = self._fitting(
                msgspec.structs.replace(
                    found,
                    messages=(*found.messages, *new)[-MOST_MESSAGES:],
                    task=masked.get("task", found.task),
                    context=masked.get("context", found.context),
                    updated=now,
                )
            )
            share = WorkingShare(name, _size(kept), now, now + self._ttl)
            await self._make_room(transaction, share)
            await self._put(transaction, kept, share.expires)
            return kept

        return await (await self._side.opened()).transact(body)

    async def clear(self, session: str | None = None) -> None:
        """Forget it: of one session, or of all."""
        names = [s.session for s in await self.sessions()] if session is None else [session]

        async def body(transaction: Transaction) -> None:
            sizes = transaction.collection(WorkingSizes)
            found = await sizes.get(self._agent)
            await transaction.collection(WorkingSession).delete_many(names)
            if found is not None:
                left = tuple(each for each in found.shares if each.session not in names)
                await self._put_sizes(transaction, left)

        await (await self._side.opened()).transact(body)

    # ------------------------------------------------------------------------------------------

    def _named(self, session: str) -> str:
        if agent_of(session) != self._agent:
            raise InvalidInput(
                f"{session} is no session of {self._agent}.",
                hint="Working memory is an agent's own.",
            )
        return session

    def _fitting(self, wanted: WorkingSession) -> WorkingSession:
        """Without as many of its oldest messages as it takes to fit."""
        bare = _size(msgspec.structs.replace(wanted, messages=()))
        if bare > self._most:
            raise TooLarge(
                f"The task and the context of {wanted.id} take {bare:,} bytes; the working memory"
                f" of an agent holds {self._most:,}.",
                hint="Keep the large part as an artifact (bank.artifacts), and its hash here.",
            )
        room, kept = self._most - bare, 0
        for message in reversed(wanted.messages):
            room -= len(msgspec.msgpack.encode(message))
            if room < 0:
                break
            kept += 1
        return msgspec.structs.replace(
            wanted, messages=wanted.messages[len(wanted.messages) - kept :]
        )

    async def _make_room(self, transaction: Transaction, share: WorkingShare) -> None:
        """Drop the sessions that were used longest ago, until all of them fit."""
        found = await transaction.collection(WorkingSizes).get(self._agent)
        living = () if found is None else _living(found, transaction.now())
        others = sorted(
            (each for each in living if each.session != share.session),
            key=lambda each: each.updated,
        )
        total = share.bytes + sum(each.bytes for each in others)
        dropped = list[str]()
        while total > self._most and others:
            oldest = others.pop(0)
            total -= oldest.bytes
            dropped.append(oldest.session)
        if dropped:
            await transaction.collection(WorkingSession).delete_many(dropped)
        await self._put_sizes(transaction, (*others, share))

    async def _put_sizes(self, transaction: Transaction, shares: tuple[WorkingShare, ...]) -> None:
        if not shares:
            await transaction.collection(WorkingSizes).delete(self._agent)
            return
        expires = max(each.expires for each in shares)
        await self._put(transaction, WorkingSizes(self._agent, shares), expires)

    async def _put(
        self, transaction: Transaction, record: WorkingSession | WorkingSizes, expires: int
    ) -> None:
        rows = transaction.collection(type(record))
        await rows.make()
        # The TTL is a setting here, not the type's.
        await transaction.write([rows.declared.encode(record, expires, None)], DEFAULT)


def _plain(given: dict[str, Any]) -> dict[str, Any]:
    """Raises `InvalidInput` for what could not be stored."""
    try:
        msgspec.msgpack.encode(given)
    except (TypeError, OverflowError, ValueError) as exc:
        raise InvalidInput(
            f"Working memory cannot hold this: {exc}.",
            hint="Give texts, numbers, lists and mappings of them.",
        ) from exc
    return given


def _living(found: WorkingSizes, now: int) -> tuple[WorkingShare, ...]:
    return tuple(each for each in found.shares if each.expires > now)


def _size(session: WorkingSession) -> int:
    return len(msgspec.msgpack.encode(session))
