"""Who acts, and why, for the block and everything called in it.

    with acting_as("ada", reason="GDPR request 17"):
        await bank.collection(Note).delete("ada/1")

Holds for the block and for tasks begun in it, not for other tasks and threads.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec

from perdure.core.errors import InvalidInput

#: Characters of a name, and of a reason. Names are indexed.
MAX_NAME, MAX_REASON = 120, 1_000


class Actor(msgspec.Struct, frozen=True):
    """Who acts, and why."""

    name: str
    reason: str = ""


_acting: ContextVar[Actor | None] = ContextVar("perdure_actor", default=None)


@contextmanager
def acting_as(name: str, *, reason: str = "") -> Iterator[Actor]:
    """An inner block wins. Raises `InvalidInput` for what cannot be stored."""
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
    """The user that this process runs as; a number if it has no name."""
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
