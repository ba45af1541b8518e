"""Renditions without a model: S, C, T, and several in one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.messages import (
    Media,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    assistant,
    event,
    user,
)
from perdure.core.tokens import o200k
from perdure.history.renditions.algorithm import both, compact, merge, raw, smooth, tiny, truncate
from tests.growth import assert_linear
from tests.history.talk import note
from tests.history.test_renditions_words import words

counter = o200k()
count = counter.count

REPORT = """Great question! I fixed the login bug in `src/auth.py`.

The token refresh failed with `invalid_grant` because the clock of the server was 90 seconds behind.
We decided to use PKCE instead of the implicit flow, since OAuth 2.1 forbids it.
It is of course always nice to see that everything fits together in the way one would expect.
All 42 tests pass now, and the branch fix/login-clock is pushed.
There are many other things which could be said about this, but they would not add anything to it.
Generally speaking, things are in good order, and one can be happy with how all of this turned out.

Let me know if you would like me to do anything else!"""


def used(command: str, output: str, *, error: bool = False) -> tuple[Message, Message]:
    """A shell was called, and this came of it."""
    call = ToolCall("c1", "shell", json.dumps({"command": command}))
    return (
        Message("assistant", (call,)),
        Message("tool", (ToolResult("c1", (Text(output),), is_error=error),)),
    )


def test_raw_is_every_word_and_no_reasoning() -> None:
    round = (
        user("Fix it."),
        Message("assistant", (Reasoning("secret thoughts"), Text("Sure."))),
        *used("ls", "a.py\nb.py"),
        event("compacted", "an event"),
        Message("user", (Media("image/png", size=2_048, artifact="sha256:x", filename="a.png"),)),
    )
    assert raw(round) == (
        "User: Fix it.\nAssistant: Sure.\n"
        'tool shell {"command": "ls"}\n→ a.py\nb.py\n'
        "User: [image/png, 2.0 KB, a.png]"
    )


def test_smooth_keeps_words_and_shortens_tool_output() -> None:
    output = "\n".join(f"line {number} of the build log is here" for number in range(400))
    text = smooth((user("Pleas build teh thing!!!!"), *used("make all", output)), "T-12.3")
    assert text.startswith("User: Pleas build the thing!\ntool shell(make all) →\nline 0 of the")
    assert "the whole result: T-12.3]" in text
    assert text.endswith("line 399 of the build log is here")
    assert 0.25 < count(text) / count(output) < 0.4


def test_smooth_keeps_the_error_of_a_long_output() -> None:
    noise = "\n".join(f"compiling unit {number}" for number in range(300))
    output = f"{noise}\nsrc/a.c:12: error: 'x' undeclared\n{noise}\nmake: *** [all] Error 2"
    text = smooth(used("make", output, error=True), "T-1.1")
    assert "error: 'x' undeclared" in text
    assert "Error 2" in text


def test_smooth_takes_the_wrapping_off() -> None:
    output = json.dumps({"output": "2 failed\n", "metadata": {"exit_code": 1}})
    assert smooth(used("pytest", output), "T-1.1") == (
        "tool shell(pytest) → failed (exit code 1): 2 failed"
    )


def test_smooth_shortens_what_was_written_to_a_file() -> None:
    content = "\n".join(f"value_{number} = {number}" for number in range(200))
    call = ToolCall("c", "Write", json.dumps({"file_path": "src/a.py", "content": content}))
    text = smooth((Message("assistant", (call,)),), "T-5.2")
    assert text.startswith("tool Write(src/a.py) with\nvalue_0 = 0\n")
    assert "left out" in text
    assert "T-5.2" in text
    assert count(text) < 0.5 * count(content)


def test_compact_says_that_a_tool_was_called_and_what_happened() -> None:
    assert compact(used("pytest -q", "....F\n" * 50 + "3 failed, 12 passed in 1.2s"), "T-1.1") == (
        "shell `pytest -q` was called: 3 failed, 12 passed in 1.2s"
    )
    missing = compact(used("cat x", "cat: x: No such file or directory\n" * 9, error=True), "T-1.1")
    assert missing == "shell `cat x` was called: failed: cat: x: No such file or directory"


def test_compact_keeps_a_third_of_the_words_and_what_matters_in_them() -> None:
    text = compact((user("Why can nobody log in since Monday?"), assistant(REPORT)), "T-1.1")
    assert "User: Why can nobody log in since Monday?" in text
    for fact in ("src/auth.py", "invalid_grant", "PKCE", "42", "fix/login-clock"):
        assert fact in text
    assert "Let me know" not in text
    assert "Great question" not in text
    assert count(text) < 0.6 * count(REPORT)  # much of it binds


def test_harness_notes_events_and_announcements_are_nothing_in_compact() -> None:
    round = (
        note("<system-reminder>Remember the todo list.</system-reminder>"),
        event("compacted", "what was"),
        assistant("Let me look at the files now."),
        *used("ls", "a.py"),
    )
    assert compact(round, "T-1.1") == "shell `ls` was called: a.py"
    assert compact((note("only a reminder"),), "T-1.1") == ""


def test_what_is_too_short_to_shrink_stays() -> None:
    assert compact((user("yes please"), assistant("Done.")), "T-1.1") == (
        "User: yes please\nAssistant: Done."
    )


def test_tiny_says_who_wanted_what_and_what_came_of_it() -> None:
    rounds = [
        (user("Please find out why nobody can log in."), *used("cat log", "x\n" * 5_000)),
        (assistant(REPORT),),
    ]
    text = tiny(rounds, counter)
    assert text.startswith("User: ")
    assert "why nobody can log in" in text
    assert "Assistant: I fixed the login bug in `src/auth.py`." in text
    assert "shell" not in text
    assert count(text) <= 60


def test_a_turn_without_words_names_its_tools() -> None:
    assert tiny([used("ls", "a.py"), used("cat a.py", "1")], counter) == "Used shell."
    assert tiny([], counter) == ""


def test_a_call_that_is_repeated_is_told_each_time() -> None:
    call, answer = used("ls", "a.py")
    assert compact((call, answer, call), "T-1.1").count("shell `ls`") == 2


def test_results_without_a_call_and_calls_without_a_result_are_told() -> None:
    call, answer = used("ls", "a.py")
    assert smooth((call,), "T-1.1") == "tool shell(ls) → no result"
    assert smooth((answer,), "T-1.1") == "→ a.py"


def test_speakers_keep_their_names() -> None:
    said = Message("user", (Text("I moved to Lisbon."),), name="Caroline")
    assert smooth((said,), "T-1.1") == "User (Caroline): I moved to Lisbon."
    assert compact((said,), "T-1.1") == "Caroline: I moved to Lisbon."


@pytest.mark.parametrize(
    "text",
    [
        "Wir haben entschieden, `konfig.toml` nicht zu ändern, weil der Kunde die Datei pflegt.",
        "我们决定使用 PostgreSQL 16。SQLite 不够快。测试在 tests/test_db.py 里。",
        "نحن بحاجة إلى تغيير الملف config.yml قبل يوم الجمعة؟ نعم.",
    ],
)
def test_other_languages_are_not_harmed(text: str) -> None:
    assert smooth((user(text),), "T-1.1") == f"User: {text}"
    short = compact((user(text * 8),), "T-1.1")
    assert short.startswith("User: ")
    assert len(short) > 10


def test_merge_tells_the_whole_stretch_in_order() -> None:
    parts = [
        f"T-{number}: User: Change module number {number} please.\n"
        f"Assistant: Changed src/module_{number}.py, and {number} tests pass. It all went well."
        for number in range(1, 61)
    ]
    text = merge(parts, 600, counter)
    ids = [int(line[2:].partition(":")[0]) for line in text.split("\n") if line.startswith("T-")]
    assert count(text) <= 600
    assert ids == sorted(ids)
    assert len(ids) > 15
    assert ids[0] < 5
    assert ids[-1] > 55
    again = merge([text, "T-61: User: Stop."], 200, counter)
    assert count(again) <= 200
    assert again.startswith("T-")


def test_merge_keeps_all_where_there_is_room() -> None:
    assert merge(["T-1: User: a", "T-2: User: b"], 100, counter) == "T-1: User: a\nT-2: User: b"
    assert merge([], 100, counter) == ""


def test_truncate_cuts_between_words_and_says_so() -> None:
    text = "one two three four five six seven eight nine ten " * 50
    cut = truncate(text, 20, counter)
    assert cut.endswith("…")
    assert text.startswith(cut[:-1])
    assert 10 < count(cut) <= 20
    assert truncate("short", 20, counter) == "short"
    assert truncate("anything", 0, counter) == ""


PART = st.one_of(
    words.map(Text),
    st.builds(ToolCall, st.sampled_from("abc"), st.sampled_from(["shell", "Read", ""]), words),
    st.builds(
        ToolCall,
        st.sampled_from("abc"),
        st.just("Bash"),
        words.map(lambda w: json.dumps({"command": w})),
    ),
    st.builds(
        lambda id, text, times, error: ToolResult(id, (Text(text * times),), is_error=error),
        st.sampled_from("abcd"),
        words,
        st.sampled_from([1, 1, 30, 300]),
        st.booleans(),
    ),
    st.builds(Reasoning, words),
    st.just(Media("image/png", data=b"123")),
)
MESSAGE = st.builds(
    Message,
    st.sampled_from(["user", "assistant", "assistant", "tool", "system", "event"]),
    st.lists(PART, max_size=4).map(tuple),
    name=st.sampled_from(["", "", "Ann", "user"]),
    injected=st.booleans(),
)
ROUND = st.lists(MESSAGE, max_size=5).map(tuple)


@given(ROUND)
def test_no_rendition_is_larger_than_the_one_above_it(round: tuple[Message, ...]) -> None:
    s, c = both(round, "T-12.3")
    assert count(s) <= count(raw(round))
    assert count(c) <= count(s)
    assert (s, c) == (smooth(round, "T-12.3"), compact(round, "T-12.3"))
    (s + c).encode()  # no half surrogate pairs


@given(st.lists(ROUND, max_size=3))
def test_tiny_keeps_its_cap(rounds: list[tuple[Message, ...]]) -> None:
    text = tiny(rounds, counter)
    whole = sum(count(raw(round)) for round in rounds)
    assert count(text) <= max(40, whole * 0.05)
    assert count(text) <= sum(count(compact(round, "T-1.1")) for round in rounds) + 1
    text.encode()


@given(st.lists(words.map(lambda text: f"T-7: {text}") | words, max_size=12), st.integers(0, 300))
def test_merge_and_truncate_keep_their_cap(parts: list[str], cap: int) -> None:
    assert count(merge(parts, cap, counter)) <= cap
    assert count(truncate("\n".join(parts), cap, counter)) <= cap


@given(words, st.lists(st.sampled_from(["x  = 1 !!!! ", "teh", "", "====", "i am"]), min_size=1))
def test_code_blocks_are_byte_identical_in_smooth(before: str, lines: list[str]) -> None:
    before = before.replace("`", "").replace("~", "")
    code = "\n".join(("```py", *lines, "```"))
    assert code in smooth((user(f"{before}\n\n{code}\n\nand teh rest"),), "T-1.1")


def test_the_same_bytes_in_every_process() -> None:
    script = (
        "from tests.history.test_renditions import *\n"
        "r = (user('Why?'), assistant(REPORT), *used('make', 'x y error\\n' * 500))\n"
        "print(repr((both(r, 'T-1.1'), tiny([r], counter), merge([raw(r)] * 3, 90, counter))))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ".", "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]


MEGABYTE = 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece",
    [
        " ",
        "a",
        "\n",
        "`",
        "``` ",
        ". ",
        "Abc ",
        "a/",
        "你好。",
        "\0",
        "(",
        "1",
        ", but i ",
        "x y\n",
        "T-1: ",
        "A ",
        "WHY IS IT, ",
        "the the ",
        "we   was  , ",
        "'a “b ",
        "```\ndef f():\n",
    ],
)
def test_the_work_grows_with_the_text_and_no_faster(piece: str) -> None:
    def make(text: str) -> None:
        round = (user(text), *used("x", text, error=True))
        s, c = both(round, "T-1.1")
        tiny([round], counter)
        merge([text, c], 300, counter)
        assert len(s) <= len(raw(round)) + 100

    small = piece * (MEGABYTE // 256 // len(piece))
    assert_linear(make, small, small * 8)


def test_long_output_of_a_tool_is_cheap() -> None:
    small = "2026-01-01 INFO some line of a log that goes on and on\n" * (MEGABYTE // 440)
    assert_linear(lambda output: both(used("cat log", output), "T-1.1"), small, small * 8)


def test_notes_that_a_client_put_beside_a_prompt_are_not_the_prompt() -> None:
    note = "<system-reminder>\nRules: keep commits small. Never push to main.\n</system-reminder>"
    said = "Move the parser to src/parse.py. " * 12
    turn = [Message("user", (Text(note), Text(said))), assistant("Moved it. " * 12)]
    smoothed, compressed = both(turn, "T-1.1")
    assert smoothed.startswith("Note: ")
    assert "\nUser: Move the parser" in smoothed
    for text in (compressed, tiny([turn], o200k())):
        assert text.startswith("User: Move the parser")
        assert "commits" not in text
