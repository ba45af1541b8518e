"""An index that is a dict: what scopes are tried on, whatever the real one does."""

from __future__ import annotations

from perdure.history.forget_sessions import ForgetScope as Forgetting
from perdure.history.turn_log import Written
from perdure.recall.places import Spot, covers, memories_of, turns
from perdure.recall.scoping.scope import Scope
from perdure.storage.transaction import Transaction


class PlainIndex:
    """Knows the words of every round as they are appended. A hook, a place, a directory."""

    collections = frozenset[str]()

    def __init__(self) -> None:
        self.numbers = dict[str, int]()
        self.forks = set[str]()
        self.documents = dict[int, set[str]]()

    async def groups(self) -> dict[str, int]:
        return self.numbers

    async def hook(self, transaction: Transaction, written: Written) -> None:
        if written.session.parent is not None:
            self.forks.add(written.session.id)
        for round in written.rounds:
            place = Spot(self.number(written.session.id), round.turn, round.round, round.before)
            words = {word.strip("?.,") for each in round.messages for word in each.text.split()}
            transaction.after_commit(
                lambda at=place.place, words=words: self.documents.update({at: words})  # type: ignore[misc]
            )

    def remember(self, agent: str, number: int, words: set[str]) -> None:
        """A memory."""
        place = Spot(self.number(memories_of(agent)), number)
        self.documents[place.place] = words

    async def forget(self, scope: Forgetting) -> None:
        for session in scope.sessions:
            if session in self.numbers:
                number = self.numbers[session]
                gone = [turns(number, turn, turn) for turn in sorted(scope.turns)]
                gone = gone or [turns(number)]
                for place in [place for place in self.documents if covers(gone, place)]:
                    del self.documents[place]

    def number(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers))

    def seen(self, scope: Scope) -> set[str]:
        """Every word that may be found."""
        return {word for at, words in self.documents.items() if scope.allows(at) for word in words}
