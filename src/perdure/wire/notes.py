"""How codecs use `native`: the provider's own fields, and notes about their form.

Fields without a canonical place are kept under the wire format's name. The key `NOTES` in it is
Perdure's: whether a content was a string or a list, for example. A note only chooses between
equivalent forms; it never hides a change.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from perdure.core.messages import Native
from perdure.wire.plain import Item

NOTES = "perdure"

_NOTHING: Item = {}


def native(wire: str, fields: Item, /, **notes: Any) -> Native:
    kept = {name: note for name, note in notes.items() if note is not None}
    if kept:
        return {wire: {**fields, NOTES: kept}}
    return {wire: fields} if fields else {}


def fields_of(native: Native, wire: str) -> Item:
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
    return {name: value for name, value in item.items() if name not in known}
