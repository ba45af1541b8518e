"""What every agent does right now, in one look: for lists of agents."""

from __future__ import annotations

from typing import Literal

import msgspec

from perdure.agents.agent_records import AgentMessage
from perdure.agents.questions import open_questions
from perdure.history.log_records import AnswerDraft, Head, SessionRecord, turn_key
from perdure.sessions.session_listing import AgentInfo, list_agents
from perdure.storage.store import Store

#: Sessions that are looked at, the most recently used first. What went on in others is over.
_RECENT = 200

#: ``asking`` waits for a person; ``answering`` has an answer arriving; ``stopped`` has one that
#: nobody goes on with; ``calling`` waits for results of tools; ``working`` does a message.
ActivityState = Literal["asking", "answering", "stopped", "calling", "working", "idle"]
#: Which of an agent's sessions is told.
_ORDER: tuple[ActivityState, ...] = ("asking", "answering", "working", "calling", "stopped", "idle")


class AgentActivity(msgspec.Struct, frozen=True, kw_only=True):
    """One agent: what it has, and what it does."""

    agent: AgentInfo
    state: ActivityState = "idle"
    #: Where it does it; empty if nowhere.
    session: str = ""
    turn: int = 0
    #: Messages that wait in its mailbox.
    waiting: int = 0
    #: Questions that wait for a person.
    questions: int = 0


async def describe_activity(store: Store, agent: str | None) -> list[AgentActivity]:
    """By name; only one agent, if one is named."""
    agents = await list_agents(store, agent)
    states = await _by_session(store, agent)
    mail = store.collection(AgentMessage).query()
    if agent is not None:
        mail = mail.where("agent", "=", agent)
    counts = {
        state: {
            row["agent"]: row["all"]
            for row in await mail.where("state", "=", state)
            .group_by("agent")
            .aggregate(all="count")
        }
        for state in ("accepted", "working")
    }
    asked = await open_questions(store, agent)
    found = list[AgentActivity]()
    for info in agents:
        own = states.get(info.name, [])
        questions = sum(1 for each in asked if each.agent == info.name)
        if counts["working"].get(info.name):
            own = [*own, ("working", own[0][1] if own else "", own[0][2] if own else 0)]
        if questions:
            own = [*own, ("asking", own[0][1] if own else "", own[0][2] if own else 0)]
        state, session, turn = min(
            own, key=lambda each: _ORDER.index(each[0]), default=("idle", "", 0)
        )
        found.append(
            AgentActivity(
                agent=info,
                state=state,
                session=session,
                turn=turn,
                waiting=counts["accepted"].get(info.name, 0),
                questions=questions,
            )
        )
    return found


async def _by_session(
    store: Store, agent: str | None
) -> dict[str, list[tuple[ActivityState, str, int]]]:
    """By agent: the states of its recent sessions, the most recently used first."""
    query = store.collection(SessionRecord).query().where("archived", "=", None)
    if agent is not None:
        query = query.where("agent", "=", agent)
    records = await query.order_by("-last_active").limit(_RECENT).values()
    heads = await store.collection(Head).get_many([record.id for record in records])
    known = [head for head in heads if head is not None]
    keys = [turn_key(head.id, turn) for head in known for turn in head.answering]
    drafts = await store.collection(AnswerDraft).get_many(keys)
    by_key = {key: draft for key, draft in zip(keys, drafts, strict=True) if draft is not None}
    now = store.now()
    found = dict[str, list[tuple[ActivityState, str, int]]]()
    for head in known:
        state: ActivityState = "idle"
        turn = head.turn
        for each in head.answering:
            draft = by_key.get(turn_key(head.id, each))
            if draft is not None:
                state = "answering" if draft.writer(now) == "alive" else "stopped"
                turn = each
        if state == "idle" and head.mark.waiting and not head.closed and not head.is_undone(turn):
            state = "calling"
        found.setdefault(head.id.partition("/")[0], []).append((state, head.id, turn))
    return found
