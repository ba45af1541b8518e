"""Reads conversations from the model calls of traces.

Each call has all that the model was given, so most of it was there before. A call goes on with the
thread of its agent, which is told by its name, or else by its system text; what the thread has is
left out. The first thread is the conversation, others become sessions of their own beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from perdure.core.errors import InvalidInput
from perdure.core.messages import Message, event
from perdure.history.message_identity import identities
from perdure.importers.importer import Begun, Say, Step, TranscriptReader, kind, word
from perdure.importers.message_parts import count, mapping
from perdure.importers.trace_messages import listed, messages_of, system_of, usage_of

_Key: TypeAlias = tuple[str, ...]
_INSTRUCTIONS = frozenset({"system", "developer"})


class _Thread(msgspec.Struct):
    """What was said in one."""

    to: str
    told: set[str]  # its instructions
    #: What the model was given so far, its own answers aside: others write those in other forms.
    given: list[_Key]
    answered: bool = False  # its newest answer was said


class TraceReader(TranscriptReader):
    """Reads the model calls of one conversation, in the order of time."""

    def __init__(self) -> None:
        super().__init__()
        self._threads: dict[str, _Thread] = {}

    def read(self, record: Any) -> Iterator[Step]:
        call = mapping(record)
        if other := word(call.get("other")):
            times = count(call.get("count")) or 1
            self.report.read += times - 1
            self.report.skip(kind(other), times)
            return
        given = self._messages(call.get("given"), "user")
        made = self._messages(call.get("made"), "assistant")
        told = [*system_of(call.get("system"))]
        told += [each.text for each in given if each.role in _INSTRUCTIONS]
        given = [each for each in given if each.role not in _INSTRUCTIONS]
        error = word(call.get("error"))
        if not given and not made and not error:
            self.skip("call without messages")
            return
        thread = self._thread(word(call.get("agent")) or "\n".join(told))
        if thread.to and not thread.given:
            yield Begun("", to=thread.to)
        time = count(call.get("time"))
        for text in told:
            if text not in thread.told:
                thread.told.add(text)
                said = msgspec.structs.replace(messages_of(text, "system")[0], time=time)
                yield Say(said, thread.to)
        for message in _news(thread, given):
            yield Say(msgspec.structs.replace(message, time=time), thread.to)
        thread.answered = bool(made)
        usage = usage_of(mapping(call.get("usage")))
        name, model, ended = word(call.get("id")), word(call.get("model")), call.get("ended")
        for message in made:
            said = msgspec.structs.replace(
                message, id=name, model=model, usage=usage, time=time, ended=count(ended)
            )
            usage = None
            yield Say(said, thread.to)
        if error:
            yield Say(msgspec.structs.replace(event("error", error), time=time), thread.to)

    def _thread(self, name: str) -> _Thread:
        if name not in self._threads:
            number = len(self._threads) + 1
            self._threads[name] = _Thread("" if number == 1 else str(number), set(), [])
        return self._threads[name]

    def _messages(self, value: Any, role: str) -> list[Message]:
        found: list[Message] = []
        for item in listed(value):
            try:
                found += messages_of(item, role, self.skip_part)
            except InvalidInput:
                self.skip_part("message that is not known")
        return [message for message in found if message.parts]


def _news(thread: _Thread, given: list[Message]) -> list[Message]:
    """What the thread does not have. It begins as the thread does, or where the thread was cut; or
    it is all new, if its caller keeps the history elsewhere.
    """
    places = [at for at, message in enumerate(given) if message.role != "assistant"]
    keys = [(given[at].role, *identities(given[at])) for at in places]
    known = thread.given
    if keys[: len(known)] == known:
        same = len(known)
    else:
        most = min(len(known), len(keys))
        fitting = (n for n in range(most, 0, -1) if known[-n:] == keys[:n])
        same = next(fitting, 0)
    behind = places[same - 1] + 1 if same else 0
    if same and thread.answered:  # what follows is the model's own, and was said
        while behind < len(given) and given[behind].role == "assistant":
            behind += 1
    thread.given += keys[same:]
    return given[behind:]
