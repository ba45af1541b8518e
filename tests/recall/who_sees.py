"""A plain model of who may see what, and a bank that the same things are done to.

The model knows nothing of places, lines or groups: a fork *copies* what its parent shows, everybody
keeps sets of words. Each word is said once, in one turn of one session.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from perdure.bank import Bank
from perdure.core.messages import assistant, user
from perdure.sessions.session import Session

AGENTS = ("ann", "bob", "cy")
EVERYBODY = "*"


class Said(NamedTuple):
    """A word, the turn it was said in, and whose log that turn lies in."""

    word: str
    turn: int
    owner: str


class Talk:
    """A session, as the model sees it."""

    def __init__(self, name: str, root: str, said: Iterable[Said] = ()) -> None:
        self.name = name
        self.agent = name.partition("/")[0]
        self.root = root
        self.inherited = list(said)
        self.own = list[Said]()
        self.undone = set[int]()
        self.shared = set[str]()

    def shown(self) -> list[Said]:
        """What stands in its line."""
        return [said for said in (*self.inherited, *self.own) if said.turn not in self.undone]

    def shown_own(self) -> list[Said]:
        return [said for said in self.own if said.turn not in self.undone]


class World:
    """What was done so far, in a bank and in the model."""

    def __init__(self, bank: Bank) -> None:
        self.bank = bank
        self.talks = list[Talk]()
        self.sessions = list[Session]()
        self.forgotten = set[str]()
        #: Words of memories: whose, and whom they are shared with.
        self.memories = dict[str, tuple[str, frozenset[str]]]()
        self._count = 0

    # What may be seen -------------------------------------------------------------------------

    def allowed(self, asking: Talk, *, wide: bool = False) -> set[str]:
        """The words that a question of this session may find, in turns and memories."""
        others = list[Said]()
        for talk in self.talks:
            if talk.agent == asking.agent:
                seen = wide or talk.root != asking.root
            else:
                seen = bool(talk.shared & {asking.agent, EVERYBODY})
            others += talk.shown_own() if seen else []
        # Of its own line it sees what that has, whatever else was said in the same turn.
        line = {(said.owner, said.turn) for said in (*asking.inherited, *asking.own)}
        found = {said.word for said in others if (said.owner, said.turn) not in line}
        found |= {said.word for said in asking.shown()}
        for word, (agent, shared) in self.memories.items():
            if agent == asking.agent or shared & {asking.agent, EVERYBODY}:
                found.add(word)
        return found - self.forgotten

    def words(self) -> list[str]:
        """Every word that was ever said or noted, those that are forgotten included."""
        return [f"secret{number}" for number in range(1, self._count + 1)]

    def where(self, word: str) -> Said | None:
        """Where a word was said; None if it is a memory's."""
        own = (said for talk in self.talks for said in talk.own)
        return next((said for said in own if said.word == word), None)

    # What is done -----------------------------------------------------------------------------

    async def do(self, deed: Sequence[int]) -> None:
        """One thing, chosen by numbers; if it cannot be done, nothing."""
        kind, who, which, agent = deed
        if not self.talks or kind == 0:
            await self._begin(AGENTS[agent % len(AGENTS)])
            return
        at = who % len(self.talks)
        talk, session = self.talks[at], self.sessions[at]
        name = (*AGENTS, EVERYBODY)[agent % (len(AGENTS) + 1)]
        match kind:
            case 1 | 2 | 3:
                await self._say(talk, session, whole=True)
            case 4:
                await self._say(talk, session, whole=False)
            case 5:
                await self._add(talk, session)
            case 6 | 7:
                await self._fork(talk, session, which, AGENTS[agent % len(AGENTS)])
            case 8:
                await self._undo(talk, session, which)
            case 9:
                await self._forget(talk, session, which)
            case 10 | 11 if name != talk.agent:
                talk.shared.add(name)
                await session.share(name)
            case 12:
                talk.shared.clear()
                await session.unshare_all()

    def new_word(self) -> str:
        self._count += 1
        return f"secret{self._count}"

    async def _begin(self, agent: str) -> None:
        name = f"{agent}/s{len(self.talks)}"
        self.talks.append(Talk(name, name))
        self.sessions.append(await self.bank.session(name))

    async def _say(self, talk: Talk, session: Session, *, whole: bool) -> None:
        """A turn, or its prompt alone: an answer may come later, or never."""
        prompt, answer = self.new_word(), self.new_word() if whole else ""
        messages = [user(f"What is {prompt}?")]
        if whole:
            messages.append(assistant(f"It is {answer}."))
        turns = await session.append(messages)
        turn = turns[-1] if isinstance(turns, list) else turns
        talk.own += [Said(word, turn.number, talk.name) for word in (prompt, answer) if word]

    async def _add(self, talk: Talk, session: Session) -> None:
        """Something more in the turn that is open, or was."""
        if not talk.own:
            return
        word = self.new_word()
        turn = await session.append([assistant(f"And {word}, too.")])
        assert not isinstance(turn, list)
        talk.own.append(Said(word, turn.number, talk.name))

    async def _fork(self, talk: Talk, session: Session, which: int, agent: str) -> None:
        newest = (await session.head()).turn
        if not newest:
            return
        at = 1 + which % newest
        fork = Talk(
            f"{agent}/s{len(self.talks)}",
            talk.root,
            [said for said in (*talk.inherited, *talk.own) if said.turn <= at],
        )
        # Whoever forks from a turn that was taken back wants it.
        fork.undone = {turn for turn in talk.undone if turn < at}
        self.talks.append(fork)
        self.sessions.append(await session.fork(fork.name, at=at))

    async def _undo(self, talk: Talk, session: Session, which: int) -> None:
        newest = (await session.head()).turn
        if newest:
            turn = 1 + which % newest
            talk.undone.add(turn)
            await session.undo(numbers=[turn])

    async def _forget(self, talk: Talk, session: Session, which: int) -> None:
        own = sorted({said.turn for said in talk.own})
        if own:
            turn = own[which % len(own)]
            self.forgotten |= {said.word for said in talk.own if said.turn == turn}
            await self.bank.forget(session.name, turns=[turn])


_number = st.integers(0, 30)
#: Deeds for `World.do`.
deeds = st.lists(st.tuples(st.integers(0, 12), _number, _number, _number), min_size=8, max_size=40)
