"""Keys: hierarchical strings such as ``planner/auth/00000183``, ordered by code point.

Non-empty, without empty segments, at most `MAX_KEY_BYTES` in UTF-8, without NUL and lone
surrogates, which PostgreSQL and SQLite could not give back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from perdure.core.errors import InvalidKey, InvalidValue

MAX_KEY_BYTES = 512
MAX_INDEXED_BYTES = 512

#: The overwhelmingly common case, checked in one go.
_plain = re.compile(r"[!-.0-~]+(?:/[!-.0-~]+)*").fullmatch
_unstorable = re.compile("[\x00\ud800-\udfff]").search


def check(key: str) -> str:
    """Returns the key. Raises `InvalidKey` if it is none."""
    if type(key) is str and len(key) <= MAX_KEY_BYTES and _plain(key):
        return key
    if not isinstance(key, str):
        raise InvalidKey(f"A key is a string, not {type(key).__name__}.", hint="Use str(…).")
    if not key:
        raise InvalidKey("A key may not be empty.", hint="Give the record a name.")
    if key[0] == "/" or key[-1] == "/" or "//" in key:
        raise InvalidKey(
            f"The key {key!r} has an empty segment.", hint="Write it like 'agent/session/item'."
        )
    _check_text(key, f"The key {key!r}", InvalidKey)
    if len(key.encode()) > MAX_KEY_BYTES:
        raise InvalidKey(
            f"The key {key[:40]!r}… is longer than {MAX_KEY_BYTES} bytes.",
            hint="Use a shorter name, or a hash of it.",
        )
    return key


def check_many(keys: Iterable[str]) -> list[str]:
    """Raises `InvalidKey` also for a single key, whose letters nobody means."""
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        raise InvalidKey(f"{keys!r} is no list of keys.", hint="Give a list of texts.")
    return [check(key) for key in keys]


def check_prefix(prefix: str) -> str:
    """Returns the prefix, if keys can begin with it. It may be empty and may end anywhere."""
    if not isinstance(prefix, str):
        raise InvalidKey(f"A prefix is text, not {type(prefix).__name__}.", hint="Use str(…).")
    if prefix:
        _check_text(prefix, f"The prefix {prefix!r}", InvalidKey)
    return prefix


def check_indexed(text: str, field: str) -> str:
    """Returns the text, if every database can hold it in an index."""
    if len(text) * 4 > MAX_INDEXED_BYTES or not text.isascii() or "\x00" in text:
        _check_text(text, f"The text in indexed field {field!r}", InvalidValue)
        if len(text.encode()) > MAX_INDEXED_BYTES:
            raise InvalidValue(
                f"The text in indexed field {field!r} is longer than {MAX_INDEXED_BYTES} bytes.",
                hint="Keep the long text in a field without an index, and index a short form.",
            )
    return text


def numbered(number: int) -> str:
    """A number as a key segment that sorts like the number: ``00000183``."""
    if not 0 <= number < 10**8:
        raise InvalidKey(f"{number} cannot be part of a key.", hint="Use 0 to 99,999,999.")
    return f"{number:08d}"


def after_prefix(prefix: str) -> str | None:
    """The smallest string above all strings with this prefix, or None."""
    for position in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[position])
        if code < 0x10FFFF:
            # The surrogates cannot be encoded: step over them.
            following = 0xE000 if code == 0xD7FF else code + 1
            return prefix[:position] + chr(following)
    return None


def _check_text(text: str, what: str, error: type[InvalidKey | InvalidValue]) -> None:
    found = _unstorable(text)
    if found:
        name = "a NUL character" if found[0] == "\x00" else "half a surrogate pair"
        raise error(
            f"{what} contains {name}, which no database can keep there.",
            hint="Remove or escape it; values may contain it.",
        )
