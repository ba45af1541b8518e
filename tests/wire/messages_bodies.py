"""Anthropic Messages as they are written, and as they should not be."""

from __future__ import annotations

from typing import Any

from tests.wire.samples import EPHEMERAL, PDF, PNG, Bodies, said


def _use(id: str, name: str, given: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": given, **more}


def _result(id: str, *content: Any, **more: Any) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": id, **more}
    return {**block, "content": content[0]} if content else block


VALID: Bodies = {
    "strings": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Bye"},
    ],
    "a tool": [
        {"role": "user", "content": "List the files."},
        {
            "role": "assistant",
            "content": [said("I look."), _use("toolu_1", "Bash", {"command": "ls", "timeout": 5})],
        },
        {"role": "user", "content": [_result("toolu_1", "a.py\nb.py")]},
        {"role": "assistant", "content": [said("There are two.")]},
    ],
    "tools in parallel and a word": [
        {"role": "user", "content": "Go."},
        {
            "role": "assistant",
            "content": [_use("t1", "Read", {"path": "a"}), _use("t2", "Read", {"path": "b"})],
        },
        {
            "role": "user",
            "content": [
                _result("t2", "bb"),
                _result("t1", "No such file", is_error=True),
                said("And hurry."),
            ],
        },
        {"role": "assistant", "content": [said("Yes.")]},
    ],
    "results in pieces": [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": [_use("t1", "R", {}), _use("t2", "R", {"a": {}})]},
        {"role": "user", "content": [_result("t1", "x")]},
        {"role": "user", "content": [_result("t2", "y")]},
    ],
    "all forms of results": [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": [_use(f"t{n}", "R", {"n": n}) for n in range(9)]},
        {
            "role": "user",
            "content": [
                _result("t0", "text"),
                _result("t1", [said("block")]),
                _result("t2", [said("one"), said("two", cache_control=EPHEMERAL)]),
                _result("t3"),
                _result("t4", ""),
                _result("t5", []),
                _result("t6", "fine", is_error=False),
                _result("t7", "bad", is_error=True, cache_control=EPHEMERAL),
                _result(
                    "t8",
                    [
                        said("see"),
                        {
                            "type": "image",
                            "source": {"type": "base64", "media_type": "image/png", "data": PNG},
                        },
                        {"type": "tool_reference", "tool_name": "x"},
                    ],
                ),
            ],
        },
    ],
    "inputs": [
        {"role": "user", "content": "Go."},
        {
            "role": "assistant",
            "content": [
                _use("t1", "f", {}),
                _use("t2", "f", {"z": 1, "a": {"y": [1, 2.5, -0.0, 1e300], "b": None}, "": True}),
                _use("t3", "f", {"big": 2**80, "neg": -(2**70), "text": '"\\\n\u2028é🎈'}),
                _use("t4", "f", {"unparsed_arguments": "not json"}),
                _use("t5", "f", {"unparsed_arguments": "{}"}),
                _use("t6", "f", {"unparsed_arguments": '{"unparsed_arguments":"x"}'}),
                _use("t7", "f", {"unparsed_arguments": "x", "more": 1}),
                _use("t8", "f", {"unparsed_arguments": 7}),
            ],
        },
        {"role": "user", "content": [_result(f"t{n}", "ok") for n in range(1, 9)]},
    ],
    "thinking": [
        {"role": "user", "content": "Think."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm…", "signature": "EqQBCg=="},
                {"type": "redacted_thinking", "data": "EmwKAhgB"},
                said("So:"),
                {"type": "thinking", "thinking": "", "signature": ""},
                _use("t1", "f", {}, caller={"type": "direct"}),
            ],
        },
        {"role": "user", "content": [_result("t1", "ok")]},
        {"role": "assistant", "content": [said("Done.")]},
    ],
    "media": [
        {
            "role": "user",
            "content": [
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": PNG},
                    "cache_control": EPHEMERAL,
                },
                {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
                {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
                {
                    "type": "document",
                    "source": {"type": "base64", "media_type": "application/pdf", "data": PDF},
                    "title": "A",
                    "citations": {"enabled": True},
                },
                {
                    "type": "document",
                    "source": {"type": "text", "media_type": "text/plain", "data": "grün"},
                    "context": "colours",
                },
                {"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}},
                {"type": "document", "source": {"type": "file", "file_id": "file_2"}},
                {
                    "type": "document",
                    "source": {"type": "content", "content": [said("a"), said("b")]},
                },
                {
                    "type": "search_result",
                    "source": "https://example.org",
                    "title": "t",
                    "content": [said("x")],
                },
                {"type": "container_upload", "file_id": "file_3"},
                said("What are these?"),
            ],
        },
        {
            "role": "assistant",
            "content": [
                said("Things.", citations=[{"type": "char_location", "cited_text": "grün"}]),
                said("More.", citations=None),
            ],
        },
    ],
    "server tools": [
        {"role": "user", "content": "Search."},
        {
            "role": "assistant",
            "content": [
                {
                    "type": "server_tool_use",
                    "id": "srvtoolu_1",
                    "name": "web_search",
                    "input": {"query": "x", "big": -(2**90)},
                },
                {
                    "type": "web_search_tool_result",
                    "tool_use_id": "srvtoolu_1",
                    "content": [{"type": "web_search_result", "encrypted_content": "E"}],
                },
                said("Found.", citations=[{"type": "web_search_result_location"}]),
            ],
        },
    ],
    "marks": [
        {
            "role": "user",
            "content": [said("Hi", cache_control={"type": "ephemeral", "ttl": "1h"})],
        },
        {"role": "assistant", "content": [said("Hello."), said("Again.")]},
        {"role": "user", "content": [said("One."), said("Two.")]},
        {"role": "system", "content": "From now on, be brief."},
    ],
    "neighbours": [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [said("b")]},
        {"role": "assistant", "content": [said("c")]},
        {"role": "assistant", "content": "d"},
    ],
}

ODD: Bodies = {
    "nothing in many ways": [
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": []},
        {"role": "assistant", "content": None},
        {"role": "assistant"},
        {"role": "user", "content": ""},
        {"role": "user", "content": []},
        {"role": "user"},
        {"role": "system", "content": []},
        {"role": "user", "content": [said(""), said(" \n")]},
        {"role": "user", "content": "x", "id": "m1", "time": 5},
    ],
    "blocks that are none": [
        {
            "role": "user",
            "content": [
                "string",
                None,
                3,
                {},
                {"text": "x"},
                {"type": "text"},
                {"type": "thinking", "thinking": "unsigned"},
                {"type": "thinking", "thinking": "x", "signature": None},
                {"type": "thinking"},
                {"type": "redacted_thinking"},
                _use("t", "f", []),
                _use("t", "f", "text"),
                {"type": "tool_use", "id": "t", "name": "f"},
                {"type": "tool_use", "id": 5, "name": "f", "input": {}},
                {"type": "tool_result", "content": "no id"},
                _result("t", 5),
                _result("t", None),
                _result("t", [_use("t", "f", {})]),
                _result("t", ["string", {"type": "new"}]),
                _result("t", "x", is_error=None),
                _result("t", "x", is_error="yes"),
                {"type": "image"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png"}},
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": PNG, "x": 1},
                },
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": "QR=="},
                },
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "application/pdf", "data": PDF},
                },
                {
                    "type": "document",
                    "source": {"type": "base64", "media_type": "image/png", "data": PNG},
                },
                {
                    "type": "document",
                    "source": {"type": "text", "media_type": "text/html", "data": "<p>"},
                },
                {
                    "type": "document",
                    "source": {"type": "text", "media_type": "text/plain", "data": "", "x": 1},
                },
                {"type": "image", "source": {"type": "url", "url": "x", "y": 1}},
                said("x", perdure=1),
            ],
        },
    ],
    "results where they should not be": [
        {"role": "user", "content": [_result("nobody", "x")]},
        {"role": "assistant", "content": [_result("nobody", "x"), _use("t", "f", {})]},
        {"role": "user", "content": [said("first"), _result("t", "x"), said("last")]},
        {"role": "system", "content": [said("x", cache_control=EPHEMERAL)]},
        {"role": "assistant", "content": [_use("t", "f", {}), _use("t", "f", {})]},
    ],
}
