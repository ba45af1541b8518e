"""Families: sessions that are forks of one another, directly or not.

Two sessions are of one family if their parents lead to the same root. Of its own family a session
sees the line that it stands on and nothing else, so what is kept here must never be out of date in
the direction that shows more:

* A session is looked up when it first has a number in the index. Its record is older than that.
* Its root is learned at the same moment, as far up as there are parents.
* Roots change only when a session is forgotten and its forks get its turns as their own. Its number
  goes with it, and whoever sees that lets all be learned anew (`Families.forget`).
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from perdure.history.records import SessionRecord
from perdure.storage.options import STRONG
from perdure.storage.store import Store


class Families:
    """The families of sessions in a store, as far as somebody asked."""

    def __init__(self, store: Store) -> None:
        self._records = store.collection(SessionRecord)
        #: By agent: the sessions that were looked up.
        self._known = dict[str, set[str]]()
        #: By agent and root: its forks.
        self._forks = dict[str, dict[str, set[str]]]()
        self._roots = dict[str, str]()
        self._kept = dict[tuple[str, str], frozenset[str]]()

    async def relatives(self, record: SessionRecord, sessions: AbstractSet[str]) -> frozenset[str]:
        """The sessions of its agent that are of its family, itself included.

        The very same object as long as nothing has changed.

        `sessions` are all of its agent that matter, read before this is called.
        """
        agent = record.agent
        known = self._known.setdefault(agent, set())
        if new := sessions - known:
            await self._learn(agent, new, first=not known)
            known |= new
        root = await self._root(record)
        kept = self._kept.get((agent, root), frozenset())
        forks = self._forks.get(agent, {}).get(root, set())
        # At most the root and the session itself are no forks that were learned.
        if not {record.id, root} <= kept or not forks <= kept:
            kept = self._kept[agent, root] = frozenset({record.id, root, *forks, *kept})
        return kept

    def forget(self) -> None:
        """Learn everything anew: sessions are gone, and may be back as something else."""
        self._known.clear()
        self._forks.clear()
        self._roots.clear()
        self._kept.clear()

    async def _learn(self, agent: str, sessions: AbstractSet[str], *, first: bool) -> None:
        """Find out of which families these sessions are."""
        if first:  # most sessions are no forks
            finder = self._records.query().where("agent", "=", agent)
            found = await finder.where("parent", "!=", None).values(STRONG)
        else:
            got = await self._records.get_many(sessions, STRONG)
            found = [record for record in got if record is not None]
        forks = self._forks.setdefault(agent, {})
        for record in found:
            if record.id in sessions and record.parent is not None:
                root = self._roots[record.id] = await self._root(record)
                forks.setdefault(root, set()).add(record.id)

    async def _root(self, record: SessionRecord) -> str:
        """The session that a family began with: the record's own if it is no fork."""
        way = await self._way_up(record)
        if way is None:  # its parent was forgotten since the record was read
            way = await self._way_up(await self._records.get(record.id, STRONG) or record)
        if way is None:  # damaged, or changing all the time: as far as it is known
            return record.parent or record.id
        return way[-1]

    async def _way_up(self, record: SessionRecord) -> list[str] | None:
        """From a session to its root; None if a parent is missing."""
        way, parent = [record.id], record.parent
        while parent is not None:
            if parent in self._roots:
                return [*way, self._roots[parent]]
            way.append(parent)
            above = await self._records.get(parent, STRONG)
            if above is None:
                return None
            parent = above.parent
        return way
