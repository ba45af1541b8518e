"""Filters: what a hit must be.

What is known of whole groups narrows what is searched at all (`scope.narrowed`); the rest is
asked of each candidate (`passes`). Both never allow more than the scope does.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from perdure.core.clock import SECOND
from perdure.recall.places import ANSWERED, SAID, TOOLS, Spot
from perdure.recall.values import Filters, Kind, Note

#: The field in which the words of each role stand.
ROLES = {"user": SAID, "assistant": ANSWERED, "tool": TOOLS}


class Passing(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A candidate, as far as filters look at it."""

    kind: Kind
    spot: Spot
    note: Note
    #: The session of a turn, the agent of a memory.
    session: str = ""
    #: The fields that the words were found in; none if it was found by its meaning.
    fields: Collection[int] = ()


def passes(filters: Filters, candidate: Passing) -> bool:
    """Whether a candidate of a narrowed scope is what is asked for.

    Agents, sessions and the line are not looked at: that is what narrowing did. Times are compared
    by the second.
    """
    note = candidate.note
    return (
        (not filters.kinds or candidate.kind in filters.kinds)
        and _is_in_time(filters, note)
        and (not filters.roles or _is_said_by(filters.roles, candidate))
        and (not filters.tools or not set(filters.tools).isdisjoint(note.tools))
        and _has_tags(filters, note)
    )


def _is_in_time(filters: Filters, note: Note) -> bool:
    since, until = filters.since, filters.until
    return (since is None or note.time >= since // SECOND) and (
        until is None or note.time <= until // SECOND
    )


def _is_said_by(roles: Collection[str], candidate: Passing) -> bool:
    """Whether its words are somebody's of these roles; what is no turn is nobody's."""
    if candidate.kind != "turn":
        return False
    asked = {ROLES[role] for role in roles if role in ROLES}
    if candidate.fields:
        return not asked.isdisjoint(candidate.fields)
    return any(candidate.note.lengths[field] for field in asked)


def _has_tags(filters: Filters, note: Note) -> bool:
    return all(note.tags.get(name) == value for name, value in wanted_tags(filters).items())


def wanted_tags(filters: Filters) -> dict[str, str]:
    """The tags that a hit must have; branch, task and outcome are some."""
    facts = {"branch": filters.branch, "task": filters.task, "outcome": filters.outcome}
    return {name: value for name, value in facts.items() if value} | filters.tags
