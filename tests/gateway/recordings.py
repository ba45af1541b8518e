"""Answers as streams and as bodies: the same answer in both forms, of each wire format.

Written by hand after what the providers document and their SDKs' own tests record.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from perdure.gateway.calls import Finish
from perdure.gateway.providers import CallWire


class Recording(NamedTuple):
    name: str
    wire: CallWire
    stream: bytes
    body: dict[str, Any]
    finish: Finish


def events(*said: dict[str, Any] | str, named: bool = False) -> bytes:
    """A stream of these; strings go as they are."""
    lines = []
    for each in said:
        if isinstance(each, str):
            lines.append(each)
            continue
        data = json.dumps(each, ensure_ascii=False)
        lines.append(f"event: {each['type']}\ndata: {data}\n\n" if named else f"data: {data}\n\n")
    return "".join(lines).encode()


DONE = "data: [DONE]\n\n"


# Chat Completions ------------------------------------------------------------------------------

_HEAD = {"id": "chatcmpl-1", "created": 1_790_000_000, "model": "gpt-5.5"}
_USAGE = {
    "prompt_tokens": 20,
    "completion_tokens": 9,
    "total_tokens": 29,
    "prompt_tokens_details": {"cached_tokens": 16, "cache_write_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 4},
}


def chunk(delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choices = (
        []
        if delta is None
        else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    )
    return {**_HEAD, "object": "chat.completion.chunk", "choices": choices, **more}


def completion(message: dict[str, Any], finish: str, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    return {**_HEAD, "object": "chat.completion", "choices": [choice], "usage": _USAGE, **more}


def _piece(index: int, arguments: str, **more: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments}, **more}]}


def _call(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _opening(index: int, id: str, name: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, **_call(id, name, "")}]}


CHAT = [
    Recording(
        "words",
        "chat",
        events(
            chunk({"role": "assistant", "content": "", "refusal": None}, obfuscation="x9"),
            ": keep-alive\n\n",
            chunk({"content": "Grüße, "}, system_fingerprint="fp_1"),
            chunk({"content": "Wärld 🌍!"}, system_fingerprint="fp_1"),
            chunk({}, "stop"),
            chunk(None, usage=_USAGE),
            DONE,
        ),
        completion(
            {
                "role": "assistant",
                "content": "Grüße, Wärld 🌍!",
                "refusal": None,
                "annotations": [],
            },
            "stop",
            system_fingerprint="fp_1",
        ),
        "stop",
    ),
    Recording(
        "parallel calls, interleaved",
        "chat",
        events(
            chunk({"role": "assistant", "content": None}),
            chunk(_opening(0, "call_a", "read")),
            chunk(_piece(0, '{"pa')),
            chunk(_opening(1, "call_b", "shell")),
            chunk(_piece(1, '{"command"')),
            chunk(_piece(0, 'th": "a.py"}')),
            chunk(_piece(1, ': "ls"}')),
            chunk({}, "tool_calls"),
            chunk(None, usage=_USAGE),
            DONE,
        ),
        completion(
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    _call("call_a", "read", '{"path": "a.py"}'),
                    _call("call_b", "shell", '{"command": "ls"}'),
                ],
            },
            "tool_calls",
        ),
        "tools",
    ),
    Recording(
        "reasoning of a local server",
        "chat",
        events(
            chunk({"role": "assistant"}),
            chunk({"reasoning_content": "Let me "}),
            chunk({"reasoning_content": "think."}),
            chunk({"content": "Four."}),
            chunk({"content": ""}, "length", usage=_USAGE),
            DONE,
        ),
        completion(
            {"role": "assistant", "reasoning_content": "Let me think.", "content": "Four."},
            "length",
        ),
        "length",
    ),
    Recording(
        "reasoning of a router",
        "chat",
        events(
            ": OPENROUTER PROCESSING\n\n",
            chunk(
                {
                    "role": "assistant",
                    "reasoning": "Hm",
                    "reasoning_details": [{"type": "reasoning.text", "text": "Hm", "index": 0}],
                },
                provider="Somebody",
            ),
            chunk(
                {
                    "reasoning": "m.",
                    "reasoning_details": [{"type": "reasoning.text", "text": "m.", "index": 0}],
                },
                provider="Somebody",
            ),
            chunk({"content": "Yes."}, provider="Somebody"),
            chunk({"content": ""}, "stop", provider="Somebody", usage=_USAGE),
            DONE,
        ),
        completion(
            {
                "role": "assistant",
                "content": "Yes.",
                "refusal": None,
                "reasoning": "Hmm.",
                "reasoning_details": [{"type": "reasoning.text", "text": "Hmm.", "index": 0}],
            },
            "stop",
            provider="Somebody",
        ),
        "stop",
    ),
    Recording(
        "a refusal",
        "chat",
        events(
            chunk({"role": "assistant", "content": None, "refusal": ""}),
            chunk({"refusal": "I cannot "}),
            chunk({"refusal": "do that."}),
            chunk({}, "stop"),
            chunk(None, usage=_USAGE),
            DONE,
        ),
        completion({"role": "assistant", "content": None, "refusal": "I cannot do that."}, "stop"),
        "filter",
    ),
    Recording(
        "whole calls without number, id or end",  # and the server says that it just stopped
        "chat",
        events(
            chunk(
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [
                        {"function": {"name": "read", "arguments": '{"path":"a"}'}},
                        {"function": {"name": "read", "arguments": '{"path":"b"}'}},
                    ],
                }
            ),
            chunk({}, "stop", usage=_USAGE),
        ),
        completion(
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"function": {"name": "read", "arguments": '{"path":"a"}'}},
                    {"function": {"name": "read", "arguments": '{"path":"b"}'}},
                ],
            },
            "stop",
        ),
        "tools",
    ),
    Recording(
        "whole calls, all of them number nought",
        "chat",
        events(
            chunk({"tool_calls": [{"index": 0, **_call("call_1", "read", '{"path":"a"}')}]}),
            chunk({"tool_calls": [{"index": 0, **_call("call_2", "now", "{}")}]}),
            chunk({"role": "assistant", "content": ""}, "tool_calls", usage=_USAGE),
            DONE,
        ),
        completion(
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"index": 0, **_call("call_1", "read", '{"path":"a"}')},
                    {"index": 0, **_call("call_2", "now", "{}")},
                ],
            },
            "tool_calls",
        ),
        "tools",
    ),
]


# Responses -------------------------------------------------------------------------------------

_ITEMS: list[dict[str, Any]] = [
    {
        "id": "rs_1",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "I look around."}],
        "encrypted_content": "gAAAsealed",
    },
    {
        "id": "msg_1",
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Ich schaue 🔍.", "annotations": []}],
    },
    {
        "id": "fc_1",
        "type": "function_call",
        "status": "completed",
        "call_id": "call_1",
        "name": "shell",
        "arguments": '{"command":"ls"}',
    },
    {
        "id": "fc_2",
        "type": "function_call",
        "status": "completed",
        "call_id": "call_2",
        "name": "read",
        "arguments": '{"path":"a.py"}',
    },
]
_RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1_790_000_000,
    "model": "gpt-5.5",
    "error": None,
    "incomplete_details": None,
    "instructions": "Be brief.",
    "metadata": {},
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "temperature": 1.0,
    "top_p": 1.0,
    "usage": None,
}
_RESPONSE_USAGE = {
    "input_tokens": 20,
    "input_tokens_details": {"cached_tokens": 16},
    "output_tokens": 9,
    "output_tokens_details": {"reasoning_tokens": 4},
    "total_tokens": 29,
}


def response(status: str, output: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    usage = None if status == "in_progress" else _RESPONSE_USAGE
    return {**_RESPONSE, "status": status, "output": output, "usage": usage, **more}


def _at(kind: str, index: int, **more: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "output_index": index, **more}


def _numbered(*said: dict[str, Any]) -> bytes:
    return events(*({**each, "sequence_number": n} for n, each in enumerate(said)), named=True)


_WHOLE = response("completed", _ITEMS)
_REFUSED = {
    "id": "msg_2",
    "type": "message",
    "status": "incomplete",
    "role": "assistant",
    "content": [{"type": "refusal", "refusal": "No."}],
}


def _growing(last: dict[str, Any]) -> bytes:
    reasoning, message, first, second = _ITEMS
    return _numbered(
        {"type": "response.created", "response": response("in_progress", [])},
        {"type": "response.in_progress", "response": response("in_progress", [])},
        _at("output_item.added", 0, item={"id": "rs_1", "type": "reasoning", "summary": []}),
        _at(
            "reasoning_summary_part.added",
            0,
            item_id="rs_1",
            summary_index=0,
            part={"type": "summary_text", "text": ""},
        ),
        _at("reasoning_summary_text.delta", 0, item_id="rs_1", summary_index=0, delta="I look "),
        _at("reasoning_summary_text.delta", 0, item_id="rs_1", summary_index=0, delta="around."),
        _at(
            "reasoning_summary_text.done",
            0,
            item_id="rs_1",
            summary_index=0,
            text="I look around.",
        ),
        _at("output_item.done", 0, item=reasoning),
        _at("output_item.added", 1, item={**message, "status": "in_progress", "content": []}),
        _at(
            "content_part.added",
            1,
            item_id="msg_1",
            content_index=0,
            part={"type": "output_text", "text": "", "annotations": []},
        ),
        _at("output_text.delta", 1, item_id="msg_1", content_index=0, delta="Ich ", logprobs=[]),
        _at("output_item.added", 2, item={**first, "status": "in_progress", "arguments": ""}),
        _at(
            "output_text.delta",
            1,
            item_id="msg_1",
            content_index=0,
            delta="schaue 🔍.",
            logprobs=[],
        ),
        _at("function_call_arguments.delta", 2, item_id="fc_1", delta='{"comm'),
        _at("output_item.added", 3, item={**second, "status": "in_progress", "arguments": ""}),
        _at("function_call_arguments.delta", 3, item_id="fc_2", delta='{"path":"'),
        _at("function_call_arguments.delta", 2, item_id="fc_1", delta='and":"ls"}'),
        _at("function_call_arguments.delta", 3, item_id="fc_2", delta='a.py"}'),
        _at(
            "output_text.done",
            1,
            item_id="msg_1",
            content_index=0,
            text="Ich schaue 🔍.",
            logprobs=[],
        ),
        _at("content_part.done", 1, item_id="msg_1", content_index=0, part=message["content"][0]),
        _at("output_item.done", 1, item=message),
        _at(
            "function_call_arguments.done",
            2,
            item_id="fc_1",
            name="shell",
            arguments=first["arguments"],
        ),
        _at("output_item.done", 2, item=first),
        _at("output_item.done", 3, item=second),
        last,
    )


RESPONSES = [
    Recording(
        "reasoning, words and calls",
        "responses",
        _growing({"type": "response.completed", "response": _WHOLE}),
        _WHOLE,
        "tools",
    ),
    Recording(
        "without output in the end",
        "responses",
        _growing({"type": "response.completed", "response": response("completed", [])}),
        _WHOLE,
        "tools",
    ),
    Recording(
        "a refusal, cut off",
        "responses",
        _numbered(
            {"type": "response.created", "response": response("in_progress", [])},
            _at("output_item.added", 0, item={**_REFUSED, "content": []}),
            _at("refusal.delta", 0, item_id="msg_2", content_index=0, delta="No."),
            _at("refusal.done", 0, item_id="msg_2", content_index=0, refusal="No."),
            {"type": "response.heard_of_never", "payload": [1]},
            _at("output_item.done", 0, item=_REFUSED),
            {
                "type": "response.incomplete",
                "response": response(
                    "incomplete", [_REFUSED], incomplete_details={"reason": "max_output_tokens"}
                ),
            },
        ),
        response("incomplete", [_REFUSED], incomplete_details={"reason": "max_output_tokens"}),
        "length",
    ),
]


# Messages --------------------------------------------------------------------------------------

_MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-opus-5-5",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
}
_START_USAGE = {
    "input_tokens": 5,
    "cache_creation_input_tokens": 100,
    "cache_read_input_tokens": 1_000,
    "output_tokens": 1,
    "service_tier": "standard",
}


def _started() -> dict[str, Any]:
    return {"type": "message_start", "message": {**_MESSAGE, "usage": _START_USAGE}}


def _stopped(reason: str, **usage: Any) -> list[dict[str, Any]]:
    return [
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": 42, **usage},
        },
        {"type": "message_stop"},
    ]


def block(index: int, began: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": began},
        *({"type": "content_block_delta", "index": index, "delta": each} for each in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def _said(reason: str, *content: dict[str, Any], **usage: Any) -> dict[str, Any]:
    return {
        **_MESSAGE,
        "content": list(content),
        "stop_reason": reason,
        "usage": {**_START_USAGE, "output_tokens": 42, **usage},
    }


def _text(text: str) -> dict[str, Any]:
    return {"type": "text_delta", "text": text}


def _json(text: str) -> dict[str, Any]:
    return {"type": "input_json_delta", "partial_json": text}


_FOUND = {
    "type": "web_search_result",
    "url": "https://example.org",
    "title": "An example",
    "encrypted_content": "EqgfCioIARgB",
    "page_age": None,
}
_CITATION = {
    "type": "char_location",
    "cited_text": "x",
    "document_index": 0,
    "document_title": None,
    "file_id": None,
    "start_char_index": 0,
    "end_char_index": 1,
}

MESSAGES = [
    Recording(
        "thinking, words and calls",
        "messages",
        events(
            _started(),
            {"type": "ping"},
            *block(
                0,
                {"type": "thinking", "thinking": "", "signature": ""},
                {"type": "thinking_delta", "thinking": "Hm, "},
                {"type": "thinking_delta", "thinking": "ja 🤔."},
                {"type": "signature_delta", "signature": "EqoBsigned"},
            ),
            *block(1, {"type": "redacted_thinking", "data": "EmwKsealed"}),
            *block(2, {"type": "text", "text": ""}, _text("I "), {"type": "ping"}, _text("look.")),
            *block(
                3,
                {"type": "tool_use", "id": "toolu_1", "name": "shell", "input": {}},
                _json(""),
                _json('{"command": '),
                _json('"ls", "n": 1.50}'),
            ),
            *block(4, {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}}, _json("")),
            {"type": "heard_of_never"},
            *_stopped("tool_use", output_tokens_details={"thinking_tokens": 7}),
            named=True,
        ),
        _said(
            "tool_use",
            {"type": "thinking", "thinking": "Hm, ja 🤔.", "signature": "EqoBsigned"},
            {"type": "redacted_thinking", "data": "EmwKsealed"},
            {"type": "text", "text": "I look.", "citations": None},
            {
                "type": "tool_use",
                "id": "toolu_1",
                "name": "shell",
                "input": {"command": "ls", "n": 1.5},
            },
            {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}},
            output_tokens_details={"thinking_tokens": 7},
        ),
        "tools",
    ),
    Recording(
        "with sources, and a tool of the provider's",
        "messages",
        events(
            _started(),
            *block(
                0,
                {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}},
                _json('{"query":'),
                _json(' "x"}'),
            ),
            *block(
                1,
                {
                    "type": "web_search_tool_result",
                    "tool_use_id": "srv_1",
                    "content": [_FOUND],
                },
            ),
            *block(
                2,
                {"type": "text", "text": "", "citations": []},
                {"type": "citations_delta", "citation": _CITATION},
                _text("So it is."),
            ),
            *_stopped("end_turn"),
            named=True,
        ),
        _said(
            "end_turn",
            {
                "type": "server_tool_use",
                "id": "srv_1",
                "name": "web_search",
                "input": {"query": "x"},
            },
            {
                "type": "web_search_tool_result",
                "tool_use_id": "srv_1",
                "content": [_FOUND],
            },
            {"type": "text", "text": "So it is.", "citations": [_CITATION]},
        ),
        "stop",
    ),
    Recording(
        "refused",
        "messages",
        events(
            _started(),
            *block(0, {"type": "text", "text": ""}, _text("No.")),
            *_stopped("refusal"),
            named=True,
        ),
        _said("refusal", {"type": "text", "text": "No."}),
        "filter",
    ),
]
RECORDINGS = [*CHAT, *RESPONSES, *MESSAGES]
