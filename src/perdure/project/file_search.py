"""Search in the files of a project, as they were at a commit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from perdure.core.errors import PerdureError
from perdure.project import file_ranking as ranking
from perdure.project.file_index import FileIndex
from perdure.project.file_ranking import Block, FileQuery, PartCandidate
from perdure.project.file_selection import MOST_BYTES, is_wanted, parts_of
from perdure.project.git_objects import Tree
from perdure.project.word_likeness import likeness, words_in
from perdure.search.engine import TextFound, TextSearch, search_text

if TYPE_CHECKING:
    from perdure.recall.embedders import Embedder

#: Occurrences of words that are read, at most; parts whose text is read for each hit, and at least.
_MOST, _PARTS, _LEAST_PARTS = 60_000, 4, 160
#: Letters of a word that is looked for in paths.
_IN_PATH = 3
#: Files whose paths have a word, where it says half as much as in few.
_MANY_PATHS = 500
#: Seconds that indexing may take of a search, as a share of its deadline.
_SHARE = 0.75


class FileHit(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of a file, as they are at a commit."""

    path: str
    first: int  # Counted from 1.
    last: int
    text: str
    score: float
    blob: str = ""
    commit: str = ""
    #: Other paths with the same content.
    copies: tuple[str, ...] = ()


class FileFindings(msgspec.Struct, frozen=True):
    """Hits, best first; files of the commit that could not be searched yet."""

    hits: tuple[FileHit, ...] = ()
    indexed: int = 0
    left: int = 0


async def search_files(
    files: FileIndex, text: str, *, commit: str, limit: int, seconds: float
) -> FileFindings:
    """What stands in the files of a commit. Those that are not indexed are indexed first, as far as
    there is time, beginning with those whose paths have words of the question.

    Raises `GitFailed` if the commit is not here.
    """
    until = time.monotonic() + seconds
    tree, query = await files.tree(commit), ranking.parse_query(text)
    paths = _paths(tree, query)
    report = await files.index_commit(
        commit, seconds=seconds * _SHARE, rank=lambda file: -paths.get(file.digest, 0.0)
    )
    search = TextSearch(index=files.index.name, terms=query.terms, most=_MOST)
    found = await search_text(files.services.store, search)
    query = ranking.weigh(query, found)
    candidates = await asyncio.to_thread(_candidates, files, tree, query, found, limit)
    hits = await _hits(files, tree, query, candidates, until)
    return FileFindings(tuple(hits[:limit]), report.indexed, report.left)


def _paths(tree: Tree, query: FileQuery) -> dict[bytes, float]:
    """How many words of the query stand in the paths of each content."""
    found = dict[bytes, float]()
    for word in query.words:
        own = {
            file.digest: 1.0
            for term in word
            if len(term) >= _IN_PATH
            for file in tree.paths_with(term)
        }
        for digest, weight in own.items():
            found[digest] = found.get(digest, 0.0) + weight
    return found


def _weighed_paths(tree: Tree, query: FileQuery) -> dict[bytes, float]:
    """The same by their weights; a word of many paths says little."""
    found = dict[bytes, float]()
    for word, weight in zip(query.words, query.weights, strict=True):
        own = [file for term in word if len(term) >= _IN_PATH for file in tree.paths_with(term)]
        share = weight / (1 + len(own) / _MANY_PATHS)
        for digest in {file.digest for file in own}:
            found[digest] = found.get(digest, 0.0) + share
    return found


def _candidates(
    files: FileIndex, tree: Tree, query: FileQuery, found: TextFound, limit: int
) -> list[PartCandidate]:
    import numpy as np

    places, scores = ranking.score_places(query, found)
    numbers, parts = files.known.of_places(places)
    known, there = files.known.numbers, tree.by_digest
    is_there = np.zeros(max(len(known), 1), dtype=bool)
    is_there[[known[digest] for digest in there if digest in known]] = True
    by_path = {
        known[digest]: weight
        for digest, weight in _weighed_paths(tree, query).items()
        if digest in known
    }
    most = max(_PARTS * limit, _LEAST_PARTS)
    return ranking.best_parts(numbers, parts, scores, is_there=is_there, by_path=by_path, most=most)


async def _hits(
    files: FileIndex,
    tree: Tree,
    query: FileQuery,
    candidates: Sequence[PartCandidate],
    until: float,
) -> list[FileHit]:
    digests = list(files.known.numbers)
    by_digest = dict[bytes, list[PartCandidate]]()
    for each in candidates:
        by_digest.setdefault(digests[each.number], []).append(each)
    contents = dict[bytes, bytes]()
    async with files.files.reader(MOST_BYTES) as reader:
        async for digest, content in reader.read(by_digest):
            if content is not None:
                contents[digest] = content
    parts = await asyncio.to_thread(_read_parts, files, tree, by_digest, contents)
    alike = await _alike(files, query, parts, until)
    return await asyncio.to_thread(_ranked, tree, query, parts, alike)


class _Part(NamedTuple):
    """A part that may be shown."""

    digest: bytes
    paths: list[str]
    score: float
    #: Lines in front of it.
    before: int
    text: str
    blocks: list[Block]


def _read_parts(
    files: FileIndex,
    tree: Tree,
    by_digest: Mapping[bytes, Sequence[PartCandidate]],
    contents: Mapping[bytes, bytes],
) -> list[_Part]:
    made = list[_Part]()
    for digest, content in contents.items():
        paths = [path for path in tree.by_digest[digest] if is_wanted(path)]
        if not paths:
            continue
        parts = parts_of(files.readable(content))
        for candidate in by_digest[digest]:
            if candidate.part < len(parts):
                text = parts[candidate.part]
                before = sum(part.count("\n") for part in parts[: candidate.part])
                blocks = ranking.blocks_of(text)
                made.append(_Part(digest, paths, candidate.score, before, text, blocks))
    return made


def _ranked(
    tree: Tree, query: FileQuery, parts: Sequence[_Part], alike: Sequence[Sequence[float]]
) -> list[FileHit]:
    """Hits, best first; `alike` has a row for each block."""
    from perdure.recall import words

    found, rows = list[tuple[float, _Part, Block]](), iter(alike)
    for part in parts:
        said = ranking.said_by(query, part.paths[0])
        terms = [frozenset(words.terms(block.text)) for block in part.blocks]
        whole = frozenset().union(*terms)
        scored = [
            (ranking.score_block(query, said, own, whole, next(rows)), block)
            for own, block in zip(terms, part.blocks, strict=True)
        ]
        if scored:
            score, block = max(scored, key=lambda each: each[0])
            found.append((score, part, block))
    found.sort(key=lambda each: -each[0])
    hits = list[FileHit]()
    for score, part, block in found:
        shown = ranking.shown_around(part.text, block)
        hits.append(
            FileHit(
                path=part.paths[0],
                first=part.before + shown.first + 1,
                last=part.before + shown.last + 1,
                text=shown.text,
                score=round(min(score, 1.0), 4),
                blob=part.digest.hex(),
                commit=tree.commit,
                copies=tuple(part.paths[1:]),
            )
        )
    return hits


async def _alike(
    files: FileIndex, query: FileQuery, parts: Sequence[_Part], until: float
) -> Sequence[Sequence[float]]:
    """For each block, how near it has each word of the query; zeros where no quick model is at
    hand.
    """
    blocks = [words_in(block.text) for part in parts for block in part.blocks]
    embedder: Embedder = (await files.services.loaded_recall()).index.embedder
    try:
        if embedder.is_quick and time.monotonic() < until:
            found = await likeness(embedder, query.texts, blocks)
            rows: Sequence[Sequence[float]] = found.T.tolist()
            return rows
    except PerdureError:
        pass  # by words alone
    return [[0.0] * len(query.words)] * len(blocks)
