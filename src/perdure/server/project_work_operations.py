"""What a project is about, and what was done in it: its state and its journal.

They are read in the bank, wherever the project's folder is. What people change in its files is here
after the next refresh there.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from perdure.project.journal import JournalEntry, newest_entries
from perdure.project.project_directory import ProjectRecord, find_record
from perdure.project.project_state import shown_entries
from perdure.project.state_records import StateEntry
from perdure.server.operations import Operation, RequestQuery, ServerCall, TokenScope
from perdure.server.project_operations import PROJECT


class JournalQuery(RequestQuery, frozen=True):
    """How much of it."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 50


class NamedEntry(msgspec.Struct, frozen=True):
    """An entry of the state, and its id, by which others name it."""

    id: str
    entry: StateEntry


async def _record(call: ServerCall) -> ProjectRecord:
    call.require_all_agents()
    return await find_record(call.bank.services, call.path["project"])


async def get_state(call: ServerCall) -> list[NamedEntry]:
    """Goals, milestones, checkpoints and links of a project, the oldest first."""
    found = await shown_entries(call.bank.services.store, (await _record(call)).id)
    return [NamedEntry(each.id, each) for each in found]


async def get_journal(call: ServerCall) -> list[JournalEntry]:
    """What was asked, done and decided in a project, and its notes; the newest first."""
    record = await _record(call)
    return await newest_entries(call.bank.services.store, record.id, limit=call.query.limit)


OPERATIONS = (
    Operation.of("GET", f"{PROJECT}/state", get_state, TokenScope.READ),
    Operation.of("GET", f"{PROJECT}/journal", get_journal, TokenScope.READ, query=JournalQuery),
)
