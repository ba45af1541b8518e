from __future__ import annotations

import asyncio
import json
from pathlib import Path

import perdure
from perdure.core.messages import Message, Text, ToolCall, ToolResult, assistant, user
from perdure.testing import BatchFaults, ScriptedModel
from tests.cli.conftest import Ask, Run


def make_bank(home: Path) -> str:
    """A bank in which a command failed, and was mended."""
    url = f"sqlite:///{home}/bank.db"

    def shell(id: str, command: str) -> Message:
        return Message("assistant", (ToolCall(id, "Bash", json.dumps({"command": command})),))

    def result(id: str, text: str, *, failed: bool = False) -> Message:
        return Message("tool", (ToolResult(id, (Text(text),), is_error=failed),))

    async def story() -> None:
        async with perdure.open(url) as bank:
            session = await bank.session("coder/work")
            await session.append(
                [
                    user("Please push it. From now on always push to a branch of its own."),
                    shell("1", "git push"),
                    result("1", "fatal: The current branch has no upstream branch.", failed=True),
                    shell("2", "git push --set-upstream origin mine"),
                    result("2", "branch set up to track origin"),
                    assistant("Pushed."),
                ]
            )

    asyncio.run(story())
    return url


def test_a_run_without_a_model_from_start_to_undo(home: Path, run: Run, ask: Ask) -> None:
    bank = ("--bank", make_bank(home))
    dry = run("reflect", "--dry-run", *bank)
    assert dry.exit_code == 0
    first, second = dry.stderr.splitlines()
    assert "no model is configured" in first
    assert second.startswith("  add: `git push` fails")
    assert ask("memory", "list", *bank)[1]["count"] == 0
    code, found = ask("reflect", "--agent", "coder", *bank)
    assert code == 0
    assert found["runs"][0]["run"] == "coder/R-1"
    (memory,) = ask("memory", "list", "coder", *bank)[1]["memories"]
    assert memory["kind"] == "lesson"
    assert "`git push --set-upstream origin mine` works" in memory["text"]
    assert ask("reflect", *bank)[1] == {"runs": []}
    (listed,) = ask("reflect", "list", *bank)[1]["runs"]
    assert (listed["state"], listed["counts"]["applied"]) == ("done", {"add": 1})
    shown = ask("reflect", "show", "coder/R-1", *bank)[1]
    assert shown["undoable"]
    assert [each["op"] for each in shown["operations"]] == ["add"]
    assert "git push" in run("reflect", "show", "coder/R-1", *bank).stdout
    (candidate,) = ask("inbox", *bank)[1]["messages"]
    assert candidate["kind"] == "candidate"
    assert "accept coder/I-1" in run("inbox", "show", "coder/I-1", *bank).stderr
    assert ask("inbox", "accept", "coder/I-1", *bank)[1]["status"] == "accepted"
    assert ask("memory", "list", "coder", *bank)[1]["count"] == 2
    undone = run("reflect", "undo", "coder/R-1", *bank)
    assert undone.exit_code == 0
    (left,) = ask("memory", "list", "coder", *bank)[1]["memories"]
    assert left["kind"] == "preference"  # a person accepted it
    code, error = ask("reflect", "undo", "coder/R-1", *bank)
    assert (code, "undone already" in error["error"]["message"]) == (1, True)


def test_what_there_is_not_is_said(home: Path, run: Run, ask: Ask) -> None:
    url = f"sqlite:///{home}/bank.db"

    async def say(text: str) -> None:
        async with perdure.open(url) as bank:
            session = await bank.session("coder/talk")
            await session.append([user(text), assistant("Yes.")])

    asyncio.run(say("Good morning."))
    bank = ("--bank", url)
    assert run("inbox", *bank).stdout == "There are no open messages.\n"
    assert run("reflect", "list", *bank).stdout.startswith("There are no runs yet.")
    assert run("reflect", *bank).stdout == "coder/R-1 is done; nothing changed.\n"
    assert "It has no operations." in run("reflect", "show", "coder/R-1", *bank).stdout
    assert "had changed nothing" in run("reflect", "undo", "coder/R-1", *bank).stdout
    asyncio.run(say("From now on always push to a branch of its own."))
    left = "no memory changed; 1 message in the inbox (`perdure inbox`)."
    assert left in run("reflect", *bank).stdout
    accepted = run("inbox", "accept", "coder/I-1", *bank)
    assert accepted.stdout.splitlines()[1] == "The memory is coder/M-1."
    for words in (
        ("reflect", "--agent", "codr"),
        ("reflect", "list", "--agent", "codr"),
        ("inbox", "list", "codr"),
        ("memory", "audit", "codr"),
    ):
        code, error = ask(*words, *bank)
        assert code == 1
        assert error["error"]["message"].startswith("There is no agent 'codr'.")


def test_only_kinds_and_states_that_there_are(home: Path, ask: Ask) -> None:
    bank = ("--bank", make_bank(home))
    for option, wrong, right in (("--kind", "propsal", "proposal"), ("--status", "done", "open")):
        code, error = ask("inbox", "list", option, wrong, *bank)
        assert code == 1
        assert error["error"]["message"].startswith(f"'{wrong}' is none of: ")
        assert right in error["error"]["message"]
        assert ask("inbox", "list", option, right, *bank) == (0, {"messages": []})
    assert ask("inbox", "list", "--status", "any", *bank) == (0, {"messages": []})


async def test_a_batch_is_announced_left_alone_and_given_up(home: Path, run: Run) -> None:
    url = await asyncio.to_thread(make_bank, home)
    model = ScriptedModel('{"operations": []}', batch_faults=BatchFaults(looks=10_000))
    async with model:
        config = home / "with-batch.toml"
        config.write_text(
            f'[gateway.providers.ours]\nbase_url = "{model.url}"\nwire = "messages"\n'
            "batch = true\n"
            '[gateway.models]\nreflect = "ours/any"\n',
            encoding="utf-8",
        )
        with_model = ("--bank", url, "--config", str(config))
        dry = await asyncio.to_thread(run, "reflect", "--dry-run", *with_model)
        assert "2 questions by batch, at half the price" in dry.stderr
        begun = await asyncio.to_thread(run, "reflect", *with_model)
        assert begun.stdout.startswith("coder/R-1 is extracting; it waits for answers;")
        again = await asyncio.to_thread(run, "reflect", *with_model)
        assert "at most" not in again.stderr  # it was told before; nothing more is asked
        alone = await asyncio.to_thread(run, "reflect", "--bank", url)
        assert "has a model for `reflect`" in alone.stdout
        undone = await asyncio.to_thread(run, "reflect", "undo", "coder/R-1", "--bank", url)
        assert undone.stdout == "coder/R-1 is given up: what it was to read stays new.\n"
        assert (
            "no model is configured"
            in (await asyncio.to_thread(run, "reflect", "--bank", url)).stderr
        )


def test_messages_are_dismissed_and_memories_audited(home: Path, run: Run, ask: Ask) -> None:
    bank = ("--bank", make_bank(home))
    run("reflect", *bank)
    assert ask("inbox", "dismiss", "coder/I-1", *bank)[1]["status"] == "dismissed"
    assert ask("inbox", "list", *bank)[1] == {"messages": []}
    code, error = ask("inbox", "accept", "coder/I-1", *bank)
    assert (code, "dismissed already" in error["error"]["message"]) == (1, True)
    for text in ("Deploys to staging run every night.", "Every night, deploys run to staging."):
        run("memory", "add", "coder", text, *bank)
    found = ask("memory", "audit", "coder", "--propose", *bank)[1]
    assert "duplicate" in {each["kind"] for each in found["findings"]}
    assert found["proposed"] == ["coder/I-2"]
    said = run("memory", "audit", "coder", *bank).stderr
    assert "Score of coder: 33 of 100 (it was 33); 3 memories" in said
    run("memory", "add", "writer", "Writes short sentences.", *bank)
    everyone = ask("memory", "audit", *bank)[1]["agents"]
    assert [(each["agent"], len(each["scores"])) for each in everyone] == [
        ("coder", 3),
        ("writer", 1),
    ]
