"""Reads the messages of opencode, each with its parts.

An assistant message holds several model calls, between ``step-start`` and ``step-finish``: each
becomes a reply, with the results of its tools behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from perdure.core.clock import SECOND
from perdure.core.messages import (
    Media,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    event,
)
from perdure.core.turns import TurnSplitter
from perdure.importers.importer import (
    PIECE,
    Begun,
    Say,
    Spawn,
    Step,
    TranscriptReader,
    Undo,
    kind,
    word,
)
from perdure.importers.message_parts import as_json, attachment, count, items, mapping, moment_of

_MILLISECOND = SECOND // 1000
#: Tools whose call has an end: what they answered is beside them.
_DONE = frozenset({"completed", "error"})


class OpencodeReader(TranscriptReader):
    """Reads one session."""

    def __init__(self) -> None:
        super().__init__()
        self._cutter = TurnSplitter()
        self._turns: dict[str, int] = {}  # by the prompt that opened it
        self._unfinished: dict[str, Any] | None = None

    def read(self, record: Any) -> Iterator[Step]:
        if parent := word(mapping(record).get("parent")):
            yield Begun(parent)
        elif reverted := word(mapping(record).get("reverted")):
            yield from self._reverted(reverted)
        elif "session_message" in mapping(record):
            self.skip(f"session_message: {kind(record['session_message'])}")
        else:
            if self._unfinished is not None:  # another one follows: it was cut off
                yield from self._assistant(self._unfinished)
                self._unfinished = None
            yield from self._message(mapping(record))

    def finish(self) -> Iterator[Step]:
        if self._unfinished is not None:
            self.skip("answer that is not finished")
        return iter(())

    def _message(self, record: dict[str, Any]) -> Iterator[Step]:
        info = mapping(record.get("info"))
        if info.get("role") == "user":
            yield from self._user(record, info)
        elif info.get("role") == "assistant":
            if "completed" in mapping(info.get("time")) or info.get("error"):
                yield from self._assistant(record)
            else:
                self._unfinished = record
        else:
            self.skip(f"message: {kind(info.get('role'))}")

    def _user(self, record: dict[str, Any], info: dict[str, Any]) -> Iterator[Step]:
        time = moment_of(mapping(info.get("time")).get("created"), _MILLISECOND)
        said: list[Part] = []
        put_in: list[Part] = []
        for part in items(record.get("parts")):
            what = part.get("type")
            if what == "text" and isinstance(part.get("text"), str) and not part.get("ignored"):
                (put_in if part.get("synthetic") else said).append(Text(part["text"]))
            elif what == "file":
                said.append(_file(part))
            elif what == "subtask":
                said.append(Text(word(part.get("prompt"))))
            else:
                self.skip_part(f"part: {kind(what)}")
        if said:
            before = self._cutter.turn
            yield self._say(Message("user", tuple(said), time=time))
            if self._cutter.turn > before:
                self._turns[word(record.get("id"))] = self._cutter.turn
        if put_in:
            yield self._say(Message("user", tuple(put_in), time=time, injected=True))

    def _assistant(self, record: dict[str, Any]) -> Iterator[Step]:
        info = mapping(record.get("info"))
        if info.get("summary") is True:
            text = "\n".join(
                word(part.get("text"))
                for part in items(record.get("parts"))
                if part.get("type") == "text"
            )
            yield self._say(_at(event("compaction", text), info))
            return
        step: list[dict[str, Any]] = []
        number = 0
        for part in items(record.get("parts")):
            if part.get("type") in {"step-start", "step-finish"}:
                if part["type"] == "step-finish":
                    step.append(part)
                if step:
                    number += 1
                    yield from self._step(record, step, number)
                step = []
            else:
                step.append(part)
        if step:
            yield from self._step(record, step, number + 1)
        if error := mapping(info.get("error")):
            what = word(mapping(error.get("data")).get("message"))
            text = ": ".join(filter(None, (word(error.get("name")), what)))
            yield self._say(_at(event("error", text), info))

    def _step(
        self, record: dict[str, Any], step: list[dict[str, Any]], number: int
    ) -> Iterator[Step]:
        """One call of the model, with the results of its tools."""
        info = mapping(record.get("info"))
        parts: list[Part] = []
        results: list[ToolResult] = []
        spawned: list[Spawn] = []
        usage: Usage | None = None
        began: int | None = None
        for part in step:
            what, text = part.get("type"), part.get("text")
            began = began or moment_of(mapping(part.get("time")).get("start"), _MILLISECOND)
            if what == "text" and isinstance(text, str) and not part.get("ignored"):
                parts.append(Text(text))
            elif what == "reasoning" and isinstance(text, str):
                parts.append(Reasoning(text))
            elif what == "file":
                parts.append(_file(part))
            elif what == "tool":
                call, result, child = _tool(part)
                parts.append(call)
                results += result
                spawned += child
            elif what == "step-finish":
                usage = _usage(mapping(part.get("tokens")))
            else:
                self.skip_part(f"part: {kind(what)}")
        time = began or moment_of(mapping(info.get("time")).get("created"), _MILLISECOND)
        if parts:
            name = f"{PIECE}{word(record.get('id'))}.{number}"
            model = word(info.get("modelID"))
            reply = Message("assistant", tuple(parts), id=name, model=model, usage=usage, time=time)
            yield self._say(reply)
        yield from spawned
        if results:
            yield self._say(Message("tool", tuple(results), time=time))

    def _reverted(self, message: str) -> Iterator[Step]:
        """What was said from this message on was taken back."""
        first = self._turns.get(message)
        if first is None:
            self.skip("revert inside a turn")
        elif first <= self._cutter.turn:
            yield Undo(self._cutter.turn - first + 1)

    def _say(self, message: Message) -> Say:
        self._cutter.feed(message)
        return Say(message)


def _at(message: Message, info: dict[str, Any]) -> Message:
    time = moment_of(mapping(info.get("time")).get("created"), _MILLISECOND)
    return msgspec.structs.replace(message, time=time)


def _file(part: dict[str, Any]) -> Media | Text:
    return attachment(word(part.get("url")), word(part.get("mime")), word(part.get("filename")))


def _tool(part: dict[str, Any]) -> tuple[ToolCall, list[ToolResult], list[Spawn]]:
    state, name = mapping(part.get("state")), word(part.get("tool"))
    call = word(part.get("callID")) or word(part.get("id"))
    made = ToolCall(call, name, as_json(state.get("input", {})))
    child = word(mapping(state.get("metadata")).get("sessionId"))
    spawned = [Spawn(child, call)] if child and name == "task" else []
    if state.get("status") not in _DONE:
        return made, [], spawned
    is_error = state["status"] == "error"
    told: list[Text | Media] = []
    if text := word(state.get("error" if is_error else "output")):
        told.append(Text(text))
    told += [_file(each) for each in items(state.get("attachments"))]
    return made, [ToolResult(call, tuple(told), is_error=is_error, name=name)], spawned


def _usage(tokens: dict[str, Any]) -> Usage:
    """Its own counts leave out what was cached, and what was thought."""
    cache = mapping(tokens.get("cache"))
    read, write = count(cache.get("read")), count(cache.get("write"))
    reasoning, output = count(tokens.get("reasoning")), count(tokens.get("output"))
    return Usage(
        input=(count(tokens.get("input")) or 0) + (read or 0) + (write or 0),
        output=(output or 0) + (reasoning or 0),
        cache_read=read,
        cache_write=write,
        reasoning=reasoning,
    )
