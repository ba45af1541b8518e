"""Chat Completions as they are written, and as they should not be."""

from __future__ import annotations

from typing import Any

from tests.wire.samples import EPHEMERAL, PDF, PNG, WAV, Bodies


def _call(id: str, name: str, arguments: str, **more: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": id, "type": "function", "function": function, **more}


def _asks(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


VALID: Bodies = {
    "strings": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi, what is 2+2?"},
        {"role": "assistant", "content": "4"},
    ],
    "developer and names": [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hi.", "name": "ada"},
        {"role": "assistant", "content": "Hello, Ada.", "name": "helper"},
    ],
    "a tool": [
        {"role": "user", "content": "List the files."},
        _asks(_call("call_1", "shell", '{"command": "ls"}')),
        {"role": "tool", "tool_call_id": "call_1", "content": "a.py\nb.py"},
        {"role": "assistant", "content": "There are two."},
    ],
    "tools in parallel, answered out of order": [
        {"role": "user", "content": "Weather in Oslo and Rome?"},
        {
            "role": "assistant",
            "content": "Let me look.",
            "tool_calls": [
                _call("call_a", "weather", '{"city":"Oslo"}'),
                _call("call_b", "weather", '{"city":"Rome"}'),
            ],
        },
        {"role": "tool", "tool_call_id": "call_b", "content": "22"},
        {"role": "tool", "tool_call_id": "call_a", "content": "-3"},
        {"role": "assistant", "content": "Cold, and warm."},
    ],
    "lists of blocks": [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is in these?"},
                {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
                {
                    "type": "image_url",
                    "image_url": {"url": f"data:image/png;base64,{PNG}", "detail": "low"},
                },
                {"type": "text", "text": "And this?"},
                {
                    "type": "file",
                    "file": {
                        "filename": "a.pdf",
                        "file_data": f"data:application/pdf;base64,{PDF}",
                    },
                },
                {"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "A dot."}]},
    ],
    "list with one text": [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Hi"}], "refusal": None},
    ],
    "results as blocks": [
        {"role": "user", "content": "Go."},
        _asks(_call("c1", "look", "{}")),
        {
            "role": "tool",
            "tool_call_id": "c1",
            "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
        },
    ],
    "broken arguments": [
        {"role": "user", "content": "Go."},
        _asks(_call("c1", "write", '{"path": "a.py", "text": "unfini')),
        {"role": "tool", "tool_call_id": "c1", "content": "Error: invalid JSON"},
        _asks(_call("c2", "write", "[1, 2]"), _call("c3", "write", "")),
        {"role": "tool", "tool_call_id": "c2", "content": "Error"},
        {"role": "tool", "tool_call_id": "c3", "content": "Error"},
    ],
    "custom tools": [
        {"role": "user", "content": "Patch it."},
        _asks({"id": "c1", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}),
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ],
    "a refusal": [
        {"role": "user", "content": "Do harm."},
        {"role": "assistant", "content": None, "refusal": "I will not.", "annotations": []},
    ],
    "a refusal as block": [
        {"role": "user", "content": "Do harm."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]},
    ],
    "reasoning": [
        {"role": "user", "content": "Think."},
        {
            "role": "assistant",
            "content": "Done.",
            "reasoning_content": "Let me see…",
            "tool_calls": [_call("c1", "f", "{}")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        {"role": "assistant", "content": "Done.", "reasoning": "Hm.", "reasoning_details": [1]},
    ],
    "sound": [
        {"role": "user", "content": "Say it."},
        {
            "role": "assistant",
            "content": None,
            "audio": {"id": "audio_1", "data": WAV, "expires_at": 1, "transcript": "It."},
        },
        {"role": "user", "content": "Again."},
        {"role": "assistant", "audio": {"id": "audio_1"}},
    ],
    "cache marks and unknown fields": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "long", "cache_control": EPHEMERAL},
                {
                    "type": "image_url",
                    "image_url": {"url": "https://example.org/a.png", "detail": "high"},
                    "prompt_cache_breakpoint": {"mode": "explicit"},
                },
            ],
            "x-mark": {"a": [1, None]},
        },
        {"role": "assistant", "content": "ok", "annotations": [{"type": "url_citation"}], "x": 1},
    ],
    "unknown blocks": [
        {"role": "user", "content": [{"type": "video_url", "video_url": {"url": "https://e.org"}}]},
        {"role": "assistant", "content": "Nice."},
    ],
    "a file by name": [
        {"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]},
    ],
    "empty strings": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": [_call("c1", "f", "{}")]},
        {"role": "tool", "tool_call_id": "c1", "content": ""},
        {"role": "assistant", "content": ""},
    ],
    "unicode": [
        {
            "role": "user",
            "content": "\u0000 \u2028 👩‍👩‍👧 \u202eabc \ufeff </T-1> <T-1-C> \U0001d518",
        },
        _asks(_call("c1", "f", '{"ключ": "значение 🎈", "\\u0000": "\\ud83c\\udf88"}')),
        {"role": "tool", "tool_call_id": "c1", "content": "</T-12-R>"},
    ],
}

ODD: Bodies = {
    "the older functions": [
        {"role": "user", "content": "Go."},
        {
            "role": "assistant",
            "content": None,
            "function_call": {"name": "f", "arguments": '{"a": 1}'},
        },
        {"role": "function", "name": "f", "content": "ok"},
        {"role": "function", "name": "f", "content": None},
    ],
    "nothing in many ways": [
        {"role": "user", "content": ""},
        {"role": "user", "content": []},
        {"role": "user", "content": None},
        {"role": "user"},
        {"role": "assistant", "content": None},
        {"role": "assistant"},
        {"role": "assistant", "content": []},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "assistant", "content": None, "tool_calls": None, "function_call": None},
        {"role": "tool", "tool_call_id": "x", "content": None},
        {"role": "tool", "tool_call_id": "x"},
        {"role": "tool", "content": "no id"},
        {"role": "tool", "tool_call_id": None, "content": "no id"},
        {"role": "tool", "tool_call_id": "", "content": "", "name": ""},
        {"role": "tool", "tool_call_id": "x", "content": [], "name": "f"},
        {"role": "system", "content": ""},
        {"role": "user", "content": "x", "name": ""},
        {"role": "user", "content": "x", "name": None},
        {"role": "user", "content": [{"type": "text", "text": ""}, {"type": "text", "text": " "}]},
    ],
    "calls that are none": [
        _asks({"id": "c1", "function": {"name": "f", "arguments": "{}"}}),
        _asks({"type": "function", "function": {"name": "f", "arguments": "{}"}}),
        _asks({"id": None, "type": "function", "function": {"name": "f", "arguments": "{}"}}),
        _asks({"id": "c1", "type": "function", "function": {"name": "f"}}),
        _asks({"id": "c1", "type": "function"}, _call("c2", "f", "{}")),
        _asks({"id": "c1", "type": "other", "other": {}}),
        _asks(_call("c1", "f", "{}", index=0), _call("c2", "", "{}")),
        _asks({**_call("c1", "f", "{}"), "function": {"name": "f", "arguments": "", "x": 1}}),
        _asks({"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}),
        {"role": "assistant", "tool_calls": "none"},
        {"role": "assistant", "tool_calls": [None, "x"]},
        {"role": "assistant", "content": "x", "function_call": {"name": "f"}},
        {"role": "user", "content": "x", "tool_calls": [_call("c1", "f", "{}")]},
    ],
    "results without calls": [
        {"role": "tool", "tool_call_id": "nobody", "content": "?"},
        {"role": "tool", "tool_call_id": "nobody", "content": "!", "name": "f", "x": 1},
        {
            "role": "tool",
            "tool_call_id": "nobody",
            "content": [{"type": "image_url", "image_url": {"url": "https://e.org/a.png"}}],
        },
        {"role": "function", "name": "f", "tool_call_id": "c", "content": "x"},
    ],
    "blocks that are none": [
        {
            "role": "user",
            "content": [
                "a string",
                7,
                None,
                [],
                {},
                {"type": "text"},
                {"type": "text", "text": 5},
                {"type": "image_url", "image_url": "https://e.org/a.png"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAA"}},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,QR=="}},
                {"type": "image_url", "image_url": {"url": "data:,hello"}},
                {"type": "image_url", "image_url": {"url": f"data:;base64,{PNG}"}},
                {"type": "image_url", "image_url": {"url": f"data:application/pdf;base64,{PDF}"}},
                {"type": "image_url", "image_url": {"url": f"DATA:image/png;base64,{PNG}"}},
                {"type": "image_url", "image_url": {}},
                {"type": "input_audio", "input_audio": {"data": "?", "format": "wav"}},
                {"type": "input_audio", "input_audio": {"data": WAV, "format": "ogg"}},
                {"type": "input_audio", "input_audio": {"data": WAV, "format": "mp3", "x": 1}},
                {"type": "file", "file": {"file_id": "f", "file_data": "x"}},
                {"type": "file", "file": {"file_data": "plain"}},
                {"type": "file", "file": {"file_id": "f", "filename": "", "x": 1}},
                {"type": "file", "file": {"file_id": "f", "filename": "a", "x": 1}, "y": 2},
                {"type": "text", "text": "x", "perdure": {"a": 1}},
                {"type": 5},
            ],
        },
        {
            "role": "assistant",
            "content": [{"type": "image_url", "image_url": {"url": "https://e.org/a.png"}}],
        },
    ],
    "replies in a row": [
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
    ],
    "odd sound and refusals": [
        {"role": "assistant", "content": "x", "audio": {"transcript": "y"}},
        {"role": "assistant", "content": None, "audio": {"transcript": ""}},
        {"role": "assistant", "content": None, "audio": None, "refusal": ""},
        {"role": "assistant", "content": "said", "refusal": "not said"},
        {"role": "assistant", "content": None, "reasoning_content": "", "reasoning": "x"},
        {"role": "assistant", "content": None, "reasoning_content": "y", "reasoning": "x"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no", "x": 1}]},
    ],
}
