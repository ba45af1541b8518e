"""Chat files: documents and lines."""

from __future__ import annotations

from typing import Any

from perdure.core.messages import Message
from perdure.importers import Importer, Say, Transcript, importer_for
from perdure.importers.chat_files import ChatReader
from tests.importers.reading import steps

CALL = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "List the files.", "timestamp": "2026-01-01T00:00:00Z"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "a.py"},
    {"role": "assistant", "content": "a.py", "created": 1_767_225_600},
]
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "List the files."},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "ls", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "a.py"}]},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "model": "claude",
        "content": [{"type": "text", "text": "a.py"}],
        "usage": {"input_tokens": 9, "output_tokens": 3},
        "stop_reason": "end_turn",
    },
]


def reader(name: str) -> ChatReader:
    importer: Importer = importer_for(name)
    found = importer.reader(Transcript(path=None, id="x"))  # type: ignore[arg-type]
    assert isinstance(found, ChatReader)
    return found


def read(name: str, records: list[Any]) -> dict[str, list[Message]]:
    """The messages of each conversation in the file."""
    found = dict[str, list[Message]]()
    for step in steps(reader(name), records):
        assert isinstance(step, Say)
        found.setdefault(step.to, []).append(step.message)
    return found


def test_one_message_a_line() -> None:
    (found,) = read("openai-chat", CHAT).values()
    assert [m.role for m in found] == ["system", "user", "assistant", "tool", "assistant"]
    assert found[2].calls[0].id == found[3].results[0].call == "c1"
    assert found[1].time == found[4].time == 1_767_225_600_000_000
    (found,) = read("anthropic", MESSAGES).values()
    assert [m.role for m in found] == ["user", "assistant", "tool", "assistant"]
    assert (found[3].id, found[3].model) == ("msg_1", "claude")
    assert found[3].usage is not None


def test_a_list_or_a_body_is_a_conversation() -> None:
    for record in (CHAT, {"model": "gpt", "messages": CHAT}):
        assert [len(found) for found in read("openai-chat", [record]).values()] == [5]
    body = {"system": "Be brief.", "messages": MESSAGES}
    (found,) = read("anthropic", [body]).values()
    assert [m.role for m in found] == ["system", "user", "assistant", "tool", "assistant"]


def test_every_line_may_be_a_conversation() -> None:
    found = read(
        "openai-chat", [{"messages": CHAT}, {"messages": CHAT[:2]}, {"messages": CHAT[:3]}]
    )
    assert {to: len(said) for to, said in found.items()} == {"": 5, "2": 2, "3": 3}
    nested = read("openai-chat", [[{"messages": CHAT}, {"messages": CHAT[:2]}]])
    assert {to: len(said) for to, said in nested.items()} == {"": 5, "2": 2}


def test_a_response_is_a_message() -> None:
    message = {"role": "assistant", "content": "Hi."}
    response = {"id": "r", "model": "gpt", "choices": [{"index": 0, "message": message}]}
    (found,) = read("openai-chat", [CHAT[1], response]).values()
    assert [m.text for m in found] == ["List the files.", "Hi."]


def test_what_is_no_message_is_counted() -> None:
    found = reader("openai-chat")
    wrong = {"role": "wizard", "content": "Fly!"}
    said = steps(found, [CHAT[1], {"id": 1}, wrong, "7", {"messages": [CHAT[1], wrong, 7]}])
    assert len(said) == 2
    assert found.report.skipped == {"no message": 5}
