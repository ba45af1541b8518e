"""What recognises a commit after it was rewritten: noted while git still has it.

A *print* holds hashes of the author, the subject, the tree, the changed lines and the touched
paths. No text of the repository is in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator
from typing import Annotated

import msgspec

from perdure.project.git_repository import GitFailed, GitRepository
from perdure.storage.records import Indexed, Key, system_record

#: Hashes of changed lines that a stored print keeps: the smallest ones, so that two samples of
#: the same lines are the same.
_MOST_LINES = 256
_MOST_FILES = 64
#: Bytes of diffs that are read at once. A commit in whose diff this ends has a print without lines.
_MOST_BYTES = 48 * 1024 * 1024
#: Shorter lines (braces, ``else:``) say nothing of where they come from.
_SHORTEST_LINE = 5
_WIDTH = 8  # bytes of a hash

_FORMAT = "%x00%H%x00%P%x00%T%x00%ae%x00%at%x00%ct%x00%s"
#: Diffs that do not depend on anybody's configuration. A file above a megabyte counts as binary.
_DIFF = (
    *("-c", "core.bigFileThreshold=1m", "-c", "log.showRoot=true", "-c", "diff.renameLimit=2000"),
    *("-c", "diff.orderFile=/dev/null", "log", "--no-walk=unsorted", "--ignore-missing", "--stdin"),
    *("-m", "--first-parent", "-p", "-U0", "-M", "--full-index", "--no-color", "--no-ext-diff"),
    *("--no-textconv", "--no-show-signature", "--diff-algorithm=myers", "--submodule=short"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--encoding=UTF-8", f"--format={_FORMAT}"),
)


@system_record("commit_prints")
class CommitPrint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One commit. Times are seconds since 1970; hashes are hexadecimal, or packed."""

    key: Annotated[str, Key()]  # project/commit
    project: Annotated[str, Indexed()] = ""
    parents: tuple[str, ...] = ()
    tree: str = ""
    author: str = ""
    subject: str = ""
    authored: int = 0
    committed: int = 0
    #: Of the changed lines of all files, in order and without white space; empty: unknown.
    patch: str = ""
    #: Of what the whole branch had changed until then, since it left the default branch.
    branch_patch: str = ""
    lines: bytes = b""
    #: Changed lines of the commit; `lines` may be a sample.
    size: int = 0
    files: bytes = b""
    #: The branch that it was noted on, and the clone.
    branch: str = ""
    clone: str = ""

    @property
    def commit(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def line_hashes(self) -> frozenset[bytes]:
        return unpacked(self.lines)

    @property
    def file_hashes(self) -> frozenset[bytes]:
        return unpacked(self.files)


def print_key(project: str, commit: str) -> str:
    return f"{project}/{commit}"


def unpacked(data: bytes) -> frozenset[bytes]:
    return frozenset(data[at : at + _WIDTH] for at in range(0, len(data), _WIDTH))


def stored(found: CommitPrint) -> CommitPrint:
    """The print with as much of the lines as is kept in the bank."""
    lines = b"".join(sorted(found.line_hashes)[:_MOST_LINES])
    files = b"".join(sorted(found.file_hashes)[:_MOST_FILES])
    return msgspec.structs.replace(found, lines=lines, files=files)


async def read_prints(
    git: GitRepository, project: str, commits: Iterable[str]
) -> dict[str, CommitPrint]:
    """Prints of those commits that git has, with all their lines, in one process (two if diffs are
    huge). Raises `GitFailed`.
    """
    found: dict[str, CommitPrint] = {}
    wanted = list(dict.fromkeys(commits))
    edge = shallow_edge(git)
    while wanted:
        data, whole = await git.run_limited(
            *_DIFF, stdin="".join(f"{each}\n" for each in wanted).encode(), limit=_MOST_BYTES
        )
        read = [*_parse(project, data, edge)]
        found |= {each.commit: each for each in read}
        if whole or not read:
            break
        cut = read[-1]
        bare = msgspec.structs.replace(cut, patch="", lines=b"", size=0)
        found[cut.commit] = bare
        wanted = wanted[wanted.index(cut.commit) + 1 :]
    return found


async def read_outlines(
    git: GitRepository, project: str, commits: Iterable[str]
) -> dict[str, CommitPrint]:
    """Prints without changes: quick, also of thousands."""
    data = await git.run_bytes(
        *("log", "--no-walk=unsorted", "--ignore-missing", "--stdin", "--no-show-signature"),
        *("--no-patch", "--encoding=UTF-8", f"--format={_FORMAT}"),
        stdin="".join(f"{each}\n" for each in commits).encode(),
    )
    return {each.commit: each for each in _parse(project, data, frozenset())}


async def patch_between(git: GitRepository, start: str, end: str, *, fork: bool = False) -> str:
    """The hash of what changed between two commits, as in `CommitPrint.patch`; with `fork` since
    they parted. Empty if git cannot say, or nothing changed.
    """
    options = [each for each in _DIFF[_DIFF.index("-p") :] if each[:5] not in ("--enc", "--for")]
    options = [each for each in options if each != "--no-show-signature"]
    try:
        data, whole = await git.run_limited(
            *("-c", "core.bigFileThreshold=1m", "-c", "diff.renameLimit=2000"),
            *("-c", "diff.orderFile=/dev/null", "diff"),
            *(*options, f"{start}{'...' if fork else '..'}{end}", "--"),
            limit=_MOST_BYTES,
        )
    except GitFailed:
        return ""
    return _Changes(data.split(b"\n")).patch if whole else ""


def shallow_edge(git: GitRepository) -> frozenset[str]:
    """The commits at which a shallow clone ends: git takes them for the first ones."""
    try:
        return frozenset((git.common_dir / "shallow").read_text().split())
    except OSError:
        return frozenset()


def _parse(project: str, data: bytes, edge: Collection[str]) -> Iterator[CommitPrint]:
    # A header line begins with NUL; lines of files begin with a sign.
    for block in (b"\n" + data).split(b"\n\0")[1:]:
        head, _, diff = block.partition(b"\n")
        commit, parents, tree, email, authored, committed, subject = head.split(b"\0", 6)
        id = commit.decode()
        changes = _Changes([] if id in edge else diff.split(b"\n"))
        yield CommitPrint(
            key=print_key(project, id),
            project=project,
            parents=tuple(parents.decode().split()),
            tree=tree.decode(),
            author=_short(email + b"\0" + authored).hex(),
            subject=_short(subject).hex(),
            authored=int(authored or 0),
            committed=int(committed or 0),
            patch=changes.patch,
            lines=b"".join(changes.lines),
            size=len(changes.lines),
            files=b"".join(_short(each) for each in changes.files),
        )


class _Changes:
    """The changed lines of a diff without context."""

    def __init__(self, diff: list[bytes]) -> None:
        self.lines: set[bytes] = set()
        self.files: set[bytes] = set()
        parts: dict[bytes, list[bytes]] = {}
        removed: set[bytes] = set()
        path, part, binary = b"", list[bytes](), b""
        for line in diff:
            sign = line[:1]
            if sign in (b"+", b"-") and part and part[-1] != b"":
                text = b"".join(line[1:].split())
                part.append(sign + text)
                if len(text) >= _SHORTEST_LINE:
                    (self.lines if sign == b"+" else removed).add(_short(sign + text))
            elif line.startswith(b"diff --git "):
                path = line[11:]
                part = parts.setdefault(path, [])
                part.append(b"")  # lines of the header follow
                binary = b""
                self.files.update(_names(path))
            elif line.startswith(b"@@") and part:
                if part[-1] == b"":
                    part.append(b"@")
            elif line.startswith(b"index "):
                binary = line
            elif line.startswith(b"Binary "):
                part += (binary, b"@")
                self.lines.add(_short(path + binary))
            elif line.startswith((b"rename ", b"new ", b"deleted ", b"old mode", b"copy ")):
                part[-1:] = [line, b""]
                self.lines.add(_short(path + line))
        if not self.lines:
            self.lines = removed
        whole = hashlib.sha256()
        for name in sorted(parts):
            whole.update(b"\0".join((name, *(each for each in parts[name] if each), b"")))
        self.patch = whole.hexdigest()[:32] if parts else ""


def _names(paths: bytes) -> Iterator[bytes]:
    """``a/x b/x``: the path, or both of a renamed file."""
    half = len(paths) // 2
    if paths[2:half] == paths[half + 3 :]:
        yield paths[2:half]
    else:
        before, _, after = paths.partition(b" b/")
        yield before[2:]
        yield after


def _short(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_WIDTH).digest()
