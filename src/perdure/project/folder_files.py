"""The files of a folder without git: what is there now. A file is known by its path, size and
time, so that it is read again only if one of them changed; there is no past.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from perdure.project.git_objects import Tree, TreeFile

#: Files of a folder that are looked at, at most.
_MOST = 20_000
#: Folders that tools make.
_MADE = frozenset({"__pycache__", "build", "dist", "node_modules", "target", "venv"})


class FolderFiles:
    """Regular files below a folder; hidden ones and what links lead to are left out."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._tree = Tree("", ())

    async def head(self) -> str:
        """Names the present state of the folder."""
        self._tree = await asyncio.to_thread(self._read)
        return self._tree.commit

    async def tree(self, commit: str) -> Tree:
        if self._tree.commit != commit:
            await self.head()
        return self._tree

    async def changed(self, before: str, after: str) -> list[TreeFile] | None:
        del before, after
        return None

    def reader(self, most: int) -> FolderReader:
        return FolderReader(self._root, self._tree, most)

    async def set_aside(self, paths: Sequence[str]) -> set[str]:
        del paths
        return set()

    def _read(self) -> Tree:
        found, whole = list[TreeFile](), hashlib.blake2b(digest_size=20)
        for path, status in self._walk():
            key = f"{path}\0{status.st_mtime_ns}\0{status.st_size}"
            digest = hashlib.blake2b(key.encode(errors="surrogateescape"), digest_size=20).digest()
            found.append(TreeFile(path, digest))
            whole.update(digest)
            if len(found) == _MOST:
                break
        return Tree(whole.hexdigest(), found)

    def _walk(self) -> Iterator[tuple[str, os.stat_result]]:
        for folder, folders, names in os.walk(self._root):
            folders[:] = sorted(n for n in folders if not n.startswith(".") and n not in _MADE)
            for name in sorted(names):
                path = Path(folder, name)
                if name.startswith(".") or path.is_symlink() or not path.is_file():
                    continue
                try:
                    yield path.relative_to(self._root).as_posix(), path.stat()
                except OSError:
                    continue  # it went meanwhile


class FolderReader(AbstractAsyncContextManager["FolderReader"]):
    """Reads files of a folder by their digests."""

    def __init__(self, root: Path, tree: Tree, most: int) -> None:
        self._root, self._tree, self._most = root, tree, most

    async def __aexit__(self, *_: object) -> None:
        return None

    async def read(self, digests: Iterable[bytes]) -> AsyncIterator[tuple[bytes, bytes | None]]:
        """Each digest with its content; None if it is not there any more, or too large."""
        for digest in digests:
            paths = self._tree.by_digest.get(digest)
            yield digest, await asyncio.to_thread(self._content, paths[0]) if paths else None

    def _content(self, path: str) -> bytes | None:
        try:
            file = self._root / path
            return file.read_bytes() if file.stat().st_size <= self._most else None
        except OSError:
            return None
