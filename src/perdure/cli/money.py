"""Amounts, as people and programs read them. What is not known is never shown as nothing."""

from __future__ import annotations

from perdure.gateway.prices import DOLLAR, dollars

_PER_MILLION = DOLLAR // 10**6
UNKNOWN = "cost unknown"


def amount(picodollars: int | None) -> str:
    """``$0.25``, ``free``, or that nobody knows."""
    if picodollars is None:
        return UNKNOWN
    return dollars(picodollars) if picodollars else "free"


def left(picodollars: int) -> str:
    """What may still be spent; rounded down, so that it is there."""
    step = DOLLAR // 100 if picodollars >= DOLLAR else DOLLAR // 10**6
    return dollars(picodollars - picodollars % step)


def number(picodollars: int | None) -> float | None:
    """Dollars, for a JSON object; None if unknown."""
    return None if picodollars is None else picodollars / DOLLAR


def per_million(rate: int | None) -> float | None:
    """Dollars for a million tokens, from picodollars for one; None if unknown."""
    return None if rate is None else rate / _PER_MILLION


def rate(rate: int) -> str:
    """The same for people: ``$1.25``, ``$0.125``, ``$10``."""
    text = f"{rate / _PER_MILLION:.6f}".rstrip("0")
    whole, _, decimals = text.partition(".")
    return f"${int(whole):,}" + (f".{decimals:0<2}" if decimals else "")
