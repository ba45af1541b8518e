"""Search in the files of a project, as they were at a commit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from perdure.core.errors import PerdureError
from perdure.project import file_ranking as ranking
from perdure.project.file_index import FileIndex
from perdure.project.file_ranking import Candidate, Passage, Query
from perdure.project.file_selection import MOST_BYTES, is_wanted, parts_of
from perdure.project.git_objects import Tree, TreeFile
from perdure.search.engine import TextSearch, search_text

if TYPE_CHECKING:
    from perdure.recall.embedders import Embedder

#: Occurrences of words that are read, at most; parts whose text is read for each hit, and at least.
_MOST, _PARTS, _LEAST_PARTS = 60_000, 4, 40
#: Letters of a word that is looked for in paths.
_IN_PATH = 3
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
    hits = await _hits(files, tree, query, text, candidates, until)
    return FileFindings(tuple(hits[:limit]), report.indexed, report.left)


def _paths(tree: Tree, query: Query) -> dict[bytes, float]:
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


def _weighed_paths(tree: Tree, query: Query) -> dict[bytes, float]:
    """The same by their weights; a word of many paths says little."""
    found = dict[bytes, float]()
    for word, weight in zip(query.words, query.weights, strict=True):
        own = [file for term in word if len(term) >= _IN_PATH for file in tree.paths_with(term)]
        share = weight / (1 + len(own) / 50)
        for digest in {file.digest for file in own}:
            found[digest] = found.get(digest, 0.0) + share
    return found


def _candidates(
    files: FileIndex, tree: Tree, query: Query, found: object, limit: int
) -> list[Candidate]:
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
    return ranking.best_parts(
        numbers, parts, scores, is_there=is_there, by_path=by_path, most=most
    )


async def _hits(
    files: FileIndex,
    tree: Tree,
    query: Query,
    text: str,
    candidates: Sequence[Candidate],
    until: float,
) -> list[FileHit]:
    digests = list(files.known.numbers)
    by_digest = dict[bytes, list[Candidate]]()
    for each in candidates:
        by_digest.setdefault(digests[each.number], []).append(each)
    contents = dict[bytes, bytes]()
    async with files.files.reader(MOST_BYTES) as reader:
        async for digest, content in reader.read(by_digest):
            if content is not None:
                contents[digest] = content
    passages = await asyncio.to_thread(_passages, files, by_digest, contents)
    cosines = await _meanings(files, text, [each.text for _, _, each, _ in passages], until)
    from perdure.recall import words

    best = dict[tuple[bytes, int], tuple[float, FileHit]]()
    for (digest, candidate, passage, before), meaning in zip(passages, cosines, strict=True):
        around = min(candidate.score / query.total, 1.0)
        score = ranking.score_passage(query, words.terms(passage.text), around, meaning)
        key = (digest, candidate.part)
        if key not in best or best[key][0] < score:
            paths = [path for path in tree.by_digest[digest] if is_wanted(path)]
            if not paths:
                continue
            best[key] = score, FileHit(
                path=paths[0],
                first=before + passage.first + 1,
                last=before + passage.last + 1,
                text=passage.text,
                score=round(min(score, 1.0), 4),
                blob=digest.hex(),
                commit=tree.commit,
                copies=tuple(paths[1:]),
            )
    return [hit for _, hit in sorted(best.values(), key=lambda each: -each[0])]


def _passages(
    files: FileIndex,
    by_digest: Mapping[bytes, Sequence[Candidate]],
    contents: Mapping[bytes, bytes],
) -> list[tuple[bytes, Candidate, Passage, int]]:
    """Passages of the candidates' parts, with the lines in front of each part. In a thread."""
    made = list[tuple[bytes, Candidate, Passage, int]]()
    for digest, content in contents.items():
        parts = parts_of(files.readable(content))
        for candidate in by_digest[digest]:
            if candidate.part < len(parts):
                before = sum(part.count("\n") for part in parts[: candidate.part])
                made += [
                    (digest, candidate, each, before)
                    for each in ranking.passages_of(parts[candidate.part])
                ]
    return made


async def _meanings(
    files: FileIndex, text: str, passages: Sequence[str], until: float
) -> Sequence[float]:
    """The cosine of each passage with the question; zeros where no quick model is at hand."""
    import numpy as np

    embedder: Embedder = (await files.services.loaded_recall()).index.embedder
    try:
        if not passages or not embedder.is_quick or time.monotonic() >= until:
            return [0.0] * len(passages)
        vectors = await embedder.embed([text, *passages])
    except PerdureError:
        return [0.0] * len(passages)
    rows = np.frombuffer(b"".join(vectors), dtype=np.int8).reshape(len(vectors), -1)
    rows = rows.astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True) + 1e-9
    cosines: Sequence[float] = (rows[1:] @ rows[0]).tolist()
    return cosines
