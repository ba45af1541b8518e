"""Tool results are shortened by rules; errors, exit codes and everything else stay."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import wire
from perdure.config import PruneRule
from perdure.core.errors import InvalidInput
from perdure.core.messages import (
    ArtifactPointer,
    Media,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    assistant,
    encode,
    sound,
    user,
)
from perdure.core.tokens import o200k
from perdure.history.excerpt import unwrap
from perdure.history.pruning import DEFAULT_RULES, _Pruner, prune_tool_results

DATA = Path(__file__).parents[3] / "shared/data"

FILES = "".join(f"src/package/module_{number}.py\n" for number in range(42))
CODE = "".join(f"line {number}: some code that does something\n" for number in range(1, 301))
HASH = "sha256:" + "0" * 64
#: What most tests here allow for a view, so that a few lines show how it is made.
TOKENS = 500


def prune_result(
    result: ToolResult, call: ToolCall, rules: Any = None, pointer: Any = None
) -> ToolResult:
    return _Pruner(rules, pointer, TOKENS).result(result, call)


def prune(
    text: str, tool: str = "Bash", arguments: str = "{}", *rules: Any, is_error: bool = False
) -> str:
    """The view of one text, checked for what holds of every view."""
    result = ToolResult("c1", (Text(text),), is_error=is_error)
    call = ToolCall("c1", tool, arguments)
    view = prune_result(result, call, rules, pointer=lambda _: "T-12.3")
    assert len(view.text) <= len(text)
    assert prune_result(view, call, rules, pointer=lambda _: "T-12.3") == view
    assert msgspec.structs.replace(view, content=result.content) == result
    return view.text


# --- the defaults -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tool",
    [
        *("ls", "LS", "list_files", "Glob", "find", "tree", "list_directory", "list_dir"),
        *("mcp__filesystem__list_directory", "functions.list_files", "glob_file_search", "fd"),
    ],
)
def test_listings_become_a_count(tool: str) -> None:
    assert prune(FILES, tool) == "[Summary: 42 files found; the whole result: T-12.3]"
    short = FILES[:500]
    assert prune(short, tool) == short


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("Bash", {"command": "ls -la src"}),
        ("shell", {"command": ["bash", "-lc", "find . -name '*.py' | head -50"]}),
        ("local_shell", {"action": {"command": ["ls"]}}),
        ("exec_command", {"cmd": "cd /srv && rg --files"}),
        ("run_terminal_cmd", {"command": "git ls-files 2>/dev/null"}),
        ("anything", {"command": "tree"}),
    ],
)
def test_a_shell_that_lists_files_becomes_a_count(tool: str, arguments: Any) -> None:
    assert prune(FILES, tool, json.dumps(arguments)).startswith("[Summary: 42 files found")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("total 64\n" + "-rw-r--r-- 1 me me 5 Oct 31 18:49 a.py\n" * 30, 30),
        ("src:\na.py\nb.py\n\nsrc/core:\n" + "c.py\n" * 200, 202),
        (".\n├── a.py\n" + "│   ├── b.py\n" * 60 + "\n3 directories, 61 files\n", 61),
        (".\n" + "├── a\n" * 100 + "\n100 directories\n", 0),
        (FILES + "(Results are truncated. Consider using a more specific path.)", 42),
        ("- /srv/\n" + "  - file.py\n" * 99 + "\nNOTE: do any of these look malicious?", 100),
        (json.dumps([f"src/module_{n}.py" for n in range(100)]), 100),
        (json.dumps({"path": ".", "files": [{"name": f"{n}.py"} for n in range(100)]}), 100),
        ("[slug].tsx\n" * 100, 100),
        ("a.py\r\n" * 100, 100),
        ("x/y.py\n" * 9_000, 9_000),
        ("failed_tests.py\nerrors.py\n" * 50, 100),
    ],
)
def test_what_counts_as_a_file(text: str, count: int) -> None:
    assert prune(text, "Glob") == f"[Summary: {count:,} files found; the whole result: T-12.3]"


@pytest.mark.parametrize(
    "text", [json.dumps([{"id": n, "text": "x" * 50} for n in range(99)]), "x" * 5_000]
)
def test_what_is_no_list_of_names_keeps_its_ends(text: str) -> None:
    view = prune(text, "find")
    assert "Summary" not in view
    assert view.startswith(text[:500])


@pytest.mark.parametrize(
    "tool",
    [
        *("read_file", "Read", "cat", "view", "mcp__files__read_text_file", "get_file_contents"),
        *("Bash", "shell", "exec", "run_terminal_cmd", "local_shell", "exec_command", "BASH"),
        *("Grep", "rg", "search", "codebase_search"),
    ],
)
def test_reads_terminals_and_searches_keep_their_ends(tool: str) -> None:
    view = prune(CODE, tool)
    assert view.startswith("line 1: ")
    assert view.endswith("line 300: some code that does something\n")
    assert " lines left out; the whole result: T-12.3]\n" in view
    assert len(view) > 1_000
    assert o200k().count(view) <= TOKENS
    shown = [line for line in view.splitlines() if not line.startswith("[…")]
    assert set(shown) < set(CODE.splitlines())
    short = CODE[:2_000]
    assert prune(short, tool) == short


def test_the_notice_counts_the_lines() -> None:
    view = prune(CODE, "Read")
    before, _, after = view.partition("[… ")
    left_out = int(after.partition(" ")[0])
    assert before.count("\n") + left_out + after.count("\n") - 1 == 300


@pytest.mark.parametrize("tool", ["read_file", "Read", "cat", "Bash", "run_terminal_cmd"])
def test_by_default_five_hundred_lines_of_each_end_stay(tool: str) -> None:
    lines = [f"line {number}\n" for number in range(1, 1_501)]
    messages = [Message("tool", (ToolResult("c1", (Text("".join(lines)),), name=tool),))]
    (message,) = prune_tool_results(messages, pointer=lambda _: "T-12.3")
    notice = "[… 500 lines left out; the whole result: T-12.3]\n"
    assert message.results[0].text == "".join([*lines[:500], notice, *lines[-500:]])
    whole = [Message("tool", (ToolResult("c1", (Text("".join(lines[:1_000])),), name=tool),))]
    assert list(prune_tool_results(whole)) == whole


@pytest.mark.parametrize("line", ["some words of code = 17;\n", "日本語の行です。\n"])
@pytest.mark.parametrize("tokens", [200, 2_000, 20_000])
def test_the_ends_stay_within_so_many_tokens(line: str, tokens: int) -> None:
    text = "".join(f"{number} {line}" * 20 for number in range(3_000))
    message = Message("tool", (ToolResult("c1", (Text(text),), name="read_file"),))
    (pruned,) = prune_tool_results([message], tokens=tokens)
    view = pruned.results[0].text
    assert 0.7 * tokens < o200k().count(view) <= tokens or view.count("\n") == 1_001
    assert view.startswith(text[:100])
    assert view.endswith(text[-100:])


@pytest.mark.parametrize("tool", ["Task", "mcp__db__find", "WebFetch", "", "lsof"])
def test_other_tools_have_a_larger_limit(tool: str) -> None:
    medium = CODE[:8_000]
    assert prune(medium, tool) == medium
    view = prune(CODE, tool)
    assert len(CODE) > 8_000
    assert view.startswith(CODE[:1_500])
    assert 3_500 < len(view) <= 4_000


def test_one_line_of_a_megabyte_is_cut_too() -> None:
    text = "".join(str(number) for number in range(200_000))
    view = prune(text, "Read")
    assert view.startswith(text[:400])
    assert view.endswith(text[-400:])
    assert "characters left out" in view
    assert o200k().count(view) <= TOKENS


def test_a_long_line_among_short_ones() -> None:
    view = prune(f"first\n{'x' * 100_000}\nlast\n", "Bash")
    assert view.startswith("first\nxxx")
    assert view.endswith("\nlast\n")
    assert o200k().count(view) <= TOKENS


def test_a_result_whose_call_is_unknown_goes_by_its_own_name() -> None:
    result = ToolResult("c9", (Text(FILES),), name="Glob")
    (message,) = prune_tool_results([Message("tool", (result,))])
    assert message.results[0].text == "[Summary: 42 files found; the whole result: call c9]"
    nameless = Message("tool", (ToolResult("c9", (Text(FILES),)),))
    assert prune_tool_results([nameless]) == (nameless,)


# --- errors and exit codes ----------------------------------------------------------------------

NOISE = "compiling something that takes a while and says so\n"
FAILURES = {
    "compiler": "src/main.c:17:3: error: expected ';' before '}' token\n",
    "python": "ValueError: invalid literal for int() with base 10: 'x'\n",
    "rust": "error[E0308]: mismatched types\n",
    "go": "--- FAIL: TestEverything (0.00s)\n",
    "npm": "npm ERR! code ELIFECYCLE\n",
    "pytest": "E   assert 1 == 2\n",
    "linker": "undefined reference to `main'\n",
    "git": "fatal: not a git repository\n",
    "shell": "bash: frobnicate: command not found\n",
    "files": "cat: x: No such file or directory\n",
}


@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.parametrize("keep", ["ends", "count", "none"])
def test_the_errors_of_an_error_stay(kind: str, keep: Any) -> None:
    text = NOISE * 200 + FAILURES[kind] + NOISE * 200
    rule = PruneRule("Bash", over=1_000, keep=keep)
    view = prune(text, "Bash", "{}", rule, is_error=True)
    assert FAILURES[kind] in view
    assert "lines left out but for these; the whole result: T-12.3]\n" in view
    assert view.startswith(NOISE)
    assert view.endswith(NOISE)
    assert o200k().count(view) <= TOKENS


@pytest.mark.parametrize(
    "ending",
    [
        "Exit code 1",
        "Process exited with code 2\n",
        "[The command completed with exit code 127.]\n",
        "Traceback (most recent call last):\n  File 'x'\nKeyError: 1\n",
        "make: *** [all] Error 2\nerror: build failed\n",
        "===== 3 failed, 7 passed in 1.2s =====\n",
        "fatal: bad object\n",
    ],
)
def test_an_output_that_ends_in_failure_is_an_error(ending: str) -> None:
    text = NOISE * 100 + FAILURES["compiler"] + NOISE * 100 + ending
    view = prune(text)
    assert FAILURES["compiler"] in view
    assert view.endswith(ending)


def test_an_output_that_ends_well_is_none() -> None:
    text = NOISE * 100 + FAILURES["compiler"] + NOISE * 100 + "===== 0 errors =====\n"
    assert FAILURES["compiler"] not in prune(text)
    assert prune(text).endswith("===== 0 errors =====\n")


def test_a_file_that_speaks_of_errors_is_none() -> None:
    text = NOISE * 100 + FAILURES["compiler"] + NOISE * 100 + "Exit code 1\nerror: no\n"
    assert FAILURES["compiler"] not in prune(text, "Read")
    assert FAILURES["compiler"] in prune(text, "Read", is_error=True)


@pytest.mark.parametrize("keep", ["ends", "count", "none"])
@pytest.mark.parametrize("code", [0, 1, -9])
@pytest.mark.parametrize(
    "form",
    [
        "Exit code {}\n{}",
        "Exit code: {}\nWall time: 0.3 seconds\nTotal output lines: 300\nOutput:\n{}",
        "Chunk ID: ab12\nWall time: 1 seconds\nProcess exited with code {}\nOutput:\n{}",
        "<exit_code>{}</exit_code>\n{}",
        "{1}exit status {0}",
        "{1}\n(exit code: {0})\n",
        "Command: ls\nOutput: {1}\nError: (none)\nExit Code: {0}\nSignal: (none)",
    ],
)
def test_the_exit_code_is_always_shown(keep: Any, code: int, form: str) -> None:
    text = form.format(code, FILES * 3)
    rule = PruneRule("Bash", over=100, keep=keep, head=0, tail=0, tokens=30)
    view = prune(text, "Bash", "{}", rule)
    assert len(view) < 700
    assert str(code) in view.replace("42", "").replace("126", "")
    line = next(line for line in text.splitlines() if str(code) in line and "xit" in line.lower())
    assert line in view


def test_the_first_and_last_of_many_errors_stay() -> None:
    text = "start\n" + "".join(f"error: number {n} of them\n" for n in range(5_000)) + "end\n"
    view = prune(text, is_error=True)
    assert "number 0 of" in view
    assert "number 4999 of" in view
    assert o200k().count(view) <= TOKENS


def test_harmless_lines_are_not_shown_as_errors() -> None:
    text = NOISE * 100 + "module a: 0 errors, 0 failures\n" + NOISE * 100
    assert "module a" not in prune(text, is_error=True)


def test_an_error_in_a_very_long_line_is_shown_with_its_surroundings() -> None:
    text = "x" * 50_000 + " TypeError: it is not a function " + "y" * 50_000
    view = prune(text, is_error=True)
    assert "TypeError: it is not a function" in view
    assert o200k().count(view) <= TOKENS


# --- JSON in a string ---------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1])
def test_codex_output_stays_json(code: int) -> None:
    metadata = {"exit_code": code, "duration_seconds": 0.25}
    lines = NOISE * 100 + FAILURES["rust"] + NOISE * 100
    text = json.dumps({"output": lines, "metadata": metadata})
    view = json.loads(prune(text, "shell"))
    assert view["metadata"] == metadata
    assert view["output"].startswith(NOISE)
    assert "left out" in view["output"]
    assert (FAILURES["rust"] in view["output"]) == bool(code)
    listed = json.dumps({"output": FILES, "metadata": metadata | {"exit_code": 0}})
    view = json.loads(prune(listed, "shell", '{"command": ["bash", "-lc", "ls"]}'))
    assert view["output"] == "[Summary: 42 files found; the whole result: T-12.3]"


def test_several_outputs_in_json() -> None:
    outcome = {"type": "exit", "exit_code": 2}
    text = json.dumps(
        [{"stdout": CODE, "stderr": "error: é 😀\n", "outcome": outcome}, {"stdout": "", "n": None}]
    )
    first, second = json.loads(prune(text, "shell"))
    assert first["outcome"] == outcome
    assert first["stderr"] == "error: é 😀\n"
    assert len(first["stdout"]) <= 2_000
    assert second == {"stdout": "", "n": None}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"output": "ok", "rows": ["x" * 100] * 100}),
        json.dumps({"output": [CODE]}),
        json.dumps({"output": CODE})[:-1] + ', "n": 1e999}',
        '{"output": "' + CODE + '"}',
        '{"output": ' * 5_000 + "}" * 5_000,
        '{"output": ' + "1" * 5_000 + "}",
        json.dumps([CODE, {"output": CODE}]),
    ],
)
def test_other_json_is_text(text: str) -> None:
    assert unwrap(text).texts == [text]
    assert o200k().count(prune(text, "shell")) <= TOKENS


def test_half_surrogates_in_json_do_not_survive() -> None:
    text = '{"output": "' + "\\ud83d x\\n" * 1_000 + '", "metadata": {"exit_code": 0}}'
    view = prune(text, "shell")
    view.encode()
    assert json.loads(view)["metadata"] == {"exit_code": 0}


# --- rules --------------------------------------------------------------------------------------


def test_rules_of_ones_own_come_first() -> None:
    keep_all = PruneRule("bash", keep="all")
    assert prune(CODE, "Bash", "{}", keep_all) == CODE
    assert prune(CODE, "Bash", '{"command": "ls"}', keep_all) == CODE
    assert "left out" in prune(CODE, "Read", "{}", keep_all)


def test_a_rule_can_name_the_program_that_a_shell_runs() -> None:
    rule = PruneRule("pytest", over=5_000, head=2, tail=3, tokens=800)
    view = prune(CODE, "Bash", '{"command": "A=1 pytest -q"}', rule)
    assert view.count("\n") == 6
    assert view.endswith(CODE[CODE.index("line 298") :])


def test_patterns_know_stars_and_several_names() -> None:
    rule = PruneRule(("mcp__*", "Web?etch"), over=10, keep="none")
    notice = "[… 300 lines left out; the whole result: T-12.3]"
    assert prune(CODE, "mcp__x__y", "{}", rule) == notice
    assert prune(CODE, "webfetch", "{}", rule) == notice
    assert prune(CODE, "Task", "{}", rule) != notice


def test_rules_in_code_choose_a_rule_or_words() -> None:
    def choose(result: ToolResult, call: ToolCall | None) -> PruneRule | str | None:
        if call is None or call.name != "query":
            return None
        return (
            f"{result.text.count('line')} rows" if "brief" in call.arguments else DEFAULT_RULES[2]
        )

    brief = prune(CODE, "query", '{"brief": true}', choose)
    assert brief == "300 rows\n[… 300 lines left out; the whole result: T-12.3]"
    assert len(prune(CODE, "query", "{}", choose)) < 2_000
    assert "left out" in prune(CODE, "Read", "{}", choose)
    failed = prune(CODE, "query", '{"brief": true}', choose, is_error=True)
    assert failed.startswith("line 1: ")


def test_words_of_a_rule_in_code_never_make_a_result_longer() -> None:
    assert prune("short", "x", "{}", lambda *_: "much longer than that") == "short"
    longest = prune(CODE * 10, "x", "{}", lambda *_: "y" * 50_000)
    assert len(longest) < 10_500


def test_rules_can_stand_in_configuration() -> None:
    table = {"tool": ["pytest", "tox*"], "over": 100, "keep": "ends", "head": 1, "tokens": 300}
    rule = msgspec.convert(table, PruneRule)
    assert rule == PruneRule(("pytest", "tox*"), over=100, head=1, tokens=300)
    for wrong in ({"tool": "x", "keep": "half"}, {"tool": "x", "over": -1}, {"tol": "x"}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, PruneRule)


@pytest.mark.parametrize("cap", [0, 1, 50, 100, 200])
def test_a_tiny_cap_leaves_the_notice(cap: int) -> None:
    view = prune(CODE, "Bash", "{}", PruneRule("*", tokens=cap))
    assert "lines left out; the whole result: T-12.3]" in view
    assert o200k().count(view) <= max(cap, 20)


# --- pointers -----------------------------------------------------------------------------------


def test_the_pointer_is_the_callers_or_the_artifact_or_the_call() -> None:
    result = ToolResult("c1", (Text(CODE),))
    call = ToolCall("c1", "Read")
    assert "whole result: call c1]" in prune_result(result, call).text
    assert "left out]" in prune_result(msgspec.structs.replace(result, call=""), call).text
    view = prune_result(result, call, pointer=lambda found: f"T-1\n{found.call} / {HASH}")
    assert f"the whole result: T-1 c1 / {HASH}]" in view.text
    kept = ToolResult("c1", (Text(CODE), ArtifactPointer(HASH, 10**6, head="x")))
    assert f"the whole result: {HASH}]" in prune_result(kept, call).text


def test_a_reference_stays_one_with_a_shorter_head() -> None:
    reference = ArtifactPointer(HASH, 10**6, filename="a.py", head=CODE)
    result = ToolResult("c1", (reference,))
    for tool in ("Read", "Glob"):
        (part,) = prune_result(result, ToolCall("c1", tool)).content
        assert isinstance(part, ArtifactPointer)
        assert msgspec.structs.replace(part, head=CODE) == reference
        assert f"left out; the whole result: {HASH}]" in part.head
        assert len(part.head) <= 2_000


# --- everything else stays ----------------------------------------------------------------------


def test_images_stay_and_texts_are_taken_as_one() -> None:
    image = Media("image/png", data=b"x" * 5_000)
    unknown = Unknown("messages", {"type": "search_result", "text": CODE})
    lines = [Text(f"row {number} of the table") for number in range(1_000)]
    result = ToolResult("c1", (image, *lines[:500], unknown, *lines[500:], image))
    view = prune_result(result, ToolCall("c1", "Read"))
    first, text, other, last = view.content
    assert (first, other, last) == (image, unknown, image)
    assert isinstance(text, Text)
    assert text.text.startswith("row 0 of the table\nrow 1 ")
    assert text.text.endswith("row 999 of the table")
    assert prune_result(view, ToolCall("c1", "Read")) is view


def test_only_tool_results_are_touched() -> None:
    messages = [
        user(CODE),
        Message(
            "assistant",
            (Reasoning(CODE, signature="s"), Text(CODE), ToolCall("c1", "Read", f'"{CODE}"')),
        ),
        Message("tool", (ToolResult("c1", (Text(CODE),)), Text(CODE))),
        assistant(CODE),
    ]
    pruned = prune_tool_results(messages, tokens=TOKENS)
    assert [new is old for new, old in zip(pruned, messages, strict=True)] == [1, 1, 0, 1]
    assert pruned[2].parts[1] is messages[2].parts[1]
    assert len(pruned[2].results[0].text) < 2_000


def test_what_is_short_is_given_back_as_it_is() -> None:
    messages = [user("x"), Message("tool", (ToolResult("c1", (Text("short"),)), ToolResult("c2")))]
    assert all(new is old for new, old in zip(prune_tool_results(messages), messages, strict=True))


# --- wire formats -------------------------------------------------------------------------------

CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "List them.", "name": "anna"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}},
            {"id": "c2", "type": "function", "function": {"name": "Read", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": FILES},
    {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": CODE}]},
    {"role": "assistant", "content": CODE, "odd": 1},
]
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "List them."},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": CODE, "signature": "s"},
            {"type": "tool_use", "id": "c1", "name": "ls", "input": {}},
            {"type": "tool_use", "id": "c2", "name": "Read", "input": {"path": "a.py"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": FILES},
            {
                "type": "tool_result",
                "tool_use_id": "c2",
                "content": [
                    {"type": "text", "text": CODE},
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="},
                    },
                ],
                "is_error": True,
                "cache_control": {"type": "ephemeral"},
            },
            {"type": "text", "text": CODE},
        ],
    },
]
RESPONSES: list[dict[str, Any]] = [
    {"role": "user", "content": "List them."},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x" * 5_000},
    {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": "{}", "id": "fc_1"},
    {
        "type": "local_shell_call",
        "call_id": "c2",
        "id": "ls_1",
        "status": "completed",
        "action": {"type": "exec", "command": ["ls", "-R"], "env": {}},
    },
    {"type": "function_call_output", "call_id": "c1", "output": FILES},
    {"type": "local_shell_call_output", "id": "c2", "output": FILES},
]
UI: list[dict[str, Any]] = [
    {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "List them."}]},
    {
        "id": "m2",
        "role": "assistant",
        "parts": [
            {"type": "step-start"},
            {
                "type": "tool-ls",
                "toolCallId": "c1",
                "state": "output-available",
                "input": {"path": "."},
                "output": FILES,
            },
            {"type": "step-start"},
            {"type": "text", "text": CODE},
        ],
    },
]

Places = Callable[[Any], Iterator[tuple[dict[str, Any], str]]]


def _results(items: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Where texts of tool results stand in wire items."""
    for item in items:
        if item.get("role") == "tool" and isinstance(item["content"], str):
            yield item, "content"
        elif item.get("role") == "tool":
            yield item["content"][0], "text"
        elif item.get("type", "").endswith("_output"):
            yield item, "output"
        for part in item.get("parts", ()):
            if "output" in part:
                yield part, "output"
        content = item.get("content")
        for block in content if isinstance(content, list) else ():
            if block["type"] == "tool_result" and isinstance(block["content"], str):
                yield block, "content"
            elif block["type"] == "tool_result":
                yield block["content"][0], "text"


@pytest.mark.parametrize(
    ("name", "items"),
    [("chat", CHAT), ("messages", MESSAGES), ("responses", RESPONSES), ("ui", UI)],
)
def test_wire_messages_come_back_in_their_format(name: str, items: list[dict[str, Any]]) -> None:
    given = deepcopy(items)
    pruned = prune_tool_results(given, pointer=lambda _: "T-12.3", tokens=TOKENS)
    assert given == items
    assert prune_tool_results(pruned, pointer=lambda _: "T-12.3", tokens=TOKENS) == pruned
    assert prune_tool_results(given, pointer=lambda _: "T-12.3", wire=name, tokens=TOKENS) == pruned

    views = list(_results(pruned))
    assert len(views) == len(list(_results(items))) > 0
    for (view, key), (old, _) in zip(views, _results(given), strict=True):
        assert len(view[key]) <= 2_000
        if old[key] == FILES:
            assert view[key] == "[Summary: 42 files found; the whole result: T-12.3]"
        view[key] = old[key]
    assert pruned == items  # but for the texts of results


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m", "messages": CHAT, "stream": True},
        {"model": "m", "system": "Be brief.", "messages": MESSAGES, "max_tokens": 9},
        {"model": "m", "instructions": "Be brief.", "input": RESPONSES},
        {"id": "chat", "messages": UI},
        MESSAGES[2],
        CHAT[4],
    ],
)
def test_bodies_and_single_messages_come_back_whole(body: dict[str, Any]) -> None:
    given = deepcopy(body)
    pruned = prune_tool_results(given)
    assert given == body
    assert pruned.keys() == body.keys()
    assert len(json.dumps(pruned)) < len(json.dumps(body))
    for key in body.keys() - {"messages", "input", "content"}:
        assert pruned[key] == body[key]


def test_wire_messages_without_long_results_are_the_very_same() -> None:
    short = [CHAT[1], {"role": "tool", "tool_call_id": "c1", "content": "ok"}]
    assert all(new is old for new, old in zip(prune_tool_results(short), short, strict=True))
    pruned = prune_tool_results(CHAT, tokens=TOKENS)
    assert [new is old for new, old in zip(pruned, CHAT, strict=True)] == [1, 1, 1, 0, 0, 1]


def test_what_holds_no_messages_is_refused() -> None:
    wrong: Any
    for wrong in ([17], {"colour": "red"}, [{"colour": "red"}]):
        with pytest.raises(InvalidInput):
            prune_tool_results(wrong)


# --- any results --------------------------------------------------------------------------------

_TOOLS = ["Bash", "Read", "Glob", "Grep", "shell", "mcp__x__y", ""]
_CRUMBS = [
    *(
        "a",
        "word ",
        "\n",
        "\r\n",
        "é",
        "e\u0301",
        "😀",
        "👨‍👩‍👧‍👦",
        "🇩🇪",
        "\u200d",
        "\0",
        "\t",
        "中",
    ),
    *("error: x\n", "Traceback (most recent call last):\n", "KeyError: 1\n", "0 errors\n"),
    *("Exit code 1\n", "exit status 0", "total 5\n", "[… 5 lines left out]\n", "[Summary: ", "{"),
    *('{"output": "', '", "metadata": {}}', "x" * 300, "\n" * 50, "- " * 100, "a/b.py\n" * 40),
]


@st.composite
def texts(draw: st.DrawFn) -> str:
    crumbs = draw(st.lists(st.sampled_from(_CRUMBS) | st.text(max_size=20), max_size=30))
    text = "".join(crumbs) * draw(st.integers(1, 40))
    form = draw(st.sampled_from(["plain", "plain", "codex", "header"]))
    if form == "codex":
        code = draw(st.integers(0, 2))
        return json.dumps({"output": text, "metadata": {"exit_code": code}}, ensure_ascii=False)
    return f"Exit code: 1\nOutput:\n{text}" if form == "header" else text


_rules = st.builds(
    PruneRule,
    tool=st.sampled_from(["*", "Bash", "glob", ("read", "mcp__*")]),
    over=st.integers(0, 3_000),
    keep=st.sampled_from(["count", "ends", "all", "none"]),
    head=st.integers(0, 50),
    tail=st.integers(0, 50),
    tokens=st.none() | st.integers(0, 2_000),
    errors=st.booleans(),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    messages = [user(draw(texts()))]
    for number in range(draw(st.integers(1, 4))):
        call = ToolCall(f"c{number}", draw(st.sampled_from(_TOOLS)), draw(texts())[:200])
        parts: list[Text | Media] = [Text(text) for text in draw(st.lists(texts(), max_size=3))]
        content = draw(st.permutations([*parts, Media("image/png", data=b"x")]))
        result = ToolResult(call.id, tuple(content), is_error=draw(st.booleans()))
        messages += [Message("assistant", (call,)), Message("tool", (result, Text("and this")))]
    return messages


@given(conversations(), st.lists(_rules, max_size=2))
def test_pruning_keeps_its_promises(messages: list[Message], rules: list[PruneRule]) -> None:
    before = encode(messages)
    pruned = prune_tool_results(messages, rules)
    assert encode(messages) == before
    assert pruned == prune_tool_results(messages, rules)
    assert prune_tool_results(pruned, rules) == pruned
    encode(pruned)  # no half surrogates

    for new, old in zip(pruned, messages, strict=True):
        assert msgspec.structs.replace(new, parts=old.parts) == old
        for part, was in zip(new.parts, old.parts, strict=True):
            if not isinstance(part, ToolResult):
                assert part is was
                continue
            assert isinstance(was, ToolResult)
            assert msgspec.structs.replace(part, content=was.content) == was
            assert len(part.text) <= len(was.text)
            assert len(part.text.encode()) <= len(was.text.encode())
            images = [inner for inner in was.content if isinstance(inner, Media)]
            assert [inner for inner in part.content if isinstance(inner, Media)] == images
            _check_json(was.text, part.text)


@given(conversations(), st.sampled_from(wire.WIRES))
def test_pruning_keeps_its_promises_on_every_wire(messages: list[Message], name: str) -> None:
    items = wire.codec(name).encode(messages)
    given = deepcopy(items)
    pruned = prune_tool_results(items, wire=name)
    assert items == given
    assert prune_tool_results(pruned, wire=name) == pruned
    assert len(json.dumps(pruned, ensure_ascii=False)) <= len(json.dumps(items, ensure_ascii=False))

    old, new = wire.decode(items, name), wire.decode(pruned, name)
    assert [m.role for m in new] == [m.role for m in old]
    assert [c for m in new for c in m.calls] == [c for m in old for c in m.calls]
    assert [r.call for m in new for r in m.results] == [r.call for m in old for r in m.results]
    assert [m.text for m in new] == [m.text for m in old]


def _check_json(before: str, after: str) -> None:
    """JSON with an output in it stays JSON and says the same besides."""
    try:
        old = json.loads(before)
    except ValueError:
        return
    if isinstance(old, dict) and isinstance(old.get("output"), str) and "metadata" in old:
        new = json.loads(after)
        assert new | {"output": ""} == old | {"output": ""}


@given(st.text(st.characters(), max_size=200), st.integers(1, 30), st.booleans())
def test_text_with_half_surrogates_is_not_made_worse(text: str, times: int, is_error: bool) -> None:
    long = text * times * 20
    view = prune(long, is_error=is_error)
    if sound(long) == long:
        assert sound(view) == view


@pytest.mark.parametrize(
    "unit", ["👨‍👩‍👧‍👦", "e\u0301", "\ud83d\ude00", "❤️", "👍🏽", "\r\n", "क्षि"]
)
def test_nothing_that_is_seen_as_one_character_is_split(unit: str) -> None:
    rule = PruneRule("*", head=9_999, tail=9_999)
    for shift in range(len(unit)):
        begin, _, end = prune("x" * shift + unit * 3_000, "Read", "{}", rule).partition("[… ")
        begin = begin.removesuffix("\n") if unit != "\r\n" else begin
        end = end.partition("]\n")[2]
        assert begin.count(unit) > 10
        assert end.count(unit) > 10
        assert begin == "x" * shift + unit * begin.count(unit)
        assert end == unit * end.count(unit)


# --- speed and real transcripts -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "is_error"), [("Read", False), ("Bash", False), ("Bash", True), ("Glob", False)]
)
def test_long_results_are_not_gone_through_line_by_line(tool: str, is_error: bool) -> None:
    """So 5 MB take some 25 ms."""
    line, call = "src/package/folder/module_name.py\n", ToolCall("c1", tool)
    long, longer = (ToolResult("c1", (Text(line * n),), is_error) for n in (15_000, 150_000))
    prune_result(long, call)  # what is made at the first need is there then
    done = _calls(lambda: prune_result(long, call))
    assert done < 1_000
    assert abs(_calls(lambda: prune_result(longer, call)) - done) < 10


def _calls(work: Callable[[], object]) -> int:
    """How many functions are called, of Python and of C."""
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.skipif(not DATA.exists(), reason="no transcripts beside the project")
def test_real_transcripts_shrink() -> None:
    before = after = results = 0
    for messages in (*_claude_code(), *_codex()):
        pruned = prune_tool_results(messages, tokens=TOKENS)
        assert prune_tool_results(pruned, tokens=TOKENS) == pruned
        for new, old in zip(pruned, messages, strict=True):
            for view, result in zip(new.results, old.results, strict=True):
                results += 1
                before += len(result.text)
                after += len(view.text)
                assert view.text == result.text or "the whole result: call " in view.text
                assert not result.is_error or "[Summary: " not in view.text
                _check_json(result.text, view.text)
    assert results > 800
    assert after < 0.4 * before
    print(f"{results} tool results: {before:,} characters, {after:,} left: {after / before:.1%}")


def _claude_code() -> Iterator[list[Message]]:
    for file in sorted(DATA.glob("claude_code/**/*.jsonl")):
        records = map(json.loads, file.read_text().splitlines())
        said = [record["message"] for record in records if record["type"] in ("user", "assistant")]
        yield list(wire.decode([{"role": m["role"], "content": m["content"]} for m in said]))


def _codex() -> Iterator[list[Message]]:
    for file in sorted(DATA.glob("codex/*.jsonl")):
        records = map(json.loads, file.read_text().splitlines())
        items = [record["payload"] for record in records if record["type"] == "response_item"]
        yield list(wire.decode(items, "responses"))
