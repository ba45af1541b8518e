"""Which conversation a request belongs to.

It is found by the header ``x-perdure-session``, then by the client's own id of it, then by what was
said: its first words and a history that goes on from what is recorded.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import count

import msgspec

from perdure.bank.bank import Bank
from perdure.core.client_agents import session_of_client
from perdure.core.errors import Conflict, Denied, NotFound
from perdure.history.import_cursors import CONVERSATION, was_forgotten
from perdure.history.log_records import Link, SessionRecord, agent_of
from perdure.history.message_identity import is_weak
from perdure.server.proxy.alignment import Alignment, ItemFacts, Recorded, align
from perdure.server.proxy.client_request import ClientRequest, ConversationId
from perdure.server.proxy.conversation import FORGOTTEN, Conversation
from perdure.sessions.session import Session
from perdure.storage.finder import any_of, tagged

#: Conversations that are kept in memory.
_OPEN = 256
#: Sessions that begin with the same words and are compared, the most recently used first: for a
#: request that has no reply yet, and for others.
_ALIKE, _ALIKE_WITH_REPLY = 20, 1_000
#: Tags of a session: the client's id of the conversation; its first words, by their identity; and
#: those with which it begins since the client compacted it.
_ID, _FIRST, _SUMMARY = CONVERSATION, "first", "summary"


class Conversations:
    """Finds the conversation of a request, or begins it."""

    def __init__(self, bank: Bank) -> None:
        self._bank = bank
        self._records = bank.store.collection(SessionRecord)
        self._open: dict[str, Conversation] = {}
        #: The sessions of a conversation that has an id: its own, and its forks.
        self._known: dict[tuple[str, ...], list[str]] = {}
        self._finding = asyncio.Lock()
        #: Told the name of each session that was forgotten.
        self.dropped: Callable[[str], None] = lambda _: None

    async def find(self, request: ClientRequest, facts: Sequence[ItemFacts]) -> Conversation:
        """Raises `InvalidInput` if the header names no session, `Denied` if it names one of another
        agent than the caller's.
        """
        who = request.id
        names = self._known.get(_key(who)) if who.conversation and not who.session else None
        if names is not None and len(names) == 1 and names[0] in self._open:
            return await self._opened(names[0]) or self._open[names[0]]
        async with self._finding:
            if who.session:
                name = who.session
                if "/" not in name:
                    name = f"{agent_of_conversation(who)}/{name}"
                if who.agent not in ("", agent_of(name)):
                    raise Denied(f"This token is for the agent {who.agent} alone.")
                return await self._opened(name) or await self._begun(name, who, facts)
            if who.conversation:
                return await self._by_id(who, facts)
            return await self._by_words(who, facts)

    async def lines_of(self, who: ConversationId, own: Conversation) -> list[Conversation]:
        """All lines of a conversation; `own` is the first."""
        names = self._known.get(_key(who), []) if who.conversation else []
        others = [await self._opened(name) for name in names if name != own.session.name]
        return [own, *(other for other in others if other is not None)]

    def opened(self, who: ConversationId) -> Conversation | None:
        """The conversation of a request, if it is in memory and the only one of its id."""
        names = [who.session] if who.session else self._known.get(_key(who), [])
        found = self._open.get(names[0]) if len(names) == 1 else None
        return found if found is None or who.agent in ("", found.session.agent) else None

    async def fork(self, conversation: Conversation, at: int, who: ConversationId) -> Conversation:
        """Another line of the same conversation: two clients speak in it. Takes no lock: its caller
        holds the conversation's, which `find` takes inside of `_finding`.
        """
        parent = conversation.session.name
        for number in count(2):
            name = _numbered(parent, number)
            try:
                session = await conversation.session.fork(name, at)
            except Conflict:
                continue
            if who.conversation:
                self._known.setdefault(_key(who), [parent]).append(name)
            return self._kept(session)
        raise AssertionError("unreachable")

    async def _by_id(self, who: ConversationId, facts: Sequence[ItemFacts]) -> Conversation:
        names = self._known.get(_key(who))
        if names is None:
            names = await self._sessions_of(who)
            if names:
                self._known[_key(who)] = names
                _shrink(self._known, _OPEN * 4)
        found = [each for name in names if (each := await self._opened(name)) is not None]
        if not found:
            name = _name(who)
            self._known[_key(who)] = [name]
            shared = await self._shared(who, facts)
            return shared or await self._begun(name, who, facts)
        return found[0] if len(found) == 1 else await self._best(found, facts)

    async def _best(
        self, found: Sequence[Conversation], facts: Sequence[ItemFacts]
    ) -> Conversation:
        """The line of several that items go on with; else the one that they share most with; else
        the one that was spoken in last.
        """
        scores: list[tuple[bool, int, int]] = []
        for conversation in found:
            await conversation.settle()
            async with conversation.lock:
                await conversation.refresh()
                line = conversation.line
                aligned = align(line, facts)
            fits = aligned.extends(line) and not aligned.compacted
            shared = sum(at >= 0 for at in aligned.matched)
            scores.append((fits, shared, conversation.spoken))
        return found[scores.index(max(scores))]

    async def _sessions_of(self, who: ConversationId) -> list[str]:
        name = _name(who)
        if await self._records.get(name) is None:
            # The folder may have been another one, or not been told.
            same = await self._records.query().tagged(**{_ID: _id_tag(who)}).values()
            records = [each for each in same if each.parent is None]
            name = next((each.id for each in records if who.agent in ("", each.agent)), "")
        if not name:
            return []
        forks = await self._records.query().where("parent", "=", name).values()
        own = [fork.id for fork in forks if fork.tags.get(_ID) == _id_tag(who)]
        return [name, *sorted(own)]

    async def _by_words(self, who: ConversationId, facts: Sequence[ItemFacts]) -> Conversation:
        """The conversation that these items go on with; else one that they share a beginning with
        is forked; else it is a new one.
        """
        newest = _last_reply(facts)
        if newest:
            for conversation in reversed(self._open.values()):
                if conversation.last_reply == newest and _is_of(conversation.session.record, who):
                    if await self._fits(conversation, facts):
                        return conversation
                    break
        best: tuple[int, Conversation] | None = None
        async for conversation in self._alike(who, facts):
            fits = await self._fits(conversation, facts)
            if fits and (best is None or fits > best[0]):
                best = fits, conversation
                if newest and conversation.last_reply == newest:
                    break
        if best is not None:
            return best[1]
        own = msgspec.structs.replace(who, conversation=uuid.uuid4().hex[:16])
        shared = await self._shared(own, facts)
        return shared or await self._begun(_name(own), own, facts)

    async def _alike(
        self, who: ConversationId, facts: Sequence[ItemFacts]
    ) -> AsyncIterator[Conversation]:
        """Conversations of the same client and project that begin with the same words."""
        first = _first(facts)
        if not first:
            return
        begins = any_of(tagged(_FIRST, first), tagged(_SUMMARY, first))
        query = self._records.query().where(begins).order_by("-last_active").limit(_ALIKE)
        if owner := _owner(who):
            query = query.where("agent", "=", owner)
        left = _ALIKE_WITH_REPLY if _last_reply(facts) else _ALIKE
        cursor: str | None = None
        while left > 0:
            page = await query.page(after=cursor)
            for record in page.values:
                if not _is_of(record, who):
                    continue
                opened = await self._opened(record.id)
                if opened is not None:
                    yield opened
                left -= 1
            cursor = page.next
            if cursor is None:
                return

    async def _shared(self, who: ConversationId, facts: Sequence[ItemFacts]) -> Conversation | None:
        """A fork of the conversation with which these items share most, if they share a reply."""
        if not _last_reply(facts):
            return None
        best: tuple[int, Conversation] | None = None
        candidates = [each async for each in self._alike(who, facts)]
        if who.forked_from:
            origin = msgspec.structs.replace(who, conversation=who.forked_from, sub_agent="")
            names = await self._sessions_of(origin)
            candidates += [each for name in names if (each := await self._opened(name))]
        for conversation in candidates:
            async with conversation.lock:
                await conversation.refresh()
                at = shared_turn(conversation.line, align(conversation.line, facts))
            if at and (best is None or at > best[0]):
                best = at, conversation
        if best is None:
            return None
        at, parent = best
        name = _name(who)
        try:
            session = await parent.session.fork(name, at)
        except Conflict:
            return await self._opened(name)
        await self._tag(session, **{_ID: _id_tag(who), _FIRST: _first(facts)})
        return self._kept(session)

    async def compacted(self, conversation: Conversation, summary: str) -> None:
        """The client's history begins with these words from now on."""
        await self._tag(conversation.session, **{_SUMMARY: summary})

    async def _tag(self, session: Session, **tags: str) -> None:
        def changed(record: SessionRecord | None) -> SessionRecord:
            found = record or session.record
            return msgspec.structs.replace(found, tags={**found.tags, **tags})

        await self._records.change(session.name, changed)

    async def _fits(self, conversation: Conversation, facts: Sequence[ItemFacts]) -> int | None:
        """How much of a line the items go on with; None if they do not, or share no reply: many
        conversations begin with the same prompt. One that got no answer and is sent again is the
        same, though.
        """
        await conversation.settle()
        async with conversation.lock:
            head = await conversation.refresh()
            line = conversation.line
            found = align(line, facts)
        if not found.extends(line) or found.compacted:
            return None
        if not any(part.by_model for part in line) and (
            found.new or head.answering or conversation.answers
        ):
            return None
        return sum(not is_weak(part.identity) for part in line)

    def drop(self, name: str) -> None:
        """The session was forgotten: what comes next of its conversation begins another."""
        self.dropped(name)
        self._open.pop(name, None)
        self._known = {key: names for key, names in self._known.items() if name not in names}

    async def _opened(self, name: str) -> Conversation | None:
        found = self._open.pop(name, None)
        if found is not None:
            self._open[name] = found  # the most recently used is the last
            return found
        try:
            return self._kept(await self._bank.existing_session(name))
        except NotFound:
            return None

    async def _begun(
        self, name: str, who: ConversationId, facts: Sequence[ItemFacts]
    ) -> Conversation:
        tags = {_ID: _id_tag(who), _FIRST: _first(facts)}
        gone = await was_forgotten(self._bank.store, name)
        state = {"client": who.client, "folder": who.folder, FORGOTTEN: gone}
        link = None
        if who.sub_agent or who.parent:
            # A sub-agent's parent is the conversation itself, or another sub-agent in it.
            above = msgspec.structs.replace(
                who,
                sub_agent=who.parent if who.sub_agent else "",
                conversation=who.conversation if who.sub_agent else who.parent,
            )
            own = msgspec.structs.replace(above, agent=agent_of(name))
            link = Link((self._known.get(_key(above)) or [_name(own)])[0])
        session = await self._bank.session(
            name,
            tags={key: value for key, value in tags.items() if value},
            state={key: value for key, value in state.items() if value},
            link=link,
        )
        return self._kept(session)

    def _kept(self, session: Session) -> Conversation:
        made = self._open[session.name] = Conversation(self._bank, session)
        for name, old in list(self._open.items()):
            if len(self._open) <= _OPEN:
                break
            if not old.answers and not old.lock.locked() and old is not made:
                del self._open[name]
        return made


def shared_turn(line: Sequence[Recorded], found: Alignment) -> int:
    """The last turn that items share with a line; 0 if they share no reply and no compaction."""
    proof = any(at >= 0 and (line[at].by_model or line[at].compaction) for at in found.matched)
    if found.compacted or not proof:
        return 0
    if found.kept == len(line):
        return line[-1].turn
    return max((part.turn for part in line if part.turn < line[found.kept].turn), default=0)


def _owner(who: ConversationId) -> str:
    """The agent that all sessions of a client and project belong to; empty if there is no one such,
    because the project is not known.
    """
    return agent_of_conversation(who) if who.agent or who.folder else ""


def _is_of(record: SessionRecord, who: ConversationId) -> bool:
    """Whether a session is of the client and the project of a request."""
    if owner := _owner(who):
        return record.agent == owner
    return not record.state.get("folder") and record.state.get("client") == who.client


def _last_reply(facts: Sequence[ItemFacts]) -> str:
    """The identity of what the model said last; empty if it said nothing."""
    for item in reversed(facts):
        if item.by_model and (strong := [each for each in item.identities if not is_weak(each)]):
            return strong[-1]
    return ""


def _numbered(name: str, number: int) -> str:
    return f"{name.encode()[:112].decode(errors='ignore')}-{number}"


def agent_of_conversation(who: ConversationId) -> str:
    """The caller's agent, or that of the client in its project."""
    made = session_of_client(who.client, who.folder, who.conversation or "x")
    return who.agent or agent_of(made)


def _name(who: ConversationId) -> str:
    name = session_of_client(who.client, who.folder, who.conversation, who.sub_agent)
    return f"{who.agent}/{name.partition('/')[2]}"[:120] if who.agent else name


def _key(who: ConversationId) -> tuple[str, ...]:
    return who.agent, who.client, who.conversation, who.sub_agent


def _id_tag(who: ConversationId) -> str:
    return ":".join(part for part in _key(who)[1:] if part)


def _first(facts: Sequence[ItemFacts]) -> str:
    """What a conversation begins with: its first strong identity."""
    for item in facts:
        for identity in item.identities:
            if not is_weak(identity):
                return identity
    return ""


def _shrink(known: dict[tuple[str, ...], list[str]], most: int) -> None:
    while len(known) > most:
        known.pop(next(iter(known)))


def told_apart(who: ConversationId, facts: Sequence[ItemFacts]) -> str:
    """What tells a conversation from others, before anything of it is recorded."""
    own = (who.client, who.session or who.conversation, who.sub_agent, who.agent)
    return " ".join(own if own[1] else (*own, _first(facts)))
