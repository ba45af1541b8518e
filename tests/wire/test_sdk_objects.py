"""Objects of the providers' own libraries are taken as they come, and go back through them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from perdure.core.messages import ToolCall
from perdure.wire import codec, decode

openai_chat = pytest.importorskip("openai.types.chat")
openai_responses = pytest.importorskip("openai.types.responses")
anthropic_types = pytest.importorskip("anthropic.types")

COMPLETION = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1_700_000_000,
    "model": "gpt-4o",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "logprobs": None,
            "message": {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "annotations": [],
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "shell", "arguments": '{"command": "ls"}'},
                    }
                ],
            },
        }
    ],
    "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
}
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1_700_000_000,
    "model": "gpt-5",
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": "shell",
            "arguments": "{}",
            "status": "completed",
        },
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "x"}},
        {"type": "heard_of_never", "id": "x_1", "payload": {"a": [1]}},
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 12,
    },
}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
        {"type": "text", "text": "I look.", "citations": None},
        {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls", "n": 1}},
        {"type": "server_tool_use", "id": "st_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "heard_of_never", "payload": {"a": [1]}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 3, "cache_read_input_tokens": 10, "output_tokens": 7},
}


def _completion() -> Any:
    return openai_chat.ChatCompletion.construct(**COMPLETION)


def _response() -> Any:
    return openai_responses.Response.construct(**RESPONSE)


def _message() -> Any:
    return anthropic_types.Message.construct(**MESSAGE)


def test_a_chat_completion() -> None:
    assert decode(_completion()) == decode(COMPLETION)
    (message,) = decode(_completion())
    said = cast("Any", COMPLETION)["choices"][0]["message"]
    assert codec("chat").encode([message]) == [said]
    assert message.usage is not None
    assert message.usage.input == 9


def test_a_chat_message_among_dictionaries() -> None:
    said = cast("Any", COMPLETION)["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": "call_1", "content": "a.py"}
    given = [{"role": "user", "content": "Go."}, _completion().choices[0].message, result]
    assert codec("chat").encode(decode(given)) == [given[0], said, result]
    calls = [{"role": "assistant", "tool_calls": _completion().choices[0].message.tool_calls}]
    assert decode(calls)[0].calls[0].name == "shell"


def test_only_what_was_set_comes_along() -> None:
    message = openai_chat.ChatCompletionMessage(role="assistant", content="Hello.")
    assert codec("chat").encode(decode(message)) == [{"role": "assistant", "content": "Hello."}]


def test_what_the_library_adds_stays_behind() -> None:
    parsed = pytest.importorskip("openai.types.chat.parsed_function_tool_call")
    call = parsed.ParsedFunctionToolCall.construct(
        id="c1",
        type="function",
        function=parsed.ParsedFunction.construct(
            name="f", arguments="{}", parsed_arguments={"a": 1}
        ),
    )
    (message,) = decode([{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert message.calls == [ToolCall("c1", "f", "{}")]
    anthropic = pytest.importorskip("anthropic.types.parsed_message")
    block = anthropic.ParsedTextBlock.construct(type="text", text="{}", parsed_output={"a": 1})
    (message,) = decode([{"role": "assistant", "content": [block]}], "messages")
    (item,) = codec("messages").encode([message])
    assert item["content"] == [{"type": "text", "text": "{}"}]
    whole = anthropic.ParsedMessage.construct(
        id="m", type="message", role="assistant", content=[block], model="x", stop_reason="end_turn"
    )
    (message,) = decode(whole)
    assert codec("messages").encode([message]) == [item]


def test_a_response() -> None:
    assert decode(_response()) == decode(RESPONSE)
    assert codec("responses").encode(decode(_response())) == RESPONSE["output"]
    given = [{"role": "user", "content": "Go."}, *_response().output]
    assert codec("responses").encode(decode(given)) == [given[0], *RESPONSE["output"]]


def test_an_anthropic_message() -> None:
    assert decode(_message()) == decode(MESSAGE)
    (message,) = decode(_message())
    assert codec("messages").encode([message]) == [
        {"role": "assistant", "content": MESSAGE["content"]}
    ]
    assert message.usage is not None
    assert message.usage.input == 13


def test_anthropic_blocks_in_a_dictionary() -> None:
    given = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": _message().content},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "a.py"}],
        },
    ]
    items = codec("messages").encode(decode(given))
    assert items == [given[0], {"role": "assistant", "content": MESSAGE["content"]}, given[2]]


def test_a_turn_as_it_happened() -> None:
    """Prompt, response, result, response: the way a loop collects them."""
    result = {"role": "tool", "tool_call_id": "call_1", "content": "a.py"}
    done = openai_chat.ChatCompletion.construct(
        **{**COMPLETION, "choices": [{"message": {"role": "assistant", "content": "One file."}}]}
    )
    messages = decode(["List the files.", _completion(), result, done])
    assert [message.role for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert [message.model for message in messages] == ["", "gpt-4o", "", "gpt-4o"]
