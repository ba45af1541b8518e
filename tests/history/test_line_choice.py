"""Of a long tool output, the lines that name most."""

from __future__ import annotations

from perdure.core.messages import Message, Text, ToolCall, ToolResult
from perdure.history.renditions import algorithm
from perdure.history.renditions.line_choice import telling_lines

FILE = "\n".join(
    f"{number:>6}→" + line
    for number, line in enumerate(
        [
            "import os",
            *(
                part
                for name in ("load_errors", "push_events", "compute_data", "breakpoint_map")
                for part in (
                    f"def {name}(socket, pane_id):",
                    *["    # and so on, and so forth, for a while"] * 6,
                    "    return None",
                    "",
                )
            ),
            "print('the end')",
        ]
    )
)


def test_each_name_is_told_once_and_the_ends_stay() -> None:
    found = telling_lines(FILE, 250)
    assert found is not None
    said = list(found.values())
    assert said[0] == "import os"
    assert said[-1] == "print('the end')"
    assert sum("def " in line for line in said) == 4
    assert list(found) == sorted(found)
    assert sum(len(line) + 1 for line in said) <= 250


def test_what_names_nothing_is_left_to_others() -> None:
    assert telling_lines("\n".join("a line of the log" for _ in range(200)), 900) is None
    assert telling_lines("def a_b(): pass\n" * 3, 400) is None


def test_smooth_and_compact_name_what_stands_in_the_middle_of_a_file() -> None:
    call = ToolCall(id="c", name="read_file", arguments='{"path": "lib/live.py"}')
    messages = (
        Message("user", (Text("Read it."),)),
        Message("assistant", (call,)),
        Message("tool", (ToolResult(call="c", content=(Text(FILE),)),)),
    )
    smooth, compact = algorithm.both(messages, "T-1.1")
    for name in ("load_errors", "compute_data", "breakpoint_map"):
        assert name in smooth
    assert "left out but for these; the whole result: T-1.1" in smooth
    assert "load_errors" in compact  # as much as there is room for
