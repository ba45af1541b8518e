"""Made-up memories, reference layers, a project and what agents learnt, for the page to show."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

from examples.made_up_calls import made_up_calls
from perdure.bank import Bank
from perdure.core import clock
from perdure.core.messages import assistant, user
from perdure.learning.experiment_records import Arm, ExperimentSession, StrategyChanges
from perdure.project.project import Project
from perdure.project.project_directory import register_project
from perdure.project.project_location import ProjectLocation, ProjectSettings, new_project_id
from perdure.project.work_records import ProjectNote
from perdure.recall.memory_records import FormerMemory, machine

_DAY = 86_400 * clock.SECOND
#: Kind, text, weight, tags, and the turn that it comes from.
_MEMORIES = (
    ("decision", "Releases go out on Tuesdays.", 0.8, ("release",), "coder/release#T-12"),
    ("lesson", "The import test fails when two loaders start at once.", 0.6, ("tests",), None),
    ("preference", "Answers come with the command to check them.", 0.7, (), "coder/docs#T-3"),
    ("pattern", "A failing test is read before the code.", 0.5, ("tests",), None),
    ("fact", "Staging listens on port 8443.", 0.4, ("staging",), "coder/release#T-40"),
)
_TOPICS = {"Thumbnails": (0.2, 0.5, 0.7), "Imports": (0.6, 0.4, 0.3), "Release": (0.3, 0.3, 0.5)}
_LAYERS = (
    (
        "deploy",
        "How we deploy",
        "release, staging",
        "goes to staging first, and waits there an hour",
    ),
    ("imports", "How imports work", "imports", "has a key of its own, so it may run twice"),
)
_PARTS = ("loader", "outbox", "ledger", "scheduler", "mailer", "search", "checkout", "thumbnail")
#: Title, priority, what it needs, and its labels.
_TASKS = (
    ("Measure imports before and after", 1, (), ("imports",)),
    ("Make the outbox idempotent by its key", 1, ("1",), ("imports",)),
    ("Store positions in UTC", 2, (), ("api",)),
    ("Convert positions at the edge", 2, ("3",), ("api",)),
    ("Write the notes of the release", 3, ("2", "4"), ("release",)),
    ("Release 2.4", 2, ("5",), ("release",)),
    ("Ask suppliers about duplicate names", 3, (), ()),
)
#: How many days ago, and what was noted.
_NOTES = (
    (2, "Two loaders within 19 ms are enough to see it: `pytest tests/delivery -k twice`."),
    (1, "Ivo measured 977 ms against 33,028 ms. The checksum stays."),
)
_TOLD = (
    "How do I run the migration tests locally?",
    "How do I run the migration tests locally?",
    "How do I run the migration tests locally?",
    "From now on, always write tests first. And never push to main directly.",
)


async def fill_memories(bank: Bank) -> None:
    """What agents know, with the past of topics; what a reflection leaves; reference layers."""
    by, now = machine("reflection"), bank.store.now()
    for kind, text, weight, tags, turn in _MEMORIES:
        sources = [turn] if turn else []
        await bank.memories.add(
            "coder", text, kind=kind, weight=weight, tags=tags, provenance=sources, by=by
        )
    for name, weights in _TOPICS.items():
        begun = now - 40 * _DAY
        topic = await bank.memories.add(
            "coder", name, kind="topic", weight=weights[0], time=begun, by=by
        )
        for weight in weights[1:]:
            await bank.memories.edit(topic.name, weight=weight, by=by)
        former = await bank.memories.history(topic.name)
        for at, each in enumerate(sorted(former, key=lambda each: each.memory.version)):
            moved = msgspec.structs.replace(each, until=begun + (at + 1) * 12 * _DAY)
            await bank.collection(FormerMemory).put(moved)
    await bank.memories.add("planner", "The roadmap is decided in the first week of a quarter.")
    session = await bank.session("planner/standup")
    for told in _TOLD:
        await session.append([user(told), assistant("I will keep to that.")])
    await bank.reflect("planner")
    for name, title, tagged, rule in _LAYERS:
        front = f"---\nname: {name}\ntitle: {title}\ntags: [{tagged}]\n---\n"
        parts = [
            f"## The {part}\n\nThe {part} {rule}. `make {part}` shows what it would do."
            f" If it fails, it says where in `var/{part}.log`; ask who is on call before you try"
            " again, and write into the ticket what you saw.\n"
            for part in _PARTS
        ]
        await bank.references.add(front + "\n".join(parts))


async def fill_learning(bank: Bank, *, seed: int = 1) -> None:
    """What made-up calls teach, and a test that runs."""
    for call in made_up_calls(bank.store.now(), seed=seed)[::-1]:
        bank.learning.learned.note(call)
        if call.quality is not None:
            bank.learning.learned.rate(call)
    await bank.learning.flush()
    tried = StrategyChanges(models={"review": "ollama/qwen3-8b"})
    test = await bank.learning.evolution.start(
        "coder", tried, task="review", reason="costs rise, and ratings do not"
    )
    random_of = random.Random(seed)
    worths: list[tuple[Arm, float]] = [("control", 0.71), ("variant", 0.76)] * 17
    await bank.collection(ExperimentSession).put_many(
        [
            ExperimentSession(
                id=f"{test.id}/{number}",
                experiment=test.id,
                agent="coder",
                session=f"coder/review-{number}",
                arm=arm,
                calls=1,
                total=worth + random_of.uniform(-0.1, 0.1),
            )
            for number, (arm, worth) in enumerate(worths)
        ]
    )


async def fill_project_memory(bank: Bank, folder: Path) -> None:
    """A project in a folder: goals, tasks, a journal."""
    location = ProjectLocation.find(folder)
    location.write_settings(ProjectSettings(project=new_project_id(), name="thumbnails"))
    await register_project(bank.services, location)
    project = Project(bank.services, location)
    for title, priority, needs, labels in _TASKS:
        await project.tasks.add(title, priority=priority, needs=needs, labels=labels)
    await project.tasks.claim("1", by="coder")
    await project.tasks.block("7", reason="Nobody there before Monday.")
    state = project.state
    goal = await state.add("goal", "Imports that may run twice", text="None is counted **twice**.")
    milestone = await state.add("milestone", "Release 2.4", needs=[goal.id])
    await state.add("link", "The ticket", target="coder/release#T-12", of=milestone.id)
    await state.finish(goal.id)
    now = bank.store.now()
    await bank.collection(ProjectNote).put_many(
        [
            ProjectNote(
                key=f"{project.id}/nt_{days:012x}",
                project=project.id,
                text=text,
                by="coder",
                at=now - days * _DAY,
            )
            for days, text in _NOTES
        ]
    )
