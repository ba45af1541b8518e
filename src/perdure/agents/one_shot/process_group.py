"""Runs a command in a process group of its own, with a watchdog.

What it prints goes to files, not through pipes: so nothing of it is lost with the harness, and a
process that stays behind holds nothing up. The command waits for a word of ours before it begins,
and that is given only when its identity is written down: if the harness dies before, it ends by
itself; afterwards, whoever takes over knows what to end.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from perdure.agents.one_shot.run_records import ProcessEnding
from perdure.agents.one_shot.work_files import newest_write
from perdure.agents.process_identity import ProcessIdentity, identity_of, is_dead
from perdure.core.errors import InvalidInput, Unsupported

OUT, ERR, PROMPT, RECORD = "out", "err", "prompt", "record.json"
_LOOK = 0.1  # Seconds between two looks at a process.
_GRACE = 5.0  # Seconds between asking a group to end and ending it.
_MOST_OUTPUT = 64 << 20  # Bytes after which a command is ended: it prints without end.
_KEPT = 1 << 21  # Characters of each stream that are kept: the beginning and the end.
#: `$0` is the file that the command gets as its stdin.
_WAITS = 'read -r go && exec "$@" <"$0"'


class GroupResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended, and what it printed."""

    ending: ProcessEnding
    code: int | None
    out: str = ""
    err: str = ""


class GroupLimits(msgspec.Struct, frozen=True, kw_only=True):
    """When a command is ended: seconds without a sign of life, seconds in all. A write to one of
    the files is a sign of life, as output is.
    """

    silence: float
    seconds: float
    files: tuple[str, ...] = ()


async def run_group(
    command: Sequence[str],
    spool: Path,
    *,
    folder: str,
    limits: GroupLimits,
    started: Callable[[ProcessIdentity], Awaitable[None]],
    prompt: str = "",
    environ: Mapping[str, str] = {},
) -> GroupResult:
    """Run it until it ends, or is ended with all that it started. Cancelled, it ends it, too.
    Raises `InvalidInput` if there is no such command.
    """
    if os.name != "posix":
        raise Unsupported("Runs need process groups.", hint="Use Linux, macOS, or WSL.")
    (spool / PROMPT).write_text(prompt, "utf-8")
    with (spool / OUT).open("wb") as out, (spool / ERR).open("wb") as err:
        try:
            process = await asyncio.create_subprocess_exec(
                *("/bin/sh", "-c", _WAITS, str(spool / PROMPT), *command),
                cwd=folder,
                env={**os.environ, **environ},
                stdin=asyncio.subprocess.PIPE,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except OSError as exc:
            raise InvalidInput(
                f"{command[0]!r} cannot be run: {exc.strerror}.", hint="Look at folder and command."
            ) from exc
    try:
        await started(identity_of(process.pid))
        assert process.stdin is not None  # noqa: S101  # it is a pipe
        with suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(b"go\n")
            await process.stdin.drain()
        process.stdin.close()
        ending = await _watched(process, spool, limits)
    finally:
        await asyncio.shield(_end(process))
    code = process.returncode
    if ending == "finished" and code:
        ending = "failed"
    return GroupResult(
        ending=ending, code=code, out=read_output(spool, OUT), err=read_output(spool, ERR)
    )


def read_output(spool: Path, name: str) -> str:
    """What was printed; of much, the beginning and the end. Empty if the file is gone."""
    try:
        text = (spool / name).read_bytes().decode("utf-8", "replace").replace("\0", "")
    except OSError:
        return ""
    if len(text) <= _KEPT:
        return text
    half = _KEPT // 2
    return f"{text[:half]}\n… {len(text) - _KEPT:,} characters are left out …\n{text[-half:]}"


async def end_left_over(process: ProcessIdentity) -> bool:
    """End the group of a process that a dead harness has left. False if it had ended by itself.

    Signalled is only what is surely that process: same host, boot and pid space, and a start time
    that is known and the same. Of any other its pid says nothing: it may be a stranger's here.
    """
    if is_dead(process):
        return False
    if not process.started or identity_of(process.pid) != process:
        return True
    _signal(process.pid, signal.SIGTERM)
    for _ in range(int(_GRACE / _LOOK)):
        if is_dead(process):
            break
        await asyncio.sleep(_LOOK)
    _signal(process.pid, signal.SIGKILL)
    return True


async def _watched(
    process: asyncio.subprocess.Process, spool: Path, limits: GroupLimits
) -> ProcessEnding:
    now = asyncio.get_running_loop().time
    began = heard = now()
    size, written = 0, newest_write(limits.files)
    ended = asyncio.create_task(process.wait())
    try:
        while True:
            await asyncio.wait({ended}, timeout=_LOOK)
            if ended.done():
                return "finished"
            printed = sum(_size(spool / name) for name in (OUT, ERR))
            last = newest_write(limits.files)
            if (printed, last) != (size, written):
                size, written, heard = printed, last, now()
            if now() - heard >= limits.silence:
                return "silent"
            if now() - began >= limits.seconds or printed > _MOST_OUTPUT:
                return "overtime"
    finally:
        ended.cancel()


async def _end(process: asyncio.subprocess.Process) -> None:
    """The command, if it still runs, and all that it has left running."""
    if process.returncode is None:
        _signal(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                await process.wait()
    _signal(process.pid, signal.SIGKILL)
    await process.wait()


def _signal(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
