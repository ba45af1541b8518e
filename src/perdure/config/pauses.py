"""Times in which Perdure records nothing by itself: `perdure pause`, `perdure resume`.

They are lines of one small file in the user's data folder, ``since until``, in seconds since 1970,
the newest last; ``-`` stands for a pause that somebody has to end. Shell hooks read it, too. Former
pauses stay in it: a transcript that is read later is read without what was said in them.

Clients of the proxy send their whole history again. So conversations that spoke in a pause are
noted beside it, by a hash with a salt: `heard`.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from perdure.config.config_loader import data_folder
from perdure.core.errors import Corrupted, InvalidInput, Unavailable

_FILE, _HEARD = "pauses", "paused-conversations"
_OPEN = "-"


class Pause(msgspec.Struct, frozen=True):
    """One pause, in seconds since 1970; `until` is None while only `resume` ends it."""

    since: int
    until: int | None = None

    def holds(self, moment: float) -> bool:
        return self.since <= moment and (self.until is None or moment < self.until)


def pauses_file() -> Path:
    return data_folder() / _FILE


class Pauses:
    """The pauses of this user on this machine. Reading costs one look at the file's times."""

    def __init__(self) -> None:
        self._path = pauses_file()
        self._stamp: tuple[int, int, int] | None = None
        self._all: tuple[Pause, ...] = ()

    def all(self) -> Sequence[Pause]:
        """The oldest first. Raises `Corrupted`: who cannot read it must not record."""
        try:
            found = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            self._stamp, self._all = None, ()
            return self._all
        stamp = found.st_mtime_ns, found.st_size, found.st_ino
        if stamp != self._stamp:
            try:
                lines = self._path.read_text("ascii").splitlines()
                self._all = tuple(_parsed(line) for line in lines)
            except (OSError, ValueError) as exc:
                raise Corrupted(
                    f"{self._path} cannot be read: {exc}.",
                    hint="Move it away; `perdure pause` makes a new one.",
                ) from exc
            self._stamp = stamp
        return self._all

    def current(self) -> Pause | None:
        """The pause that holds now. Raises `Corrupted`."""
        known, now = self.all(), time.time()
        return known[-1] if known and known[-1].holds(now) else None

    def covers(self, moment: int | None) -> bool:
        """Whether a time in microseconds lies in a pause, the second in which it ended included;
        one that is not known does not.
        """
        if moment is None:
            return False
        second = moment // 1_000_000
        return any(
            each.since <= second and (each.until is None or second <= each.until)
            for each in self.all()
        )

    def refuse_writing(self) -> None:
        """Raises `Unavailable` while a pause holds."""
        pause = self.current()
        if pause is not None:
            raise Unavailable(
                "Perdure is paused: nothing is recorded.", hint="`perdure resume` ends the pause."
            )

    def begin(self, seconds: int | None = None) -> Pause:
        """Begin a pause, or give the one that holds another end. Raises `InvalidInput`,
        `Corrupted`.
        """
        if seconds is not None and seconds <= 0:
            raise InvalidInput("A pause takes some time.", hint="Say, for example, --for 2h.")
        now, known = int(time.time()), [*self.all()]
        before = self.current()
        if before is not None:
            known.pop()
        until = None if seconds is None else now + seconds
        pause = Pause(now if before is None else before.since, until)
        self._write([*known, pause])
        return pause

    def end(self) -> Pause | None:
        """End the pause that holds; None if none does. Raises `Corrupted`."""
        pause = self.current()
        if pause is None:
            return None
        ended = msgspec.structs.replace(pause, until=int(time.time()))
        self._write([*self.all()[:-1], ended])
        return ended

    def _write(self, pauses: Sequence[Pause]) -> None:
        lines = (f"{each.since} {_OPEN if each.until is None else each.until}" for each in pauses)
        _replace(self._path, "".join(f"{line}\n" for line in lines))

    # Conversations that spoke in a pause --------------------------------------------------------

    def hear(self, conversation: str) -> None:
        """Note a conversation, by any text that tells it from others."""
        heard = self._heard()
        salt = heard[0] if heard else secrets.token_hex(16)
        mark = _mark(salt, conversation)
        if mark not in heard:
            _replace(self._heard_file, "\n".join([*(heard or [salt]), mark]))

    @property
    def has_heard(self) -> bool:
        return self._heard_file.exists()

    def was_heard(self, conversation: str) -> bool:
        heard = self._heard()
        return bool(heard) and _mark(heard[0], conversation) in heard

    def unhear(self, conversation: str) -> None:
        """What it said in a pause is left out of its record from now on."""
        heard = self._heard()
        if heard and (mark := _mark(heard[0], conversation)) in heard:
            _replace(self._heard_file, "\n".join(each for each in heard if each != mark))

    @property
    def _heard_file(self) -> Path:
        return self._path.with_name(_HEARD)

    def _heard(self) -> list[str]:
        try:
            return self._heard_file.read_text("ascii").split()
        except FileNotFoundError:
            return []


def _mark(salt: str, conversation: str) -> str:
    return hashlib.sha256(f"{salt} {conversation}".encode("utf-8", "replace")).hexdigest()[:32]


def _parsed(line: str) -> Pause:
    since, until = line.split()
    return Pause(int(since), None if until == _OPEN else int(until))


def _replace(path: Path, text: str) -> None:
    """At once, for its owner alone. Raises `Unavailable`."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.touch(0o600, exist_ok=False)
        beside.write_text(text, "ascii")
        beside.replace(path)
    except OSError as exc:
        beside.unlink(missing_ok=True)
        raise Unavailable(
            f"{path} cannot be written: {exc.strerror}.", hint="Mend its folder's rights."
        ) from exc
