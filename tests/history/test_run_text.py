"""Rounds of tool work at C, told together."""

from __future__ import annotations

import json

from perdure.core.messages import Message, Text, ToolCall, ToolResult
from perdure.core.tokens import o200k
from perdure.history.renditions.run_text import run_text

counter = o200k()


def call(number: int, tool: str, given: dict[str, str], came: str) -> tuple[Message, ...]:
    used = ToolCall(id=f"c{number}", name=tool, arguments=json.dumps(given))
    result = ToolResult(call=used.id, content=(Text(came),))
    return Message("assistant", (used,)), Message("tool", (result,))


CODE = "\n".join(
    [f"def load_part_{number}(pane_id):\n    return None" for number in range(30)]
    + ["# so it goes on and on, and nothing is named"] * 40
)
READ = call(1, "read", {"path": "lib/parts.py"}, CODE)
EDIT = call(2, "edit", {"path": "lib/live.py", "new": "def merge_panes(a):\n    pass"}, "Done.")
FAILED = call(3, "shell", {"command": "pytest -q"}, "E  KeyError: 'pane_7'\n1 failed in 0.1s")
PASSED = call(4, "shell", {"command": "pytest -q"}, "12 passed in 0.2s")


def test_it_fits_and_every_call_is_told() -> None:
    for cap in (60, 120, 300, 900):
        text = run_text([READ, EDIT, PASSED], cap, set(), counter)
        assert counter.count(text) <= cap
        for said in ("read `lib/parts.py`", "edit `lib/live.py`", "shell `pytest -q`: 12 passed"):
            assert said in text


def test_what_the_model_wrote_comes_before_what_it_read() -> None:
    wrote = "def merge_panes(first, second, third):\n    return first | second | third"
    edit = call(2, "edit", {"path": "lib/live.py", "new": wrote}, "Done.")
    text = run_text([READ, edit], 38, set(), counter)
    assert "def merge_panes(first, second, third):" in text
    assert text.index("lib/parts.py") < text.index("merge_panes")  # in the order of the calls


def test_room_goes_to_what_is_not_shown_elsewhere() -> None:
    shown = {f"load_part_{number}" for number in range(30) if number != 17}
    text = run_text([READ, EDIT], 90, shown, counter)
    assert "load_part_17" in text
    assert "load_part_3(" not in text


def test_with_room_for_few_calls_it_tells_what_was_asked_and_what_names_most() -> None:
    asked = (Message("user", (Text("Never drop the table `pane_state`. Mend the loader."),)),)
    calls = [call(n, "read", {"path": f"lib/part_{n}.py"}, CODE) for n in range(1, 40)]
    text = run_text([asked, *calls, EDIT], 90, set(), counter)
    assert counter.count(text) <= 90
    assert text.startswith("User: Never drop the table `pane_state`")
    assert text.count("read `lib/part_") > 5


def test_a_call_that_was_made_again_is_told_once_with_what_came_of_it_last() -> None:
    text = run_text([FAILED, EDIT, PASSED], 200, set(), counter)
    assert text.count("pytest -q") == 1
    assert "shell `pytest -q` ×2: 12 passed" in text
    assert text.index("lib/live.py") < text.index("pytest")


def test_a_line_that_says_something_comes_before_a_list_of_names() -> None:
    listed = ", ".join(f"part_{number}" for number in range(12))
    code = "\n".join([listed, *[f"part_{number} = load(pane_{number})" for number in range(12)]])
    text = run_text([call(1, "write", {"path": "a.py", "text": code}, "ok")], 90, set(), counter)
    assert "part_1 = load(pane_1)" in text
    assert listed not in text


def test_what_does_not_fit_is_cut_and_nothing_raises() -> None:
    asked = (Message("user", (Text("You must never delete the table of payments. " * 40),)),)
    broken = (Message("tool", (ToolResult(call="?", content=()),)),)
    for cap in (1, 10, 40):
        assert counter.count(run_text([asked, broken, READ], cap, set(), counter)) <= cap
    assert run_text([], 10, set(), counter) == ""
