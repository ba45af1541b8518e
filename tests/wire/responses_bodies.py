"""Responses items as they are written, and as they should not be."""

from __future__ import annotations

from typing import Any

from tests.wire.samples import PDF, PNG, WAV, Bodies


def _said(text: str, **more: Any) -> dict[str, Any]:
    block = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    message = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant"}
    return {**message, "content": [block], **more}


def _item(kind: str, call: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "call_id": call, **more}


VALID: Bodies = {
    "easy": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": [{"type": "input_text", "text": "And?"}]},
    ],
    "typed": [
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "Be brief."}],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "message", "role": "user", "content": "Hi", "id": "msg_0", "status": "completed"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hello."}],
        },
    ],
    "a whole loop": [
        {"role": "user", "content": "Do it."},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
        _item("function_call", "call_1", id="fc_1", name="f", arguments="{}", status="completed"),
        _item("function_call", "call_2", name="g", arguments='{"a": 1}'),
        _item("function_call_output", "call_1", output="one"),
        _item("function_call_output", "call_2", output="two", id="fco_2", status="completed"),
        {
            "type": "reasoning",
            "id": "rs_2",
            "summary": [{"type": "summary_text", "text": "I see."}],
            "content": [{"type": "reasoning_text", "text": "Two and two."}],
            "status": "completed",
        },
        _said("Done."),
    ],
    "messages between calls": [
        {"role": "user", "content": "Do it."},
        _said("First.", id="msg_a", phase="commentary"),
        _item("function_call", "c1", name="f", arguments="{}"),
        _said("Second.", id="msg_b"),
        _said("Third.", id="msg_c"),
        {"role": "assistant", "content": "Fourth."},
        {"role": "assistant", "content": "Fifth."},
        _item("function_call_output", "c1", output=""),
        {
            "type": "message",
            "role": "assistant",
            "content": [
                {"type": "output_text", "text": "One."},
                {"type": "refusal", "refusal": "No."},
                {"type": "output_text", "text": "Two.", "annotations": [{"type": "file_path"}]},
            ],
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Three."}],
        },
    ],
    "media": [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "See."},
                {
                    "type": "input_image",
                    "image_url": "https://example.org/a.png",
                    "detail": "low",
                },
                {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"},
                {"type": "input_image", "file_id": "file-1", "detail": "auto"},
                {
                    "type": "input_file",
                    "filename": "a.pdf",
                    "file_data": f"data:application/pdf;base64,{PDF}",
                },
                {"type": "input_file", "file_url": "https://example.org/a.pdf"},
                {"type": "input_file", "file_id": "file-2"},
                {"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}},
            ],
        },
    ],
    "outputs as blocks": [
        {"role": "user", "content": "Go."},
        *(_item("function_call", f"c{n}", name="f", arguments="{}") for n in range(4)),
        _item("function_call_output", "c0", output=[{"type": "input_text", "text": "one"}]),
        _item(
            "function_call_output",
            "c1",
            output=[
                {"type": "input_text", "text": "one"},
                {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"},
            ],
        ),
        _item("function_call_output", "c2", output=[]),
        _item("function_call_output", "c3", output="", status="incomplete"),
    ],
    "other tools": [
        {"role": "user", "content": "Go."},
        {
            "type": "web_search_call",
            "id": "ws_1",
            "status": "completed",
            "action": {"type": "search", "query": "x"},
        },
        {"type": "file_search_call", "id": "fs_1", "queries": ["x"], "status": "completed"},
        {"type": "code_interpreter_call", "id": "ci_1", "code": "1", "status": "completed"},
        {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": PNG},
        {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "tools": []},
        {
            "type": "mcp_call",
            "id": "mcp_1",
            "server_label": "s",
            "name": "n",
            "arguments": "{}",
            "output": "x",
        },
        {"type": "mcp_approval_request", "id": "mcpr_1", "name": "n", "arguments": "{}"},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
        _item(
            "local_shell_call",
            "c1",
            id="lsh_1",
            status="completed",
            action={"type": "exec", "command": ["ls", "-l"], "env": {}},
        ),
        {"type": "local_shell_call_output", "id": "c1", "output": '{"output": "x"}'},
        _item("shell_call", "c2", action={"commands": ["ls"]}, status="completed"),
        _item(
            "shell_call_output",
            "c2",
            output=[{"stdout": "x", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        ),
        _item("apply_patch_call", "c3", operation={"type": "delete_file", "path": "a"}, status="x"),
        _item("apply_patch_call_output", "c3", status="failed", output="no such file"),
        _item("apply_patch_call", "c4", operation={"type": "delete_file", "path": "b"}),
        _item("apply_patch_call_output", "c4", status="completed"),
        _item(
            "computer_call",
            "c5",
            id="cu_1",
            action={"type": "click", "x": 1, "y": 2, "button": "left"},
            pending_safety_checks=[],
            status="completed",
        ),
        _item(
            "computer_call_output",
            "c5",
            output={"type": "computer_screenshot", "image_url": f"data:image/png;base64,{PNG}"},
            acknowledged_safety_checks=None,
        ),
        _item("custom_tool_call", "c6", id="ctc_1", name="patch", input="*** Begin Patch"),
        _item("custom_tool_call_output", "c6", output="done"),
        {"type": "item_reference", "id": "msg_9"},
        {"type": "compaction", "id": "cmp_1", "encrypted_content": "x"},
        _said("Done."),
    ],
    "as codex writes": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go."}]},
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "**Plan**"}],
            "content": None,
            "encrypted_content": "gAAA",
        },
        _item("function_call", "c1", name="shell", arguments='{"command":["ls"]}'),
        _item("function_call_output", "c1", output='{"output":"x","metadata":{"exit_code":0}}'),
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "ok"}],
        },
    ],
}

ODD: Bodies = {
    "nothing in many ways": [
        {"role": "user", "content": ""},
        {"role": "user", "content": []},
        {"role": "user", "content": None},
        {"role": "user"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": []},
        {"role": "assistant"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_audio"}]},
        {"type": "message", "role": "assistant", "content": ["x"]},
        {"type": "reasoning"},
        {"type": "reasoning", "summary": None},
        {"type": "reasoning", "summary": ["x"]},
        {"type": "reasoning", "summary": [], "content": []},
        {"type": "reasoning", "summary": [], "encrypted_content": None},
        {
            "type": "reasoning",
            "summary": [],
            "content": [
                {"type": "reasoning_text", "text": "a"},
                {"type": "reasoning_text", "text": "b"},
            ],
        },
        {
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": ""}],
        },
        {"type": "reasoning", "summary": [], "content": "x"},
        {"id": "msg_1"},
        {"type": "ghost_snapshot", "ghost_commit": {"id": "x"}},
        {"type": "mystery_output", "x": 1},
    ],
    "calls and outputs that are none": [
        {"type": "function_call", "name": "f", "arguments": "{}"},
        _item("function_call", "c", name="f"),
        _item("function_call", "c", name="f", arguments={"a": 1}),
        _item("function_call", "c", arguments="{}"),
        _item("custom_tool_call", "c", name="f"),
        _item("local_shell_call", "c", action="ls"),
        _item("function_call_output", "nobody", output="x"),
        _item("function_call_output", "nobody"),
        _item("function_call_output", "nobody", output=None),
        _item("function_call_output", "nobody", output={"content": "x", "success": False}),
        _item("function_call_output", "nobody", output=5),
        _item("function_call_output", "nobody", output=["x", {"type": "new"}]),
        {"type": "function_call_output", "output": "x"},
        {"type": "local_shell_call_output", "output": "x"},
        _item("computer_call_output", "c", output={"type": "computer_screenshot"}),
        _item("computer_call_output", "c", output={"type": "computer_screenshot", "file_id": "f"}),
        _item("apply_patch_call_output", "c", output=None, status="failed"),
        _item("shell_call_output", "c", output="text"),
    ],
    "blocks that are none": [
        {
            "role": "user",
            "content": [
                "x",
                None,
                {"type": "input_text"},
                {"type": "output_text", "text": "x"},
                {"type": "text", "text": "x"},
                {"type": "input_image"},
                {"type": "input_image", "image_url": None, "file_id": "f"},
                {"type": "input_image", "image_url": "x", "file_id": "f"},
                {"type": "input_image", "image_url": {"url": "x"}},
                {"type": "input_image", "image_url": f"data:application/pdf;base64,{PDF}"},
                {"type": "input_file", "file_data": PDF, "filename": "a.pdf"},
                {"type": "input_file", "file_data": f"data:image/png;base64,{PNG}"},
                {"type": "input_file", "file_url": f"data:application/pdf;base64,{PDF}"},
                {"type": "input_file", "file_id": "f", "filename": None},
                {"type": "input_file", "file_id": "f", "filename": ""},
                {"type": "input_audio", "input_audio": {"data": WAV, "format": "flac"}},
                {"type": "input_text", "text": "x", "perdure": 1},
                {"type": "input_text", "text": "x", "prompt_cache_breakpoint": {"mode": "e"}},
            ],
            "x": 1,
        },
        {"type": "message", "role": "assistant", "content": [{"type": "input_text", "text": "x"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "x"}]},
    ],
}
