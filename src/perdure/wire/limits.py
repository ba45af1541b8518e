"""How far the APIs differ in what they take."""

from __future__ import annotations

from typing import NamedTuple

from perdure.core.errors import InvalidInput
from perdure.wire.chat import rules as chat
from perdure.wire.messages import rules as messages
from perdure.wire.responses import rules as responses

RULES = {"chat": chat, "responses": responses, "messages": messages}


class Limits(NamedTuple):
    """The format of a repair."""

    #: The format, if it is for one only.
    wire: str | None
    call_id: int
    tool_name: int

    @classmethod
    def of(cls, wire: str | None) -> Limits:
        """Raises `InvalidInput` for a format that is not sent to models."""
        if wire is None:
            return cls(None, chat.ID_LIMIT, chat.NAME_LIMIT)
        if wire not in RULES:
            raise InvalidInput(
                f"There is no history to repair for {wire!r}.",
                hint=f"The formats of models are {', '.join(RULES)}.",
            )
        return cls(wire, RULES[wire].ID_LIMIT, RULES[wire].NAME_LIMIT)
