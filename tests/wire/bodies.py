"""Bodies as providers and their users write them, and as they should not.

Each is a list of messages or items. Those under ``VALID`` break no rule and are complete; those
under ``ODD`` must come back as they were all the same.
"""

from __future__ import annotations

from tests.wire import chat_bodies, messages_bodies, responses_bodies, ui_bodies
from tests.wire.samples import Bodies

_ALL = {
    "chat": chat_bodies,
    "messages": messages_bodies,
    "responses": responses_bodies,
    "ui": ui_bodies,
}
VALID: dict[str, Bodies] = {wire: bodies.VALID for wire, bodies in _ALL.items()}
ODD: dict[str, Bodies] = {wire: bodies.ODD for wire, bodies in _ALL.items()}


def named(bodies: dict[str, Bodies]) -> list[tuple[str, str]]:
    """The wire and name of each, for parametrising."""
    return [(wire, name) for wire, of_wire in bodies.items() for name in of_wire]
