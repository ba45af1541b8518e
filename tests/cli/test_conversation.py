"""What a terminal shows of a conversation."""

from __future__ import annotations

import re
from contextlib import redirect_stdout

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from perdure.cli import readable, terminal
from perdure.cli.conversation_page import FULL, PAGE, TURN, ConversationPage, PageDetail
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
    event,
    user,
)
from perdure.core.turns import Round, Status, Turn
from tests.cli.conftest import MINUTE, THEN, Tty

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(autouse=True)
def zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readable, "absolute_time", lambda _: "2026-02-12 16:02")


def turn_of(*rounds: tuple[Message, ...], status: Status = "closed", **facts: object) -> Turn:
    return Turn(
        session="planner/auth",
        number=12,
        rounds=tuple(Round(n, said, 617) for n, said in enumerate(rounds, start=1)),
        status=status,
        started=THEN,
        ended=THEN,
        **facts,  # type: ignore[arg-type]
    )


def shown(screen: Tty, turn: Turn, detail: PageDetail = PAGE, folder: str = "") -> str:
    """What a terminal shows, without colours."""
    screen.seek(0)
    screen.truncate()
    with redirect_stdout(screen):
        ConversationPage(detail, THEN + 5 * MINUTE, folder).turn(turn)
    return _ESCAPE.sub("", screen.getvalue())


TALK = turn_of(
    (
        user("What did we decide about OAuth, and why was it that and not the other way around?"),
        Message(
            "assistant",
            (
                Reasoning("The user wants to know.\nLet me think.\nI know."),
                ToolCall("c1", "Bash", '{"command": "git log --oneline -- src/very/long/auth.py"}'),
                ToolCall("c2", "Read", '{"file_path": "/srv/app/src/a/deep/folder/of/auth.py"}'),
            ),
        ),
        Message(
            "tool",
            (
                ToolResult("c1", (Text("line\n" * 42),)),
                ToolResult("c2", (Text("File does not exist."),), is_error=True),
            ),
        ),
    ),
    (assistant("We decided:\n\n- to rotate refresh tokens, since that is what everybody does"),),
    tags={"topic": "auth"},
)


def test_a_turn_on_a_page(tty: Tty) -> None:
    assert shown(tty, TALK) == (
        "T-12  2026-02-12 16:02 (5 min ago)  topic=auth ─ 2 rounds · 1,234 tokens\n"
        "  » What did we decide about OAuth, and why was it that and\n"
        "    not the other way around?\n"
        "  ∴ The user wants to know. (+2 lines)\n"
        "  ▸ Bash  git log --oneline -- src/very/l… → 42 lines, 209 B\n"
        "  ▸ Read  …a/deep/folder/of/auth.py → failed: File does not…\n"
        "  • We decided:\n"
        "\n"
        "    - to rotate refresh tokens, since that is what everybody\n"
        "      does\n"
        "\n"
    )


def test_the_heading_fills_the_line(tty: Tty) -> None:
    first = shown(tty, turn_of((user("x"),))).splitlines()[0]
    assert first == "T-12  2026-02-12 16:02 (5 min ago) ────────────── 617 tokens"
    assert cell_len(first) == 60


def test_colours_tell_who_speaks(tty: Tty) -> None:
    shown(tty, TALK)
    lines = tty.getvalue().splitlines()

    def line(words: str) -> str:
        return next(line for line in lines if words in line)

    assert "\x1b[1mT-12" in line("T-12")
    assert "\x1b[36m" in line("What did we")
    assert "\x1b[2;3m" in line("The user wants")
    assert "\x1b[35m" in line("Bash")
    assert "\x1b[32m" in line("42 lines")
    assert "\x1b[31m" in line("failed")
    assert "\x1b" not in line("rotate")


def test_no_colours_if_they_are_unwanted(tty: Tty, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    shown(tty, TALK)
    assert not re.search(r"\x1b\[[\d;]*3\dm", tty.getvalue())


def test_files_are_named_from_where_the_agent_worked(tty: Tty) -> None:
    edit = ToolCall("c1", "Edit", '{"file_path": "/srv/app/src/auth.py"}')
    turn = turn_of((user("go"), Message("assistant", (edit,))))
    assert "▸ Edit  src/auth.py → no result" in shown(tty, turn, folder="/srv/app/")


def test_what_became_of_a_turn(tty: Tty) -> None:
    said = (user("hi"), Message("assistant", (Text("Once upon"),), partial=True))
    partial = shown(tty, turn_of(said, status="partial"))
    assert "partial" in partial.splitlines()[0]
    assert "(cut off)" in partial
    assert "Its answer was cut off: its writer is gone." in partial
    arriving = shown(tty, turn_of(said, status="partial", writer="alive"))
    assert "Its answer is still arriving." in arriving
    assert "cut off" not in arriving
    forgotten = shown(tty, turn_of((), status="forgotten"))
    assert "forgotten" in forgotten.splitlines()[0]
    assert "token" not in forgotten
    masked = shown(tty, turn_of(said, status="undone", masked={"aws-key": 2, "jwt": 1}))
    assert "undone  3 secrets masked" in masked.splitlines()[0]


def test_long_turns_are_shown_from_both_ends(tty: Tty) -> None:
    def work(number: int) -> tuple[Message, ...]:
        calls = [ToolCall(f"c{number}", "Bash" if number % 2 else "Read", "{}")]
        return (
            Message("assistant", (Text(f"step {number}"), *calls)),
            Message("tool", (ToolResult(f"c{number}", (Text("ok"),)),)),
        )

    turn = turn_of((user("go"), *work(1)), *(work(number) for number in range(2, 31)))
    page = shown(tty, turn)
    assert "  ⋯ 20 more rounds, from T-12.6 to .25: 10 Read, 10 Bash\n" in page
    steps = re.findall(r"step (\d+)", page)
    assert steps == ["1", "2", "3", "4", "5", "26", "27", "28", "29", "30"]
    assert len(re.findall(r"step \d+", shown(tty, turn, TURN))) == 30
    whole = turn_of((user("go"),), *(work(number) for number in range(10)))
    assert "more rounds" not in shown(tty, whole)


def test_words_too_long_for_a_line_are_not_torn_by_blanks(tty: Tty) -> None:
    word = "".join(f"{n:03}" for n in range(100))
    page = shown(tty, turn_of((user(f"- {word} end"),)))
    assert word in page.replace("\n      ", "")


@pytest.mark.parametrize(("lines", "more"), [(12, 0), (13, 0), (14, 2), (1_000, 988)])
def test_long_results_are_cut_and_counted(lines: int, more: int, tty: Tty) -> None:
    call = ToolCall("c", "Bash", "{}")
    result = ToolResult("c", (Text("\n".join(f"line {n}" for n in range(lines))),))
    said = (user("go"), Message("assistant", (call,)), Message("tool", (result,)))
    page = shown(tty, turn_of(said), TURN)
    assert page.count("line ") == (12 if more else lines)
    assert (f"      … {more} more lines\n" in page) == bool(more)
    assert shown(tty, turn_of(said), FULL).count("line ") == lines


def test_huge_content_is_shown_in_no_time(tty: Tty) -> None:
    said = (user("word " * 1_000_000), assistant("x " * 50 + "\nword" * 500_000))
    page = shown(tty, turn_of(said))
    assert len(page) < 3_000
    assert "    … 499,986 more lines\n" in page


def test_every_kind_of_part(tty: Tty) -> None:
    far = ArtifactPointer("sha256:" + "0" * 64, 4_200_000, head="It begins")
    turn = turn_of(
        (
            Message("system", (Text("Be brief.\nAlways."),)),
            event("compacted", "a summary"),
            event("aborted"),
            Message("user", (Text("a note"),), injected=True),
            Message("user", (Text("Look:"), Media("image/png", data=b"123"))),
            Message(
                "assistant",
                (
                    ToolCall("c1", "Write", reference=far),
                    ToolCall("c2", "silent", "{}"),
                    far,
                    Unknown("chat", {"refusal": "no"}),
                ),
            ),
            Message("tool", (ToolResult("c1", (far,)), ToolResult("c9", (Text("whose?"),)))),
        )
    )
    page = shown(tty, turn)
    for line in (
        "  ⋯ Be brief. (+1 line)",
        "  ◆ compacted: a summary",
        "  ◆ aborted",
        "  ⋯ a note",
        "  » Look:",
        "  » [image/png, 3 B]",
        "  ▸ Write  It begins → 4.2 MB",
        "  ▸ silent → no result",
        "  • It begins…",
        '  • {"refusal": "no"}',
        "  ▸ c9 → whose?",
    ):
        assert line in page.splitlines()
    assert "4.2 MB in the artifact store: sha256:0000" in page
    assert "Always." in shown(tty, turn, FULL)


def test_messages_as_they_come(tty: Tty) -> None:
    with redirect_stdout(tty):
        page = ConversationPage(PAGE, THEN)
        page.announce(12, THEN)
        for message in TALK.messages:
            page.message(message)
    lines = _ESCAPE.sub("", tty.getvalue()).splitlines()
    assert lines[1].startswith("T-12  2026-02-12 16:02 (just now) ──")
    assert "  ▸ Bash  git log --oneline -- src/very/long/auth.py" in lines
    assert "    → 42 lines, 209 B" in lines
    assert "    → failed: File does not exist." in lines


def test_on_a_terminal_that_knows_ascii_only(tty: Tty, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tty, "encoding", "ascii")
    page = shown(tty, TALK)
    assert page.isascii()
    assert "  + Bash  git log" in page


@pytest.mark.parametrize(
    "text",
    [
        "\x1b]0;owned\x07\x1b[2J",
        "back\b\b\b\bforth\rover",
        "\x9b31m and \x85 and \x7f",
        "\u202eesrever\u202c \u2066x\u2069",
        "nul \x00 bell \x07",
        "\ud800 half",
        "\x1b[31m" * 50,
    ],
)
@pytest.mark.parametrize("detail", [PAGE, TURN, FULL])
def test_nothing_that_was_said_steers_the_terminal(text: str, detail: PageDetail, tty: Tty) -> None:
    turn = turn_of(
        (
            user(text),
            Message("assistant", (Reasoning(text), Text(text), ToolCall("c1", text, text))),
            Message("tool", (ToolResult("c1", (Text(text),)), ToolResult(text, (), name=text))),
            event(text, text),
        ),
        tags={text: text},
    )
    seen = shown(tty, turn, detail, folder=text)
    assert all(char == "\n" or char.isprintable() for char in seen)


def test_blanks_and_emojis_stay_as_they_are() -> None:
    family = "👨\u200d👩\u200d👧 a\u00a0b\u3000c é"
    assert terminal.visible(family) == family
    assert terminal.lines("a\tb\r\nc\n") == ["a   b", "c", ""]


words = st.text("ab ./-_é漢👩\u200d`*#1\t", max_size=200)


@given(words, words, st.integers(20, 130))
def test_no_line_is_wider_than_the_terminal(first: str, second: str, width: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        patch.setenv("TERM", "xterm")
        turn = turn_of(
            (
                user(f"{first}\n{second}"),
                Message(
                    "assistant", (Reasoning(second), Text(first), ToolCall("c", "Bash", first))
                ),
                Message("tool", (ToolResult("c", (Text(second),)),)),
            )
        )
        seen = shown(Tty(), turn, TURN)
    assert all(cell_len(line) <= max(width, 30) for line in seen.splitlines()[1:])
    said = re.sub(r"\s", "", seen)
    assert re.sub(r"\s", "", first.replace("\t", "")) in said
