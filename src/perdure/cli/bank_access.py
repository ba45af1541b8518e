"""The bank and the session that a command means."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.terminal import ProgressBar
from perdure.core.display import did_you_mean
from perdure.core.errors import InvalidInput, NotFound, PerdureError, Unavailable

if TYPE_CHECKING:
    from perdure.bank import Bank
    from perdure.cli.command_options import CommandSettings
    from perdure.config import Config
    from perdure.sessions.session import Session

SessionArgument = Annotated[
    str,
    typer.Argument(
        metavar="SESSION", help="Its name, agent/name, or the beginning or end of it if unique."
    ),
]
_LISTED = 5


@asynccontextmanager
async def existing_bank(
    settings: CommandSettings, config: Config | None = None
) -> AsyncIterator[Bank]:
    """The bank, without background work. Raises `Unavailable` if there is none: a command that
    only reads must not make one.
    """
    from perdure.bank import Bank
    from perdure.storage import registry

    bank = Bank(config=config or settings.load())
    if not await bank.store.adapter.exists():
        named = (
            f" --bank {shlex.quote(registry.shown(bank.url))}" if settings.bank is not None else ""
        )
        raise Unavailable(
            f"There is no bank at {registry.location(bank.url)}.",
            hint=f"Make one with `perdure bank init{named}`.",
        )
    async with bank.looked_at():
        yield bank


@asynccontextmanager
async def searched_bank(
    settings: CommandSettings, config: Config | None = None
) -> AsyncIterator[Bank]:
    """The bank, for a command that recalls. An index that is not complete is filled first, with
    vectors if the model ships with Perdure: a bank that was restored or copied has none.
    """
    async with existing_bank(settings, config) as bank:
        async with ProgressBar("completing the index") as progress:
            with suppress(PerdureError):  # whoever searches is told of damage
                await bank.index.complete(progress)
                await bank.index.embeddings.settle_own()
        yield bank


@asynccontextmanager
async def changed_bank(settings: CommandSettings) -> AsyncIterator[Bank]:
    """The bank, for a change of what recall finds. Print the result before leaving. New records
    get their vectors on leaving, if the model ships with Perdure; loading it takes most of a
    second. Interrupting that loses nothing.
    """
    async with existing_bank(settings) as bank:
        yield bank
        await bank.index.embeddings.settle_own()


@asynccontextmanager
async def working_bank(settings: CommandSettings) -> AsyncIterator[Bank]:
    """The bank with its background work, for a command that hands something to it. Raises
    `Unavailable` if there is none.
    """
    from perdure.bank import Bank

    config = settings.load()
    async with existing_bank(settings, config):
        pass
    async with Bank(config=config) as bank:
        yield bank


async def require_agent(bank: Bank, name: str) -> None:
    """Raises `NotFound` if no session, memory or agent of the bank has this name."""
    from perdure.agents.agent_records import AgentRecord
    from perdure.sessions.session_info import agents_with_sessions

    known = await agents_with_sessions(bank.store)
    if (
        name not in known
        and not await bank.memories.list(name, status=None, limit=1)
        and await bank.collection(AgentRecord).get(name) is None
    ):
        hint = f"{did_you_mean(name, known)} `perdure sessions` lists whose there are.".lstrip()
        raise NotFound(f"There is no agent {name!r}.", hint=hint)


async def find_session(bank: Bank, text: str) -> Session:
    """The session of this name or abbreviation; a parent wins over its sub-agents. Raises
    `InvalidInput` if none fits, or several.
    """
    from perdure.history.log_records import SessionRecord

    try:
        return await bank.existing_session(text)
    except InvalidInput:
        pass  # an abbreviation, or nothing
    records = bank.collection(SessionRecord)
    starters = {record.id: record.started_by for record in await records.query().values()}
    names = list(starters)
    found = _without_subagents(fitting_names(text, names), starters)
    if len(found) == 1:
        return await bank.existing_session(found[0])
    if not found:
        hint = f"{did_you_mean(text, names)} `perdure sessions` lists those there are.".lstrip()
        raise InvalidInput(f"There is no session {text!r}.", hint=hint)
    listed = ", ".join(found[:_LISTED])
    more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    raise InvalidInput(
        f"{text!r} fits {len(found)} sessions: {listed}{more}.", hint="Write more of the name."
    )


def fitting_names(text: str, names: list[str]) -> list[str]:
    """Names that end with the text, else those it abbreviates."""
    if not text:
        return []
    exact = [name for name in names if name.partition("/")[2] == text]
    if exact:
        return sorted(exact)
    return sorted(
        name
        for name in names
        if name.startswith(text) or name.endswith(text) or name.partition("/")[2].startswith(text)
    )


def _without_subagents(names: list[str], starters: Mapping[str, str | None]) -> list[str]:
    return [name for name in names if _above(name, starters).isdisjoint(names)]


def _above(name: str, starters: Mapping[str, str | None]) -> set[str]:
    found = set[str]()
    while (starter := starters.get(name)) is not None and starter not in found:
        found.add(starter)
        name = starter
    return found
