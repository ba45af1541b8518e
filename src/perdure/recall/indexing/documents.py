"""The documents of the index: a passage at a place, and the note that stands beside its words."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.core.errors import Corrupted
from perdure.recall.indexing.passages import Moment, Passage
from perdure.recall.places import INDEX, Spot
from perdure.recall.values import Note
from perdure.search.engine import Document, engine_of
from perdure.storage.store import Store

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Note).decode


def document(place: int, passage: Passage) -> Document:
    """The document of a passage."""
    return Document(INDEX.name, place, passage.texts, _encode(passage.note))


def place_of(number: int, moment: Moment) -> int:
    """Where the document of a session's moment stands; the session's group has this number."""
    round = moment.round
    return Spot(number, round.turn, round.round, round.before).place


def read_notes(notes: Sequence[bytes | None]) -> list[Note | None]:
    """The notes of documents; None for what is not there. Raises `Corrupted`."""
    try:
        return [None if note is None else _decode(note) for note in notes]
    except msgspec.DecodeError as exc:
        raise Corrupted(
            f"A note in the index of recall is damaged: {exc}.",
            hint="Run `perdure index rebuild`: it is made again from what is stored.",
        ) from exc


def is_readable(note: bytes) -> bool:
    """Whether it is a note."""
    try:
        _decode(note)
    except msgspec.DecodeError:
        return False
    return True


async def brief_among(store: Store, places: Sequence[int]) -> list[int]:
    """Those of some places whose documents lack what an append put off, in their order."""
    notes = await engine_of(store.adapter).notes(INDEX.name, places)
    return [
        p for p, note in zip(places, notes, strict=True) if note is not None and _is_brief(note)
    ]


def _is_brief(note: bytes) -> bool:
    return is_readable(note) and _decode(note).brief
