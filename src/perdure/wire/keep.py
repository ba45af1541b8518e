"""What a wire format cannot say, kept beside what it can.

Encoding with ``keep=True`` adds a field `KEPT` to the first wire message of every group whose
decoding would not give the canonical messages back: the difference, and the number of wire messages
in the group. The decoder decodes the group by itself and applies the difference:

    {"role": "tool", "tool_call_id": "c1", "content": "no such file",
     "perdure": {"items": 1, "change": {"list": [{"of": 0, "in": {"in": {"parts": …is_error…}}}]}}}

A change is ``{"to": value}``; for an object ``{"in": {name: change}, "set": {name: value}, "drop":
[names]}``; for a list ``{"list": [steps]}``, one step for each new element: the number of an old
one, ``{"of": number, "in": change}`` or ``{"new": value}``. Providers refuse unknown fields: this
is for Perdure to read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from perdure.core.errors import InvalidInput
from perdure.core.messages import Message
from perdure.wire.plain import Item

KEPT = "perdure"

#: How far to look for an element that moved: far enough for what formats leave out or add.
_NEAR = 4

Decode: TypeAlias = Callable[[list[Item]], tuple[Message, ...]]


class Group(NamedTuple):
    """The fewest wire messages that stand for some canonical messages."""

    messages: list[Message]
    items: list[Item]


class Place(NamedTuple):
    """Where a wire message of this format keeps the field."""

    #: The value of the field; None if the message has none.
    find: Callable[[Item], Any]
    #: The message with this value in the field; without the field, for None.
    put: Callable[[Item, Any], Item]
    #: A message that says nothing, to carry the field.
    empty: Item


def runs_of(
    messages: Iterable[Message], joins: Callable[[Message, list[Message]], bool]
) -> list[list[Message]]:
    """Messages that go together: events, and what `joins` says goes on with those before it."""
    runs: list[list[Message]] = []
    for message in messages:
        if runs and (message.role == "event" or joins(message, runs[-1])):
            runs[-1].append(message)
        else:
            runs.append([message])
    return runs


def _put(item: Item, value: Any) -> Item:
    rest = {name: field for name, field in item.items() if name != KEPT}
    return rest if value is None else {**rest, KEPT: value}


#: A field of the message itself.
TOP = Place(lambda item: item.get(KEPT), _put, {"role": "system", "content": ""})


def items_of(groups: Iterable[Group]) -> list[Item]:
    return [item for group in groups for item in group.items]


def kept_items(groups: Sequence[Group], decode: Decode, place: Place = TOP) -> list[Item]:
    """Items whose decoding gives exactly the messages of all groups."""
    whole = _carried(groups, place)
    items = [item for group in whole for item in _with_kept(group, decode, place, always=False)]
    if decode(items) == tuple(message for group in whole for message in group.messages):
        return items
    # Some neighbours would be taken for one message: every group says where it begins and ends.
    return [item for group in whole for item in _with_kept(group, decode, place, always=True)]


def decode_kept(items: list[Item], decode: Decode, place: Place = TOP) -> tuple[Message, ...]:
    """`decode` sees no kept fields. Raises `InvalidInput` for one that does not fit."""
    messages: list[Message] = []
    start = position = 0
    while position < len(items):
        kept = place.find(items[position])
        if kept is None:
            if place is TOP and KEPT in items[position]:
                raise InvalidInput(
                    f"messages[{position}]: `{KEPT}` is a field of ours, and cannot be null.",
                    hint="Leave it out.",
                )
            position += 1
            continue
        messages += decode(items[start:position])
        end = position + _length(kept, position, len(items))
        group = [place.put(item, None) for item in items[position:end]]
        messages += _restored(decode(group), kept.get("change"), position)
        start = position = end
    messages += decode(items[start:])
    return tuple(messages)


def _carried(groups: Sequence[Group], place: Place) -> list[Group]:
    """The same groups, none empty: a message without an item joins the group before it."""
    whole: list[Group] = []
    waiting: list[Message] = []
    for group in groups:
        if not group.items:
            (whole[-1].messages if whole else waiting).extend(group.messages)
        else:
            whole.append(Group([*waiting, *group.messages], group.items))
            waiting = []
    return [Group(waiting, [dict(place.empty)])] if waiting else whole


def _with_kept(group: Group, decode: Decode, place: Place, *, always: bool) -> list[Item]:
    bare = [place.put(item, None) for item in group.items]
    # As the decoder will see it, once the field is taken out again.
    bare[0] = place.put(place.put(bare[0], {}), None)
    said = _plain(decode(bare))
    change = difference(said, _plain(group.messages))
    if change is None and not always and bare == group.items:
        return bare
    kept: Item = {"items": len(bare)}
    if change is not None:
        kept["change"] = change
    return [place.put(bare[0], kept), *bare[1:]]


def _plain(messages: Iterable[Message]) -> Any:
    return msgspec.to_builtins(list(messages))


def _length(kept: Any, position: int, available: int) -> int:
    length = kept.get("items") if isinstance(kept, dict) else None
    if not isinstance(length, int) or not 1 <= length <= available - position:
        raise _misfit(position)
    return length


def _restored(said: tuple[Message, ...], change: Any, position: int) -> Iterable[Message]:
    if change is None:
        return said
    try:
        return msgspec.convert(applied(_plain(said), change), tuple[Message, ...])
    except (msgspec.ValidationError, LookupError, TypeError, AttributeError) as exc:
        raise _misfit(position) from exc


def _misfit(position: int) -> InvalidInput:
    return InvalidInput(
        f"The `{KEPT}` field of message {position} does not fit the messages it stands in.",
        hint="Pass the messages as they were encoded, or remove the field.",
    )


def difference(old: Any, new: Any) -> Item | None:
    """The change from `old` to `new`, both plain data; None if they are the same."""
    if isinstance(old, dict) and isinstance(new, dict):
        inner = {
            name: change
            for name in new
            if name in old and (change := difference(old[name], new[name])) is not None
        }
        added = {name: value for name, value in new.items() if name not in old}
        gone = [name for name in old if name not in new]
        change = {"in": inner, "set": added, "drop": gone}
        return {name: value for name, value in change.items() if value} or None
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        steps = _steps(old, new)
        return None if steps == list(range(len(old))) else {"list": steps}
    same = type(old) is type(new) and old == new
    return None if same else {"to": new}


def _steps(old: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    steps: list[Any] = []
    next_old = 0
    for value in new:
        near = range(next_old, min(next_old + _NEAR, len(old)))
        twin = next((at for at in near if difference(old[at], value) is None), None)
        if twin is not None:
            steps.append(twin)
            next_old = twin + 1
        elif next_old < len(old) and _kind(old[next_old]) == _kind(value) is not None:
            steps.append({"of": next_old, "in": difference(old[next_old], value)})
            next_old += 1
        else:
            steps.append({"new": value})
    return steps


def _kind(value: Any) -> Any:
    return (value.get("kind") or value.get("role")) if isinstance(value, dict) else None


def applied(old: Any, change: Item) -> Any:
    """Raises LookupError, TypeError or AttributeError if the change does not fit."""
    if "to" in change:
        return change["to"]
    if "list" in change:
        return [_step(old, step) for step in change["list"]]
    dropped = change.get("drop", ())
    result = {name: value for name, value in old.items() if name not in dropped}
    for name, inner in change.get("in", {}).items():
        result[name] = applied(result[name], inner)
    return result | change.get("set", {})


def _step(old: Sequence[Any], step: Any) -> Any:
    if isinstance(step, int):
        return old[step]
    return step["new"] if "new" in step else applied(old[step["of"]], step["in"])
