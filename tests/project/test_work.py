"""Sessions, journal and preamble of a project: made from turns, whoever recorded them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perdure
from perdure.bank import Bank
from perdure.core.turns import Round, Turn
from perdure.project.journal import split_page
from perdure.project.preamble import PreambleLine, fitted
from perdure.project.project import Project
from perdure.project.project_location import ProjectLocation
from perdure.project.session_files import changes, with_changes
from perdure.project.turn_digest import digest_of, summary_of
from perdure.wire import decode
from tests.project.repositories import commit, git, new_repository
from tests.project.talks import call, conversation, prompt, reply, result
from tests.project.test_state import project_in


@pytest.fixture
async def bank(tmp_path: Path) -> AsyncIterator[Bank]:
    async with perdure.open(f"sqlite:///{tmp_path}/memory.db") as opened:
        yield opened


@pytest.fixture
def project(bank: Bank, tmp_path: Path) -> Project:
    return project_in(bank, new_repository(tmp_path / "demo"))


def session_file(project: Project) -> Path:
    (found,) = (project.location.files / "sessions").glob("*.json")
    return found


def page(project: Project) -> Path:
    (found,) = (project.location.files / "journal").glob("*.md")
    return found


def shown(project: Project) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(session_file(project).read_text())
    return found


def everything(project: Project) -> str:
    """All that the project's files say, also those beside its settings."""
    folders = (project.location.files, project.location.folder)
    paths = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    return "\n".join(path.read_text() for path in paths)


async def test_a_turn_leaves_what_it_did_in_session_journal_and_preamble(
    bank: Bank, project: Project
) -> None:
    root = project.location.root
    session = await conversation(bank, root)
    await session.append(
        [
            prompt("Rotate the signing keys. We decided to keep the old ones until Friday."),
            call("a", "TodoWrite", todos=[
                {"content": "rotate", "status": "completed"},
                {"content": "write the docs", "status": "pending"},
            ]),
            result("a"),
            call("b", "Bash", command="make test"),
            result("b", "Exit code 2\nFAILED keys", failed=True),
            call("c", "Edit", file_path=f"{root}/src/keys.py", old_string="a", new_string="b"),
            result("c"),
            call("d", "Bash", command="git push -f"),
            result("d", "The user doesn't want to proceed with this tool use.", failed=True),
            reply("The keys are rotated. Next step: tell the team. Shall I deploy?"),
        ]
    )  # fmt: skip
    head = git(root, "rev-parse", "HEAD")
    report = await project.refresh()
    assert (report.turns, report.sessions, report.remarks) == (1, (session.name,), ())
    data = shown(project)
    turn = data["turns"]["T-1"]
    assert turn["files"] == ["src/keys.py"]
    assert turn["commands"] == [{"command": "make test", "exit": 2}]
    assert turn["approvals"] == [{"what": "Bash: git push -f", "granted": False}]
    assert turn["at"] == {"branch": "main", "commit": head}
    assert data["open_subtasks"] == {"todo 2": {"state": "open", "text": "write the docs"}}
    assert session_file(project).name.endswith("Z_main.json")
    text = page(project).read_text()
    for words in ("keep the old ones until Friday", "Failed (2): `make test`", "Shall I deploy?"):
        assert words in text
    told = await project.preamble.text()
    for words in ("write the docs", "Shall I deploy?", "Last session: claude-code on `main`"):
        assert words in told
    assert git(root, "status", "--porcelain") == ""
    anchor = await project.work.anchor_of(session.name, "T-1")
    assert anchor is not None
    assert (anchor.commit, anchor.branch) == (head, "main")


async def test_refresh_reads_only_what_is_new_and_an_open_turn_again(
    bank: Bank, project: Project
) -> None:
    session = await conversation(bank, project.location.root)
    await session.append([prompt("one"), reply("first")])
    await session.append([prompt("two"), call("a", "Bash", command="sleep 9")])
    assert (await project.refresh()).turns == 2
    assert (await project.refresh()).turns == 0
    assert shown(project)["pending_approvals"] == ["Bash: sleep 9"]
    assert "T-2" not in split_page(page(project).read_text())  # it may go on
    before = page(project).read_text()
    await session.append([result("a"), reply("second")])
    await project.refresh()
    assert shown(project)["pending_approvals"] == []
    after = page(project).read_text()
    assert after.startswith(before)
    assert list(split_page(after)) == ["", "T-1", "T-2"]
    await session.append([prompt("three"), reply("third")])
    await project.refresh()
    assert page(project).read_text().startswith(after)
    assert list(shown(project)["turns"]) == ["T-1", "T-2", "T-3"]


async def test_commits_of_a_turn_are_found_and_anchors_follow_the_time(
    bank: Bank, project: Project
) -> None:
    root = project.location.root
    session = await conversation(bank, root)
    await session.append([prompt("Commit it."), call("a", "Bash", command="git commit -qm work")])
    made = commit(root, "work")
    await session.append([result("a", ""), reply("Done.")])
    await project.refresh()
    turn = await project.work.turn(session.name, 1)
    assert turn is not None
    assert turn.commits[-1].id == made  # the second may be that of the first commit, too
    assert turn.anchor.commit == made
    assert f"Commit `{made[:10]}` work" in page(project).read_text()


async def test_hand_edits_of_session_and_journal_stay(bank: Bank, project: Project) -> None:
    session = await conversation(bank, project.location.root)
    for number in (1, 2, 3):
        await session.append([prompt(f"prompt {number}"), reply(f"reply {number}")])
    await project.refresh()
    data = shown(project)
    data["turns"]["T-1"]["summary"] = "What I say it was."
    data["scratchpad"]["mine"] = {"text": "Ask Bob."}
    del data["turns"]["T-2"]
    session_file(project).write_text(json.dumps(data))
    text = page(project).read_text()
    parts = split_page(text)
    parts["T-1"] += "A remark of mine.\n"
    parts[""] = "# My title\n\n"
    del parts["T-2"]
    page(project).write_text("".join(parts.values()))
    await session.append([prompt("prompt 4"), reply("reply 4")])
    assert (await project.refresh()).remarks == ()
    after = shown(project)
    assert list(after["turns"]) == ["T-1", "T-3", "T-4"]
    assert after["turns"]["T-1"]["summary"] == "What I say it was."
    assert after["scratchpad"]["mine"] == {"text": "Ask Bob."}
    assert "Ask Bob." in await project.preamble.text()
    parts = split_page(page(project).read_text())
    assert list(parts) == ["", "T-1", "T-3", "T-4"]
    assert parts[""] == "# My title\n\n"
    assert "A remark of mine." in parts["T-1"]
    # All of it is in the bank: files that are gone come again.
    before = page(project).read_text(), session_file(project).read_text()
    page(project).unlink()
    session_file(project).unlink()
    await session.append([prompt("prompt 5"), reply("reply 5")])
    await project.refresh()
    assert page(project).read_text().startswith(before[0])
    assert "What I say it was." in session_file(project).read_text()


async def test_a_broken_session_file_is_kept_and_written_anew(bank: Bank, project: Project) -> None:
    session = await conversation(bank, project.location.root)
    await session.append([prompt("one"), reply("first")])
    await project.refresh()
    file = session_file(project)
    file.write_text('{"turns": ')
    await session.append([prompt("two"), reply("second")])
    (remark,) = (await project.refresh()).remarks
    (kept,) = file.parent.glob("*.kept-*")
    assert kept.name in remark
    assert kept.read_text() == '{"turns": '
    assert list(json.loads(file.read_text())["turns"]) == ["T-1", "T-2"]


async def test_notes_belong_to_the_conversation_that_goes_on(bank: Bank, project: Project) -> None:
    await project.work.note("Before anything.", by="ada")
    assert "- Before anything." in await project.preamble.text()
    session = await conversation(bank, project.location.root)
    await session.append([prompt("one"), reply("first")])
    await project.refresh()
    note = await project.work.note("Keys expire on Friday.", by="ada")
    assert note.session == session.name
    await project.write_files()
    assert [each["text"] for each in shown(project)["scratchpad"].values()] == [
        "Keys expire on Friday."
    ]
    pages = sorted((project.location.files / "journal").glob("*.md"))
    assert [path.name[11:] for path in pages] == ["claude-code-8ffd1234.md", "notes.md"]
    assert "Before anything." in pages[1].read_text()


async def test_the_session_of_this_branch_and_line_comes_first(
    bank: Bank, project: Project
) -> None:
    root = project.location.root
    one = await conversation(bank, root, id="one")
    await one.append([prompt("on main"), reply("first")])
    await project.refresh()
    git(root, "checkout", "-q", "-b", "feature")
    commit(root, "feature")
    two = await conversation(bank, root, "codex", id="two")
    await two.append([prompt("on feature"), reply("second")])
    await project.refresh()
    assert "on feature" in await project.preamble.text()
    git(root, "checkout", "-q", "main")
    assert "on main" in await project.preamble.text()
    commit(root, "later")
    told = await project.preamble.text()
    assert "on main" in told
    assert "on feature" not in told


async def test_each_part_works_alone(bank: Bank, tmp_path: Path) -> None:
    for number, parts in enumerate(({"state": False}, {"journal": False}, {}), 1):
        root = tmp_path / f"bare{number}"
        off = {"state": True, "journal": True} | parts
        project = project_in(bank, root, **off)
        session = await conversation(bank, root, id=f"c{number}")
        await session.append([prompt("one"), reply("first")])
        report = await project.refresh()
        assert report.remarks == ()
        files = {path.name for path in project.location.files.iterdir()}
        assert ("project_state.json" in files) == off["state"]
        assert ("journal" in files) == off["journal"]
        assert "first" in await project.preamble.text()
    assert not (tmp_path / "bare1" / ".perdure" / ".gitignore").exists()  # there is no git


async def test_forgotten_words_leave_the_bank_and_all_files(bank: Bank, project: Project) -> None:
    session = await conversation(bank, project.location.root)
    todo = [{"content": "paint the zebra", "status": "pending"}]
    await session.append(
        [prompt("The zebra is striped."), call("a", "TodoWrite", todos=todo), result("a"),
         reply("The zebra is noted. Is the zebra real?")]
    )  # fmt: skip
    await session.append([prompt("The lion roars."), reply("Noted.")])
    await project.refresh()
    page(project).write_text(page(project).read_text() + "A remark on lions.\n")
    assert "zebra" in everything(project)
    await bank.forget(session.name, turns=["T-1"])
    assert "zebra" not in everything(project)
    await project.refresh()
    assert "zebra" not in everything(project) + await project.preamble.text()
    assert "lion" in page(project).read_text()
    assert "A remark on lions." in page(project).read_text()
    assert list(shown(project)["turns"]) == ["T-2"]
    await bank.forget(session.name)
    await project.refresh()
    assert "lion" not in everything(project) + await project.preamble.text()
    assert await project.work.list() == []


async def test_undone_turns_leave_and_forks_repeat_nothing(bank: Bank, project: Project) -> None:
    session = await conversation(bank, project.location.root)
    for number in (1, 2, 3):
        await session.append([prompt(f"prompt {number}"), reply(f"reply {number}")])
    await project.refresh()
    await session.undo()
    fork = await session.fork(f"{session.agent}/forked", at="T-1")
    await fork.describe({"cwd": str(project.location.root)})
    await fork.append([prompt("another way"), reply("yes")])
    await project.refresh()
    assert [each.name for each in await project.work.turns(session.name)] == ["T-1", "T-2"]
    assert [each.name for each in await project.work.turns(fork.name)] == ["T-2"]


async def test_files_that_cannot_be_written_are_said_and_written_later(
    bank: Bank, project: Project
) -> None:
    session = await conversation(bank, project.location.root)
    await session.append([prompt("one"), reply("first")])
    project.location.files.write_text("a file in the way")
    (*_, remark) = (await project.refresh()).remarks
    assert "The bank has everything" in remark
    assert (await project.work.turn(session.name, 1)) is not None
    project.location.files.unlink()
    assert (await project.refresh()).remarks == ()
    assert "first" in page(project).read_text()


async def test_two_work_trees_keep_their_files_apart(bank: Bank, project: Project) -> None:
    root = project.location.root
    tree = root.parent / "tree"
    git(root, "worktree", "add", "-q", "-b", "feature", str(tree))
    made = commit(tree, "feature")
    other = Project(bank.services, ProjectLocation.find(tree))
    here = await conversation(bank, root, id="here")
    there = await conversation(bank, tree, id="there")
    await here.append([prompt("in the main tree"), reply("yes")])
    await there.append([prompt("in the other tree"), reply("yes")])
    await project.refresh()
    await other.refresh()
    assert "main tree" in page(project).read_text()
    assert "other tree" in page(other).read_text()
    anchor = await project.work.anchor_of(there.name, 1)
    assert anchor is not None
    assert (anchor.commit, anchor.branch) == (made, "feature")
    assert git(tree, "status", "--porcelain") == ""


async def test_a_prebuilt_preamble_goes_when_what_it_shows_changes(
    bank: Bank, project: Project
) -> None:
    file = project.location.folder / "preamble" / "main.json"
    await project.refresh()
    made = json.loads(file.read_text())
    assert (made["branch"], made["commit"]) == (
        "main",
        git(project.location.root, "rev-parse", "HEAD"),
    )
    await project.tasks.add("Tell the team")
    assert not file.exists()
    await project.write_files()
    assert "Tell the team" in json.loads(file.read_text())["text"]
    goal = await project.state.add("goal", "Deploy every day")
    await project.refresh()
    assert "Deploy every day" in json.loads(file.read_text())["text"]
    await project.state.edit(goal.id, status="done")
    await project.refresh()
    assert "Deploy every day" not in json.loads(file.read_text())["text"]


# Under fire -----------------------------------------------------------------------------------


KILLED = """
import asyncio, os, signal, sys
import perdure
from pathlib import Path
from perdure.project import projections, work_sessions
from perdure.project.project import Project
from perdure.project.project_location import ProjectLocation
from perdure.storage.store import Store

steps = int(sys.argv[3])
def counted(owner, name):
    real = getattr(owner, name)
    def step():
        global steps
        steps -= 1
        if steps < 0:
            os.kill(os.getpid(), signal.SIGKILL)
    if asyncio.iscoroutinefunction(real):
        async def stepped(*args, **more):
            step()
            done = await real(*args, **more)
            step()
            return done
    else:
        def stepped(*args, **more):
            step()
            done = real(*args, **more)
            step()
            return done
    setattr(owner, name, stepped)

counted(Store, "transact")
counted(projections, "write_atomically")

async def main():
    async with perdure.open(sys.argv[1]) as bank:
        await Project(bank.services, ProjectLocation.find(Path(sys.argv[2]))).refresh()
    print("done")

asyncio.run(main())
"""


@pytest.mark.slow
async def test_killed_between_any_two_steps_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/memory.db"
    steps, done = 0, False
    while not done:
        root = new_repository(tmp_path / f"demo{steps}")
        async with perdure.open(url) as bank:
            project = project_in(bank, root)
            session = await conversation(bank, root, id=f"c{steps}")
            for number in range(3):
                await session.append([prompt(f"prompt {number}"), reply(f"reply {number}")])
            await project.state.add("goal", f"goal {steps}")
        ran = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", KILLED, url, str(root), str(steps)],
            capture_output=True,
            text=True,
            check=False,
        )
        done = ran.stdout == "done\n"
        assert done or ran.returncode == -signal.SIGKILL, ran.stderr
        async with perdure.open(url) as bank:
            project = project_in(bank, root)
            assert (await project.refresh()).remarks == ()
            assert [each.turn for each in await project.work.turns(session.name)] == [1, 2, 3]
            assert list(split_page(page(project).read_text())) == ["", "T-1", "T-2", "T-3"]
            assert list(shown(project)["turns"]) == ["T-1", "T-2", "T-3"]
            assert f"goal {steps}" in (project.location.files / "project_state.json").read_text()
            assert not list(root.rglob("*.kept-*"))
        steps += 1
    assert steps > 8


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
async def test_a_read_only_folder_stops_nothing(bank: Bank, project: Project) -> None:
    session = await conversation(bank, project.location.root)
    await session.append([prompt("one"), reply("first")])
    project.location.root.chmod(0o555)
    try:
        assert "cannot be written" in (await project.refresh()).remarks[0]
    finally:
        project.location.root.chmod(0o755)
    assert (await project.work.turn(session.name, 1)) is not None


# Purely ---------------------------------------------------------------------------------------


def turn_of(*messages: dict[str, Any]) -> Turn:
    said = tuple(decode([*messages]))
    return Turn(
        session="x/y", number=1, rounds=(Round(1, said),), status="closed", started=0, ended=0
    )


def test_a_summary_tells_what_was_done_and_not_only_what_is_left() -> None:
    turn = turn_of(
        prompt("Which port?"), reply("Staging has port 8123 now. Next step: write it down.")
    )
    tiny = "User: Which port? Assistant: Next step: write it down."
    assert summary_of(turn, tiny) == (
        "User: Which port? Assistant: Staging has port 8123 now. Next step: write it down."
    )
    kept = "User: Which port? Assistant: Staging has port 8123."
    assert summary_of(turn, kept) == kept


def test_tools_of_codex_are_known() -> None:
    patch = "*** Begin Patch\n*** Update File: src/a.py\n@@\n-a\n+b\n*** End Patch"
    plan = [{"step": "one", "status": "completed"}, {"step": "two", "status": "in_progress"}]
    found = digest_of(
        turn_of(
            prompt("Go."),
            call("a", "apply_patch", input=patch),
            result("a"),
            call("b", "shell", command=["bash", "-lc", "git commit -m x"]),
            result("b", '{"output":"[main 1a2b3c4] x\\n","metadata":{"exit_code":0}}'),
            call("c", "update_plan", plan=plan),
            result("c"),
            call("d", "exec_command", cmd="false"),
            result("d", "Chunk ID: 1\nProcess exited with code 1\nOutput:\n"),
            call("e", "TaskCreate", subject="Tidy"),
            result("e", "Task #7 created successfully"),
            call("f", "TaskUpdate", taskId="7", status="completed"),
            result("f"),
            call("g", "mcp__perdure__task_claim", task="3"),
            result("g", '{"task": {"id": "tk_0123456789ab"}}'),
            reply("Done."),
        ),
        (),
    )
    assert found.files == ("src/a.py",)
    assert [(run.command, run.exit) for run in found.commands] == [
        ("git commit -m x", 0),
        ("false", 1),
    ]
    assert [(made.id, made.subject) for made in found.commits] == [("1a2b3c4", "x")]
    assert [(t.text, t.state) for t in found.todos] == [
        ("one", "done"),
        ("two", "active"),
        ("Tidy", "done"),
    ]
    assert found.tasks == ("tk_0123456789ab",)


_json = st.recursive(
    st.integers(0, 3) | st.text("ab", max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
_objects = st.dictionaries(st.sampled_from("abc"), _json, max_size=3)


@given(_objects, _objects)
def test_what_people_change_is_what_they_get(base: dict[str, Any], theirs: dict[str, Any]) -> None:
    before = json.dumps(base)
    assert with_changes(json.loads(before), changes(base, theirs)) == theirs
    assert json.dumps(base) == before


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.text("word é\n", max_size=80), st.integers(0, 4))
    ),
    st.integers(0, 300),
)
def test_a_preamble_never_exceeds_its_budget(
    lines: list[tuple[str, str, int]], budget: int
) -> None:
    from perdure.core.tokens import o200k

    count = o200k().count
    items = [PreambleLine(*each) for each in lines]
    text = fitted("# Title", items, budget, count)
    assert count(text) <= budget
    assert all(f"- {each.text}\n" in fitted("# Title", items, 10**6, count) for each in items)
