"""Makes the bank that a release leaves behind, for later versions to open.

    python -m tools.kept_bank            # tests/release/banks/perdure-VERSION.tar.xz

Run it once for each release, and commit the file: it is never made again by later code. It holds a
bank with a bit of everything and its artifacts, an encrypted one with its key, a backup, an export,
and `expected.json`, which says what is to be read in them. tests/release/test_upgrade.py opens all
that are there. Everything in it is made up.
"""

from __future__ import annotations

import asyncio
import json
import lzma
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Annotated, Any

import msgspec

import perdure
from perdure.bank import Bank
from perdure.config import Config, EncryptionConfig, GatewayConfig, ModelsConfig
from perdure.core.messages import Message, Reasoning, Text, ToolCall, ToolResult, assistant, user
from perdure.history.session_export import jsonl
from perdure.project.project import Project
from perdure.project.project_directory import register_project
from perdure.project.project_location import ProjectLocation, ProjectSettings
from perdure.storage.encryption import make_file
from perdure.testing import ScriptedModel

FOLDER = Path(__file__).parent.parent / "tests" / "release" / "banks"
BANK, SECRET, KEY = "bank.db", "secret.db", "master.key"
BACKUPS, EXPORT, EXPECTED = "backups", "auth.jsonl", "expected.json"
PROJECT = "pr_00c0ffee00c0ffee"
BUDGET = 1_500
_LAYER = "---\nname: deploy\ntitle: How we deploy\ntags: [release]\n---\n" + "\n".join(
    f"## The {part}\n\nThe {part} goes to staging first, and waits there for an hour. Then somebody"
    f" who is on call looks at its dashboard, and says yes. `make {part}` shows what it would do.\n"
    for part in ("loader", "outbox", "ledger", "mailer", "scheduler", "search", "checkout")
)


@perdure.record("kept_notes")
class KeptNote(msgspec.Struct, frozen=True):
    """A record of a user's own."""

    id: Annotated[str, perdure.Key()]
    topic: Annotated[str, perdure.Indexed()]
    text: str = ""


def _round(number: int) -> list[Message]:
    """A turn with a call whose answer is long enough to be an artifact."""
    call = ToolCall("c1", "Bash", '{"command": "ls /srv/app"}')
    files = "\n".join(f"/srv/app/src/module_{n}.py" for n in range(4_000))
    return [
        user(f"Which files are there? ({number})"),
        Message("assistant", (Reasoning("I should look."), Text("Let me look."), call)),
        Message("tool", (ToolResult("c1", (Text(files),)),)),
        assistant("Four thousand modules."),
    ]


async def _sessions(bank: Bank) -> dict[str, Any]:
    session = await bank.session("planner/auth", state={"cwd": "/srv/app"})
    for number in range(1, 61):
        said = [
            user(f"Day {number}: which build do we ship?"),
            assistant(f"Build {number * 7}. All its tests passed, and the port stays 8123."),
        ]
        await session.append(
            _round(number) if number == 3 else said, tags={"topic": "build"} if number % 2 else {}
        )
    await session.append(
        [user("The database: postgres://ada:hunter2pass@db.example.org/app"), assistant("Noted.")]
    )
    # What recalled it would go with it.
    await bank.forget("planner/auth", turns=["T-4"])
    context = await session.context("Which build did we ship on day 3?", budget=BUDGET)
    prompt = context.to_messages()
    await session.append(assistant("Build 21."), context=context)
    (asked,) = await session.turns(1)
    coder = await session.fork("coder/auth", at="T-10")
    await coder.append([user("Write the rotation."), assistant("It is written.")])
    await session.append([user("Never mind."), assistant("As you like.")])
    await session.undo()
    await session.share("coder")
    await bank.settle()
    return {
        "prompt": prompt,
        "prompt_turn": asked.id,
        "turns": {
            name: {
                turn.id: [message.text for message in turn.messages]
                for turn in await (await bank.session(name)).turns(100)
            }
            for name in ("planner/auth", "coder/auth")
        },
    }


async def _knowledge(bank: Bank) -> dict[str, Any]:
    await bank.memories.add("planner", "The staging port is 8123.", kind="fact")
    await bank.memories.add("planner", "Releases go out on Tuesdays.", kind="decision")
    await bank.memories.edit("planner/M-1", text="The staging port is 8124.")
    await bank.references.add(_LAYER)
    with perdure.acting_as("ada"):
        await bank.canon.write("refunds", "Refunds take a week.")
    await bank.reflect("planner")
    memories = await bank.memories.list("planner", status=None, limit=100)
    return {"memories": {each.name: each.text for each in memories}}


async def _agent(bank: Bank) -> dict[str, Any]:
    agent = await bank.agent("router", prompt="You route emails.", skills=["mail"])
    reply = await agent.ask("Where does this go?", key="mail-1")
    await agent.schedule("0 9 * * 1-5", "Sort the inbox.", timezone="UTC")
    return {"reply": reply.text, "message": reply.id}


async def _project(bank: Bank, folder: Path) -> dict[str, Any]:
    location = ProjectLocation.find(folder)
    location.write_settings(ProjectSettings(project=PROJECT, name="attic"))
    await register_project(bank.services, location)
    project = Project(bank.services, location)
    await project.tasks.add("Rotate the signing keys", priority=1)
    await project.tasks.add("Release it", needs=["1"])
    await project.tasks.done("1")
    await project.state.add("goal", "Deploy every day", text="Without a person.")
    return {"tasks": {each.title: each.state for each in await project.tasks.list()}}


async def make(folder: Path) -> None:
    """Fill an empty folder."""
    expected: dict[str, Any] = {"version": perdure.__version__}
    async with ScriptedModel("To the gold desk.") as model:
        gateway = GatewayConfig(
            providers={"scripted": model.provider_config()},
            models=ModelsConfig(chat="scripted/any"),
        )
        bank = Bank(f"sqlite:///{folder / BANK}", config=Config(gateway=gateway))
        async with bank:
            expected |= await _sessions(bank)
            expected |= await _knowledge(bank)
            expected |= await _agent(bank)
            with tempfile.TemporaryDirectory() as place:
                expected |= await _project(bank, Path(place))
            notes = bank.collection(KeptNote)
            await notes.put_many(KeptNote(f"n{n}", f"topic {n % 3}", f"Note {n}") for n in range(9))
            expected["artifact"] = str(await bank.artifacts.put(b"a large artifact " * 6_000))
            await bank.settle()
            expected["rows"] = {
                size.collection: size.rows for size in await bank.store.adapter.sizes()
            }
            with (folder / EXPORT).open("wb") as file:
                async for line in jsonl(await bank.session("planner/auth")):
                    file.write(line)
            await bank.backup(folder / BACKUPS)
    make_file(folder / KEY)
    sealed = Config(encryption=EncryptionConfig(key=f"file:{folder / KEY}", everything=True))
    async with Bank(f"sqlite:///{folder / SECRET}", config=sealed) as secret:
        session = await secret.session("planner/diary")
        await session.append([user("Dear diary, the engine works."), assistant("Good.")])
        await secret.memories.add("planner", "The engine works.", kind="fact")
    (folder / EXPECTED).write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


def pack(folder: Path, into: Path) -> None:
    """The names and bytes of the files; nothing of who made them, or when."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        return info

    into.parent.mkdir(parents=True, exist_ok=True)
    with (
        lzma.open(into, "wb", preset=9 | lzma.PRESET_EXTREME) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as archive,
    ):
        for name in sorted(path.name for path in folder.iterdir()):
            archive.add(folder / name, name, filter=plain)


def main() -> int:
    target = FOLDER / f"perdure-{perdure.__version__}.tar.xz"
    released = subprocess.run(
        ["git", "tag", "--list", f"v{perdure.__version__}"],
        check=False,
        capture_output=True,
        text=True,
    ).stdout.strip()
    if released:
        print(f"{perdure.__version__} is released: its bank stays as it was.")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(make(Path(folder)))
        pack(Path(folder), target)
    print(f"{target.name}: {target.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
