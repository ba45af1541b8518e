"""Working memory: what an agent has in mind right now, per session, and soon forgets.

Recent messages, the current task, the active context. It is kept for an hour after its last use
(1 to 24 hours), in the bank or in the store of `agents.working_store`, such as a Valkey. An agent
has about 1 MB (`agents.working_bytes`): of a session the oldest messages go first, of an agent the
sessions that were used longest ago. It is a convenience: the session's log has every word.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec

from perdure.core import clock
from perdure.core.errors import InvalidInput, TooLarge
from perdure.core.input_types import require_mapping, require_text
from perdure.history.log_records import agent_of, checked_agent
from perdure.services import Services
from perdure.storage.finder import QueryBuilder
from perdure.storage.options import DEFAULT
from perdure.storage.records import Compressed, Key, system_record
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

#: What a TTL may be, in seconds.
SHORTEST, LONGEST = 3_600.0, 86_400.0
#: Recent messages of a session.
MOST_MESSAGES = 100
_PAGE = 20  # Shares that are looked at together.


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


@system_record("working_shares", ttl="4d")
class WorkingShare(msgspec.Struct, frozen=True, kw_only=True):
    """What the working memory of one session takes. In the order of keys, the one that was used
    longest ago is an agent's first.
    """

    id: Annotated[str, Key()]  # agent/time.hash
    session: str
    bytes: int
    updated: int  # Microseconds.
    expires: int


@system_record("working_sizes", ttl="2d")
class WorkingSizes(msgspec.Struct, frozen=True):
    """What the working memory of an agent's sessions takes together. Its row outlives what it
    counts, and goes before the shares do that it was counted from.
    """

    agent: Annotated[str, Key()]
    bytes: int = 0


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
        shares = await self._shares(store).values()
        return [each for each in reversed(shares) if each.expires > store.now()]

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
            share = WorkingShare(
                id=_share_key(kept),
                session=name,
                bytes=_size(kept),
                updated=now,
                expires=now + self._ttl,
            )
            await self._make_room(transaction, share, _share_key(found))
            await sessions.make()
            # The TTL is a setting here, not the type's.
            row = sessions.declared.encode(kept, share.expires, None)
            await transaction.write([row], DEFAULT)
            return kept

        return await (await self._side.opened()).transact(body)

    async def clear(self, session: str | None = None) -> None:
        """Forget it: of one session, or of all."""

        async def body(transaction: Transaction) -> None:
            sizes = transaction.collection(WorkingSizes)
            found = await sizes.get(self._agent) or WorkingSizes(self._agent)
            shares = await self._shares(transaction).values()
            gone = [each for each in shares if session in {None, each.session}]
            names = {each.session for each in gone} if session is None else {session}
            await transaction.collection(WorkingSession).delete_many(names)
            await transaction.collection(WorkingShare).delete_many(each.id for each in gone)
            left = found.bytes - sum(each.bytes for each in gone)
            if session is None or left <= 0:
                await sizes.delete(self._agent)
            elif gone:
                await sizes.put(WorkingSizes(self._agent, left))

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

    def _shares(self, rows: Store | Transaction) -> QueryBuilder[WorkingShare]:
        """Of this agent, the one that was used longest ago first."""
        return rows.collection(WorkingShare).query().prefix(f"{self._agent}/").order_by("key")

    async def _make_room(
        self, transaction: Transaction, share: WorkingShare, replaced: str
    ) -> None:
        """Count `share` in the place of the one with the key `replaced`, and drop the sessions that
        were used longest ago until all of them fit. Costs the same for any number of sessions.
        """
        sizes = transaction.collection(WorkingSizes)
        shares = transaction.collection(WorkingShare)
        found = await sizes.get(self._agent) or WorkingSizes(self._agent)
        total = found.bytes
        if (before := await shares.get(replaced)) is not None:
            await shares.delete(before.id)
            total -= before.bytes
        now, room = transaction.now(), self._most - share.bytes
        while True:
            page = await self._shares(transaction).limit(_PAGE).values()
            gone = list[WorkingShare]()
            for each in page:
                if each.expires > now and total <= room:
                    break
                gone.append(each)
                total -= each.bytes
            # A session whose share ran out may have been used anew since: it has another one.
            dropped = [each.session for each in gone if each.expires > now]
            await transaction.collection(WorkingSession).delete_many(dropped)
            await shares.delete_many(each.id for each in gone)
            if len(gone) < _PAGE:
                break
        await shares.put(share)
        await sizes.put(WorkingSizes(self._agent, max(0, total) + share.bytes))


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


def _share_key(session: WorkingSession) -> str:
    """Hashed: names of sessions may be as long as keys are."""
    name = hashlib.sha256(session.id.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{session.agent}/{session.updated:020d}.{name}"


def _size(session: WorkingSession) -> int:
    return len(msgspec.msgpack.encode(session))
