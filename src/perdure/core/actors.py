"""Who acts, and why: said once, and known to everything that is called from there.

    with acting_as("ada", reason="GDPR request 17"):
        await bank.collection(Note).delete("ada/1")

What is said holds for the block and for tasks that are begun in it, not for other tasks and
threads: several people may be served side by side.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec

from perdure.core.errors import InvalidInput

#: Characters of a name, and of a reason. Names stand in an index.
MAX_NAME, MAX_REASON = 120, 1_000


class Actor(msgspec.Struct, frozen=True):
    """Somebody who does something."""

    name: str
    reason: str = ""


_acting: ContextVar[Actor | None] = ContextVar("perdure_actor", default=None)


@contextmanager
def acting_as(name: str, *, reason: str = "") -> Iterator[Actor]:
    """Say who acts in this block. An inner block has the last word.

    Raises `InvalidInput` if the name or the reason cannot be kept.
    """
    actor = Actor(_checked(name, "name of who acts", MAX_NAME), _checked(reason, "reason"))
    if not name.strip():
        raise InvalidInput("Who acts needs a name.", hint='Write acting_as("ada").')
    token = _acting.set(actor)
    try:
        yield actor
    finally:
        _acting.reset(token)


def current_actor() -> Actor | None:
    return _acting.get()


@functools.cache
def system_user() -> str:
    """The name of the user that this process runs as; a number if it has no name."""
    import os

    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):  # no Unix, or a container's user that nobody named
        return os.environ.get("USERNAME") or f"uid {getattr(os, 'getuid', lambda: 0)()}"


def _checked(text: str, what: str, most: int = MAX_REASON) -> str:
    if not isinstance(text, str):
        raise InvalidInput(f"The {what} is text, not {type(text).__name__}.", hint="Use str(…).")
    unstorable = "\x00" in text or any("\ud800" <= char <= "\udfff" for char in text)
    if len(text) > most or unstorable:
        raise InvalidInput(
            f"The {what} is longer than {most} characters, or has some that cannot be kept.",
            hint="Shorten it.",
        )
    return text
