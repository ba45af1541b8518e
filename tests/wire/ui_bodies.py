"""UI and model messages as they are written, and as they should not be."""

from __future__ import annotations

from typing import Any

from tests.wire.samples import PDF, PNG, Bodies, said


def _ui(id: str, role: str, *parts: Any, **more: Any) -> dict[str, Any]:
    return {"id": id, "role": role, "parts": list(parts), **more}


def _tool(name: str, call: str, state: str, **more: Any) -> dict[str, Any]:
    return {"type": f"tool-{name}", "toolCallId": call, "state": state, **more}


STEP = {"type": "step-start"}

VALID: Bodies = {
    "texts": [
        _ui("m0", "system", said("Be brief.")),
        _ui("m1", "user", said("Hi")),
        _ui("m2", "assistant", STEP, said("Hello.", state="done")),
    ],
    "steps": [
        _ui("m1", "user", said("Weather in Oslo and Rome?"), metadata={"at": 5}),
        _ui(
            "m2",
            "assistant",
            STEP,
            {"type": "reasoning", "text": "Hm.", "state": "done", "providerMetadata": {"a": {}}},
            said("I look.", state="done"),
            _tool("weather", "c1", "output-available", input={"city": "Oslo"}, output="-3"),
            _tool("weather", "c2", "output-error", input={"city": "Rome"}, errorText="no network"),
            STEP,
            _tool(
                "weather",
                "c3",
                "output-available",
                input={"city": "Rome"},
                output={"degrees": 22, "sky": ["clear"]},
                callProviderMetadata={"x": {"y": 1}},
            ),
            STEP,
            said("Cold, and warm."),
        ),
        _ui("m3", "user", said("Thanks.")),
    ],
    "everything else": [
        _ui(
            "m1",
            "user",
            said("See."),
            {"type": "file", "mediaType": "image/png", "url": f"data:image/png;base64,{PNG}"},
            {
                "type": "file",
                "mediaType": "application/pdf",
                "filename": "a.pdf",
                "url": "https://example.org/a.pdf",
            },
        ),
        _ui(
            "m2",
            "assistant",
            {"type": "source-url", "sourceId": "s1", "url": "https://example.org", "title": "t"},
            {"type": "source-document", "sourceId": "s2", "mediaType": "x/y", "title": "t"},
            {"type": "data-weather", "id": "d1", "data": {"a": 1}},
            {
                "type": "dynamic-tool",
                "toolName": "look up",
                "toolCallId": "c1",
                "state": "output-available",
                "input": "text",
                "output": None,
            },
            _tool("a-b", "c2", "output-available", input={}, output="", preliminary=True),
            _tool("a", "c3", "output-available", input=[1], output=[]),
            _tool("a", "c4", "output-available", input=None, output=0, providerExecuted=True),
            _tool("a", "c5", "output-error", input={}, errorText=""),
            _tool(
                "a",
                "c6",
                "output-available",
                input={},
                output={
                    "type": "content",
                    "value": [said("x"), {"type": "media", "data": PNG, "mediaType": "image/png"}],
                },
            ),
            said("after the tools"),
            {"type": "file", "mediaType": "image/png", "url": f"data:image/png;base64,{PNG}"},
        ),
    ],
    "open calls": [
        _ui("m1", "user", said("Go.")),
        _ui(
            "m2",
            "assistant",
            _tool("a", "c1", "input-available", input={"x": 1}),
            _tool("a", "c2", "input-streaming", input={"x": "unfin"}),
            _tool("a", "c3", "input-streaming"),
            _tool("a", "c4", "approval-requested", input={}, approval={"id": "ap1"}),
            _tool(
                "a",
                "c5",
                "output-denied",
                input={},
                approval={"id": "ap2", "approved": False, "reason": "too risky"},
            ),
            _tool("a", "c6", "output-denied", input={}, approval={"id": "ap3", "approved": False}),
        ),
    ],
    "model messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi", "providerOptions": {"anthropic": {}}},
        {
            "role": "user",
            "content": [
                said("See."),
                {"type": "image", "image": PNG, "mediaType": "image/png"},
                {"type": "image", "image": "https://example.org/a.png"},
                {"type": "file", "data": PDF, "mediaType": "application/pdf", "filename": "a.pdf"},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "reasoning", "text": "Hm.", "providerOptions": {"a": {"signature": "s"}}},
                said("I look."),
                {"type": "tool-call", "toolCallId": "c1", "toolName": "f", "input": {"a": 1}},
                {"type": "tool-call", "toolCallId": "c2", "toolName": "f", "input": {}},
                {"type": "tool-call", "toolCallId": "c3", "toolName": "f", "input": {}},
                {"type": "tool-call", "toolCallId": "c4", "toolName": "f", "args": {"old": True}},
            ],
        },
        {
            "role": "tool",
            "content": [
                {
                    "type": "tool-result",
                    "toolCallId": call,
                    "toolName": "f",
                    "output": output,
                }
                for call, output in {
                    "c1": {"type": "text", "value": "x"},
                    "c2": {"type": "error-json", "value": {"code": 5}},
                    "c3": {
                        "type": "content",
                        "value": [
                            said("x"),
                            {"type": "image-data", "data": PNG, "mediaType": "image/png"},
                        ],
                    },
                    "c4": {"type": "execution-denied", "reason": "no"},
                }.items()
            ],
        },
        {"role": "assistant", "content": "Done."},
    ],
}

ODD: Bodies = {
    "nothing in many ways": [
        _ui("m1", "user"),
        _ui("m2", "assistant"),
        _ui("", "assistant"),
        {"role": "user", "parts": []},
        {"role": "user", "parts": [said("x")], "id": None},
        _ui("m3", "assistant", STEP),
        _ui("m4", "assistant", STEP, STEP, said(""), STEP),
        _ui("m5", "assistant", said("x"), metadata="words", content="x", createdAt="now"),
        _ui("m6", "assistant", said("x"), metadata={}),
        {"role": "assistant", "content": []},
        {"role": "assistant", "content": ""},
    ],
    "parts that are none": [
        _ui(
            "m1",
            "assistant",
            "x",
            None,
            {},
            {"type": "text"},
            {"type": "reasoning"},
            {"type": "file", "url": "x"},
            {"type": "file", "mediaType": "", "url": "x"},
            {"type": "file", "mediaType": "image/gif", "url": f"data:image/png;base64,{PNG}"},
            {"type": "file", "mediaType": "x/y", "url": "z", "filename": ""},
            {"type": "tool-a"},
            _tool("a", "c1", "output-available", input={}),
            _tool("a", "c2", "output-error", input={}, errorText=None),
            _tool("a", "c3", "unheard-of", input={}, output=1, errorText="x"),
            _tool("a", "c4", "output-available", input={}, output="first"),
            _tool("a", "c4", "output-available", input={}, output="second"),
            _tool("a", "c5", "input-available", input={}, output="early"),
            {"type": "dynamic-tool", "toolCallId": "c6", "state": "input-available", "input": {}},
            {"type": "tool-invocation", "toolInvocation": {"state": "result"}},
            said("x", perdure=1),
        ),
        _ui("m2", "user", _tool("a", "c1", "output-available", input={}, output=1), STEP),
    ],
    "odd model messages": [
        {
            "role": "tool",
            "content": [
                {"type": "tool-result", "toolCallId": "c1", "toolName": "f", "result": "old"},
                {"type": "tool-result", "toolCallId": "c1", "toolName": "f", "output": "x"},
                {"type": "tool-result", "toolCallId": "c1", "toolName": "f", "output": {}},
                {
                    "type": "tool-result",
                    "toolCallId": "c1",
                    "toolName": "f",
                    "output": {"type": "text", "value": "", "providerOptions": {}},
                    "isError": False,
                },
                {
                    "type": "tool-result",
                    "toolCallId": "c1",
                    "toolName": "f",
                    "output": {"type": "content", "value": ["x", {"type": "file-id"}]},
                },
            ],
        },
        {"role": "assistant", "content": [said("x", x=1), {"type": "image", "image": "?"}, 5]},
        {"role": "assistant", "content": [{"type": "tool-call", "toolCallId": "c"}]},
    ],
}
