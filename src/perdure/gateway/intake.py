"""What the gateway's methods are given, checked before anything else happens."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from perdure.core.errors import InvalidInput
from perdure.gateway.calls import PURPOSES, Ask, Request


def request(given: Any) -> Request:
    """A request, of itself or of anything that `wire.decode` takes."""
    return given if isinstance(given, Request) else Request(messages=given)


def asking(given: Any) -> Ask:
    """Who asks."""
    if isinstance(given, Ask):
        return given
    raise InvalidInput(
        f"Who asks cannot be a {type(given).__name__}.", hint='Give an Ask, like Ask(agent="me").'
    )


def embedding(given: Any) -> Ask:
    """Who asks for vectors. A purpose that was not set is understood."""
    ask = asking(given)
    if ask.purpose == "chat":
        return msgspec.structs.replace(ask, purpose="embed")
    if ask.purpose != "embed":
        raise InvalidInput(
            f"Texts are not embedded for {ask.purpose}.", hint='Use Ask(purpose="embed").'
        )
    return ask


def texts(given: Any) -> Sequence[str]:
    """Texts to embed; at least one."""
    if isinstance(given, str):
        raise InvalidInput("embed wants a list of texts, not one text.", hint="Give [text].")
    if not isinstance(given, Sequence) or isinstance(given, bytes | bytearray):
        raise InvalidInput(
            f"embed wants a list of texts, not a {type(given).__name__}.", hint="Give a list."
        )
    if not given:
        raise InvalidInput("There is nothing to embed.", hint="Give a list of texts.")
    for at, text in enumerate(given):
        if not isinstance(text, str):
            raise InvalidInput(
                f"texts[{at}] is a {type(text).__name__}, not a text.", hint="Give a list of texts."
            )
    return given


def judgement(outcome: Any, score: Any) -> float:
    """A score; whether it lies between 0 and 1 is for `outcomes` to see."""
    if not isinstance(outcome, str):
        raise InvalidInput(
            f"A {type(outcome).__name__} does not name an outcome.",
            hint="Use the `outcome` of a reply.",
        )
    if not isinstance(score, int | float):
        raise InvalidInput(f"{score!r} is no score.", hint="Give a number from 0.0 to 1.0.")
    return float(score)


def moment(name: str, given: Any) -> datetime | None:
    """A moment, or none. That it knows its time zone is for `clock` to see."""
    if given is None or isinstance(given, datetime):
        return given
    raise InvalidInput(
        f"{name} cannot be {given!r}: it is no datetime.",
        hint=f"Use an aware datetime, such as {name}=datetime.now(UTC) - timedelta(days=7).",
    )


def purpose(given: Any) -> None:
    """Raise `InvalidInput` unless calls can be for this."""
    if given not in PURPOSES:
        raise InvalidInput(
            f"Models are not called for {given!r}.", hint=f"Use one of {', '.join(PURPOSES)}."
        )
