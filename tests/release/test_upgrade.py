"""Banks that releases left behind are opened, read, checked and gone on with by today's code; one
of a newer format is refused. `python -m tools.kept_bank` makes them.
"""

from __future__ import annotations

import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import perdure
from perdure.bank import Bank
from perdure.cli.app import app
from perdure.config import Config, EncryptionConfig, GatewayConfig, ModelsConfig
from perdure.core.messages import assistant, user
from perdure.importers import import_files
from perdure.project.project import Project
from perdure.project.project_location import ProjectLocation, ProjectSettings
from perdure.testing import ScriptedModel
from tools.kept_bank import (
    BACKUPS,
    BANK,
    EXPECTED,
    EXPORT,
    FOLDER,
    KEY,
    PROJECT,
    SECRET,
    KeptNote,
    make,
    pack,
)

KEPT = sorted(FOLDER.glob("perdure-*.tar.xz"))
_MOST = 200_000


@pytest.mark.slow
async def test_another_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    await make(tmp_path / "made")
    pack(tmp_path / "made", tmp_path / "banks" / "perdure-next.tar.xz")
    with tarfile.open(tmp_path / "banks" / "perdure-next.tar.xz") as archive:
        archive.extractall(tmp_path / "kept", filter="data")
    async with perdure.open(f"sqlite:///{tmp_path / 'kept' / BANK}") as bank:
        assert [problem async for problem in bank.verify()] == []
        assert await turns_of(bank) == Kept(tmp_path / "kept").expected["turns"]
    assert (tmp_path / "banks" / "perdure-next.tar.xz").stat().st_size < _MOST


class Kept:
    """An unpacked copy."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / BANK}"
        self.expected: dict[str, Any] = json.loads((folder / EXPECTED).read_text())


@pytest.fixture(params=KEPT, ids=lambda path: path.name.removesuffix(".tar.xz"))
def kept(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path / "kept", filter="data")
    return Kept(tmp_path / "kept")


def test_this_version_left_one() -> None:
    assert f"perdure-{perdure.__version__}.tar.xz" in [path.name for path in KEPT]
    assert all(path.stat().st_size < _MOST for path in KEPT)


async def turns_of(bank: Bank) -> dict[str, dict[str, list[str]]]:
    return {
        name: {
            turn.id: [message.text for message in turn.messages]
            for turn in await (await bank.existing_session(name)).turns(100)
        }
        for name in ("planner/auth", "coder/auth")
    }


async def test_it_is_whole_and_says_what_it_said(kept: Kept) -> None:
    expected = kept.expected
    async with perdure.open(kept.url) as bank:
        assert [problem async for problem in bank.verify()] == []
        assert await turns_of(bank) == expected["turns"]
        sizes = {size.collection: size.rows for size in await bank.store.adapter.sizes()}
        assert {name for name, rows in expected["rows"].items() if rows} <= sizes.keys()
        memories = await bank.memories.list("planner", status=None, limit=100)
        assert {each.name: each.text for each in memories} == expected["memories"]
        assert len(await bank.memories.history("planner/M-1")) == 1
        assert {layer.name for layer in await bank.references.list()} == {"deploy", "refunds"}
        assert await bank.artifacts.read(expected["artifact"]) == b"a large artifact " * 6_000
        found = await bank.collection(KeptNote).query().where("topic", "=", "topic 1").values()
        assert sorted(note.id for note in found) == ["n1", "n4", "n7"]
        session = await bank.existing_session("planner/auth")
        assert "coder" in await session.shared_with()
        for level in "RSCT":
            assert (await session.turn("T-12", level=level)).text


async def test_a_past_prompt_has_its_bytes(kept: Kept) -> None:
    async with perdure.open(kept.url) as bank:
        session = await bank.existing_session("planner/auth")
        context = await session.past_context(kept.expected["prompt_turn"])
        assert json.dumps(context.to_messages()) == json.dumps(kept.expected["prompt"])


async def test_it_goes_on(kept: Kept) -> None:
    async with perdure.open(kept.url) as bank:
        session = await bank.existing_session("planner/auth")
        (hit, *_) = (await session.recall("which build did we ship on day 17", limit=3)).hits
        assert "Build 119" in hit.text
        found = await session.recall("staging port", kinds=["memory"])
        assert found.hits[0].text == kept.expected["memories"]["planner/M-1"]
        context = await session.context("And on day 18?", budget=2_000)
        assert 1_000 < context.tokens <= 2_000
        await session.append(assistant("Build 126."), context=context)
        (turn,) = await session.turns(1)
        assert int(turn.id[2:]) == len(kept.expected["turns"]["planner/auth"]) + 2  # one was undone
        fork = await session.fork("other/auth", at="T-20")
        await fork.append([user("Here, too."), assistant("Yes.")])
        assert (await bank.memories.add("planner", "A new one.")).name not in kept.expected[
            "memories"
        ]
        await bank.collection(KeptNote).put(KeptNote("n9", "topic 1"))
        await bank.forget("planner/auth", turns=["T-5"])
        await bank.settle()
        assert [problem async for problem in bank.verify()] == []


async def test_its_agent_works_on(kept: Kept) -> None:
    async with ScriptedModel("To the silver desk.") as model:
        gateway = GatewayConfig(
            providers={"scripted": model.provider_config()},
            models=ModelsConfig(chat="scripted/any"),
        )
        async with Bank(kept.url, config=Config(gateway=gateway)) as bank:
            agent = await bank.agent("router")
            assert (await agent.result(kept.expected["message"])).text == kept.expected["reply"]
            again = await agent.ask("Where does this go?", key="mail-1")  # it was done
            assert again.text == kept.expected["reply"]
            assert (await agent.ask("And this?")).text == "To the silver desk."
            assert [each.body for each in await agent.schedules()] == ["Sort the inbox."]


async def test_its_project_goes_on(kept: Kept, tmp_path: Path) -> None:
    location = ProjectLocation.find(tmp_path)
    location.write_settings(ProjectSettings(project=PROJECT, name="attic"))
    async with perdure.open(kept.url) as bank:
        tasks = Project(bank.services, location).tasks
        states = {each.title: each.state for each in await tasks.list()}
        assert states == kept.expected["tasks"]
        assert (await tasks.claim(by="ada")).title == "Release it"


async def test_its_encrypted_bank(kept: Kept) -> None:
    key = EncryptionConfig(key=f"file:{kept.folder / KEY}", everything=True)
    url = f"sqlite:///{kept.folder / SECRET}"
    async with Bank(url, config=Config(encryption=key)) as bank:
        session = await bank.existing_session("planner/diary")
        (turn,) = await session.turns()
        assert turn.prompt == "Dear diary, the engine works."
        await session.append([user("And today?"), assistant("It does.")])
        assert [problem async for problem in bank.verify()] == []


async def test_its_backup_and_its_export(kept: Kept, tmp_path: Path) -> None:
    checked = await perdure.check_backups(kept.folder / BACKUPS)
    assert [snapshot.sound for snapshot in checked] == [True]
    made = await perdure.restore(kept.folder / BACKUPS, f"sqlite:///{tmp_path}/restored.db")
    assert made.problems == ()
    async with perdure.open(f"sqlite:///{tmp_path}/restored.db") as bank:
        assert await turns_of(bank) == kept.expected["turns"]
    async with perdure.open(f"sqlite:///{tmp_path}/imported.db") as bank:
        await import_files(bank, "perdure", [kept.folder / EXPORT])
        found = await (await bank.existing_session("planner/auth")).turns(100)
        assert {turn.id for turn in found} == kept.expected["turns"]["planner/auth"].keys()


def test_a_newer_format_is_refused_with_one_line(kept: Kept) -> None:
    file = kept.folder / BANK
    with closing(sqlite3.connect(file)) as db:
        (known,) = db.execute("PRAGMA user_version").fetchone()
        db.execute(f"PRAGMA user_version = {known + 1}")
    before = file.read_bytes()
    refused = CliRunner().invoke(app, ["sessions", "--bank", kept.url])
    assert refused.exit_code == 1
    (line,) = refused.stderr.splitlines()
    assert f"has format {known + 1}; this version reads up to {known}. Upgrade Perdure." in line
    assert file.read_bytes() == before
