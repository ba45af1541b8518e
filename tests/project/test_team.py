"""A small team: one test for each thing that it promises."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import perdure
from perdure.bank import Bank
from perdure.config import Config
from perdure.config.settings import GatewayConfig, ModelsConfig
from perdure.core.client_agents import agent_of_client
from perdure.core.errors import InvalidInput, NotFound
from perdure.core.messages import assistant, user
from perdure.project.team.team import Team
from perdure.project.team.team_decisions import (
    MOST_OPERATIONS,
    consolidate,
    read_operations,
    run_recap,
)
from perdure.project.team.team_executor import (
    WorkAnswer,
    WorkOrder,
    agent_worker,
    command_worker,
    stale_reason,
)
from perdure.project.team.team_records import RoleAnswer, TeamInputs, TeamRun
from perdure.reflection import lease as leases
from perdure.testing import ScriptedAnswer, ScriptedFault, ScriptedModel
from tests.project.test_tasks import located

Operations = list[dict[str, Any]]


def saying(**answers: Any) -> Callable[[Any], Any]:
    """A script: what each role, or the judge, answers. Who is not named has no operations."""

    def script(request: Any) -> Any:
        words = request.messages[0].text
        for role, said in answers.items():
            if f"You are the {role}" in words or (role == "judge" and "Two members" in words):
                return said if not isinstance(said, list) else json.dumps({"operations": said})
        return json.dumps({"operations": []})

    return script


@asynccontextmanager
async def team_of(
    folder: Path, script: Any = None, deadline: float = 30.0, purposes: str = "chat judge"
) -> AsyncIterator[tuple[Team, Bank]]:
    folder.mkdir(exist_ok=True)
    async with ScriptedModel(script or "nothing") as model:
        models = ModelsConfig(**dict.fromkeys(purposes.split(), "scripted/m"))
        gateway = GatewayConfig(
            providers={"scripted": model.provider_config("chat")}, models=models, retries=0
        )
        config = Config(gateway=gateway) if script is not None else Config()
        async with perdure.open(f"sqlite:///{folder}/memory.db", config=config) as bank:
            yield Team(bank.services, located(folder / "demo"), deadline=deadline), bank


async def test_the_supervisor_turns_intent_into_tasks(tmp_path: Path) -> None:
    asked = [
        {"op": "add", "ref": "a", "title": "Rotate keys", "priority": 1},
        {"op": "add", "title": "Deploy", "needs": ["a", "#1"]},
        {"op": "done", "task": "#2", "text": "the user said so"},
    ]
    async with team_of(tmp_path, saying(supervisor=asked)) as (team, _):
        await team.tasks.add("Write tests")
        await team.tasks.add("Old")
        run = await team.run("Rotate the keys, then deploy. Old is over.")
        assert [each.title for each in await team.tasks.ready()] == ["Rotate keys", "Write tests"]
        (deploy,) = await team.tasks.list("waiting")
        assert (deploy.title, deploy.waits, deploy.made_by) == ("Deploy", 2, "supervisor")
        assert (await team.tasks.get(2)).reason == "the user said so (supervisor)"
        assert (run.state, len(run.outcome.applied), run.tokens > 0) == ("done", 3, True)


async def test_the_planner_refreshes_the_roadmap(tmp_path: Path) -> None:
    asked = [
        {"op": "edit", "task": "#1", "priority": 0},
        {"op": "edit", "task": "#2", "needs": ["#1"]},
    ]
    async with team_of(tmp_path, saying(planner=asked)) as (team, _):
        await team.tasks.add("first")
        await team.tasks.add("second")
        await team.run("")
        assert [each.title for each in await team.tasks.ready()] == ["first"]
        assert (await team.tasks.get(1)).priority == 0


async def test_the_historian_learns_from_transcripts(tmp_path: Path) -> None:
    def script(request: Any) -> str:
        found: Operations = []
        if "You are the historian" in request.messages[0].text:
            assert "The port of staging is 8443" in request.prompt
            found = [{"op": "note", "task": "#1", "text": "Staging is on 8443 (dev/one#T-1)."}]
        return json.dumps({"operations": found})

    async with team_of(tmp_path, script) as (team, bank):
        session = await bank.session("dev/one")
        for _ in range(3):
            await session.append(
                [user("Remember: the port is 8443. Never use 80."), assistant("All right.")]
            )
        await session.append([user("The port of staging is 8443."), assistant("Noted.")])
        await team.tasks.add("Deploy")
        run = await team.run("", learn_from=["dev"])
        assert [each.by for each in (await team.tasks.get(1)).notes] == ["historian"]
        # Memories are reflection's work: its run is named, and nobody learns the same twice.
        assert run.learnt == ("dev/R-1",)
        assert (await team.run("", learn_from=["dev"])).learnt == ()


async def test_only_transcripts_of_this_project_are_read(tmp_path: Path) -> None:
    """Another folder of the same name is another project."""
    async with team_of(tmp_path, saying()) as (team, bank):
        root = team.tasks.location.root
        for folder, words in ((root, "ours"), (tmp_path / "elsewhere" / root.name, "theirs")):
            agent = agent_of_client("claude-code", str(folder), "")
            session = await bank.session(f"{agent}/one", state={"cwd": str(folder)})
            await session.append([user(f"It is {words}."), assistant("Noted.")])
        run = await team.run("")
        (shown,) = run.inputs.transcripts
        assert "It is ours." in shown


async def test_learning_that_fails_is_said_and_the_graph_goes_on(tmp_path: Path) -> None:
    async with team_of(tmp_path) as (team, bank):
        session = await bank.session("dev/one")
        await session.append([user("Never push to main."), assistant("Noted.")])
        async with leases.held(bank.store, "dev"):  # somebody else reflects
            run = await team.run("- Deploy", learn_from=["dev"])
        assert [each.title for each in await team.tasks.ready()] == ["Deploy"]
        assert (run.learnt, len(run.remarks)) == ((), 1)
        assert "- Learning from transcripts: " in run_recap(run)


_TEXTS = ("note", "done", "block")


async def test_what_a_run_took_from_forgotten_turns_goes(tmp_path: Path) -> None:
    noted = "Staging is in the cellar (dev/one#T-1)."
    asked = [{"op": op, "task": f"#{n}", "text": noted} for n, op in enumerate(_TEXTS, 1)]
    script = saying(historian=asked)
    async with team_of(tmp_path, script) as (team, bank):
        for name in ("dev/one", "dev/two"):
            session = await bank.session(name)
            await session.append([user(f"{name}: staging is in the cellar."), assistant("Noted.")])
        for title in ("Deploy", "Move", "Look"):
            await team.tasks.add(title)
        run = await team.run("Deploy", learn_from=["dev"])
        assert "cellar" in (await team.tasks.get(2)).reason
        await team.tasks.note(1, "A person's words.")
        await bank.forget("dev/one", turns=[1])
        (task, moved, looked), left = await team.tasks.all(), await team.get(run.name)
        assert (moved.state, moved.reason) == ("done", "")
        assert (looked.state, looked.blocked) == ("blocked", "(forgotten)")
        assert [each.text for each in task.notes] == ["A person's words."]
        assert [each.partition("\n")[0] for each in left.inputs.transcripts] == ["dev/two#T-1"]
        assert b"cellar" not in msgspec.json.encode((left.answers, left.outcome, left.stored))
        with pytest.raises(InvalidInput, match="forgotten"):
            await team.replay(run.name)
        assert (await team.undo(run.name)).state == "undone"
        assert (await team.tasks.get(1)).title == "Deploy"


async def test_the_executor_works_and_commits_are_evidence(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    for args in (["init", "-q"], ["config", "user.name", "a"], ["config", "user.email", "a@b"]):
        subprocess.run(["git", "-C", str(folder), *args], check=True)  # noqa: ASYNC221
    script = "cat > said; git add said; git commit -qm work; echo finished"
    async with team_of(tmp_path) as (team, _):
        worker = command_worker(["sh", "-c", script], folder)
        run = await team.run("Fix the login.", work=WorkOrder(worker, seconds=30, tasks=3))
        (result,) = run.work
        assert (result.ending, result.text, len(result.commits)) == ("done", "finished", 1)
        assert "Work on this task: Fix the login." in (folder / "said").read_text()
        task = await team.tasks.get(result.task)
        assert [each.value for each in task.evidence] == list(result.commits)
        assert (task.state, task.owner) == ("done", run.name)


async def test_an_agent_of_the_bank_can_be_the_executor(tmp_path: Path) -> None:
    def script(request: Any) -> str:
        return "I did it." if "Work on this task" in request.prompt else '{"operations": []}'

    async with team_of(tmp_path, script) as (team, bank):
        await team.tasks.add("Work")
        agent = await bank.agent("coder", prompt="You code.")
        check = (sys.executable, "-c", "")
        run = await team.run("", work=WorkOrder(agent_worker(agent), seconds=30, check=check))
        assert [(each.ending, each.text) for each in run.work] == [("done", "I did it.")]


async def test_an_executor_that_is_late_or_stopped_gives_the_task_back(tmp_path: Path) -> None:
    began = asyncio.Event()

    async def hangs(prompt: str, seconds: float) -> WorkAnswer:
        began.set()
        await asyncio.sleep(600)
        return WorkAnswer("never")

    async with team_of(tmp_path) as (team, _):
        worker = command_worker(["sleep", "600"], tmp_path)
        run = await team.run("Work", work=WorkOrder(worker, seconds=0.5))
        assert [each.ending for each in run.work] == ["failed"]
        assert [each.state for each in await team.tasks.ready()] == ["ready"]
        stopped = asyncio.create_task(team.run("", work=WorkOrder(hangs)))
        await began.wait()
        assert await team.tasks.ready() == []
        stopped.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopped
        assert [each.title for each in await team.tasks.ready()] == ["Work"]


async def test_what_nothing_shows_is_not_done(tmp_path: Path) -> None:
    async def worker(prompt: str, seconds: float) -> WorkAnswer:
        return WorkAnswer("All done!")

    async with team_of(tmp_path) as (team, _):
        run = await team.run("Work", work=WorkOrder(worker))
        assert [each.ending for each in run.work] == ["unproven"]
        fails = (sys.executable, "-c", "import sys; sys.exit('red')")
        run = await team.run("", work=WorkOrder(worker, check=fails, seconds=30))
        assert [(each.ending, "red" in each.text) for each in run.work] == [("failed", True)]
        task = await team.tasks.get(1)
        assert (task.state, [each.text[:9] for each in task.notes]) == ("ready", ["All done!"] * 2)


async def test_a_branch_that_is_behind_is_stale(tmp_path: Path) -> None:
    def git(*args: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *args], check=True)

    git("init", "-q", "-b", "main")
    git("commit", "-q", "--allow-empty", "-m", "one")
    location = located(tmp_path)
    assert await stale_reason(location) == ""
    git("checkout", "-q", "-b", "topic")
    git("checkout", "-q", "main")
    git("commit", "-q", "--allow-empty", "-m", "two")
    git("checkout", "-q", "topic")
    assert await stale_reason(location) == "the branch is 1 commit behind main"
    # Also if it is level with the branch that it follows.
    git("branch", "-q", "published")
    git("branch", "-q", "--set-upstream-to=published")
    assert await stale_reason(location) == "the branch is 1 commit behind main"
    git("checkout", "-q", "published")
    git("commit", "-q", "--allow-empty", "-m", "three")
    git("checkout", "-q", "topic")
    assert await stale_reason(location) == "the branch is 1 commit behind its upstream"
    settings = location.settings
    assert settings is not None
    location.write_settings(msgspec.structs.replace(settings, on_stale="go-on"))
    assert await stale_reason(location) == ""


async def test_on_a_stale_branch_the_executor_waits_for_approval(tmp_path: Path) -> None:
    async def worker(prompt: str, seconds: float) -> WorkAnswer:
        raise AssertionError("It must not begin.")

    async with team_of(tmp_path) as (team, bank):
        order = WorkOrder(worker, wait_because="the branch is 12 commits behind main")
        run = await team.run("Work", work=order)
        assert [each.ending for each in run.work] == ["waits"]
        assert [each.title for each in await bank.inbox.list("team")] == [
            "The executor waits: the branch is 12 commits behind main"
        ]
        assert [each.state for each in await team.tasks.list()] == ["ready"]


async def test_consolidation_keeps_what_others_changed_meanwhile(tmp_path: Path) -> None:
    teams: list[Team] = []

    async def script(request: Any) -> str:
        # Somebody edits the task while the planner thinks.
        await teams[0].tasks.edit(1, labels=["a", "b"])
        return saying(planner=[{"op": "edit", "task": "#1", "priority": 0}])(request)

    async with team_of(tmp_path, script) as (team, _):
        teams.append(team)
        await team.tasks.add("one", labels=["a"])
        await team.run("")
        task = await team.tasks.get(1)
        assert (task.labels, task.priority) == (("a", "b"), 0)


_DISPUTED = [{"op": "edit", "task": "#1", "priority": 0}]
_OTHERWISE = [{"op": "edit", "task": "#1", "priority": 4}]


async def test_rules_settle_first(tmp_path: Path) -> None:
    script = saying(supervisor=_DISPUTED, planner=_OTHERWISE)
    async with team_of(tmp_path, script, purposes="chat") as (team, _):
        await team.tasks.add("one")
        run = await team.run("#1 is urgent!")
        assert [(each.winner, each.by) for each in run.outcome.disputes] == [("supervisor", "rule")]
        assert (await team.tasks.get(1)).priority == 0
    script = saying(historian=_DISPUTED, planner=_OTHERWISE)
    async with team_of(tmp_path / "two", script, purposes="chat") as (team, _):
        await team.tasks.add("one")
        run = await team.run("")
        assert [(each.winner, each.by) for each in run.outcome.disputes] == [("planner", "rule")]


async def test_then_the_judge(tmp_path: Path) -> None:
    verdict = '{"winner": "planner", "why": "nothing waits for it"}'
    script = saying(supervisor=_DISPUTED, planner=_OTHERWISE, judge=verdict)
    async with team_of(tmp_path, script) as (team, bank):
        await team.tasks.add("one")
        run = await team.run("Go on.")
        (dispute,) = run.outcome.disputes
        assert (dispute.winner, dispute.by, dispute.why) == (
            "planner", "judge", "nothing waits for it",
        )  # fmt: skip
        assert (await team.tasks.get(1)).priority == 4
        assert await bank.inbox.list("team") == []


async def test_then_the_person(tmp_path: Path) -> None:
    script = saying(supervisor=_DISPUTED, planner=_OTHERWISE, judge='{"winner": ""}')
    async with team_of(tmp_path, script) as (team, bank):
        await team.tasks.add("one")
        run = await team.run("Go on.")
        assert (await team.tasks.get(1)).priority == 2
        (message,) = await bank.inbox.list("team")
        assert "#1 priority" in message.title
        with pytest.raises(InvalidInput, match="no open dispute"):
            await team.decide(run.name, "#1 priority", "historian")
        run = await team.decide(run.name, "#1 priority", "supervisor")
        assert (await team.tasks.get(1)).priority == 0
        assert (await team.replay(run.name)).same
        with pytest.raises(InvalidInput):
            await team.decide(run.name, "#1 priority", "planner")


async def test_a_judge_that_is_late_leaves_it_to_the_person(tmp_path: Path) -> None:
    script = saying(supervisor=_DISPUTED, planner=_OTHERWISE, judge=ScriptedAnswer("{}", delay=60))
    async with team_of(tmp_path, script, deadline=2.0) as (team, bank):
        await team.tasks.add("one")
        run = await team.run("Go on.")
        (dispute,) = run.outcome.disputes
        assert (dispute.winner, run.answers[-1].state) == ("", "late")
        assert len(await bank.inbox.list("team")) == 1
        assert (await team.replay(run.name)).same


async def test_latency_is_bounded_and_what_has_arrived_is_used(tmp_path: Path) -> None:
    slow = ScriptedAnswer('{"operations": []}', delay=60)
    asked = [{"op": "note", "task": "#1", "text": "in time"}]
    script = saying(supervisor=slow, historian=asked)
    async with team_of(tmp_path, script, deadline=2.0) as (team, _):
        await team.tasks.add("one")
        run = await team.run("Deploy.")
        states = {each.role: each.state for each in run.answers}
        assert states == {"supervisor": "late", "planner": "answered", "historian": "answered"}
        assert [each.text for each in (await team.tasks.get(1)).notes] == ["in time"]
        # And rules stand in for who was late.
        assert (await team.tasks.get(2)).title == "Deploy."


async def test_who_fails_falls_back_to_rules(tmp_path: Path) -> None:
    script = saying(supervisor=ScriptedFault(status=500), planner="I think all is well.")
    async with team_of(tmp_path, script) as (team, _):
        run = await team.run("- Deploy\n- Tell everybody")
        assert [each.title for each in await team.tasks.ready()] == ["Deploy", "Tell everybody"]
        assert run.answers[0].state == "failed"
        assert "supervisor failed" in run.outcome.recap
        assert [each.why for each in run.outcome.refused] == ["The answer has no operations."]


async def test_without_a_model_words_about_tasks_change_nothing(tmp_path: Path) -> None:
    async with team_of(tmp_path) as (team, _):
        await team.tasks.add("one")
        run = await team.run("#1 is not urgent any more.")
        assert run.outcome.applied == ()
        assert "understood only with a model" in run.outcome.recap


async def test_without_a_model_it_says_so(tmp_path: Path) -> None:
    async with team_of(tmp_path) as (team, _):
        await team.tasks.add("base", priority=3)
        await team.tasks.add("urgent", priority=0, needs=[1])
        run = await team.run("Write the guide")
        assert {each.state for each in run.answers} == {"reduced"}
        assert run.outcome.recap.count("no model is configured") == 3
        assert (await team.tasks.get(1)).priority == 0
        again = await team.run("Write the guide")
        assert again.outcome.applied == ()


async def test_the_recap_is_for_people(tmp_path: Path) -> None:
    asked = [{"op": "add", "title": "Deploy"}, {"op": "done", "task": "#9", "text": "gone"}]
    async with team_of(tmp_path, saying(supervisor=asked)) as (team, _):
        run = await team.run("Deploy")
        assert run.outcome.recap == (
            "**Asked:** Deploy\n\n"
            "- supervisor answered by scripted/m\n"
            "- planner answered by scripted/m\n"
            "- historian answered by scripted/m\n\n"
            "**Done:**\n- add “Deploy” (supervisor)\n\n"
            "**Refused:**\n- done #9 gone (supervisor): There is no open task #9.\n"
        )


async def test_a_replay_is_byte_equal_and_asks_nobody(tmp_path: Path) -> None:
    asked = [{"op": "add", "title": "Deploy"}, {"op": "edit", "task": "#1", "priority": 0}]
    script = saying(supervisor=asked, planner=_OTHERWISE)
    async with team_of(tmp_path, script, purposes="chat") as (team, _):
        await team.tasks.add("one")
        run = await team.run("Deploy", seed=7)
        assert (run.inputs.seed, run.answers[0].model) == (7, "scripted/m")
        await team.tasks.edit(1, title="changed since")
    async with team_of(tmp_path) as (_, bank):  # no model here
        team = Team(bank.services, located_again(tmp_path / "demo", run.project))
        replay = await team.replay(run.name)
        assert replay.same
        assert replay.recorded == replay.computed
        assert b"Deploy" in replay.computed
        with pytest.raises(NotFound):
            await team.replay("team/R-9")


def located_again(folder: Path, project: str) -> Any:
    from perdure.project.project_location import ProjectLocation, ProjectSettings

    location = ProjectLocation.find(folder)
    location.write_settings(ProjectSettings(project=project, name="demo"))
    return location


def test_the_same_seed_inputs_and_answers_give_the_same_ids() -> None:
    inputs = TeamInputs(intent="Deploy", seed=7, now="2026-01-01T00:00:00+00:00")
    one, other = (consolidate(inputs, ()) for _ in range(2))
    assert one == other
    different = consolidate(TeamInputs(intent="Deploy", seed=8, now=inputs.now), ())
    assert set(different.after) != set(one.after)


def test_operations_are_capped_and_checked() -> None:
    many = [{"op": "add", "title": f"t{number}"} for number in range(MOST_OPERATIONS + 3)]
    inputs = TeamInputs(intent="", seed=1, now="2026-01-01T00:00:00+00:00")
    answer = RoleAnswer(role="supervisor", state="answered", text=json.dumps({"operations": many}))
    outcome = consolidate(inputs, [answer])
    assert (len(outcome.applied), len(outcome.refused)) == (MOST_OPERATIONS, 3)
    good, bad = read_operations("x", '{"operations": [{"op": "erase"}, {"op": "note"}, 3]}')
    assert (len(good), len(bad)) == (1, 2)


async def test_a_task_that_somebody_holds_is_left_alone(tmp_path: Path) -> None:
    asked = [{"op": "drop", "task": "#1", "text": "not needed"}]
    async with team_of(tmp_path, saying(supervisor=asked)) as (team, _):
        await team.tasks.add("one")
        await team.tasks.claim(1, by="ada")
        run = await team.run("")
        assert [each.why for each in run.outcome.refused] == ["ada works on it."]
        assert (await team.tasks.get(1)).state == "claimed"


async def test_undo_takes_back_the_run_and_nothing_else(tmp_path: Path) -> None:
    asked = [
        {"op": "add", "title": "Deploy", "needs": ["#1"]},
        {"op": "edit", "task": "#1", "priority": 0, "title": "ONE"},
    ]
    async with team_of(tmp_path, saying(supervisor=asked)) as (team, _):
        await team.tasks.add("one")
        run = await team.run("Deploy")
        await team.tasks.edit(1, labels=["mine"])
        await team.tasks.add("two")
        undone = await team.undo(run.name)
        assert undone.state == "undone"
        task = await team.tasks.get(1)
        assert (task.title, task.priority, task.labels, task.needed_by) == ("one", 2, ("mine",), ())
        assert [each.title for each in await team.tasks.ready()] == ["one", "two"]
        (dropped,) = await team.tasks.list("dropped")  # nothing is deleted
        assert (dropped.title, dropped.needs, dropped.reason) == ("Deploy", (), "Taken back.")
        with pytest.raises(InvalidInput, match="undone before"):
            await team.undo(run.name)
        assert [each.name for each in await team.list()] == [run.name]


@pytest.mark.parametrize("applied", [True, False])
async def test_a_run_that_was_killed_can_be_undone(tmp_path: Path, applied: bool) -> None:
    asked = [{"op": "add", "title": "Deploy"}, {"op": "edit", "task": "#1", "priority": 0}]
    async with team_of(tmp_path, saying(supervisor=asked)) as (team, bank):
        await team.tasks.add("one")
        run = await team.run("Deploy")
        if not applied:
            await team.undo(run.name)
        # As it is on disk if the process died before it wrote what the graph was then.
        killed = msgspec.structs.replace(run, state="running", stored={}, ended=0)
        await bank.store.collection(TeamRun).put(killed)
        assert (await team.undo(run.name)).state == "undone"
        assert [(each.title, each.priority) for each in await team.tasks.list()] == [("one", 2)]
