"""Traces of OpenTelemetry with messages of models, in the JSON that OTLP has for files.

Spans of model calls, after the conventions for GenAI: since version 1.37 (August 2025) the messages
are in ``gen_ai.input.messages`` and ``gen_ai.output.messages``, of the span or of an event; before
that in an event for each message (1.28 to 1.36), in ``gen_ai.content.*`` events, or in attributes
with numbers (``gen_ai.prompt.0.content``). ``gen_ai.conversation.id`` names the conversation; a
trace without one is a conversation of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from perdure.importers.importer import kind, word
from perdure.importers.message_parts import items, mapping
from perdure.importers.trace_files import ModelCall, TraceImporter
from perdure.importers.trace_messages import listed
from perdure.importers.transcript_source import moment

_MESSAGES = "gen_ai.input.messages", "gen_ai.output.messages"
_NUMBERED = re.compile(r"gen_ai\.(prompt|completion)\.(\d{1,6})\.(.+)").fullmatch
_CALL = re.compile(r"tool_calls\.(\d{1,6})\.(id|name|arguments)").fullmatch
#: Events of one message, by what follows ``gen_ai.``.
_SAID = {
    "system.message": "system",
    "user.message": "user",
    "assistant.message": "assistant",
    "tool.message": "tool",
    "choice": "assistant",
}
#: Spans around model calls, which may repeat their messages.
_AROUND = frozenset({"invoke_agent", "create_agent", "invoke_workflow"})


class OtelImporter(TraceImporter):
    """Reads GenAI spans and events."""

    def calls(self, records: Iterable[Any], others: dict[str, int]) -> Iterator[ModelCall]:
        spans: dict[tuple[str, str], _Call] = {}
        named: dict[str, str] = {}  # traces: their conversation
        for record in records:
            is_known = False
            for span in _spans(record):
                is_known = True
                call = spans.setdefault(_place(span), _Call())
                call.add_span(span)
                if call.conversation:
                    named.setdefault(_place(span)[0], call.conversation)
            for log in _logs(record):
                is_known = True
                name = _event_name(log)
                if not name.startswith("gen_ai.") or not spans.setdefault(
                    _place(log), _Call()
                ).add_event(name, log):
                    _note(others, f"event: {kind(name)}")
            if not is_known:
                _note(others, "no span")
        complete = {trace for (trace, _), call in spans.items() if call.is_complete}
        for (trace, name), call in spans.items():
            if not call.has_messages or (call.operation in _AROUND and trace in complete):
                _note(others, f"span: {kind(call.operation or call.name)}")
            else:
                for event in call.unknown:
                    _note(others, f"event: {kind(event)}")
                conversation = call.conversation or named.get(trace) or trace or "unnamed"
                yield ModelCall(conversation, (call.began or 0, name), call.record())


def _note(others: dict[str, int], what: str) -> None:
    others[what] = others.get(what, 0) + 1


class _Call:
    """A span, and what its events say of it."""

    def __init__(self) -> None:
        self.attributes: dict[str, Any] = {}
        self.given: list[Any] = []
        self.made: list[Any] = []
        self.unknown: list[str] = []  # events of the span
        self.name = "without a span"
        self.began: int | None = None
        self.ended: int | None = None
        self.error = ""

    @property
    def operation(self) -> str:
        return word(self.attributes.get("gen_ai.operation.name"))

    @property
    def conversation(self) -> str:
        return word(self.attributes.get("gen_ai.conversation.id"))

    @property
    def has_messages(self) -> bool:
        return bool(self.given or self.made)

    @property
    def is_complete(self) -> bool:
        """Whether it is a model call with its messages."""
        return self.has_messages and self.operation not in _AROUND

    def add_span(self, span: dict[str, Any]) -> None:
        self.name = word(span.get("name"))
        self.began = _nanoseconds(span, "startTimeUnixNano", "start_time") or self.began
        self.ended = _nanoseconds(span, "endTimeUnixNano", "end_time")
        self._add(_attributes(span.get("attributes")))
        for each in items(span.get("events")):
            if not self.add_event(word(each.get("name")), each):
                self.unknown.append(word(each.get("name")))
        status = mapping(span.get("status"))
        if status.get("code") in {2, "STATUS_CODE_ERROR"} or status.get("status_code") == "ERROR":
            told = word(status.get("message")) or word(status.get("description"))
            self.error = told or word(self.attributes.get("error.type")) or "error"

    def add_event(self, name: str, event: dict[str, Any]) -> bool:
        """False if it is none of a model's."""
        found = _attributes(event.get("attributes"))
        self.began = self.began or _nanoseconds(event, "timeUnixNano", "timestamp")
        short = name.removeprefix("gen_ai.")
        if short in _SAID:
            body = _value(event.get("body")) or found.get("gen_ai.event.content") or found
            for each in listed(body):
                inner = mapping(each).get("message")
                said = dict(inner if isinstance(inner, dict) else mapping(each))
                said = {"role": _SAID[short], **said}
                if "id" in said and said["role"] == "tool":
                    said["tool_call_id"] = said.pop("id")
                known = ("role", "content", "tool_calls", "tool_call_id", "name", "parts")
                said = {key: value for key, value in said.items() if key in known}
                (self.made if short == "choice" else self.given).append(said)
            return True
        self._add(found)
        return name.startswith("gen_ai.content.") or any(each in found for each in _MESSAGES)

    def _add(self, attributes: dict[str, Any]) -> None:
        self.attributes |= attributes
        given, made = (listed(attributes.get(name)) for name in _MESSAGES)
        given += listed(attributes.get("gen_ai.prompt"))
        made += listed(attributes.get("gen_ai.completion"))
        self.given += given or _numbered(attributes, "prompt")
        self.made += made or _numbered(attributes, "completion")

    def record(self) -> dict[str, Any]:
        found = self.attributes
        prefix = "gen_ai.usage."
        return {
            "agent": word(found.get("gen_ai.agent.name")),
            "system": found.get("gen_ai.system_instructions"),
            "given": self.given,
            "made": self.made,
            "id": word(found.get("gen_ai.response.id")),
            "model": word(found.get("gen_ai.response.model"))
            or word(found.get("gen_ai.request.model")),
            "usage": {
                name.removeprefix(prefix): value
                for name, value in found.items()
                if name.startswith(prefix)
            },
            "error": self.error,
            "time": self.began,
            "ended": self.ended,
        }


def _numbered(attributes: dict[str, Any], what: str) -> list[dict[str, Any]]:
    """Messages whose fields are attributes with numbers."""
    found: dict[int, dict[str, Any]] = {}
    calls: dict[int, dict[int, dict[str, Any]]] = {}
    for name, value in attributes.items():
        match = _NUMBERED(name)
        if match is None or match[1] != what:
            continue
        at, field = int(match[2]), match[3]
        message = found.setdefault(at, {"role": "user" if what == "prompt" else "assistant"})
        if call := _CALL(field):
            calls.setdefault(at, {}).setdefault(int(call[1]), {})[call[2]] = value
        elif field == "tool_calls":
            message["tool_calls"] = listed(value)
        elif field in {"role", "content", "tool_call_id"}:
            message[field] = value
    for at, made in calls.items():
        found[at]["tool_calls"] = [
            {
                "id": each.get("id", ""),
                "type": "function",
                "function": {
                    "name": each.get("name", ""),
                    "arguments": each.get("arguments", "{}"),
                },
            }
            for _, each in sorted(made.items())
        ]
    return [message for _, message in sorted(found.items())]


# What stands where in a file -------------------------------------------------------------------


def _spans(record: Any) -> Iterator[dict[str, Any]]:
    """Of OTLP's JSON, or of a span that an SDK printed."""
    found = mapping(record)
    for resource in items(found.get("resourceSpans")):
        for scope in items(resource.get("scopeSpans")) + items(
            resource.get("instrumentationLibrarySpans")
        ):
            yield from items(scope.get("spans"))
    if "attributes" in found and ("context" in found or "spanId" in found) and "name" in found:
        yield found


def _logs(record: Any) -> Iterator[dict[str, Any]]:
    for resource in items(mapping(record).get("resourceLogs")):
        for scope in items(resource.get("scopeLogs")):
            yield from items(scope.get("logRecords"))


def _place(found: dict[str, Any]) -> tuple[str, str]:
    context = mapping(found.get("context"))
    trace = word(found.get("traceId")) or word(context.get("trace_id")).removeprefix("0x")
    return trace, word(found.get("spanId")) or word(context.get("span_id")).removeprefix("0x")


def _event_name(log: dict[str, Any]) -> str:
    return word(log.get("eventName")) or word(_attributes(log.get("attributes")).get("event.name"))


def _attributes(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    return {word(each.get("key")): _value(each.get("value")) for each in items(value)}


def _value(value: Any) -> Any:
    """The value in OTLP's envelope."""
    found = mapping(value)
    for name in ("stringValue", "boolValue", "doubleValue", "bytesValue"):
        if name in found:
            return found[name]
    if "intValue" in found:
        number = found["intValue"]  # as a string, for JSON's numbers are too small
        return int(number) if isinstance(number, str) and number.isdigit() else number
    if "arrayValue" in found:
        return [_value(each) for each in items(mapping(found["arrayValue"]).get("values"))]
    if "kvlistValue" in found:
        return _attributes(items(mapping(found["kvlistValue"]).get("values")))
    return value


def _nanoseconds(found: dict[str, Any], name: str, other: str) -> int | None:
    """In microseconds; the other name is ISO."""
    value = found.get(name)
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1e20:
        return value // 1000
    return moment(found.get(other))
