"""What reading and writing Responses items must agree on."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from perdure.wire.plain import kind_of, role_of

WIRE = "responses"


class CallForm(NamedTuple):
    """How an item says a tool call."""

    key: str  # the field with the arguments
    name: str | None  # the tool's, where it is always the same; its arguments are an object then
    output: str  # the type of the item that answers it


CALLS = {
    "function_call": CallForm("arguments", None, "function_call_output"),
    "custom_tool_call": CallForm("input", None, "custom_tool_call_output"),
    "local_shell_call": CallForm("action", "local_shell", "local_shell_call_output"),
    "shell_call": CallForm("action", "shell", "shell_call_output"),
    "apply_patch_call": CallForm("operation", "apply_patch", "apply_patch_call_output"),
    "computer_call": CallForm("action", "computer", "computer_call_output"),
}

#: Which field of an output names the call.
OUTPUTS = {form.output: "call_id" for form in CALLS.values()} | {"local_shell_call_output": "id"}


def text_type(role: str) -> str:
    return "output_text" if role == "assistant" else "input_text"


def side_of(item: Any) -> Literal["assistant", "tool", "other", ""]:
    """Whose item it is: the model's, the tools', or another's; empty if it is no item."""
    if not isinstance(item, dict):
        return ""
    kind, role = kind_of(item), role_of(item)
    if kind == "message" or (role and "type" not in item):
        if role == "assistant":
            return "assistant"
        return "other" if role in {"user", "system", "developer"} else ""
    if kind:
        return "tool" if kind.endswith(("_output", "_response")) else "assistant"
    # A reference to an item that the provider keeps.
    return "assistant" if isinstance(item.get("id"), str) and "role" not in item else ""
