"""The files of a repository: what is found at which commit, what is read, what is never kept."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.bank import Bank
from perdure.core.errors import InvalidInput
from perdure.project.file_index import forget_files
from perdure.project.file_records import FileBatch, FileIndexState, index_of
from perdure.project.file_search import FileHit, search_files
from perdure.project.file_selection import PART, is_wanted, parts_of, text_of
from perdure.project.git_repository import GitFailed
from perdure.project.project import Project
from perdure.project.project_location import ProjectLocation, ProjectSettings
from perdure.search.engine import engine_of
from tests.conftest import BACKENDS, url_on
from tests.project.repositories import git, new_repository

PROJECT = "pr_00112233445566ff"
#: Seconds that no search of a few files takes.
LONG = 60.0


@pytest.fixture(params=BACKENDS)
async def bank(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bank]:
    async with perdure.open(url_on(request.param, request, tmp_path)) as opened:
        yield opened


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return new_repository(tmp_path / "demo")


def project_in(bank: Bank, folder: Path, **settings: Any) -> Project:
    location = ProjectLocation.find(folder)
    if location.settings is None:
        location.write_settings(ProjectSettings(project=PROJECT, name="demo", **settings))
    return Project(bank.services, location)


def write(folder: Path, **texts: str | bytes) -> str:
    """Commit these files; two underscores stand for a slash, one at the end for its suffix."""
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/')}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "write", "--allow-empty")
    return git(folder, "rev-parse", "HEAD")


async def hits(project: Project, words: str, commit: str = "") -> list[FileHit]:
    found = await search_files(
        project.files,
        words,
        commit=commit or await project.files.files.head(),
        limit=10,
        seconds=LONG,
    )
    assert not found.left
    return [*found.hits]


async def paths(project: Project, words: str, commit: str = "") -> list[str]:
    return [hit.path for hit in await hits(project, words, commit)]


# What is found ----------------------------------------------------------------------------------


async def test_a_question_is_answered_as_it_was_at_the_commit(bank: Bank, repository: Path) -> None:
    old = write(repository, deploy="# Deploying\n\nThe gateway listens on port 7011.\n")
    new = write(repository, deploy="# Deploying\n\nThe gateway listens on port 8261.\n")
    project = project_in(bank, repository)
    await project.files.refresh()
    question = "Which port is the gateway listening on?"
    (now,) = await hits(project, question)
    assert "8261" in now.text
    assert (now.path, now.first, now.last, now.commit) == ("deploy.txt", 1, 3, new)
    assert now.blob == git(repository, "rev-parse", "HEAD:deploy.txt")
    (then,) = await hits(project, question, old)
    assert "7011" in then.text
    assert then.commit == old
    assert await hits(project, question, git(repository, "rev-parse", "HEAD~2")) == []


async def test_words_that_mean_the_same_are_near(bank: Bank, repository: Path) -> None:
    others = {f"part{n}": f"The {word} is written once.\n" for n, word in enumerate(("tax", "fox"))}
    write(repository, limits="MAX_ATTEMPTS = 7\n\nDRAWER_COLOR = 'red'\n", **others)
    project = project_in(bank, repository)
    found = await hits(project, "how often do we retry, how many limits")
    assert found[0].path == "limits.txt"


async def test_a_path_is_found_where_it_stands_now(bank: Bank, repository: Path) -> None:
    before = write(repository, billing__invoice="Numbers are given once.\n")
    project = project_in(bank, repository)
    assert await paths(project, "invoice numbers") == ["billing/invoice.txt"]
    git(repository, "mv", "billing", "accounting")
    (repository / "copy.txt").write_text("Numbers are given once.\n")
    after = write(repository)
    known = dict(project.files.known.numbers)
    (hit,) = await hits(project, "invoice numbers", after)
    assert hit.path == "accounting/invoice.txt"
    assert hit.copies == ("copy.txt",)
    assert project.files.known.numbers == known  # renamed and copied: nothing was read again
    assert await paths(project, "invoice numbers", before) == ["billing/invoice.txt"]


async def test_a_deleted_file_is_found_only_before(bank: Bank, repository: Path) -> None:
    before = write(repository, gone="The walrus sings at midnight.\n")
    (repository / "gone.txt").unlink()
    write(repository)
    project = project_in(bank, repository)
    assert await paths(project, "walrus") == []
    assert await paths(project, "walrus", before) == ["gone.txt"]


async def test_long_files_are_found_by_their_parts(bank: Bank, repository: Path) -> None:
    lines = [f"line {number} of the manual" for number in range(2_000)]
    lines[1_500] = "the zebra crosses here"
    write(repository, manual="\n".join(lines) + "\n")
    (hit,) = (await hits(project_in(bank, repository), "zebra"))[:1]
    assert hit.first <= 1_501 <= hit.last
    assert "zebra" in hit.text
    assert len(hit.text) < PART


# What is read -----------------------------------------------------------------------------------


async def test_after_a_commit_only_what_it_changed_is_read(bank: Bank, repository: Path) -> None:
    write(repository, **{f"file{n}": f"number {n}\n" for n in range(20)})
    project = project_in(bank, repository)
    assert (await project.files.refresh()).indexed == 21
    write(repository, file3="number three\n", more="number twenty\n")
    report = await project.files.refresh()
    assert (report.indexed, report.left) == (2, 0)
    assert (await project.files.refresh()).indexed == 0


async def test_a_branch_and_back_reads_nothing_twice(bank: Bank, repository: Path) -> None:
    write(repository, shared="both have this\n")
    git(repository, "checkout", "-q", "-b", "side")
    side = write(repository, side="only the side has walnuts\n")
    project = project_in(bank, repository)
    await project.files.refresh()
    git(repository, "checkout", "-q", "main")
    assert (await project.files.refresh()).indexed == 0
    assert await paths(project, "walnuts") == []
    assert await paths(project, "walnuts", side) == ["side.txt"]
    git(repository, "checkout", "-q", "side")
    assert (await project.files.refresh()).indexed == 0
    assert await paths(project, "walnuts") == ["side.txt"]


async def test_two_work_trees_share_one_index(bank: Bank, repository: Path, tmp_path: Path) -> None:
    write(repository, shared="both have this\n")
    main = project_in(bank, repository)
    await main.files.refresh()
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "other"))
    write(tmp_path / "other", other="only here are hazelnuts\n")
    other = project_in(bank, tmp_path / "other")
    assert (await other.files.refresh()).indexed == 1
    assert await paths(other, "hazelnuts") == ["other.txt"]
    assert await paths(main, "hazelnuts") == []
    state = await bank.collection(FileIndexState).get(PROJECT)
    assert state is not None
    assert sorted(state.commits) == ["main", "other"]


async def test_another_process_may_have_indexed_it(bank: Bank, repository: Path) -> None:
    write(repository, one="almonds\n")
    first, second = project_in(bank, repository), project_in(bank, repository)
    await first.files.refresh()
    await second.files.refresh()
    write(repository, two="cashews\n")
    await second.files.refresh()
    write(repository, three="pecans\n")
    await first.files.refresh()  # it does not know what the second has written
    for word, path in (("almonds", "one"), ("cashews", "two"), ("pecans", "three")):
        assert await paths(first, word) == [f"{path}.txt"]
        assert await paths(second, word) == [f"{path}.txt"]
    batches = [each async for each in bank.collection(FileBatch).walk(f"{PROJECT}/")]
    assert sum(len(each.parts) for each in batches) == len(first.files.known.numbers) == 4


async def test_what_is_left_is_said_and_done_later(bank: Bank, repository: Path) -> None:
    for number in range(1_100):
        (repository / f"f{number}.txt").write_text(f"word{number}\n")
    commit = write(repository)
    project = project_in(bank, repository)
    found = await search_files(project.files, "word7", commit=commit, limit=3, seconds=0.0)
    assert 0 < found.left < 1_101
    assert (await project.files.refresh()).left == 0
    assert (await paths(project, "word1099"))[0] == "f1099.txt"


async def test_a_commit_that_is_not_here_is_told(bank: Bank, repository: Path) -> None:
    project = project_in(bank, repository)
    with pytest.raises(GitFailed):
        await hits(project, "anything", "0" * 40)


async def test_a_repository_without_a_commit_has_no_files(bank: Bank, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    git(tmp_path / "new", "init", "-q")
    report = await project_in(bank, tmp_path / "new").files.refresh()
    assert (report.indexed, report.left, report.commit) == (0, 0, "")


async def test_a_repository_with_sha256(bank: Bank, tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "new", "--object-format=sha256")
    write(repository, nuts="macadamia\n")
    project = project_in(bank, repository)
    assert await paths(project, "macadamia") == ["nuts.txt"]
    other = project_in(bank, repository)  # reads what the first has written
    assert await paths(other, "macadamia") == ["nuts.txt"]


# What is not kept -------------------------------------------------------------------------------


async def test_what_nobody_wrote_is_left_out(bank: Bank, repository: Path) -> None:
    write(
        repository,
        plain="pistachio\n",
        binary=b"pistachio\0\1\2",
        generated="// Code generated by protoc. DO NOT EDIT.\npistachio\n",
        minified="pistachio();" + "a=b;" * 5_000,
        node_modules__dep="pistachio\n",
        marked="pistachio\n// by hand\n",
    )
    (repository / "yarn.lock").write_text("pistachio\n")
    (repository / ".gitignore").write_text("ignored.txt\n")
    (repository / "ignored.txt").write_text("pistachio of mine\n")
    (repository / "link.txt").symlink_to("plain.txt")
    (repository / ".gitattributes").write_text("marked.txt linguist-generated\n")
    write(repository)
    assert await paths(project_in(bank, repository), "pistachio") == ["plain.txt"]


async def test_submodules_are_left_out(bank: Bank, repository: Path, tmp_path: Path) -> None:
    inner = new_repository(tmp_path / "inner")
    write(inner, nut="brazil\n")
    git(repository, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "sub")
    write(repository, nut="brazil too\n")
    assert await paths(project_in(bank, repository), "brazil") == ["nut.txt"]


async def test_names_and_texts_that_are_not_utf8(bank: Bank, repository: Path) -> None:
    name = os.fsdecode(b"caf\xe9.txt")
    (repository / name).write_bytes("Das Café öffnet früh.\n".encode("latin-1"))
    (repository / "wide.txt").write_bytes("Die Mühle öffnet spät.\n".encode("utf-16"))
    write(repository, **{"odd name": "öffnet nie\n"})
    project = project_in(bank, repository)
    assert sorted(await paths(project, "öffnet")) == sorted([name, "odd name.txt", "wide.txt"])
    (hit,) = (await hits(project, "Café früh"))[:1]
    assert hit.text == "Das Café öffnet früh."


@pytest.mark.parametrize("bank", ["sqlite"], indirect=True)
async def test_a_secret_never_reaches_the_store(
    bank: Bank, repository: Path, tmp_path: Path
) -> None:
    secret = "ghp_" + "a8Kq2Zt7Rw5Xy1Bv4Nc6Mf3Lh9Jd0Ps8Gk2T"
    write(repository, settings=f"token = '{secret}'\nport = 8261\n")
    project = project_in(bank, repository)
    await project.files.refresh()
    (hit,) = await hits(project, "port")
    assert secret not in hit.text
    assert "[secret:" in hit.text
    assert await hits(project, secret) == []
    await bank.settle()
    stored = b"".join(file.read_bytes() for file in tmp_path.glob("*.db*"))
    assert b"8261" in stored  # words are there
    assert secret.lower().encode() not in stored.lower()
    assert b"a8kq2zt7" not in stored.lower()


async def test_it_can_be_switched_off_and_forgotten(bank: Bank, repository: Path) -> None:
    write(repository, nut="chestnut\n")
    project = project_in(bank, repository)
    await project.files.refresh()
    settings = project.settings
    project.location.write_settings(
        ProjectSettings(project=settings.project, name=settings.name, vectors=False)
    )
    off = project_in(bank, repository)
    assert not off.files.is_on
    await off.files.refresh()
    assert await kept(bank) == []

    project.location.write_settings(settings)
    again = project_in(bank, repository)
    assert await paths(again, "chestnut") == ["nut.txt"]
    await forget_files(bank.services, PROJECT)
    assert await kept(bank) == []
    await again.files.forget()
    assert await paths(again, "chestnut") == ["nut.txt"]  # asked again, it is made again


async def kept(bank: Bank) -> Sequence[object]:
    states = [each async for each in bank.collection(FileIndexState).walk(PROJECT)]
    batches = [each async for each in bank.collection(FileBatch).walk(f"{PROJECT}/")]
    engine = engine_of(bank.store.adapter)
    if not await engine.prepare(index_of(PROJECT)):
        states += await engine.places(index_of(PROJECT).name, -1, 10)  # type: ignore[arg-type]
    await engine.erase(index_of(PROJECT).name)
    return [*states, *batches]


async def test_an_index_that_was_lost_is_made_again(bank: Bank, repository: Path) -> None:
    write(repository, nut="hickory\n")
    await project_in(bank, repository).files.refresh()
    await engine_of(bank.store.adapter).erase(index_of(PROJECT).name)  # as in a restored bank
    assert await paths(project_in(bank, repository), "hickory") == ["nut.txt"]


# Without git ------------------------------------------------------------------------------------


async def test_a_folder_without_git_has_its_present_files(bank: Bank, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    (folder / "notes").mkdir(parents=True)
    (folder / "notes" / "nut.txt").write_text("beech\n")
    (folder / ".hidden").write_text("beech\n")
    (folder / "link").symlink_to(folder / "notes")
    project = project_in(bank, folder)
    assert (await project.files.refresh()).indexed == 1
    assert await paths(project, "beech") == ["notes/nut.txt"]
    (folder / "notes" / "nut.txt").write_text("oak and acorn\n")
    assert await paths(project, "beech") == []
    assert await paths(project, "acorn") == ["notes/nut.txt"]
    (folder / "notes" / "nut.txt").unlink()
    assert await paths(project, "acorn") == []


async def test_without_git_there_is_no_past(bank: Bank, tmp_path: Path) -> None:
    from perdure.project.project_recall import recall_project

    (tmp_path / "plain").mkdir()
    project = project_in(bank, tmp_path / "plain")
    with pytest.raises(InvalidInput):
        await recall_project(project, "anything", at="HEAD")


# Killed -----------------------------------------------------------------------------------------

_INDEX = """
import asyncio, sys
from pathlib import Path
import perdure
from perdure.project.project import Project
from perdure.project.project_location import ProjectLocation

async def main(url, folder):
    async with perdure.open(url) as bank:
        files = Project(bank.services, ProjectLocation.find(Path(folder))).files
        print("begun", flush=True)
        def tell(_, done, whole):
            print(done, flush=True)
        await files.index_commit(await files.files.head(), progress=tell)
        print("done", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


def index_and_be_killed(url: str, folder: Path) -> None:
    """In a process that dies when it has written something."""
    command = (sys.executable, "-c", _INDEX, url, str(folder))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if re.fullmatch(r"\d+\n", line):
                process.send_signal(signal.SIGKILL)
                break


@pytest.mark.parametrize("bank", ["sqlite"], indirect=True)
async def test_killed_in_the_middle_it_goes_on(bank: Bank, repository: Path) -> None:
    for number in range(1_600):
        (repository / f"f{number}.txt").write_text(f"word{number}\n" * 20)
    write(repository)
    project = project_in(bank, repository)
    await asyncio.to_thread(index_and_be_killed, bank.url, repository)
    report = await project.files.refresh()
    assert 0 < report.indexed < 1_601  # the rest
    assert report.left == 0
    assert (await paths(project, "word3"))[0] == "f3.txt"
    assert (await paths(project, "word1599"))[0] == "f1599.txt"


# What is worth finding ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "node_modules/left-pad/index.js",
        "web/package-lock.json",
        "Cargo.lock",
        "go.sum",
        "logo.PNG",
        "static/app.min.js",
        "third_party/zlib/zlib.c",
        "api/service_pb2.py",
        "keys/server.pem",
        ".perdure/project_state.json",
    ],
)
def test_names_of_what_nobody_writes(path: str) -> None:
    assert not is_wanted(path)


@pytest.mark.parametrize("path", ["src/lock.py", "docs/vendor.md", "Makefile", "a.b/main.rs"])
def test_names_of_what_people_write(path: str) -> None:
    assert is_wanted(path)


@pytest.mark.parametrize("text", ["", "a", "line\n" * 5_000, "x" * 20_000, "é\n" * 9_000])
def test_parts_make_up_the_text(text: str) -> None:
    parts = parts_of(text)
    assert "".join(parts) == text
    assert all(0 < len(part) <= PART + PART // 2 for part in parts)


def test_line_ends_are_all_the_same() -> None:
    assert text_of(b"one\r\ntwo\rthree\n") == "one\ntwo\nthree\n"
