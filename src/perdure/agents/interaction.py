"""One message that an agent has dealt with: what was asked, what came of it, what it took.

The loop makes one when a message has ended, and gives it to `Interactions.record` in the same
transaction. Who works without the loop makes one by hand and gives it to `AgentMemory.store`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.core.messages import Usage


class Interaction(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One ended message of an agent. Numbers that nobody knows are None, not zero."""

    #: The message's id: the same one recorded twice counts once.
    id: str
    #: The agent's name.
    agent: str
    agent_version: int = 0
    #: Where it was written down: the session, and the number of its turn there (0: nowhere).
    session: str = ""
    turn: int = 0
    #: What kind of work it was: ``email_routing``.
    task: str = ""
    request: str
    response: str = ""
    #: What the caller gave with the message: ``ask(context=…)``.
    context: dict[str, Any] = {}
    #: Keys of the memories and turns that stood in its prompts.
    recalled: tuple[str, ...] = ()
    #: Ids of the gateway's outcomes, in order.
    outcomes: tuple[str, ...] = ()
    #: Who gave the answer.
    provider: str = ""
    model: str = ""
    success: bool = True
    error: str = ""
    #: Picodollars, of all its calls.
    cost: int | None = None
    #: Seconds, from when the work on it began to its end.
    latency: float = 0.0
    #: Of all its calls together.
    tokens: Usage = Usage()
    #: Calls of models, and of tools.
    steps: int = 0
    tool_calls: int = 0
    #: The variant of a running experiment; empty if there is none.
    variant: str = ""
    #: Microseconds.
    started: int = 0
    ended: int = 0
