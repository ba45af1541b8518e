"""What an algorithm finds by itself."""

from __future__ import annotations

import json

import pytest

import perdure
from perdure.bank import Bank
from perdure.core.messages import Message, Text, ToolCall, ToolResult, assistant, user
from perdure.reflection.command_fixes import ToolUse, find_fixes, first_words


def use(command: str, output: str = "", *, failed: bool = False, turn: int = 1) -> ToolUse:
    return ToolUse(turn=turn, command=command, output=output, failed=failed)


def edit(path: str) -> ToolUse:
    return ToolUse(turn=1, edited=(path,))


def told(*uses: ToolUse) -> list[str]:
    return [fix.text for fix in find_fixes(uses)]


ERROR = "E   AssertionError: assert 1 == 2"


def test_what_was_changed_between_fixed_it() -> None:
    (fix,) = told(
        use("pytest -q tests", ERROR, failed=True), edit("src/a.py"), use("pytest -q tests", "ok")
    )
    assert "changing src/a.py fixed it" in fix
    assert "assert 1 == 2" in fix


def test_another_way_to_call_it_fixed_it() -> None:
    (fix,) = told(
        use("npm run biuld", "npm error Missing script: biuld", failed=True),
        use("npm run build", "done"),
    )
    assert fix.endswith("`npm run build` works.")


@pytest.mark.parametrize(
    "uses",
    [
        (use("grep -r foo src", "error: x", failed=True), use("grep -r foo lib", "a")),
        (use("pytest -q", ERROR, failed=True), use("pytest -q", "ok")),  # nothing was done
        (use("git push", "fatal: no", failed=True), use("git status", "clean")),
        (use("git push", "fatal: no", failed=True), use("git push -u", "ok", turn=2)),
        (use("make test", "Command timed out", failed=True), edit("a"), use("make test", "ok")),
        (
            use("make test", "error: x", failed=True),
            *(use(f"echo {n}", "x") for n in range(9)),
            use("make test V=1", "ok"),
        ),
    ],
    ids=["answers", "flaky", "another", "later", "interrupted", "far"],
)
def test_what_is_no_fix(uses: tuple[ToolUse, ...]) -> None:
    assert told(*uses) == []


def test_pytest_calls_broken_imports_an_interruption() -> None:
    output = "ImportError: no module named app\n!!! Interrupted: 1 error during collection !!!"
    found = told(use("pytest -q", output, failed=True), use("PYTHONPATH=. pytest -q", "ok"))
    assert len(found) == 1
    assert "`PYTHONPATH=. pytest -q` works" in found[0]


def test_the_first_words_are_those_of_the_program() -> None:
    assert first_words("cd src && FOO=1 pytest -q tests | tail -3") == "pytest tests"
    assert first_words("git -C x push") == "git x"
    assert first_words("rg foo") == ""


async def work(bank: Bank, name: str, *paths: str) -> None:
    session = await bank.session(name)
    said = [user("Please go on with the work.")]
    for number, path in enumerate(paths):
        given = json.dumps({"file_path": path, "old_string": "a", "new_string": "b"})
        said.append(Message("assistant", (ToolCall(f"{name}{number}", "Edit", given),)))
        said.append(Message("tool", (ToolResult(f"{name}{number}", (Text("edited"),)),)))
    await session.append([*said, assistant("Done.")])


async def test_hot_files_are_one_memory_that_is_kept_up() -> None:
    async with perdure.open("memory://") as bank:
        await work(bank, "coder/a", *["src/auth.py"] * 4, "src/once.py")
        await bank.reflect("coder")
        (memory,) = await bank.memories.list("coder")
        assert memory.text == "Most worked on: src/auth.py."
        assert memory.quotes[0].turn == "coder/a#T-1"
        await work(bank, "coder/b", *["src/billing.py"] * 5)
        (run,) = await bank.reflect("coder")
        assert run.counts.applied == {"update": 1}
        (after,) = await bank.memories.list("coder")
        assert after.text == "Most worked on: src/auth.py, src/billing.py."
        assert after.version == 2
        await bank.reflection.undo(run.name)
        assert await bank.memories.list("coder") == [memory]


async def test_a_file_of_calls_whose_results_were_not_kept_is_hot() -> None:
    async with perdure.open("memory://") as bank:
        given = json.dumps({"file_path": "src/auth.py", "old_string": "a", "new_string": "b"})
        session = await bank.session("coder/a")
        for number in range(4):  # the last is not over: its call may still be answered
            call = Message("assistant", (ToolCall(f"c{number}", "Edit", given),))
            await session.append([user("Mend it."), call, assistant("Done.")])
        await bank.reflect("coder")
        (memory,) = await bank.memories.list("coder")
        assert memory.text == "Most worked on: src/auth.py."


@pytest.mark.parametrize("sessions", [1, 3])
async def test_a_short_question_counts_in_the_very_same_words(sessions: int) -> None:
    async with perdure.open("memory://") as bank:
        for number in range(3):
            session = await bank.session(f"coder/{number % sessions}")
            for question in ("How do I run the tests?", f"Which tests are {number}?", "Why?"):
                await session.append([user(question), assistant("Like this.")])
        await bank.reflect("coder")
        (memory,) = await bank.memories.list("coder")
        assert memory.text == "Is asked again and again: “How do I run the tests?”"


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ("npm error Missing script: biuld\nexit code 1", 1),
        ("npm error Missing script: biuld\n[Process exited with code 2]", 1),
        ("npm error Missing script: biuld\nexit code 0", 0),
        ("npm error Missing script: biuld\nexit code 1 is explained in the manual", 0),
    ],
)
async def test_a_command_failed_if_its_output_ends_with_the_code(output: str, found: int) -> None:
    async with perdure.open("memory://") as bank:
        said = [user("Build it.")]
        for id, command, text in (("1", "npm run biuld", output), ("2", "npm run build", "built")):
            given = json.dumps({"command": command})
            said.append(Message("assistant", (ToolCall(id, "Bash", given),)))
            said.append(Message("tool", (ToolResult(id, (Text(text),)),)))
        await (await bank.session("coder/a")).append([*said, assistant("Done.")])
        await bank.reflect("coder")
        texts = [memory.text for memory in await bank.memories.list("coder")]
        assert len(texts) == found
        assert all("“npm error Missing script: biuld”" in text for text in texts)


async def test_function_words_are_no_topics() -> None:
    async with perdure.open("memory://") as bank:
        session = await bank.session("coder/a")
        for number in range(24):
            words = "look after billing until then" if number % 4 == 0 else f"go {number}"
            await session.append([user(words), assistant("I will.")])
        await bank.reflect("coder")
        titles = [message.title for message in await bank.inbox.list()]
        assert titles == ["Perhaps a topic: billing"]


async def test_a_question_that_is_asked_again_and_again() -> None:
    async with perdure.open("memory://") as bank:
        for number, question in enumerate(
            (
                "How do I run the migration tests locally?",
                "how do i run the migration tests locally??",
                "How do I run migration tests locally?",
                "What is a turn?",
            )
        ):
            session = await bank.session(f"coder/{number}")
            await session.append([user(question), assistant("Like this.")])
        await bank.reflect("coder")
        (memory,) = await bank.memories.list("coder")
        assert memory.kind == "pattern"
        assert "migration tests locally" in memory.text
        assert len(memory.provenance) == 3


async def test_what_it_only_suspects_is_a_candidate() -> None:
    async with perdure.open("memory://") as bank:
        session = await bank.session("coder/a")
        await session.append(
            [user("Fine. From now on, always write tests first. Thanks!"), assistant("I will.")]
        )
        (run,) = await bank.reflect("coder")
        assert run.counts.applied == {}
        assert run.mode == ""
        assert await bank.memories.list("coder") == []
        (message,) = await bank.inbox.list()
        assert message.kind == "candidate"
        assert message.operation is not None
        assert message.operation.text == "From now on, always write tests first."
