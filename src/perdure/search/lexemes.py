"""Terms as PostgreSQL files them.

The words of a row are a tsvector: its lexemes are terms, exactly as they came. Each field has a
window of the positions that PostgreSQL knows, a *stride*, so a position says both the field and the
number of terms before it. A document that is longer than its windows goes on in another row, whose
`start` is added; so does one that has a term more than 255 times. Nothing is ever left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

#: Positions of a tsvector go from 1 to this; a greater one is silently taken for this one.
MAX_POSITION = 16_383
#: PostgreSQL keeps so many positions of a lexeme, and drops further ones without a word.
_POSITIONS = 255
#: Bytes of a lexeme: with so many, a tsvector of all positions stays below its limit of 1 MB.
_LEXEME = 56


def rows_of(texts: Sequence[str], stride: int) -> Iterator[tuple[int, str]]:
    """The rows of a document: `start`, and a tsvector as text. At least one."""
    fields = [text.split() for text in texts]
    longest = max(map(len, fields))
    for start in range(0, longest or 1, stride):
        standing: dict[str, list[int]] = {}
        for number, terms in enumerate(fields):
            for position, term in enumerate(terms[start : start + stride], number * stride + 1):
                standing.setdefault(term, []).append(position)
        yield start, _tsvector(standing)
        while standing := {
            term: positions[_POSITIONS:]
            for term, positions in standing.items()
            if len(positions) > _POSITIONS
        }:
            yield start, _tsvector(standing)


def _tsvector(standing: dict[str, list[int]]) -> str:
    return " ".join(
        f"{quoted(lexeme(term))}:{','.join(map(str, positions[:_POSITIONS]))}"
        for term, positions in standing.items()
    )


def lexeme(term: str) -> str:
    """What a term is filed as: itself, or a hash of one that PostgreSQL could not take."""
    if len(term) <= _LEXEME and term.isascii() and "\0" not in term:
        return term
    data = term.encode("utf-8", "surrogatepass")
    if len(data) <= _LEXEME and "\0" not in term and not _has_surrogate(term):
        return term
    return "#" + hashlib.blake2b(data, digest_size=16).hexdigest()


def quoted(word: str) -> str:
    """A lexeme as it stands in a tsvector or tsquery."""
    return "'" + word.replace("\\", "\\\\").replace("'", "''") + "'"


def _has_surrogate(term: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in term)
