"""Conversations from the model calls of LangSmith's runs and of OpenTelemetry's GenAI spans."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.bank import Bank
from perdure.core.messages import Media, Message, Reasoning, Text
from perdure.importers import import_files
from tests.importers.outcomes import names

NANO = 1_767_225_600_000_000_000
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
async def bank() -> AsyncIterator[Bank]:
    async with perdure.open("memory://") as bank:
        yield bank


async def talk(bank: Bank, name: str) -> list[tuple[str, str]]:
    return [(m.role, m.text or " ".join(_other(m))) for m in await said(bank, name)]


def _other(message: Message) -> list[str]:
    calls = [f"{call.name} {call.arguments} {call.id}" for call in message.calls]
    return calls + [f"{result.call} {result.text}" for result in message.results]


async def said(bank: Bank, name: str) -> list[Message]:
    return [m for turn in await (await bank.session(name)).turns() for m in turn.messages]


def write(path: Path, *records: Any) -> Path:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


# OpenTelemetry ------------------------------------------------------------------------------------


def value(told: Any) -> dict[str, Any]:
    if isinstance(told, dict):
        pairs = [{"key": key, "value": value(each)} for key, each in told.items()]
        return {"kvlistValue": {"values": pairs}}
    if isinstance(told, list):
        return {"arrayValue": {"values": [value(each) for each in told]}}
    return {"intValue": str(told)} if isinstance(told, int) else {"stringValue": told}


def attributes(told: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value(each)} for key, each in told.items()]


def span(number: int, told: dict[str, Any], trace: str = TRACE, **more: Any) -> dict[str, Any]:
    times = {"startTimeUnixNano": str(NANO + number), "endTimeUnixNano": str(NANO + number + 9_000)}
    found = {"traceId": trace, "spanId": f"{number:016x}", "name": f"call {number}", **times}
    return {**found, "attributes": attributes(told), **more}


def otlp(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": [*spans]}]}]}


def text(role: str, words: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": words}]}


CALL = {"type": "tool_call", "id": "c1", "name": "weather", "arguments": {"city": "Paris"}}
RESULT = {"type": "tool_call_response", "id": "c1", "response": "rainy"}
GIVEN = [
    text("system", "Be brief."),
    text("user", "Weather in Paris?"),
    {"role": "assistant", "parts": [CALL]},
    {"role": "tool", "parts": [RESULT]},
]
MADE = {"role": "assistant", "parts": [{"type": "reasoning", "content": "Ask."}, CALL]}


def chat(
    number: int, given: list[Any], made: Any, agent: str = "", *, as_text: bool = True
) -> dict[str, Any]:
    told: dict[str, Any] = {"gen_ai.operation.name": "chat", "gen_ai.conversation.id": "conv-1"}
    told |= {
        "gen_ai.agent.name": agent,
        "gen_ai.request.model": "gpt-4",
        "gen_ai.response.id": f"r{number}",
    }
    told |= {"gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 5}
    messages = {"gen_ai.input.messages": given, "gen_ai.output.messages": [made]}
    return told | {k: json.dumps(v) if as_text else v for k, v in messages.items()}


EXPECTED = [
    ("system", "Be brief."),
    ("user", "Weather in Paris?"),
    ("assistant", 'weather {"city":"Paris"} c1'),
    ("tool", "c1 rainy"),
    ("assistant", "Rainy."),
]


@pytest.mark.parametrize("as_text", [True, False])
async def test_spans_with_messages(bank: Bank, tmp_path: Path, *, as_text: bool) -> None:
    """Each call has the whole history; a trace ends with its first span, and may be in pieces."""
    first = chat(1, GIVEN[:2], MADE, as_text=as_text)
    second = chat(2, GIVEN, text("assistant", "Rainy."), as_text=as_text)
    agent = {**second, "gen_ai.operation.name": "invoke_agent"}
    tool = {"gen_ai.operation.name": "execute_tool"}
    third = chat(
        5, [*GIVEN, text("assistant", " Rainy. "), text("user", "Thanks.")], text("assistant", "!")
    )
    write(tmp_path / "1.jsonl", otlp(span(2, second), span(4, tool)), otlp(span(1, first)))
    write(tmp_path / "2.jsonl", otlp(span(5, third), span(3, agent)))
    found = {e.name: e for e in (await import_files(bank, "otel", [tmp_path])).sessions}
    assert await talk(bank, "otel/conv-1") == [*EXPECTED, ("user", "Thanks."), ("assistant", "!")]
    (others,) = (each.skipped for name, each in found.items() if name != "otel/conv-1")
    assert others == {"span: execute_tool": 1, "span: invoke_agent": 1}
    answer = (await said(bank, "otel/conv-1"))[2]
    assert answer.parts[0] == Reasoning("Ask.")
    assert (answer.id, answer.model, answer.time) == ("r1", "gpt-4", NANO // 1000)
    assert answer.usage is not None
    assert (answer.usage.input, answer.usage.output) == (100, 5)
    again = {e.name: e.messages for e in (await import_files(bank, "otel", [tmp_path])).sessions}
    assert again["otel/conv-1"] == 0


async def test_a_longer_trace_adds_what_is_new(bank: Bank, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", otlp(span(1, chat(1, GIVEN[:2], MADE))))
    await import_files(bank, "otel", [path])
    with path.open("a") as file:
        more = chat(2, GIVEN, text("assistant", "Rainy."))
        file.write(json.dumps(otlp(span(2, more))) + "\n")
    (found,) = (await import_files(bank, "otel", [path])).sessions
    assert found.messages == 2
    assert await talk(bank, "otel/conv-1") == EXPECTED


async def test_messages_before_version_1_37(bank: Bank, tmp_path: Path) -> None:
    """An event for each message, of the span or beside it; an event for all; or attributes."""
    call: dict[str, Any] = {"id": "c1", "type": "function"}
    call |= {"function": {"name": "weather", "arguments": '{"city":"Paris"}'}}
    bodies: list[tuple[str, Any]] = [
        ("system.message", {"content": "Be brief."}),
        ("user.message", {"content": "Weather in Paris?"}),
        ("assistant.message", {"tool_calls": [call]}),
        ("tool.message", {"content": "rainy", "id": "c1"}),
        ("choice", {"index": 0, "finish_reason": "stop", "message": {"content": "Rainy."}}),
    ]
    logs = [
        {
            "traceId": "logs",
            "spanId": "1",
            "timeUnixNano": str(NANO),
            "body": value(body),
            "attributes": attributes({"event.name": f"gen_ai.{name}"}),
        }
        for name, body in bodies
    ]
    logs.append({"traceId": "logs", "eventName": "gen_ai.evaluation.result", "attributes": []})
    write(tmp_path / "logs.jsonl", {"resourceLogs": [{"scopeLogs": [{"logRecords": logs}]}]})
    events = [
        {
            "name": f"gen_ai.{name}",
            "attributes": attributes({"gen_ai.event.content": json.dumps(b)}),
        }
        for name, b in bodies
    ]
    own = span(1, {"gen_ai.system": "openai"}, "events", events=events)
    prompt = [{"role": "user", "content": "Weather in Paris?"}]
    content = [
        {"name": "gen_ai.content.prompt", "attributes": {"gen_ai.prompt": json.dumps(prompt)}},
        {"name": "gen_ai.content.completion", "attributes": {"gen_ai.completion": "Rainy."}},
    ]
    printed: dict[str, Any] = {
        "name": "chat",
        "context": {"trace_id": "0xprinted", "span_id": "0x1"},
    }
    printed |= {"attributes": {}, "start_time": "2026-01-01T00:00:00Z", "events": content}
    flat = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "Weather in Paris?"}
    flat |= {"gen_ai.prompt.1.role": "assistant", "gen_ai.prompt.1.tool_calls.0.id": "c1"}
    flat |= {"gen_ai.prompt.1.tool_calls.0.name": "weather"}
    flat |= {"gen_ai.prompt.1.tool_calls.0.arguments": '{"city":"Paris"}'}
    flat |= {"gen_ai.prompt.2.role": "tool", "gen_ai.prompt.2.content": "rainy"}
    flat |= {"gen_ai.prompt.2.tool_call_id": "c1", "gen_ai.completion.0.content": "Rainy."}
    write(tmp_path / "spans.jsonl", otlp(own, span(1, flat, "flat")), printed)
    await import_files(bank, "otel", [tmp_path])
    assert await talk(bank, "otel/logs") == EXPECTED
    assert await talk(bank, "otel/events") == EXPECTED
    assert await talk(bank, "otel/printed") == [EXPECTED[1], EXPECTED[4]]
    assert await talk(bank, "otel/flat") == EXPECTED[1:]


async def test_threads_of_several_agents(bank: Bank, tmp_path: Path) -> None:
    """And calls whose history is kept elsewhere, or was cut."""
    longer = [text("user", "More."), text("assistant", "No."), text("user", "Now?")]
    to_helper = [text("system", "Help."), text("user", "Find it.")]
    calls = [
        chat(1, [text("user", "Go.")], text("assistant", "Yes."), "lead"),
        chat(2, to_helper, text("assistant", "Found."), "helper"),
        chat(3, [text("user", "Go.")], text("assistant", "Again."), "lead"),
        chat(4, [text("user", "More.")], text("assistant", "No."), "lead"),
        chat(5, longer, text("assistant", "Now."), "lead"),
    ]
    path = write(tmp_path / "t.json", otlp(*(span(n, each) for n, each in enumerate(calls, 1))))
    await import_files(bank, "otel", [path])
    assert [words for _, words in await talk(bank, "otel/conv-1")] == [
        *("Go.", "Yes.", "Again.", "More.", "No.", "Now?", "Now.")
    ]
    assert [words for _, words in await talk(bank, "otel/conv-1.2")] == [
        "Help.",
        "Find it.",
        "Found.",
    ]
    link = (await bank.session("otel/conv-1.2")).record.link
    assert link is not None
    assert link.session == "otel/conv-1"


async def test_errors_media_and_unknown_parts(bank: Bank, tmp_path: Path) -> None:
    parts = [
        {"type": "blob", "mime_type": "image/png", "modality": "image", "content": "iVBORw0KGgo="},
        {"type": "uri", "modality": "image", "uri": "https://x.test/a.png"},
        {"type": "text", "content": "What is it?"},
    ]
    given = [{"role": "user", "parts": parts}, {"role": "user", "parts": [{"type": "hologram"}]}]
    given[0]["parts"] = [*parts, {"type": "smell", "content": [1]}]
    failed = {"code": 2, "message": "overloaded"}
    told = span(1, chat(1, given, "") | {"gen_ai.output.messages": "[]"}, status=failed)
    path = write(tmp_path / "t.jsonl", otlp(told, span(2, {"http.method": "GET"})), {"odd": 1}, 7)
    path.write_text(path.read_text() + "{\n" + "{")
    found = {e.name: e.skipped for e in (await import_files(bank, "otel", [path])).sessions}
    assert found["otel/conv-1"] == {"part: hologram": 1, "part: smell": 1}
    assert found["otel/t"] == {"span: call 2": 1, "no span": 2, "broken line: not JSON": 2}
    asked, error = await said(bank, "otel/conv-1")
    assert [type(part) for part in asked.parts] == [Media, Media, Text]
    assert (error.role, error.name, error.text) == ("event", "error", "overloaded")
    assert await names(bank) == ["otel/conv-1"]


# LangSmith ----------------------------------------------------------------------------------------


def lc(class_name: str, **kwargs: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "schema", "messages", class_name],
    }
    return {**found, "kwargs": kwargs}


ASKED = lc("HumanMessage", content="Weather in Paris?", type="human")
TOLD = lc("SystemMessage", content=[{"type": "text", "text": "Be brief."}])
ASKING = lc(
    "AIMessage",
    content=[{"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Paris"}}],
    tool_calls=[{"id": "c1", "name": "weather", "args": {"city": "Paris"}, "type": "tool_call"}],
    usage_metadata={"input_tokens": 100, "output_tokens": 5},
)
ANSWERED = lc("ToolMessage", content="rainy", tool_call_id="c1", name="weather")


def run(number: int, given: Any, outputs: Any, **more: Any) -> dict[str, Any]:
    time = f"2026-01-01T00:00:{number:02}.5"
    found: dict[str, Any] = {
        "id": f"run-{number}",
        "trace_id": TRACE,
        "run_type": "llm",
        "name": "ChatOpenAI",
    }
    extra = {"metadata": {"thread_id": "thread-1", "ls_model_name": "gpt-4o"}}
    found |= {"start_time": time, "end_time": time, "extra": extra, "error": None}
    return {**found, "inputs": {"messages": given}, "outputs": outputs, **more}


async def test_runs_of_langchain(bank: Bank, tmp_path: Path) -> None:
    first = run(1, [[TOLD, ASKED]], {"generations": [[{"text": "", "message": ASKING}]]})
    final = lc("AIMessage", content="Rainy.")
    second = run(2, [[TOLD, ASKED, ASKING, ANSWERED]], {"generations": [[{"message": final}]]})
    chain = run(3, [], {}, run_type="chain", child_runs=[second])
    path = write(tmp_path / "runs.jsonl", chain, first, run(4, [], {}, run_type="tool"))
    found = {e.name: e.skipped for e in (await import_files(bank, "langsmith", [path])).sessions}
    assert await talk(bank, "langsmith/thread-1") == EXPECTED
    assert found["langsmith/runs"] == {"run: chain": 1, "run: tool": 1}
    asking = (await said(bank, "langsmith/thread-1"))[2]
    assert (asking.model, asking.time) == ("gpt-4o", 1_767_225_601_500_000)
    assert asking.usage is not None
    assert asking.usage.input == 100
    again = (await import_files(bank, "langsmith", [path])).sessions
    assert [each.messages for each in again if each.name == "langsmith/thread-1"] == [0]


async def test_runs_of_other_libraries(bank: Bank, tmp_path: Path) -> None:
    user = {"role": "user", "content": "Weather in Paris?"}
    call: dict[str, Any] = {"id": "c1", "type": "function"}
    call |= {"function": {"name": "weather", "arguments": '{"city":"Paris"}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    asked = [{"role": "system", "content": "Be brief."}, user]
    openai = run(1, asked, {"choices": [{"message": message}]})
    result = {"role": "tool", "tool_call_id": "c1", "content": "rainy"}
    given = [*asked, message, result]
    block = [{"type": "text", "text": "Rainy."}]
    anthropic = run(2, given, {"role": "assistant", "content": block, "usage": {"input_tokens": 7}})
    plain = run(3, None, {"generations": [[{"text": "Yes."}]]}, inputs={"prompts": ["Is it?"]})
    plain |= {"extra": {}, "trace_id": "alone", "error": "Timeout"}
    oracle = run(4, [{"type": "oracle", "content": "?"}], {}, trace_id="odd", extra={})
    path = tmp_path / "export.json"
    path.write_text(json.dumps({"runs": [openai, anthropic, plain, oracle, {"x": 1}]}, indent=1))
    found = {e.name: e.skipped for e in (await import_files(bank, "langsmith", [path])).sessions}
    assert await talk(bank, "langsmith/thread-1") == EXPECTED
    assert await talk(bank, "langsmith/alone") == [
        ("user", "Is it?"),
        ("assistant", "Yes."),
        ("event", "Timeout"),
    ]
    odd = {"message: oracle": 1, "call without messages": 1}
    assert found["langsmith/odd"] == odd
    assert found["langsmith/export"] == {"no run of LangSmith": 1}


# Both ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["langsmith", "otel"])
async def test_an_empty_file_is_told(bank: Bank, tmp_path: Path, name: str) -> None:
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "blank.jsonl").write_text(" \n\n")
    imported = await import_files(bank, name, [tmp_path])
    assert [session.skipped for session in imported.sessions] == [{"empty file": 2}]


async def test_events_of_a_call_that_are_not_known_are_counted(bank: Bank, tmp_path: Path) -> None:
    happened = [
        {"name": "exception", "attributes": []},
        {"name": "gen_ai.evaluation.result", "attributes": attributes({"gen_ai.score": 1})},
        {"name": "gen_ai.evaluation.result", "attributes": []},
    ]
    call = span(1, {"gen_ai.input.messages": [text("user", "Hello.")]}, events=happened)
    path = write(tmp_path / "trace.jsonl", otlp(call))
    imported = await import_files(bank, "otel", [path])
    skipped = [session.skipped for session in imported.sessions if session.skipped]
    assert skipped == [{"event: exception": 1, "event: gen_ai.evaluation.result": 2}]


async def test_further_answers_to_a_call_are_counted(bank: Bank, tmp_path: Path) -> None:
    answers = [[{"text": "One.", "message": None}, {"text": "Two.", "message": None}]]
    run = {"id": "r1", "trace_id": "t1", "run_type": "llm", "inputs": {"prompts": ["Say."]}}
    chat = {"choices": [{"message": {"role": "assistant", "content": word}} for word in "AB"]}
    path = write(
        tmp_path / "runs.jsonl",
        {**run, "outputs": {"generations": answers}},
        {**run, "id": "r2", "trace_id": "t2", "outputs": chat},
    )
    imported = await import_files(bank, "langsmith", [path])
    skipped = [session.skipped for session in imported.sessions if session.skipped]
    assert skipped == [{"further answer to a call": 2}]
    assert await talk(bank, "langsmith/t1") == [("user", "Say."), ("assistant", "One.")]
