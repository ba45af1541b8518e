"""Scribes to test with, and what they have made."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perdure.bank import Bank
from perdure.config import RenditionsConfig
from perdure.core.levels import Level
from perdure.core.messages import Message, assistant, user
from perdure.gateway.gateway import Gateway
from perdure.history.manifest import RoundId
from perdure.history.renditions.rendition_records import EVERY_LEVEL, Rendition, Tiny
from perdure.history.renditions.rendition_service import RenditionService, RoundAtLevel, RoundSizes
from perdure.history.turn_reader import TurnReader
from perdure.sessions.session import Session
from tests.history.talk import call, result

END = 10**6
LONG = "The build failed in src/auth/login.py at line 42 with KeyError: 'token'. "


def scribe_for(
    bank: Bank,
    config: RenditionsConfig | None = None,
    gateway: Callable[[], Gateway] | None = None,
    levels: frozenset[Level] = EVERY_LEVEL,
) -> RenditionService:
    """A scribe that works in place of the bank's own."""
    without_scribe(bank)
    bank.jobs._idle._works.pop("making renditions")
    scribe = RenditionService(
        bank.store,
        TurnReader(bank.store),
        bank.artifacts,
        bank.services.token_counts,
        bank.jobs,
        config=config,
        gateway=gateway,
        levels=levels,
    )
    bank.services.log.listen(scribe.note, scribe.missed)
    return scribe


def without_scribe(bank: Bank) -> None:
    """Let nobody take note of what is to be shortened."""
    bank.services.log._listeners.pop()


def labour(number: int, lines: int = 60) -> list[Message]:
    """A turn of two rounds with something to shorten."""
    output = "\n".join(f"{n}: {LONG}" for n in range(lines))
    return [
        user(f"Please look into issue {number}: {LONG * 4} Thank you so much for your help!"),
        call(f"c{number}"),
        result(f"c{number}", text=output),
        assistant(f"I fixed issue {number} in src/auth/login.py. {LONG * 3}"),
    ]


async def rows(bank: Bank, session: str) -> dict[str, Rendition]:
    found = await bank.collection(Rendition).query().prefix(f"{session}/").values()
    return {f"{row.turn}.{row.round}": row for row in found}


async def tinies(bank: Bank, session: str) -> dict[int, Tiny]:
    found = await bank.collection(Tiny).query().prefix(f"{session}/").values()
    return {row.turn: row for row in found}


async def sizes(scribe: RenditionService, session: Session) -> list[RoundSizes]:
    return await scribe.sizes(session.record, await session.head(), RoundId(1), RoundId(END, END))


async def words(
    scribe: RenditionService, session: Session, made: Sequence[RoundSizes]
) -> list[list[str]]:
    """R, S and C of each."""
    head = await session.head()
    levels: tuple[Level, ...] = ("R", "S", "C")
    wanted = [RoundAtLevel(each.place, level, each.variant) for each in made for level in levels]
    found = await scribe.texts(session.record, head, wanted)
    return [found[at : at + 3] for at in range(0, len(found), 3)]
