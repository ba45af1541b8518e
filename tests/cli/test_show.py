from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import perdure
from perdure.cli import readable
from perdure.core.messages import assistant, user
from tests.cli.conftest import MINUTE, THEN, Ask, Run


def numbers(found: dict[str, Any]) -> list[int]:
    return [turn["number"] for turn in found["turns"]]


def test_pages(ask: Ask, chat: str) -> None:
    code, newest = ask("show", "planner/auth")
    assert code == 0
    assert (newest["session"], newest["page"], newest["older"]) == ("planner/auth", 1, True)
    assert numbers(newest) == [*range(5, 24), 25]
    _, oldest = ask("show", "planner/auth", "--page", "2")
    assert (numbers(oldest), oldest["older"]) == ([1, 2, 3, 4], False)
    _, small = ask("show", "planner/auth", "--page", "3", "--size", "2")
    assert (numbers(small), small["older"]) == ([19, 20], True)
    _, undone = ask("show", "planner/auth", "--undone", "--size", "3", "--page", "2")
    assert numbers(undone) == [20, 21, 22]


def test_pages_of_a_fork(ask: Ask, chat: str) -> None:
    _, found = ask("show", "coder/auth", "--size", "3")
    assert numbers(found) == [9, 10, 11]
    assert found["turns"][-1]["session"] == "coder/auth"


def test_turns_by_tag_and_by_time(ask: Ask, chat: str) -> None:
    assert numbers(ask("show", "planner/auth", "--tag", "topic=tokens")[1]) == [2, 12, 22]
    _, page = ask("show", "planner/auth", "--tag", "topic=tokens", "--size", "1", "--page", "2")
    assert (numbers(page), page["older"]) == ([12], True)
    _, last = ask("show", "planner/auth", "--tag", "topic=tokens", "--size", "1", "--page", "3")
    assert (numbers(last), last["older"]) == ([2], False)
    assert ask("show", "planner/auth", "--tag", "topic=x")[1]["turns"] == []
    since = ["--since", "2026-02-12T16:17:00+00:00", "--until", "2026-02-12T16:20:00+00:00"]
    assert numbers(ask("show", "planner/auth", *since)[1]) == [15, 16, 17]
    assert numbers(ask("show", "planner/auth", "--since", "1h")[1]) == []


def test_a_partial_turn_says_whether_its_writer_lives(ask: Ask, run: Run, chat: str) -> None:
    seen = list[Any]()

    async def stream(url: str) -> None:
        async with perdure.open(url) as bank:
            session = await bank.session("planner/auth")
            await session.append(user("go on"))
            async with session.answer() as answer:
                await answer.text("It i")
                await answer.end_part()
                seen.append(await asyncio.to_thread(ask, "turn", "planner/auth", "T-26"))
                seen.append(await asyncio.to_thread(run, "turn", "planner/auth", "T-26"))
                raise ConnectionError

    with pytest.raises(ConnectionError):
        asyncio.run(stream(chat))
    (_, alive), page = seen
    assert (alive["status"], alive["writer"]) == ("partial", "alive")
    assert "Its answer is still arriving." in page.stdout
    _, gone = ask("turn", "planner/auth", "T-26")
    assert (gone["status"], gone["writer"]) == ("partial", "gone")
    assert "its writer is gone." in run("turn", "planner/auth", "T-26").stdout
    assert ask("turn", "planner/auth", "T-25")[1]["writer"] is None


def test_a_turn_as_json(ask: Ask, chat: str) -> None:
    code, found = ask("turn", "planner/auth", "T-3")
    assert code == 0
    assert (found["id"], found["session"], found["status"]) == ("T-3", "planner/auth", "closed")
    assert found["started"] == THEN + 3 * MINUTE
    assert found["tokens"] == sum(round["tokens"] for round in found["rounds"])
    assert [len(round["messages"]) for round in found["rounds"]] == [3, 1]
    assert found["rounds"][0]["messages"][0]["parts"][0] == {"kind": "text", "text": "prompt 3"}
    _, round = ask("turn", "planner/auth", "T-3.2")
    assert [each["number"] for each in round["rounds"]] == [2]
    for short in ("3", "t-3", "planner/auth#T-3"):
        assert ask("turn", "planner/auth", short)[1]["id"] == "T-3"


def test_a_page_for_people(run: Run, chat: str) -> None:
    shown = run("show", "planner/auth", "--size", "22", "--undone")
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert "\x1b" not in shown.stdout
    assert not any(line != line.rstrip() for line in lines)
    forgotten = next(line for line in lines if line.startswith("T-4  "))
    assert "forgotten" in forgotten
    assert "token" not in forgotten
    assert any(line.startswith("T-24  ") and "undone" in line for line in lines)
    assert any("topic=tokens" in line for line in lines if line.startswith("T-12"))
    assert "  » prompt 25" in lines
    assert "  • reply 25" in lines
    command = "perdure show planner/auth --size 22 --undone --page 2"
    assert lines[-1] == f"T-4 to T-25 of 25 · older: {command}"
    last = run("show", "planner/auth", "--page", "2").stdout.splitlines()
    assert last[-1] == "T-1 to T-4 of 25 · newer: perdure show planner/auth --page 1"
    middle = run("show", "planner/auth", "--tag", "topic=tokens", "--size", "1", "--page", "2")
    assert middle.stdout.splitlines()[-1] == (
        "T-12 of 25 · older: perdure show planner/auth --size 1 --tag topic=tokens --page 3"
        " · newer: --page 1"
    )


def test_tool_calls_are_folded(run: Run, chat: str) -> None:
    lines = run("show", "planner/auth", "--page", "2").stdout.splitlines()
    assert "  ∴ I should look. (+1 line)" in lines
    assert "  ▸ Bash  ls src → 80 lines, 789 B" in lines
    assert "  ▸ Read  absent.py → failed: There is no such file." in lines
    assert "    … 16 more lines" in lines


def test_a_turn_for_people(run: Run, chat: str) -> None:
    lines = run("turn", "planner/auth", "T-3").stdout.splitlines()
    assert lines[0].startswith("T-3  2026-02-12 ")
    assert lines[0].endswith(" tokens")
    assert "      command: ls src" in lines
    assert "    → file0.py" in lines
    assert "      … 68 more lines" in lines
    assert "    End." in lines
    full = run("turn", "planner/auth", "T-3", "--full").stdout.splitlines()
    assert "      file79.py" in full
    assert not any("more line" in line for line in full)
    pruned = run("turn", "planner/auth", "T-3", "--prune").stdout
    assert "[Summary: 80 files found; the whole result: T-3.1]" in pruned
    assert "There is no such file." in pruned
    assert "file79.py" not in pruned
    everything = run("show", "planner/auth", "--page", "2", "--full").stdout
    assert "      file79.py" in everything


def test_a_round_alone_says_which_it_is(run: Run, chat: str) -> None:
    assert run("turn", "planner/auth", "T-3.2").stdout.startswith("T-3.2  ")


def test_a_turn_at_a_level(run: Run, ask: Ask, chat: str) -> None:
    code, raw = ask("turn", "planner/auth", "T-3", "--level", "R")
    assert (code, list(raw)) == (0, ["id", "level", "text", "tokens"])
    _, compact = ask("turn", "planner/auth", "3", "--level", "c")
    assert (compact["id"], compact["level"]) == ("T-3", "C")
    assert 0 < compact["tokens"] < raw["tokens"]
    assert "prompt 3" in compact["text"]
    _, round = ask("turn", "planner/auth", "T-3.2", "--level", "smoothed")
    assert (round["id"], round["level"]) == ("T-3.2", "S")
    assert "prompt 3" not in round["text"]
    shown = run("turn", "planner/auth", "T-3", "--level", "C").stdout.splitlines()
    assert shown[0] == f"T-3-C: {compact['tokens']} tokens"
    assert shown[1:] == compact["text"].splitlines()


def test_tags_that_leaked_into_an_answer(run: Run, ask: Ask, chat: str) -> None:
    answer = "<T-25-R>\nYes, see <T-3-C> for that.\n</T-25-R>"
    with perdure.open_sync(chat) as bank:
        session = bank.session("planner/auth")
        session.append([user("What of <T-3-R>?"), assistant(answer)])
    for args in (["show", "planner/auth"], ["turn", "planner/auth", "26", "--full"]):
        shown = run(*args).stdout.splitlines()
        heading = next(line for line in shown if line.startswith("T-26  "))
        assert "  3 leaked tags hidden" in heading
        assert "  » What of <T-3-R>?" in shown
        assert "  • Yes, see for that." in shown
        assert not any("leaked" in line for line in shown if line is not heading)
    _, turn = ask("turn", "planner/auth", "T-26")
    assert turn["leaked"] == 3
    assert turn["rounds"][0]["messages"][1]["parts"] == [{"kind": "text", "text": answer}]
    _, page = ask("show", "planner/auth", "--size", "2")
    assert [turn["leaked"] for turn in page["turns"]] == [0, 3]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["show", "nobody"], "There is no session 'nobody'. `perdure sessions` lists"),
        (["show", "planner/auth", "--page", "9"], "planner/auth has no page 9."),
        (
            ["show", "planner/auth", "--tag", "topic"],
            "'topic' is no tag. Write it like topic=auth.",
        ),
        (["show", "planner/auth", "--since", "then"], "'then' is no time."),
        (["turn", "planner/auth", "T-99"], "planner/auth has no turn T-99. Its turns begin"),
        (["turn", "planner/auth", "T-3.9"], "T-3 of planner/auth has no round 9. It has 2."),
        (["turn", "planner/auth", "nine"], "'nine' does not name a turn. Write T-12"),
        (["turn", "planner/auth", "T-3", "--full", "--prune"], "in full or pruned"),
        (["turn", "planner/auth", "T-3", "--full", "--level", "C"], "Leave out --full, --prune"),
        (["turn", "planner/auth", "T-3", "--level", "X"], "'X' is no level. Write R (raw)"),
        (["turn", "planner/auth", "T-3.9", "--level", "C"], "T-3 has no round 9."),
        (["turn", "planner/auth", "T-4", "--level", "C"], "T-4 was taken back or forgotten."),
    ],
)
def test_what_is_not_there(args: list[str], words: str, run: Run, ask: Ask, chat: str) -> None:
    result = run(*args)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("perdure: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr
    code, answer = ask(*args)
    kind = (
        "NotFound" if words.startswith(("planner/auth has no turn", "T-3 of")) else "InvalidInput"
    )
    assert (code, answer["error"]["type"]) == (1, kind)


@pytest.mark.parametrize("args", [["--page", "0"], ["--size", "0"], ["--size", "many"]])
def test_wrong_usage(args: list[str], run: Run, chat: str) -> None:
    assert run("show", "planner/auth", *args).exit_code == 2


def test_a_session_without_turns(run: Run, ask: Ask, chat: str) -> None:
    with perdure.open_sync(chat) as bank:
        bank.session("planner/new")
    assert run("show", "planner/new").stdout == "planner/new has no turns yet.\n"
    assert run("show", "planner/old", "--tag", "a=b").stdout == "planner/old has no such turns.\n"
    assert ask("show", "planner/new")[1]["turns"] == []


def test_looking_does_not_change_the_bank(run: Run, chat: str) -> None:
    def rows() -> str:
        found = json.loads(run("bank", "info", "--json").stdout)
        return json.dumps(found["collections"])

    before = rows()
    for args in (["sessions"], ["show", "planner/auth"], ["turn", "planner/auth", "T-3"]):
        assert run(*args).exit_code == 0
    assert rows() == before


def test_times_in_words() -> None:
    def ago(seconds: int) -> str:
        return readable.relative_time(THEN, THEN + seconds * 1_000_000)

    assert [ago(n) for n in (0, 59, 60, 3_599)] == [
        "just now",
        "just now",
        "1 min ago",
        "59 min ago",
    ]
    assert [ago(n) for n in (3_600, 172_799, 172_800)] == ["1 h ago", "47 h ago", "2 d ago"]
    assert [ago(86_400 * n) for n in (59, 60, 400, 800)] == [
        *("59 d ago", "2 months ago", "13 months ago", "2 years ago")
    ]
    assert ago(-100) == "in the future"
