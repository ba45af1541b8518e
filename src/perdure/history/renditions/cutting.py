"""Cuts a text at a number of tokens: what is done when nothing better can be."""

from __future__ import annotations

from perdure.core.messages import sound
from perdure.core.tokens import Counter

#: No token of o200k is longer.
_LONGEST_TOKEN = 128


def truncate(text: str, cap: int, counter: Counter) -> str:
    """The beginning of a text, at most `cap` tokens of it, cut between words where there are any.

    What is cut off is marked by an ellipsis, if there is room for one. Takes time in proportion to
    the cap, not to the text.
    """
    if cap <= 0:
        return ""
    text = str(sound(text[: cap * _LONGEST_TOKEN + 1]))
    if len(text) <= cap * _LONGEST_TOKEN and counter.count(text) <= cap:
        return text
    low, high, guess = 0, len(text), cap * 4
    # Grows until it is too much, then halves what lies between.
    while high - low > max(2, low // 64):
        guess = min(guess, high)
        if counter.count(f"{text[:guess]}…") <= cap:
            low = guess
            guess *= 2
        else:
            high = guess - 1
        if high < guess:
            guess = (low + high + 1) // 2
    cut = text[:low]
    space = max(cut.rfind(" "), cut.rfind("\n"))
    if space > low * 2 // 3:
        cut = cut[:space]
    cut = cut.rstrip(" \n\t,;:–—-")
    # Cutting at another place can take another token.
    while cut and counter.count(f"{cut}…") > cap:
        cut = cut[: len(cut) * 7 // 8]
    return f"{cut}…" if cut else ""
