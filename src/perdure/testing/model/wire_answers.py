"""An answer in each wire format: whole, or as events of a stream. Times and ids never change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from perdure.core.messages import Usage
from perdure.testing.model.script import ReceivedRequest, ScriptedAnswer, ScriptedFault, error_body

Item: TypeAlias = dict[str, Any]
#: The name of an event (empty where the format has none) and its data.
Event: TypeAlias = tuple[str, Item]

_CREATED = 1_700_000_000
_SIGNATURE = "c2NyaXB0ZWQ="


def whole(answer: ScriptedAnswer, request: ReceivedRequest) -> Item:
    return _BODIES[request.kind](answer, request)


def events(answer: ScriptedAnswer, request: ReceivedRequest) -> Iterator[Event]:
    """Without Chat Completions' end mark, which is `last_words`."""
    return _STREAMS[request.kind](answer, request)


def last_words(request: ReceivedRequest) -> bytes:
    return b"data: [DONE]\n\n" if request.kind == "chat" else b""


def fault_event(fault: ScriptedFault, request: ReceivedRequest) -> Event:
    body = error_body(request.kind, fault.status, fault.message)
    if request.kind == "responses":
        told = {"message": fault.message, "code": body["error"]["type"], "param": None}
        return "error", {"type": "error", **told, "sequence_number": fault.after}
    return ("error" if request.kind == "messages" else ""), body


def vectors(texts: list[str], dimension: int, request: ReceivedRequest) -> Item:
    """The same vector for the same text, without meaning."""
    data = [
        {
            "object": "embedding",
            "index": at,
            "embedding": [
                ((sum(text.encode()) + 31 * n * (len(text) + 1)) % 257) / 128.5 - 1
                for n in range(dimension)
            ],
        }
        for at, text in enumerate(texts)
    ]
    tokens = sum(_tokens(text) for text in texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": request.model, "usage": usage}


def _tokens(text: str) -> int:
    return -(-len(text) // 4)


def _usage(answer: ScriptedAnswer, request: ReceivedRequest) -> Usage:
    if answer.usage is not None:
        return answer.usage
    said = answer.reasoning + answer.text + "".join(c.name + c.arguments for c in answer.calls)
    asked = msgspec.json.encode(request.body).decode()
    return Usage(
        input=_tokens(asked), output=_tokens(said), reasoning=_tokens(answer.reasoning) or None
    )


def _finish(answer: ScriptedAnswer) -> str:
    return answer.finish or ("tools" if answer.calls else "stop")


def _pieces(text: str, answer: ScriptedAnswer) -> Iterator[str]:
    size = max(answer.chunk, 1)
    return (text[at : at + size] for at in range(0, len(text), size))


def _id(prefix: str, request: ReceivedRequest, at: int = 0) -> str:
    return f"{prefix}_{request.number:06}{at or ''}"


def _model(answer: ScriptedAnswer, request: ReceivedRequest) -> str:
    return answer.model or request.model


_CHAT_FINISH = {"tools": "tool_calls", "filter": "content_filter", "other": "stop"}


def _chat_usage(usage: Usage) -> Item:
    read, thought = usage.cache_read, usage.reasoning
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output or 0,
        "total_tokens": (usage.input or 0) + (usage.output or 0),
        **({} if read is None else {"prompt_tokens_details": {"cached_tokens": read}}),
        **({} if thought is None else {"completion_tokens_details": {"reasoning_tokens": thought}}),
    }


def _chat_body(answer: ScriptedAnswer, request: ReceivedRequest) -> Item:
    message: Item = {"role": "assistant", "content": answer.text or None, "refusal": None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.calls
        ]
    finish = _finish(answer)
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": _CHAT_FINISH.get(finish, finish),
    }
    usage = _usage(answer, request)
    return {
        **_chat_frame(answer, request, "chat.completion"),
        "choices": [choice],
        **({} if usage.input is None else {"usage": _chat_usage(usage)}),
    }


def _chat_frame(answer: ScriptedAnswer, request: ReceivedRequest, what: str) -> Item:
    return {
        "id": _id("chatcmpl", request),
        "object": what,
        "created": _CREATED,
        "model": _model(answer, request),
    }


def _chat_events(answer: ScriptedAnswer, request: ReceivedRequest) -> Iterator[Event]:
    frame = _chat_frame(answer, request, "chat.completion.chunk")

    def chunk(delta: Item, finish: str | None = None) -> Event:
        return "", {**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""})
    for piece in _pieces(answer.reasoning, answer):
        yield chunk({"reasoning_content": piece})
    for piece in _pieces(answer.text, answer):
        yield chunk({"content": piece})
    for at, call in enumerate(answer.calls):
        begin = {"name": call.name, "arguments": ""}
        yield chunk(
            {"tool_calls": [{"index": at, "id": call.id, "type": "function", "function": begin}]}
        )
        for piece in _pieces(call.arguments, answer):
            yield chunk({"tool_calls": [{"index": at, "function": {"arguments": piece}}]})
    finish = _finish(answer)
    yield chunk({}, _CHAT_FINISH.get(finish, finish))
    usage = _usage(answer, request)
    if (request.body.get("stream_options") or {}).get("include_usage") and usage.input is not None:
        yield "", {**frame, "choices": [], "usage": _chat_usage(usage)}


_INCOMPLETE = {"length": "max_output_tokens", "filter": "content_filter"}


def _responses_output(answer: ScriptedAnswer, request: ReceivedRequest) -> list[Item]:
    output: list[Item] = []
    if answer.reasoning:
        item: Item = {
            "type": "reasoning",
            "id": _id("rs", request),
            "summary": [{"type": "summary_text", "text": answer.reasoning}],
        }
        if "reasoning.encrypted_content" in (request.body.get("include") or ()):
            item["encrypted_content"] = _SIGNATURE
        output.append(item)
    if answer.text or not answer.calls:
        output.append(
            {
                "type": "message",
                "id": _id("msg", request),
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": answer.text, "annotations": []}],
            }
        )
    for at, call in enumerate(answer.calls, 1):
        output.append(
            {
                "type": "function_call",
                "id": _id("fc", request, at),
                "call_id": call.id,
                "name": call.name,
                "arguments": call.arguments,
                "status": "completed",
                **call.native.get("responses", {}),
            }
        )
    return output


def _responses_frame(
    answer: ScriptedAnswer, request: ReceivedRequest, output: list[Item], status: str
) -> Item:
    return {
        "id": _id("resp", request),
        "object": "response",
        "created_at": _CREATED,
        "status": status,
        "model": _model(answer, request),
        "output": output,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": None,
    }


def _responses_body(answer: ScriptedAnswer, request: ReceivedRequest) -> Item:
    reason = _INCOMPLETE.get(_finish(answer))
    output = _responses_output(answer, request)
    body = _responses_frame(answer, request, output, "incomplete" if reason else "completed")
    if reason:
        body["incomplete_details"] = {"reason": reason}
    usage = _usage(answer, request)
    if usage.input is not None:
        body["usage"] = {
            "input_tokens": usage.input,
            "input_tokens_details": {"cached_tokens": usage.cache_read or 0},
            "output_tokens": usage.output or 0,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
            "total_tokens": usage.input + (usage.output or 0),
        }
    return body


def _responses_events(answer: ScriptedAnswer, request: ReceivedRequest) -> Iterator[Event]:
    for number, (name, data) in enumerate(_unnumbered(answer, request)):
        yield name, {"type": name, **data, "sequence_number": number}


def _unnumbered(answer: ScriptedAnswer, request: ReceivedRequest) -> Iterator[Event]:
    start = _responses_frame(answer, request, [], "in_progress")
    yield "response.created", {"response": start}
    yield "response.in_progress", {"response": start}
    for at, item in enumerate(_responses_output(answer, request)):
        place = {"item_id": item["id"], "output_index": at}
        match item["type"]:
            case "reasoning":
                empty: Item = {"summary": []}
                inner = _summary_events(answer, place)
            case "message":
                empty = {"content": [], "status": "in_progress"}
                inner = _text_events(answer, place, item["content"][0])
            case _:
                empty = {"arguments": "", "status": "in_progress"}
                inner = _argument_events(answer, place, item["arguments"])
        yield "response.output_item.added", {"output_index": at, "item": {**item, **empty}}
        yield from inner
        yield "response.output_item.done", {"output_index": at, "item": item}
    body = _responses_body(answer, request)
    yield f"response.{body['status']}", {"response": body}


def _summary_events(answer: ScriptedAnswer, place: Item) -> Iterator[Event]:
    name, place = "response.reasoning_summary", {**place, "summary_index": 0}
    part = {"type": "summary_text", "text": ""}
    yield f"{name}_part.added", {**place, "part": part}
    for piece in _pieces(answer.reasoning, answer):
        yield f"{name}_text.delta", {**place, "delta": piece}
    yield f"{name}_text.done", {**place, "text": answer.reasoning}
    yield f"{name}_part.done", {**place, "part": {**part, "text": answer.reasoning}}


def _text_events(answer: ScriptedAnswer, place: Item, part: Item) -> Iterator[Event]:
    place = {**place, "content_index": 0}
    yield "response.content_part.added", {**place, "part": {**part, "text": ""}}
    for piece in _pieces(answer.text, answer):
        yield "response.output_text.delta", {**place, "delta": piece, "logprobs": []}
    yield "response.output_text.done", {**place, "text": answer.text, "logprobs": []}
    yield "response.content_part.done", {**place, "part": part}


def _argument_events(answer: ScriptedAnswer, place: Item, arguments: str) -> Iterator[Event]:
    for piece in _pieces(arguments, answer):
        yield "response.function_call_arguments.delta", {**place, "delta": piece}
    yield "response.function_call_arguments.done", {**place, "arguments": arguments}


_STOP = {"stop": "end_turn", "length": "max_tokens", "tools": "tool_use", "filter": "refusal"}


def _messages_usage(usage: Usage) -> Item:
    read, written = usage.cache_read or 0, usage.cache_write or 0
    return {
        "input_tokens": (usage.input or 0) - read - written,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        "output_tokens": usage.output or 0,
    }


def _messages_blocks(answer: ScriptedAnswer) -> list[Item]:
    blocks: list[Item] = []
    if answer.reasoning:
        thinking = {"thinking": answer.reasoning, "signature": _SIGNATURE}
        blocks.append({"type": "thinking", **thinking})
    if answer.text:
        blocks.append({"type": "text", "text": answer.text})
    for call in answer.calls:
        try:
            given = msgspec.json.decode(call.arguments or "{}")
        except msgspec.DecodeError:  # only a stream can say it
            given = {}
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": given})
    return blocks


def _messages_body(answer: ScriptedAnswer, request: ReceivedRequest) -> Item:
    return {
        "id": _id("msg", request),
        "type": "message",
        "role": "assistant",
        "model": _model(answer, request),
        "content": _messages_blocks(answer),
        "stop_reason": _STOP.get(_finish(answer), "end_turn"),
        "stop_sequence": None,
        "usage": _messages_usage(_usage(answer, request)),
    }


def _messages_events(answer: ScriptedAnswer, request: ReceivedRequest) -> Iterator[Event]:
    for name, data in _untyped(answer, request):
        yield name, {"type": name, **data}


def _untyped(answer: ScriptedAnswer, request: ReceivedRequest) -> Iterator[Event]:
    body = _messages_body(answer, request)
    start = {**body, "content": [], "stop_reason": None}
    yield "message_start", {"message": {**start, "usage": {**body["usage"], "output_tokens": 1}}}
    yield "ping", {}
    calls = iter(answer.calls)
    for at, block in enumerate(body["content"]):
        empty: Item
        deltas: Iterator[Item]
        match block["type"]:
            case "thinking":
                empty = {"thinking": "", "signature": ""}
                deltas = _thinking_deltas(answer)
            case "text":
                empty = {"text": ""}
                deltas = ({"type": "text_delta", "text": p} for p in _pieces(answer.text, answer))
            case _:
                empty = {"input": {}}
                deltas = (
                    {"type": "input_json_delta", "partial_json": piece}
                    for piece in _pieces(next(calls).arguments, answer)
                )
        yield "content_block_start", {"index": at, "content_block": {**block, **empty}}
        for delta in deltas:
            yield "content_block_delta", {"index": at, "delta": delta}
        yield "content_block_stop", {"index": at}
    end = {"stop_reason": body["stop_reason"], "stop_sequence": None}
    yield "message_delta", {"delta": end, "usage": body["usage"]}
    yield "message_stop", {}


def _thinking_deltas(answer: ScriptedAnswer) -> Iterator[Item]:
    for piece in _pieces(answer.reasoning, answer):
        yield {"type": "thinking_delta", "thinking": piece}
    yield {"type": "signature_delta", "signature": _SIGNATURE}


_BODIES = {"chat": _chat_body, "responses": _responses_body, "messages": _messages_body}
_STREAMS = {"chat": _chat_events, "responses": _responses_events, "messages": _messages_events}
