"""A graph over many vectors for fast nearest-neighbour search (usearch), kept in a file.

The file is beside the bank and can be made again at any time. It holds ids, places, vectors and
graph, so a process need not read them from the bank. It is read into memory and checked by its
checksum; a damaged one is not used. An encrypted bank has no file.
"""

from __future__ import annotations

import itertools
import os
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from perdure.search.vector_matrix import Arrays, Vectors

if TYPE_CHECKING:
    import numpy as np
    from usearch.index import Index

#: Vectors that are added in one step: one or two tenths of a second.
STEP = 500
#: How thoroughly neighbours are looked for. Measured on embeddings of 100,000 sentences: 98.5 of
#: the hundred nearest are found, and 9.97 of the ten nearest.
_NEIGHBOURS, _ADDING, _SEARCHING = 16, 96, 400

_MARK = b"perdure vectors 1\n"
#: Seconds after which somebody who does not renew a claim has ended.
_PATIENCE = 120.0


class _Head(msgspec.Struct, frozen=True):
    made: int
    model: int
    rows: int
    length: int
    size: int
    crc: int


class Graph:
    """The graph over the first `rows` vectors. See `perdure.search.vector_matrix.Guide`."""

    def __init__(self, length: int, image: bytes | None = None) -> None:
        from usearch.index import Index

        self._index: Index = Index(
            ndim=length,
            metric="cos",
            dtype="i8",
            connectivity=_NEIGHBOURS,
            expansion_add=_ADDING,
            expansion_search=_SEARCHING,
        )
        if image is not None:
            self._index.load(image)
        self.rows = len(self._index)

    @classmethod
    def beginning(cls, vectors: Vectors) -> Graph:
        """A graph to be extended over these: a copy of their graph, if any."""
        known = vectors.guide
        return cls(vectors.length, known.image() if isinstance(known, cls) else None)

    def extend(self, matrix: np.ndarray) -> None:
        import numpy as np

        end = min(len(matrix), self.rows + STEP)
        keys = np.arange(self.rows, end, dtype=np.uint64)
        self._index.add(keys, matrix[self.rows : end], threads=1)
        self.rows = end

    def nearest(self, query: np.ndarray, count: int) -> np.ndarray:
        import numpy as np

        found = self._index.search(query, count, threads=1)
        rows: np.ndarray = np.asarray(found.keys).astype(np.int64)
        return rows

    def image(self) -> bytes:
        return bytes(self._index.save() or b"")


class Claim:
    """Marks that a graph is being made, so that no other process does the same."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def made(cls, file: Path) -> Claim | None:
        """A claim, unless another process has renewed its own lately."""
        path = file.with_name(f"{file.name}.claim")
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _PATIENCE:
                path.unlink()
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError:
            return None
        return cls(path)

    def renew(self) -> None:
        with suppress(OSError):
            os.utime(self._path)

    def end(self) -> None:
        with suppress(OSError):
            self._path.unlink()


def write(path: Path, made: int, model: int, over: Arrays, graph: Graph) -> None:
    """Save the graph and its vectors, whole or not at all. A full disk is no error: search works
    without the file.
    """
    parts = [*(part.tobytes() for part in over), graph.image()]
    rows, length = over[2].shape
    crc, size = _begun(made, model, rows, length), 0
    for part in parts:
        crc, size = zlib.crc32(part, crc), size + len(part)
    head = _Head(made, model, rows, length, size, crc)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY
    with suppress(OSError):
        with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
            file.write(_MARK + msgspec.json.encode(head) + b"\n")
            for part in parts:
                file.write(part)
        draft.replace(path)
    with suppress(OSError):
        draft.unlink()


def read(path: Path, made: int, model: int, length: int) -> tuple[Vectors, int] | None:
    """Vectors with their graph, and the highest id; None if the file is of no use."""
    import numpy as np

    try:
        data = path.read_bytes()
    except OSError:
        return None
    end = data.find(b"\n", len(_MARK))
    try:
        head = msgspec.json.decode(data[len(_MARK) : end], type=_Head)
    except msgspec.DecodeError:
        return None
    body = memoryview(data)[end + 1 :]
    if (
        not data.startswith(_MARK)
        or (head.made, head.model, head.length) != (made, model, length)
        or head.size != len(body)
        or head.crc != zlib.crc32(body, _begun(made, model, head.rows, length))
    ):
        return None
    cuts = list(itertools.accumulate([8 * head.rows, 8 * head.rows, head.rows * length]))
    ids = np.frombuffer(body[: cuts[0]], dtype=np.int64)
    places = np.frombuffer(body[cuts[0] : cuts[1]], dtype=np.int64)
    matrix = np.frombuffer(body[cuts[1] : cuts[2]], dtype=np.int8).reshape(-1, length)
    vectors = Vectors.of(ids, places, matrix)
    vectors.guide = Graph(length, bytes(body[cuts[2] :]))
    return vectors, int(ids[-1])


def _begun(*numbers: int) -> int:
    """The checksum of the first line, which that of the rest continues."""
    return zlib.crc32(repr(numbers).encode())
