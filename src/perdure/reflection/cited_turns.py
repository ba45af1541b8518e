"""Finds the words that an operation cites in the turns that it names.

A quote counts if it stands, blanks and case aside, in the turn itself or in one of its renditions:
a model has read those. Text that Perdure put there is no evidence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from perdure.core.errors import InvalidInput
from perdure.core.levels import Level
from perdure.history.log_records import Head, SessionRecord
from perdure.recall.hit_keys import owner_of
from perdure.recall.memory_records import MAX_QUOTE, MemoryQuote, source_of
from perdure.reflection import view
from perdure.services import Services

#: Characters and words of a quote, at least: less stands everywhere.
_SHORTEST, _WORDS = 12, 2
_LEVELS: tuple[Level, ...] = ("S", "C", "T")
_quoted_line = re.compile(r"^>[ \t]?", re.MULTILINE).sub
#: Who speaks, as renditions write it: no words of the turn.
_without_speaker = re.compile(
    r"^(?:User|Assistant|System|Developer|Tool)(?: \([^()]*\))?: +", re.IGNORECASE
).sub
#: What a model may put around a quote, and instead of what it left out at its ends.
_AROUND = " \"'“”‘’`….*"  # noqa: RUF001


class Citation(msgspec.Struct, frozen=True):
    """Words of a turn, as a model cites them."""

    turn: str
    quote: str


class TurnWords(msgspec.Struct, frozen=True):
    """A turn that was cited."""

    #: ``planner/auth#T-12``.
    key: str
    #: In all its forms, normalised.
    texts: tuple[str, ...]
    #: When it began. Microseconds.
    time: int
    #: What the user and the assistant wrote themselves, by role, normalised.
    said: Mapping[str, str] = {}


def normalised(text: str) -> str:
    """A text without differences in blanks, case and the marks of quoted lines."""
    return " ".join(_quoted_line("", text).split()).casefold()


class EvidenceFinder:
    """Looks up cited turns of some sessions; each is read once."""

    def __init__(
        self, services: Services, sessions: Mapping[str, tuple[SessionRecord, Head]]
    ) -> None:
        self._services = services
        self._sessions = sessions
        self._turns = dict[str, TurnWords | None]()

    async def find(
        self, citation: Citation, names: Mapping[str, str], *, short: bool = False
    ) -> tuple[MemoryQuote, TurnWords] | None:
        """The quote as it is kept, and the turn; None if it does not stand there. `names` are
        sessions by what the view calls them; the only one need not be named. `short` ones count
        only of code, which knows that it means them.
        """
        words = await self.turn(self._key(citation.turn, names))
        kept = " ".join(_quoted_line("", citation.quote).split()).strip(_AROUND)
        kept = _without_speaker("", kept).strip(_AROUND)
        quote = kept.casefold()
        is_short = len(quote) < _SHORTEST or len(quote.split()) < _WORDS
        if words is None or not quote or (is_short and not short):
            return None
        if not any(quote in text for text in words.texts):
            return None
        return MemoryQuote(words.key, kept[:MAX_QUOTE]), words

    async def turn(self, key: str) -> TurnWords | None:
        """A turn by its name everywhere; None if it is not among those sessions, or not over."""
        if key not in self._turns:
            self._turns[key] = await self._read(key)
        return self._turns[key]

    def _key(self, text: str, names: Mapping[str, str]) -> str:
        session, mark, place = text.strip().strip("[]()").partition("#")
        if not mark and len(set(names.values())) == 1:
            return f"{next(iter(names.values()))}#{session}"
        return f"{names.get(session, session)}#{place}"

    async def _read(self, key: str) -> TurnWords | None:
        try:
            session, place = source_of(key)
        except InvalidInput:
            return None
        if session not in self._sessions:
            return None
        record, head = self._sessions[session]
        found = await self._services.reader.turns(
            record, head, place.turn, place.turn, counted=False, arriving=False
        )
        if not found or not view.is_read(found[0]):
            return None
        said = view.without_echoes(found[0].messages)
        texts = [await self._services.renditions.raw(said)]
        for level in _LEVELS:
            made = await view.gather(self._services, record, head, [place.turn], level)
            texts += [turn.text for turn in made]
        unique = tuple(dict.fromkeys(map(normalised, texts)))
        # By the session whose log holds it: a fork has some from its ancestors.
        owner = owner_of(record, place.turn)
        spoken = {
            role: normalised("\n".join(each.text for each in said if each.role == role))
            for role in ("user", "assistant")
        }
        return TurnWords(f"{owner}#T-{place.turn}", unique, found[0].started, spoken)
