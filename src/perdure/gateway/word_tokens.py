"""Tokenizer of wordllama's vocabulary, Llama 2's: byte pairs, merged in vocabulary order.

Gives the same numbers as the package `tokenizers` with wordllama's settings. Blanks become ``▁``,
with one more in front; what is in no token becomes its bytes. No token goes on behind a word, a
digit or a newline, and none has a ``▁`` behind another character: so what `_PIECE` finds is merged
by itself, once, and remembered.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain

_BLANK = "▁"
#: What is taken as it stands, even in a text: it parts what is before it from what is behind.
_SPECIAL = re.compile("(<unk>|<s>|</s>)")
#: Letters or signs, with the blanks before them; or a digit. The square goes with signs.
_PIECE = re.compile(rf"\d|\n|{_BLANK}*(?:[^\W\d_²]+|(?:[^\w{_BLANK}\n]|[_²])+)|{_BLANK}+")
#: Characters of pieces that are remembered, and how many are.
_LONG = 64
_REMEMBERED = 1 << 16
#: Lower numbers are bytes and such, which a text does not spell.
_FIRST = 259


class WordTokenizer:
    """Texts to token numbers. May be used by several threads."""

    def __init__(self, vocabulary: Iterable[str]) -> None:
        self._numbers = {token: number for number, token in enumerate(vocabulary)}
        self._bytes = [self._numbers[f"<0x{byte:02X}>"] for byte in range(256)]
        self._remembered = lru_cache(_REMEMBERED)(self._merge)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without one for its beginning."""
        found = list[int]()
        for place, part in enumerate(_SPECIAL.split(text)):
            if place % 2:
                found.append(self._numbers[part])
            elif part:
                found += self._encode(_BLANK + part.replace(" ", _BLANK))
        return found

    def _encode(self, text: str) -> Iterable[int]:
        return chain.from_iterable(
            self._remembered(piece) if len(piece) <= _LONG else self._merge(piece)
            for piece in _PIECE.findall(text)
        )

    def _merge(self, piece: str) -> Sequence[int]:
        numbers = self._numbers
        if (whole := numbers.get(piece)) is not None and whole >= _FIRST:
            return (whole,)  # true of every token of this vocabulary
        # Neighbours are linked, so that merging two of them moves nothing.
        parts: list[str] = list(piece)
        before = list(range(-1, len(parts) - 1))
        behind = list(range(1, len(parts) + 1))
        waiting = list[tuple[bool, int, int, int, str]]()

        def offer(left: int) -> None:
            right = behind[left]
            if right < len(parts):
                both = parts[left] + parts[right]
                number = numbers.get(both)
                if number is not None:
                    # Runs of blanks come last, although their numbers are low; of two ways to
                    # the same token, the one whose left part has the lower number comes first.
                    is_run = both[-1] == _BLANK
                    first = numbers[parts[left]]
                    heapq.heappush(waiting, (is_run, number, first, left, both))

        for left in range(len(parts) - 1):
            offer(left)
        while waiting:
            _, _, first, left, both = heapq.heappop(waiting)
            right = behind[left]
            # One of the two may have been merged with another meanwhile.
            if right >= len(parts) or numbers.get(parts[left]) != first:
                continue
            if parts[left] + parts[right] != both:
                continue
            parts[left], parts[right] = both, ""
            behind[left] = behind[right]
            if behind[left] < len(parts):
                before[behind[left]] = left
            offer(left)
            if before[left] >= 0:
                offer(before[left])
        return tuple(chain.from_iterable(map(self._of_part, filter(None, parts))))

    def _of_part(self, part: str) -> Sequence[int]:
        number = self._numbers.get(part)
        return (
            (number,)
            if number is not None
            else [self._bytes[one] for one in part.encode("utf-8", "surrogatepass")]
        )
