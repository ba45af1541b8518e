"""Families: sessions that are forks of one another, directly or not.

Two sessions are of one family if their parents lead to the same root. Of its own family a session
sees the line that it stands on and nothing else, so what is kept here must never be out of date in
the direction that shows more:

* A session is looked up when it first has a number in the index. Its record is older than that.
* Its root is learned at the same moment, as far up as there are parents.
* Roots change only when a session is forgotten and its forks get its turns as their own: each of
  them begins a family then. Until one of them asks, what was learned holds together: its forks are
  taken for those of the session that is gone. When it asks, it is seen that its root is another by
  now, and all is learned anew. So it is when a name has got another number (`Families.forget`).
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from perdure.history.records import SessionRecord
from perdure.storage.options import STRONG
from perdure.storage.store import Store

#: How often all is learned anew for one question.
_ATTEMPTS = 3


class Families:
    """The families of sessions in a store, as far as somebody asked."""

    def __init__(self, store: Store) -> None:
        self._records = store.collection(SessionRecord)
        self._learned = _Learned()

    async def relatives(self, record: SessionRecord, sessions: AbstractSet[str]) -> frozenset[str]:
        """The sessions of its agent that are of its family, itself included.

        The very same object as long as nothing has changed.

        `sessions` are all of its agent that matter, read before this is called.
        """
        for _ in range(_ATTEMPTS):
            found = await self._relatives(self._learned, record, sessions)
            if found is not None:
                return found
            self.forget()
        return frozenset({record.id, *sessions})  # changing all the time: nothing is shown

    async def _relatives(
        self, learned: _Learned, record: SessionRecord, sessions: AbstractSet[str]
    ) -> frozenset[str] | None:
        """None if what was learned of the session is not so any more."""
        agent = record.agent
        known = learned.known.setdefault(agent, set())
        if new := sessions - known:
            await self._learn(learned, agent, new, first=not known)
            known |= new
        root = await self._root(learned, record)
        if learned.roots.get(record.id, root) != root:
            return None
        kept = learned.kept.get((agent, root), frozenset())
        forks = learned.forks.get(agent, {}).get(root, set())
        # At most the root and the session itself are no forks that were learned.
        if not {record.id, root} <= kept or not forks <= kept:
            kept = learned.kept[agent, root] = frozenset({record.id, root, *forks, *kept})
        return kept

    def forget(self) -> None:
        """Learn everything anew: sessions are gone, and may be back as something else.

        What somebody is learning now may be of before, and is not kept.
        """
        self._learned = _Learned()

    async def _learn(
        self, learned: _Learned, agent: str, sessions: AbstractSet[str], *, first: bool
    ) -> None:
        """Find out of which families these sessions are."""
        if first:  # most sessions are no forks
            finder = self._records.query().where("agent", "=", agent)
            found = await finder.where("parent", "!=", None).values(STRONG)
        else:
            got = await self._records.get_many(sessions, STRONG)
            found = [record for record in got if record is not None]
        forks = learned.forks.setdefault(agent, {})
        for record in found:
            if record.id in sessions and record.parent is not None:
                root = learned.roots[record.id] = await self._root(learned, record)
                forks.setdefault(root, set()).add(record.id)

    async def _root(self, learned: _Learned, record: SessionRecord) -> str:
        """The session that a family began with: the record's own if it is no fork."""
        way = await self._way_up(learned, record)
        if way is None:  # its parent was forgotten since the record was read
            again = await self._records.get(record.id, STRONG)
            way = await self._way_up(learned, again or record)
        if way is None:  # damaged, or changing all the time: as far as it is known
            return record.parent or record.id
        return way[-1]

    async def _way_up(self, learned: _Learned, record: SessionRecord) -> list[str] | None:
        """From a session to its root; None if a parent is missing."""
        way, parent = [record.id], record.parent
        while parent is not None:
            if parent in learned.roots:
                return [*way, learned.roots[parent]]
            way.append(parent)
            above = await self._records.get(parent, STRONG)
            if above is None:
                return None
            parent = above.parent
        return way


class _Learned:
    """What is known of families, as of one state of the groups."""

    def __init__(self) -> None:
        #: By agent: the sessions that were looked up.
        self.known = dict[str, set[str]]()
        #: By agent and root: its forks.
        self.forks = dict[str, dict[str, set[str]]]()
        self.roots = dict[str, str]()
        self.kept = dict[tuple[str, str], frozenset[str]]()
