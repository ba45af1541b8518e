"""What was true at a commit: lines of files, past turns, memories and tasks of a project.

Files are searched in the commit's own tree. What was said, remembered or planned is held against
its anchor: it counts if that is the commit or one before it, also after history was rewritten. What
has no anchor counts if it is not younger than the commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

import msgspec

from perdure.core.clock import SECOND
from perdure.core.display import plural
from perdure.core.errors import InvalidInput
from perdure.project.file_ranking import parse_query
from perdure.project.file_search import FileHit, search_files
from perdure.project.memory_scope import MemoryScope, split_turn
from perdure.project.project import Project
from perdure.recall.memory_records import Memory, parse_key
from perdure.recall.values import Hit, Kind

RecallKind: TypeAlias = Literal["file", "turn", "memory", "reference", "task"]
RECALL_KINDS: tuple[RecallKind, ...] = get_args(RecallKind)

#: Hits that are asked for, for each that is wanted: some are of later commits.
_SPARE = 4
#: Of the words of a question, the share that a task has to have.
_IN_TASK = 0.34
#: What a task counts that has all of them.
_OPEN, _CLOSED = 0.8, 0.5
_SHORT = 10
#: The plural of each without its s.
_NOUNS = {"memory": "memorie"}
_SAID_KINDS: tuple[Kind, ...] = ("turn", "memory", "reference")
_SAID = frozenset[str](_SAID_KINDS)
_OFF = "Files are not searched: this project's setting `vectors` is off, or its bank has no search."


class ProjectHit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something of a project. `name` is what it is fetched by: ``docs/api.md:12-30``,
    ``agent/session#T-3``, ``agent/M-7``, ``#12``.
    """

    kind: RecallKind
    name: str
    text: str
    score: float
    #: When it was said or changed. Microseconds.
    time: int = 0
    #: Where it was true: of a file, the commit that was asked for.
    commit: str = ""
    branch: str = ""
    path: str = ""
    first: int = 0
    last: int = 0
    blob: str = ""
    #: Other paths with the same content.
    copies: tuple[str, ...] = ()


class ProjectFindings(msgspec.Struct, frozen=True, kw_only=True):
    """Hits, best first, the commit that was asked at, and what was left out and why."""

    commit: str = ""
    branch: str = ""
    hits: tuple[ProjectHit, ...] = ()
    notes: tuple[str, ...] = ()


class _Moment(NamedTuple):
    """A commit, and when it was made; whether somebody named it."""

    commit: str
    branch: str
    time: int
    is_named: bool


class _Asked(NamedTuple):
    query: str
    moment: _Moment
    limit: int
    seconds: float


class _Found(NamedTuple):
    hits: list[ProjectHit]
    notes: list[str]


async def recall_project(
    project: Project,
    query: str,
    *,
    at: str = "",
    branch: str = "",
    limit: int = 8,
    kinds: Collection[str] = (),
    seconds: float = 4.0,
) -> ProjectFindings:
    """What answers a question, at what is checked out, or at a commit or the tip of a branch.

    Raises `InvalidInput` if there is no such commit, branch or kind.
    """
    for kind in kinds:
        if kind not in RECALL_KINDS:
            raise InvalidInput(
                f"There is no kind {kind!r}.", hint=f"Use {', '.join(RECALL_KINDS)}."
            )
    wanted = frozenset(kinds or RECALL_KINDS)
    moment = await _moment(project, at, branch)
    asked = _Asked(query, moment, limit, seconds)
    parts = [
        _files(project, asked) if "file" in wanted else None,
        _said(project, asked, wanted) if wanted & _SAID else None,
        _tasks(project, asked) if "task" in wanted else None,
    ]
    found = await asyncio.gather(*(part for part in parts if part is not None))
    return ProjectFindings(
        commit=moment.commit,
        branch=moment.branch,
        hits=tuple(_merged([part.hits for part in found], limit)),
        notes=tuple(note for part in found for note in part.notes),
    )


async def _moment(project: Project, at: str, branch: str) -> _Moment:
    git = project.location.git
    if git is None:
        if at or branch:
            raise InvalidInput(
                f"{project.location.root} is no git repository: it has no past to ask for.",
                hint="Leave --at and --branch out.",
            )
        return _Moment(await project.files.files.head(), "", 0, is_named=False)
    head = await git.head()
    if not at and not branch:
        return _Moment(head.commit, head.branch, 0, is_named=False)
    tip = ""
    if branch:
        local = await git.try_run(
            "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}^{{commit}}"
        )
        tip = (local or "").strip() or await git.commit(branch)
    commit = await git.commit(at) if at else tip
    if at and branch and await git.try_run("merge-base", "--is-ancestor", commit, tip) is None:
        raise InvalidInput(
            f"{at} is not on {branch}.", hint="Leave --branch out, or name a commit of the branch."
        )
    made = await git.run("show", "-s", "--format=%ct", commit)
    return _Moment(commit, branch, int(made.split()[-1]) * SECOND, is_named=True)


def _merged(parts: Sequence[Sequence[ProjectHit]], limit: int) -> list[ProjectHit]:
    """The best of all; the best of each kind is among them, as far as they fit."""
    first = [part[0] for part in parts if part]
    rest = sorted((hit for part in parts for hit in part[1:]), key=lambda hit: -hit.score)
    chosen = [*sorted(first, key=lambda hit: -hit.score), *rest][:limit]
    return sorted(chosen, key=lambda hit: -hit.score)


# Files


async def _files(project: Project, asked: _Asked) -> _Found:
    files, moment = project.files, asked.moment
    if not files.is_on:
        return _Found([], [_OFF])
    if not moment.commit:
        return _Found([], ["There is no commit yet: files are found once they are committed."])
    found = await search_files(
        files, asked.query, commit=moment.commit, limit=asked.limit, seconds=asked.seconds
    )
    notes = []
    if found.left:
        where = f" --at {moment.commit[:_SHORT]}" if moment.is_named else ""
        notes.append(
            f"{plural(found.left, 'file')} of this commit could not be searched in time."
            f" Ask again, or run `perdure project index{where}`."
        )
    commit = moment.commit if project.location.git is not None else ""
    return _Found([_of_file(hit, commit, moment.branch) for hit in found.hits], notes)


def _of_file(hit: FileHit, commit: str, branch: str) -> ProjectHit:
    return ProjectHit(
        kind="file",
        name=f"{hit.path}:{hit.first}-{hit.last}",
        text=hit.text,
        score=hit.score,
        commit=commit,
        branch=branch,
        path=hit.path,
        first=hit.first,
        last=hit.last,
        blob=hit.blob,
        copies=hit.copies,
    )


# What was said and remembered


async def _said(project: Project, asked: _Asked, wanted: frozenset[str]) -> _Found:
    kinds: tuple[Kind, ...] = tuple(kind for kind in _SAID_KINDS if kind in wanted)
    scope = await MemoryScope.of_location(project.services, project.location)
    most = asked.limit * _SPARE if asked.moment.is_named else asked.limit
    found = await scope.search(asked.query, most, kinds, asked.seconds)
    hits = [await _anchored(project, hit) for hit in found.hits]
    kept, left = await _true_there(project, hits, asked.moment)
    return _Found(kept[: asked.limit], [*found.notes, *_left_out(left, asked.moment)])


async def _anchored(project: Project, hit: Hit) -> ProjectHit:
    """A hit with the commit that it was said or learnt at, as far as that is known."""
    commit = branch = ""
    if hit.kind == "memory":
        memory = await project.services.store.collection(Memory).get(parse_key(hit.key))
        if memory is not None and memory.anchor is not None and memory.anchor.repo == project.id:
            commit, branch = memory.anchor.commit, memory.anchor.branch
    elif hit.kind == "turn" and project.location.git is not None:
        anchor = await project.work.anchor_of(*split_turn(hit.key))
        if anchor is None and hit.time:
            anchor = await project.anchors.at_time(hit.time)
        if anchor is not None:
            commit, branch = anchor.commit, anchor.branch
    return ProjectHit(
        kind=hit.kind,
        name=hit.key,
        text=hit.text,
        score=round(hit.score, 4),
        time=hit.time,
        commit=commit,
        branch=branch,
    )


async def _true_there(
    project: Project, hits: Sequence[ProjectHit], moment: _Moment
) -> tuple[list[ProjectHit], list[ProjectHit]]:
    """Those that count at a commit, and those that do not."""
    if not moment.is_named:
        return [*hits], []
    commits = {hit.commit for hit in hits if hit.commit}
    true = await project.anchors.true_at(commits, moment.commit) if commits else set[str]()

    def counts(hit: ProjectHit) -> bool:
        if hit.commit:
            return hit.commit in true
        return hit.kind == "reference" or hit.time <= moment.time

    kept = [hit for hit in hits if counts(hit)]
    return kept, [hit for hit in hits if not counts(hit)]


def _left_out(hits: Iterable[ProjectHit], moment: _Moment) -> list[str]:
    counts = dict[str, int]()
    for hit in hits:
        counts[hit.kind] = counts.get(hit.kind, 0) + 1
    if not counts:
        return []
    told = ", ".join(
        "1 memory" if kind == "memory" and count == 1 else plural(count, _NOUNS.get(kind, kind))
        for kind, count in counts.items()
    )
    return [f"Left out, as of other or later commits than {moment.commit[:_SHORT]}: {told}."]


# Tasks


async def _tasks(project: Project, asked: _Asked) -> _Found:
    """Tasks that have words of the question; open ones count more."""
    from perdure.recall import words

    query = parse_query(asked.query)
    if not query.words:
        return _Found([], [])
    hits = list[ProjectHit]()
    for task in await project.tasks.all():
        text = f"{task.title}\n{task.description}".strip()
        terms = frozenset(words.terms(text))
        share = sum(any(t in terms for t in word) for word in query.words) / len(query.words)
        if share < _IN_TASK:
            continue
        hits.append(
            ProjectHit(
                kind="task",
                name=task.name,
                text=f"[{task.state}] {text}" if task.is_closed or task.blocked else text,
                score=round(share * (_CLOSED if task.is_closed else _OPEN), 4),
                time=task.made,
                commit=task.made_at.commit,
                branch=task.made_at.branch,
            )
        )
    kept, left = await _true_there(project, hits, asked.moment)
    kept.sort(key=lambda hit: -hit.score)
    return _Found(kept[: asked.limit], _left_out(left, asked.moment))
