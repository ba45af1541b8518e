"""How codecs use `native`: the provider's own fields, and what Perdure notes about the form.

Under a wire format's name stand the fields that have no canonical place, as they were. One key in
it, `NOTES`, is Perdure's own: what the fields alone do not tell, such as whether a content was a
string or a list. A note only chooses between forms that say the same; a part that was changed by a
view since is never hidden by one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from perdure.core.messages import Native
from perdure.wire.plain import Item

NOTES = "perdure"

_NOTHING: Item = {}


def native(wire: str, fields: Item, /, **notes: Any) -> Native:
    """`native` for what was read from this wire; empty if there is nothing to remember."""
    kept = {name: note for name, note in notes.items() if note is not None}
    if kept:
        return {wire: {**fields, NOTES: kept}}
    return {wire: fields} if fields else {}


def fields_of(native: Native, wire: str) -> Item:
    """The provider's own fields."""
    found = native.get(wire)
    if not found:
        return _NOTHING
    if NOTES in found:
        return {name: value for name, value in found.items() if name != NOTES}
    return found


def notes_of(native: Native, wire: str) -> Item:
    found = native.get(wire)
    return found.get(NOTES, _NOTHING) if found else _NOTHING


def rest(item: Item, known: Collection[str]) -> Item:
    """The fields that are not known."""
    return {name: value for name, value in item.items() if name not in known}
