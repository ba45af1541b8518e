"""The four fidelities at which a turn is kept.

=  ==========  ====================================================================
R  raw         as it was said
S  smoothed    noise removed, tool results at a third
C  compressed  a third of the words; tool calls as "x was called and y happened"
T  tiny        one or two sentences for a whole turn; no tool calls
=  ==========  ====================================================================
"""

from __future__ import annotations

from typing import Literal, TypeGuard

from perdure.core.errors import InvalidInput

Level = Literal["R", "S", "C", "T"]

LEVELS: tuple[Level, ...] = ("R", "S", "C", "T")
RANK: dict[Level, int] = {level: rank for rank, level in enumerate(LEVELS)}

_NAMES: dict[str, Level] = {
    "raw": "R",
    "smooth": "S",
    "smoothed": "S",
    "compressed": "C",
    "tiny": "T",
}


def is_level(text: object) -> TypeGuard[Level]:
    return text in LEVELS


def parse_level(text: object) -> Level:
    """By its letter or name. Raises `InvalidInput` for anything else."""
    if isinstance(text, str):
        letter = text.strip().upper()
        if is_level(letter):
            return letter
        if (named := _NAMES.get(text.strip().lower())) is not None:
            return named
    raise InvalidInput(
        f"{text!r} is no level.", hint="Write R (raw), S (smoothed), C (compressed) or T (tiny)."
    )
