"""Reads what Gemini CLI records.

A line is facts about the conversation, a message, a change of the facts (``$set``), or a return to
an earlier message (``$rewindTo``). A message is written again whenever more of it is known: its
tokens, its tool calls with their results. So one is held until the next one comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
from perdure.core.turns import ConversationState, TurnSplitter
from perdure.importers.importer import (
    PIECE,
    Describe,
    Say,
    Spawn,
    Step,
    TranscriptReader,
    Undo,
    kind,
    word,
)
from perdure.importers.message_parts import as_json, attachment, count, items, mapping
from perdure.importers.transcript_source import moment
from perdure.wire.media import from_base64

#: What the program puts in, in the user's name.
_PUT_IN = ("<session_context>", "<hook_context>")
#: Calls that ended without their result.
_FAILED = frozenset({"error", "cancelled"})
_Told = Text | Media


class GeminiReader(TranscriptReader):
    """Reads one conversation."""

    def __init__(self) -> None:
        super().__init__()
        self._cutter = TurnSplitter()
        self._held: dict[str, Any] = {}
        self._given: set[str] = set()  # what was said of the held message
        self._turns: dict[str, int] = {}  # messages in order; 0: nothing of it was said
        self._put_in: set[str] = set()  # of them, those that nobody typed
        self._title = ""

    def read(self, record: Any) -> Iterator[Step]:
        found = mapping(record)
        if isinstance(found.get("$rewindTo"), str):
            yield from self._rewound(found["$rewindTo"])
        elif "$set" in found:
            yield from self._changed(mapping(found["$set"]))
        elif isinstance(found.get("id"), str):
            yield from self._message(found)
        elif isinstance(found.get("sessionId"), str):
            yield from self._described(found)
            listed = found.get("messages")
            for message in items(listed):
                yield from self.read(message)
            self.report.read += len(listed) if isinstance(listed, list) else 0
        else:
            self.skip("no record of Gemini CLI")

    def finish(self) -> Iterator[Step]:
        yield from self._say_held()

    def _message(self, message: dict[str, Any]) -> Iterator[Step]:
        name, what = message["id"], message.get("type")
        if what not in {"user", "gemini"}:
            self.skip(f"message: {kind(what)}")
        elif name == self._held.get("id"):
            self._held = message
        elif name in self._turns:
            self.skip("repeated message")
        else:
            yield from self._say_held()
            self._held, self._given = message, set()
            self._turns[name] = 0

    def _say_held(self) -> Iterator[Step]:
        message = self._held
        if not message:
            return
        if message.get("type") == "user":
            yield from self._user(message)
        else:
            yield from self._reply(message)

    def _user(self, message: dict[str, Any]) -> Iterator[Step]:
        parts = self._fresh(self._parts(message.get("content")))
        results = [part for part in parts if isinstance(part, ToolResult)]
        said = [part for part in parts if not isinstance(part, ToolResult)]
        time = moment(message.get("timestamp"))
        if results:
            yield self._say(Message("tool", tuple(results), time=time))
        if said:
            text = said[0].text if isinstance(said[0], Text) else ""
            injected = text.lstrip().startswith(_PUT_IN)
            if injected:
                self._put_in.add(message["id"])
            yield self._say(Message("user", tuple(said), time=time, injected=injected))

    def _reply(self, message: dict[str, Any]) -> Iterator[Step]:
        thought = [_thought(each) for each in items(message.get("thoughts"))]
        told = self._parts(message.get("content"))
        if any(isinstance(part, Reasoning) for part in told):
            thought = []  # they are in the content, in newer files
        parts: list[Part] = [*thought, *told]
        calls = items(message.get("toolCalls"))
        known = {part.id for part in parts if isinstance(part, ToolCall)}
        for call in calls:
            name = word(call.get("id"))
            if name not in known:
                given = as_json(call.get("args", {}))
                parts.append(ToolCall(name, word(call.get("name")), given))
        time = moment(message.get("timestamp"))
        new = self._fresh(parts)
        usage = _usage(mapping(message.get("tokens")))
        if new:
            is_counted = "tokens" not in self._given
            if usage is not None:
                self._given.add("tokens")
            reply = Message(
                "assistant",
                tuple(new),
                id=f"{PIECE}{message['id']}",
                model=word(message.get("model")),
                usage=usage if is_counted else None,
                time=time,
            )
            yield self._say(reply)
        results = [result for call in calls for result in self._results(call)]
        for call in calls:
            if (child := word(call.get("agentId"))) and f"agent {child}" not in self._given:
                self._given.add(f"agent {child}")
                yield Spawn(child, word(call.get("id")))
        if fresh := self._fresh(results):
            yield self._say(Message("tool", tuple(fresh), time=time))

    def _fresh(self, parts: list[Any]) -> list[Any]:
        """The parts of the held message that were not said before the file grew."""
        new = []
        for part in parts:
            if isinstance(part, ToolCall):
                name = f"call {part.id}"
            elif isinstance(part, ToolResult):
                name = f"result {part.call}"
            else:
                name = repr(part)
            if name not in self._given:
                self._given.add(name)
                new.append(part)
        return new

    def _parts(self, content: Any) -> list[Any]:
        found: list[Any] = []
        for part in content if isinstance(content, list) else [content]:
            said = Text(part) if isinstance(part, str) else self._part(mapping(part))
            if said is not None and said != Text(""):
                found.append(said)
        return found

    def _part(self, part: dict[str, Any]) -> Part | None:
        if isinstance(part.get("text"), str):
            return Reasoning(part["text"]) if part.get("thought") is True else Text(part["text"])
        if "inlineData" in part or "fileData" in part:
            return _media(part)
        if call := mapping(part.get("functionCall")):
            given = as_json(call.get("args", {}))
            return ToolCall(word(call.get("id")), word(call.get("name")), given)
        if response := mapping(part.get("functionResponse")):
            told = (Text(_response(response.get("response"))),)
            name = word(response.get("name"))
            return ToolResult(word(response.get("id")) or name, told, name=name)
        if code := mapping(part.get("executableCode")):
            return Text(f"```{word(code.get('language')).lower()}\n{word(code.get('code'))}\n```")
        if ran := mapping(part.get("codeExecutionResult")):
            return Text(word(ran.get("output")))
        if part:
            self.skip_part(f"part: {kind(next(iter(part)))}")
        return None

    def _results(self, call: dict[str, Any]) -> Iterator[ToolResult]:
        """A tool's answer; none while it runs."""
        result, status = call.get("result"), call.get("status")
        if not result and status not in _FAILED:
            return
        told: list[_Told] = []
        for part in result if isinstance(result, list) else [result]:
            found = mapping(part)
            if response := mapping(found.get("functionResponse")):
                told.append(Text(_response(response.get("response"))))
                told += [_media(each) for each in items(response.get("parts"))]
            elif isinstance(part, str):
                told.append(Text(part))
            elif isinstance(said := self._part(found), Text | Media):
                told.append(said)
        name, call_id = word(call.get("name")), word(call.get("id"))
        yield ToolResult(call_id, tuple(told), is_error=status in _FAILED, name=name)

    def _changed(self, facts: dict[str, Any]) -> Iterator[Step]:
        """Facts that changed; or all messages, because the program compressed the conversation."""
        messages = items(facts.get("messages"))
        yield from self._described(facts)
        if not messages:
            self.skip("$set")
            return
        if not self._turns:
            for message in messages:
                yield from self.read(message)
            return
        yield from self._say_held()
        new = [message for message in messages if word(message.get("id")) not in self._turns]
        self._turns.update({word(message.get("id")): 0 for message in new})
        if new:
            said = "\n".join(
                part.text for part in self._parts(new[0].get("content")) if isinstance(part, Text)
            )
            yield self._say(event("compaction", said), word(new[0].get("id")))

    def _described(self, facts: dict[str, Any]) -> Iterator[Step]:
        title = word(facts.get("summary"))[:500]
        if title and title != self._title:
            self._title = title
            yield Describe({"title": title})

    def _rewound(self, name: str) -> Iterator[Step]:
        """What was said from this message on was taken back; all of it, if it is not known."""
        yield from self._say_held()
        self._held = {}
        ids = list(self._turns)
        at = ids.index(name) if name in self._turns else 0
        taken = {self._turns.pop(each) for each in ids[at:]}
        left = {turn for each, turn in self._turns.items() if each not in self._put_in}
        if taken & left - {0}:
            self.skip("rewind inside a turn")
        if turns := len(taken - left - {0}):
            yield Undo(turns)
            self._cutter = TurnSplitter(ConversationState(self._cutter.turn, fresh=True))

    def _say(self, message: Message, name: str = "") -> Say:
        self._turns[name or self._held["id"]], _ = self._cutter.feed(message)
        return Say(message)


def _thought(thought: dict[str, Any]) -> Reasoning:
    said = [word(thought.get("subject")), word(thought.get("description"))]
    return Reasoning("\n".join(each for each in said if each))


def _media(part: dict[str, Any]) -> Media | Text:
    inline, file = mapping(part.get("inlineData")), mapping(part.get("fileData"))
    media_type = word(inline.get("mimeType") or file.get("mimeType"))
    name = word(inline.get("displayName") or file.get("displayName"))
    if (data := from_base64(inline.get("data"))) is not None:
        return Media(media_type, data=data, filename=name)
    return attachment(word(file.get("fileUri")), media_type, name)


def _response(response: Any) -> str:
    found = mapping(response)
    for name in ("output", "error", "content"):
        if isinstance(found.get(name), str) and len(found) == 1:
            return str(found[name])
    return as_json(response)


def _usage(tokens: dict[str, Any]) -> Usage | None:
    """Its output leaves out what was thought."""
    if not tokens:
        return None
    thoughts = count(tokens.get("thoughts"))
    return Usage(
        input=count(tokens.get("input")),
        output=(count(tokens.get("output")) or 0) + (thoughts or 0),
        cache_read=count(tokens.get("cached")),
        reasoning=thoughts,
    )
