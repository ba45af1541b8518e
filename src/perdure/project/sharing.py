"""State, tasks and journal under git, merged by what they say; and mending conflicted files.

The merge driver is for state and tasks. Pages of the journal are only ever appended to, and each
has one author, so git's own ``union`` does for them, also where Perdure is not installed.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from perdure.core.errors import InvalidInput, Unavailable
from perdure.project import journal
from perdure.project.git_repository import GitRepository, clean_environment
from perdure.project.project import Project
from perdure.project.project_location import ProjectLocation, write_atomically
from perdure.project.projections import IGNORED, Projections
from perdure.project.state_file import (
    STATE_FILE,
    conflict_sides,
    has_conflict,
    merge_files,
    read_state,
)
from perdure.project.task_merge import read_lines
from perdure.project.task_transfer import TASK_FILE, sync_tasks

_SHARED = "# Made by Perdure: what stays on this machine.\n/sessions/\n/local/\n*.kept-*\n"
_ATTRIBUTES = (
    "# Made by Perdure: edits of two people are merged by what they say.\n"
    f"{STATE_FILE} merge=perdure text eol=lf\n"
    f"{TASK_FILE} merge=perdure text eol=lf\n"
    f"{journal.FOLDER}/*.md merge=union text eol=lf\n"
)
_DRIVER = "merge.perdure"
_FOLDER = ".perdure"


class ShareReport(msgspec.Struct, frozen=True):
    """Files that were staged, and what a person should know."""

    files: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


async def share(project: Project) -> ShareReport:
    """Put state, tasks and journal under git: they are written and staged; nothing is committed.
    Raises `InvalidInput` without git, and where the repository ignores the folder; `Unavailable`.
    """
    git = _git(project)
    folder = project.location.files
    await _refuse_ignored(git)
    remarks = _replace(folder / ".gitignore", (IGNORED, _SHARED), _SHARED)
    remarks += _replace(folder / ".gitattributes", (_ATTRIBUTES,), _ATTRIBUTES)
    await install_driver(git)
    _set_shared(project, shared=True)
    remarks += await project.write_files()
    await sync_tasks(project.tasks)
    await git.run("add", "--", _FOLDER)
    staged = await git.run("diff", "--cached", "--name-only", "--", _FOLDER)
    return ShareReport(tuple(staged.split("\n")[:-1]), tuple(remarks))


async def unshare(project: Project) -> ShareReport:
    """Take them out of git again, staged; the files stay. Raises `InvalidInput`, `Unavailable`."""
    git = _git(project)
    tracked = (await git.run("ls-files", "--", _FOLDER)).split("\n")[:-1]
    if tracked:
        await git.run("rm", "-r", "-q", "--cached", "--", _FOLDER)
    folder = project.location.files
    remarks = _replace(folder / ".gitignore", (IGNORED, _SHARED), IGNORED)
    attributes = folder / ".gitattributes"
    if attributes.exists() and attributes.read_text(encoding="utf-8") == _ATTRIBUTES:
        attributes.unlink()
    await remove_driver(git)
    _set_shared(project, shared=False)
    return ShareReport(tuple(tracked), (*remarks, *await project.write_files()))


async def _refuse_ignored(git: GitRepository) -> None:
    path = f"{_FOLDER}/{STATE_FILE}"
    told = await git.try_run("check-ignore", "-v", "--no-index", "--", path)
    source, line, pattern = (told or "::").partition("\t")[0].split(":", 2)
    if source and not source.startswith(_FOLDER) and not pattern.startswith("!"):
        raise InvalidInput(
            f"Git ignores {_FOLDER}: {source}, line {line}, says {pattern}.",
            hint="Take that line out: what is in the folder and not for others, it ignores itself.",
        )


async def install_driver(git: GitRepository) -> None:
    """Tell git of the merge driver, in the configuration of this repository: each clone has its
    own. Without it git merges these files as text.
    """
    words = " ".join(shlex.quote(each) for each in (sys.executable, "-P", "-m", "perdure"))
    command = f"{words} project merge-driver %O %A %B %P"
    await git.run("config", "--local", f"{_DRIVER}.name", "state and tasks of Perdure")
    await git.run("config", "--local", f"{_DRIVER}.driver", command)


async def remove_driver(git: GitRepository) -> None:
    """Nothing happens if there is none."""
    await git.try_run("config", "--local", "--remove-section", _DRIVER)


def is_shared(project_files: Path) -> bool:
    """Whether the files of a folder are under git by `share`: of a clone, say."""
    try:
        return "merge=perdure" in (project_files / ".gitattributes").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False


async def committed_state(location: ProjectLocation) -> str | None:
    """The state file of the branch that changed it last, whatever is checked out or in conflict;
    None if no branch shares it. Branches are the local ones, the one that is followed, and the
    remote's default: what else was fetched may be a stranger's.
    """
    git, path = location.git, f"{_FOLDER}/{STATE_FILE}"
    if git is None:
        return None
    branches = ["--branches", *await _followed(git)]
    found = await git.try_run("log", "-1", "--format=%H", *branches, "--", path)
    return await git.try_run("show", f"{found.strip()}:{path}") if found else None


async def _followed(git: GitRepository) -> list[str]:
    """What is checked out, what it follows, and the default branch of the remote; those there are.
    The remote is ``origin``, or if there is none, that of the branch.
    """
    branch = (await git.head()).branch
    remote = "origin"
    if await git.try_run("config", f"remote.{remote}.url") is None:
        remote = (await git.try_run("config", f"branch.{branch}.remote") or "").strip()
    names = ("HEAD", "@{upstream}", f"refs/remotes/{remote}/HEAD")
    found = [await git.try_run("rev-parse", "--verify", "--quiet", name) for name in names]
    return [each.strip() for each in found if each]


def run_driver(base: Path, ours: Path, theirs: Path, name: str) -> tuple[str, ...]:
    """What git calls: the merge is written to `ours`; returns remarks. If the files cannot be
    merged, marks of the conflict are written there, and `InvalidInput` is raised.
    """
    texts = [path.read_bytes().decode(errors="surrogateescape") for path in (base, ours, theirs)]
    try:
        text, remarks = merge_files(name, *texts)
    except InvalidInput as exc:
        with tempfile.TemporaryFile() as merged:
            labels = ("-L", "ours", "-L", "common", "-L", "theirs")
            command = ("git", "merge-file", "-p", "--diff3", *labels)
            subprocess.run(  # noqa: S603 (git, with files of its own)
                [*command, str(ours), str(base), str(theirs)],
                stdout=merged,
                env=clean_environment(),
                check=False,
            )
            merged.seek(0)
            if data := merged.read():
                ours.write_bytes(data)
        raise InvalidInput(
            f"{name} cannot be merged by what it says: {exc.message}",
            hint="`perdure project repair` mends it; then `git add` it.",
        ) from exc
    ours.write_text(text, encoding="utf-8")
    return remarks


async def repair(project: Project) -> tuple[str, ...]:
    """Mend files of the project that are broken, or have marks of a conflict. What cannot be mended
    is kept beside, and the file is written anew. Returns what was done.
    """
    projections, remarks = Projections(project.location), list[str]()
    async with projections.locked():
        for name in (STATE_FILE, TASK_FILE):
            file = projections.read(name)
            if file.text is None or (problem := _problem(name, file.text)) is None:
                continue
            merged = await _mended(project, name, file.text)
            kept = projections.keep(name, file.text)
            if merged is None:
                projections.remove(name)
                remarks.append(
                    f"{name} {problem} It is written anew from the bank; what it said is kept as"
                    f" {kept.name}."
                )
            else:
                text, said = merged
                write_atomically(projections.path(name), text.encode())
                remarks += [f"{name}: both sides of the conflict are merged.", *said]
        for name in projections.names(journal.FOLDER):
            file = projections.read(name)
            if file.text is not None and has_conflict(file.text):
                projections.keep(name, file.text)
                parts = journal.split_page(_without_marks(file.text))
                write_atomically(projections.path(name), "".join(parts.values()).encode())
                remarks.append(f"{name}: both sides of the conflict are kept.")
    if not projections.path(TASK_FILE).exists() and project.settings.shared:
        await sync_tasks(project.tasks)
    remarks += await project.write_files()
    git = project.location.git
    unmerged = await git.try_run("ls-files", "-u", "--", _FOLDER) if git else None
    if remarks and unmerged:
        remarks.append("Git still waits for these files: look at them, then `git add .perdure`.")
    return tuple(remarks)


async def _mended(project: Project, name: str, text: str) -> tuple[str, tuple[str, ...]] | None:
    """The merge of the sides of a conflict: of its marks, else as git holds them."""
    sides: list[tuple[str | None, str, str]] = []
    if has_conflict(text):
        with suppress(InvalidInput):
            sides.append(conflict_sides(text))
    git = project.location.git
    if git is not None:
        stages = [await git.try_run("show", f":{n}:{_FOLDER}/{name}") for n in (1, 2, 3)]
        if stages[1] is not None and stages[2] is not None:
            sides.append((stages[0], stages[1], stages[2]))
    sides.sort(key=lambda each: each[0] is None)  # those with a common version first
    for base, ours, theirs in sides:
        try:
            return merge_files(name, base, ours, theirs)
        except InvalidInput:
            continue
    return None


def _problem(name: str, text: str) -> str | None:
    try:
        if name == STATE_FILE:
            read_state(text)
        else:
            read_lines(text)
    except InvalidInput as exc:
        return exc.message.partition(": ")[2] or exc.message
    return None


def _without_marks(text: str) -> str:
    marks = ("<<<<<<< ", "||||||| ", ">>>>>>> ")
    return "".join(
        line
        for line in text.splitlines(keepends=True)
        if not line.startswith(marks) and line.strip() != "======="
    )


def _git(project: Project) -> GitRepository:
    if project.location.git is None:
        raise InvalidInput(
            f"{project.location.root} is in no git repository.",
            hint="Files are shared through git: run `git init` first.",
        )
    return project.location.git


def _set_shared(project: Project, *, shared: bool) -> None:
    settings = replace(project.settings, shared=shared)
    try:
        project.location.write_settings(settings)
    except OSError as exc:
        raise Unavailable(
            f"The settings cannot be written: {exc.strerror}.", hint="Make room and try again."
        ) from exc
    project.settings = settings


def _replace(path: Path, known: tuple[str, ...], text: str) -> list[str]:
    """Write a file of ours; one that somebody changed stays, and is said. Raises `Unavailable`."""
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else None
        if before is not None and before not in known:
            return [f"{path} was changed by hand and stays; Perdure would write:\n{text}"]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    except OSError as exc:
        raise Unavailable(
            f"{path} cannot be written: {exc.strerror}.", hint="Mend that first."
        ) from exc
    return []
