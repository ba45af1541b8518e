"""Checks what callers give to a session: prompts, budgets, turns, times, tags.

Callers may not run a type checker: unusable input gets one clear `InvalidInput`, before anything is
written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, get_args

from perdure import wire
from perdure.context.composer import LEAST_BUDGET
from perdure.core import clock
from perdure.core.clock import When
from perdure.core.errors import BudgetTooSmall, InvalidInput
from perdure.core.messages import Message, Part, Text, decode, encode, sound
from perdure.core.turns import Position, is_prompt
from perdure.history.log_records import Head, SessionRecord
from perdure.recall.values import Filters, Kind, Question

T = TypeVar("T", bound=str)

MOST_HITS = 1_000  # Hits of a recall, at most.

_FOREVER = float("inf")
_KINDS: tuple[Kind, ...] = get_args(Kind)
_ROLES = ("user", "assistant", "tool")
_PARTS = get_args(Part)
#: Blocks of a content, in whatever format, that a user can say.
_SAID = frozenset(
    {
        *("text", "image_url", "input_audio", "file"),
        *("input_text", "input_image", "input_file"),
        *("image", "document", "search_result"),
    }
)


def prompt_in(given: Any) -> tuple[Message, ...]:
    """The messages of a prompt; none if none is given. Takes what `wire.decode` takes, and the bare
    parts of one user message. Half surrogate pairs are replaced, as the log does it. Raises
    `InvalidInput` if nothing is said in it, or if it is not only a user's.
    """
    if given is None:
        return ()
    said = wire.decode(_as_message(given))
    if any(message.role in {"system", "developer"} for message in said):
        raise InvalidInput(
            "A prompt has no system message.", hint="Give its words as system=…, in every call."
        )
    if not all(map(is_prompt, said)):
        raise InvalidInput(
            "A prompt is what a user says.",
            hint="Append replies and results of tools; then call context() without a prompt.",
        )
    parts = [part for message in said for part in message.parts]
    if all(isinstance(part, Text) and not part.text.strip() for part in parts):
        raise InvalidInput(
            "A prompt needs words.",
            hint="Say something, or call context() without a prompt to go on with an open turn.",
        )
    return decode(encode(said))


def _as_message(given: Any) -> Any:
    if isinstance(given, _PARTS) or _is_block(given):
        given = [given]
    if not isinstance(given, list | tuple) or all(isinstance(each, str) for each in given):
        return given
    if all(isinstance(each, _PARTS) for each in given):
        return Message("user", tuple(given))
    if all(isinstance(each, str) or _is_block(each) for each in given):
        blocks = [{"type": "text", "text": e} if isinstance(e, str) else dict(e) for e in given]
        return {"role": "user", "content": blocks}
    return given


def _is_block(given: Any) -> bool:
    return isinstance(given, Mapping) and "role" not in given and given.get("type") in _SAID


def text_in(given: Any, name: str) -> str:
    if given is None:
        return ""
    if not isinstance(given, str):
        raise InvalidInput(
            f"{name} is a {type(given).__name__}.", hint=f'Give {name} as text: {name}="…".'
        )
    found: str = sound(given)
    return found


def budget_in(given: Any) -> int | None:
    """Tokens, if given. Raises `BudgetTooSmall` if no context fits into it, `InvalidInput` if it is
    no whole number.
    """
    if given is None:
        return None
    if not isinstance(given, int) or isinstance(given, bool):
        raise InvalidInput(
            f"{given!r} is no budget.", hint="Give tokens as a whole number: budget=100_000."
        )
    if given < LEAST_BUDGET:
        raise BudgetTooSmall(given, LEAST_BUDGET, hint=f"Give {LEAST_BUDGET} or more.")
    return given


def count_in(given: Any, what: str) -> int:
    """`what` says, in the error, what needs the number."""
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise InvalidInput(f"{given!r} turns cannot be {what}.", hint="Give 1 or more.")
    return given


def number_in(given: Any, name: str, most: int) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= most:
        raise InvalidInput(f"{name} is {given!r}.", hint=f"Give a whole number from 1 to {most:,}.")
    return given


def seconds_in(given: Any, name: str) -> float | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < _FOREVER:
        raise InvalidInput(
            f"{name} is {given!r}.", hint=f"Give seconds above 0: {name}=1.5, or leave it out."
        )
    return float(given)


def texts_in(given: Any, name: str, known: Sequence[T] = ()) -> tuple[T, ...]:
    """Texts, only `known` ones if given; a single one may stand for itself. None is nothing given.
    An empty list is refused: its author means nothing, not everything.
    """
    if given is None:
        return ()
    listed = (given,) if isinstance(given, str) else given
    if not isinstance(listed, Iterable) or isinstance(listed, Mapping | bytes):
        raise InvalidInput(f"{name} is {given!r}.", hint=f"Give a list of texts: {name}=[…].")
    found = tuple(listed)
    if not found:
        raise InvalidInput(
            f"{name} is empty: nothing could be found.", hint=f"Leave {name} out to look at all."
        )
    for each in found:
        if not isinstance(each, str) or not each.strip() or (known and each not in known):
            choice = f"Use {', '.join(known)}." if known else f"Give texts: {name}=[…]."
            raise InvalidInput(f"{name} cannot be {each!r}.", hint=choice)
    return found


def moment(given: When | None, now: int, *, last: bool = False) -> int | None:
    """A time in microseconds, if one is given: see `perdure.core.clock.moment`."""
    return None if given is None else clock.moment(given, now, last=last)


def flag_in(given: Any, name: str) -> bool:
    """Refuses anything else: a text would pass for True, whatever it says."""
    if not isinstance(given, bool):
        raise InvalidInput(f"{name} is {given!r}.", hint=f"Give {name}=True or {name}=False.")
    return given


def lines_in(given: Any, name: str) -> list[str]:
    """Texts, each on one line. Raises `InvalidInput` for anything else, a single text included."""
    if given is None:
        return []
    if isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping):
        found = list(given)
        if all(isinstance(each, str) for each in found):
            return [" ".join(sound(each).split()) for each in found if each.strip()]
    raise InvalidInput(f"{name} is {given!r}.", hint=f'Give a list of texts: {name}=["…"].')


def tags_of(given: Any) -> dict[str, str]:
    if given is None:
        return {}
    if isinstance(given, Mapping) and all(isinstance(value, str) for value in given.values()):
        return dict(given)
    raise InvalidInput(
        f"{given!r} cannot be tags.", hint='Give names and texts: {"topic": "auth"}.'
    )


def turn_number(text: str | int | Position) -> int:
    """0 stands for the place in front of the first turn."""
    if text == 0 and not isinstance(text, bool):
        return 0
    return Position.parse(text).turn


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Neighbouring numbers together, so that each run is one read."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def question_in(
    query: Any,
    record: SessionRecord,
    head: Head,
    now: int,
    *,
    limit: Any,
    since: When | None,
    until: When | None,
    wide: Any,
    **filters: Any,
) -> Question:
    """The query of `Session.recall`. Raises `InvalidInput` for what cannot be meant."""
    text = text_in(query, "query")
    if not text.strip():
        raise InvalidInput("The query is empty.", hint="Say what to look for.")
    first, last = moment(since, now), moment(until, now, last=True)
    if first is not None and last is not None and first > last:
        raise InvalidInput(
            "Nothing is both since then and until then.", hint="Swap since and until."
        )
    return Question(
        text=text,
        record=record,
        head=head,
        filters=Filters(
            kinds=texts_in(filters["kinds"], "kinds", _KINDS),
            agents=texts_in(filters["agents"], "agents"),
            sessions=texts_in(filters["sessions"], "sessions"),
            line=flag_in(filters["line"], "line"),
            roles=texts_in(filters["roles"], "roles", _ROLES),
            tools=texts_in(filters["tools"], "tools"),
            branch=text_in(filters["branch"], "branch"),
            task=text_in(filters["task"], "task"),
            outcome=text_in(filters["outcome"], "outcome"),
            tags=tags_of(filters["tags"]),
            since=first,
            until=last,
        ),
        limit=number_in(limit, "limit", MOST_HITS),
        moment=now,
        wide=flag_in(wide, "wide"),
    )
