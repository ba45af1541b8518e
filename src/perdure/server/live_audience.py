"""Who hears what: subscriptions to sessions, agents, or all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from perdure.server.live_events import Topic


class LiveScope(msgspec.Struct, frozen=True):
    """What is heard: a session, an agent, or all."""

    session: str = ""
    agent: str = ""

    def covers(self, session: str) -> bool:
        if self.session:
            return session == self.session
        return not self.agent or session.startswith(f"{self.agent}/")


class LiveEvent(msgspec.Struct, frozen=True, gc=False):
    """An event, encoded once for all who get it."""

    topic: Topic
    session: str
    text: str
    #: Of turns: the cursors before and behind it, and the turns.
    after: int = 0
    cursor: int = 0
    first: int = 0
    last: int = 0


class LiveReader(Protocol):
    """Who subscribes. `offer` neither waits nor fails."""

    def offer(self, event: LiveEvent) -> None: ...
    def shorten_cursors(self) -> None: ...


class LiveSubscription:
    """One of a reader's subscriptions. While it catches up, the reader gets no events of its scope
    from the hub, from other subscriptions neither: they would come before those it missed.
    """

    def __init__(
        self, reader: LiveReader, id: str, scope: LiveScope, topics: Iterable[Topic]
    ) -> None:
        self.reader = reader
        self.id = id
        self.scope = scope
        self.topics = frozenset(topics)
        self.catching_up = True


class LiveAudience:
    """All subscriptions of a server, found by what they hear."""

    def __init__(self) -> None:
        self.all: set[LiveSubscription] = set()
        self.sessions: dict[str, set[LiveSubscription]] = {}
        self.agents: dict[str, set[LiveSubscription]] = {}
        self.of_everything: set[LiveSubscription] = set()

    def add(self, subscription: LiveSubscription) -> None:
        self.all.add(subscription)
        scope = subscription.scope
        if scope.session:
            self.sessions.setdefault(scope.session, set()).add(subscription)
        elif scope.agent:
            self.agents.setdefault(scope.agent, set()).add(subscription)
        else:
            self.of_everything.add(subscription)

    def remove(self, subscription: LiveSubscription) -> None:
        self.all.discard(subscription)
        self.of_everything.discard(subscription)
        scope = subscription.scope
        for index, key in ((self.sessions, scope.session), (self.agents, scope.agent)):
            if key in index:
                index[key].discard(subscription)
                if not index[key]:
                    del index[key]

    def hears(self, session: str) -> bool:
        agent = session.partition("/")[0]
        return bool(self.of_everything or session in self.sessions or agent in self.agents)

    def wants(self, topic: Topic) -> bool:
        return any(topic in each.topics for each in self.all)

    def publish(self, event: LiveEvent) -> None:
        """To each reader once, however many of its subscriptions it fits."""
        ready, waiting = set[LiveReader](), set[LiveReader]()
        agent = event.session.partition("/")[0]
        for audience in (
            self.sessions.get(event.session),
            self.agents.get(agent),
            self.of_everything,
        ):
            for each in audience or ():
                if event.topic in each.topics:
                    (waiting if each.catching_up else ready).add(each.reader)
        for reader in ready - waiting:
            reader.offer(event)
