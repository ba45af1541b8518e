"""What people would lose: banks with their artifacts, and what else is kept in the data folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from perdure.artifacts.artifact_places import S3Address
from perdure.bank import Bank
from perdure.bank.artifact_location import artifact_place
from perdure.config import Config, data_folder
from perdure.core.display import format_size, plural
from perdure.core.errors import PerdureError, Unavailable
from perdure.storage import registry
from perdure.storage.backends.sqlite.deletion import delete_bank

#: What an artifact folder holds; what else is in it is somebody else's.
_OBJECTS = ("incoming", "sha256")
_COUNTED = ("sessions", "turns", "memories", "agents")
#: Files of the data folder that are of the user, beside banks. The list of projects goes last.
_REFERENCES, _ARTIFACTS = "references", "artifacts"
_PAUSES = ("pauses", "paused-conversations")


class HeldData(msgspec.Struct, frozen=True):
    """One thing that is deleted with ``--data`` only. `work` raises a `PerdureError`, or OSError,
    if it cannot be.
    """

    what: str
    work: Callable[[], None]


async def held_data(config: Config, urls: Iterable[str]) -> tuple[list[HeldData], list[str]]:
    """What lies on this machine; and what lies elsewhere, and stays. `urls` are of banks."""
    found: list[HeldData] = []
    elsewhere: list[str] = []
    default = msgspec.structs.replace(config, bank="").bank_url()
    for url in dict.fromkeys((config.bank_url(), default, *urls)):
        own = msgspec.structs.replace(config, bank=url)
        address = registry.parse(url)
        if address.scheme == "memory":
            continue
        if address.scheme == "sqlite":
            found += _bank_file(address.path, await _content(own))
        else:
            elsewhere.append(f"the bank {registry.shown(url)}, which is on a server")
        place = artifact_place(url, config.artifacts, temporary=False)
        if isinstance(place, S3Address):
            elsewhere.append(f"artifacts at {place}")
        elif place.is_dir():
            what = f"large artifacts: {place} ({folder_size(place)})"
            found.append(HeldData(what, lambda place=place: _remove_objects(place)))  # type: ignore[misc]
    return [*found, *_own_folder()], list(dict.fromkeys(elsewhere))


def _bank_file(place: str, held: str | None) -> list[HeldData]:
    if held is None:
        return []
    path = Path(place).absolute()
    size = format_size(path.stat().st_size)
    what = f"the bank {path} ({', '.join(filter(None, (held, size)))})"
    return [HeldData(what, lambda: delete_bank(path))]


async def _content(config: Config) -> str | None:
    """``sessions 3, turns 120``; empty if it cannot be read, None if there is no such bank."""
    bank = Bank(config=config)
    try:
        if not await bank.store.adapter.exists():
            return None
        async with bank.looked_at():
            held = await bank.store.adapter.sizes()
    except (PerdureError, OSError):
        return ""
    sizes = {each.collection.removeprefix("perdure_"): each.rows for each in held}
    counted = [f"{name} {sizes[name]:,}" for name in _COUNTED if sizes.get(name)]
    return ", ".join(counted) or "nothing"


def _own_folder() -> list[HeldData]:
    folder = data_folder()
    found: list[HeldData] = []
    for name, noun in ((_REFERENCES, "reference layers"), (_ARTIFACTS, "artifacts of banks")):
        inside = folder / name
        if inside.is_dir():
            what = f"{noun}: {inside} ({folder_size(inside)})"
            found.append(HeldData(what, lambda inside=inside: shutil.rmtree(inside)))  # type: ignore[misc]
    pauses = [folder / name for name in _PAUSES if (folder / name).is_file()]
    if pauses:
        found.append(HeldData("when Perdure was paused", lambda: _unlink(pauses)))
    return found


def _unlink(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _remove_objects(place: Path) -> None:
    """Raises `Unavailable` if somebody has put something there."""
    for name in _OBJECTS:
        if (place / name).is_dir():
            shutil.rmtree(place / name)
    try:
        place.rmdir()
    except OSError as exc:
        raise Unavailable(
            f"{place} is kept: there is more in it than artifacts.", hint="Look into it."
        ) from exc


def folder_size(folder: Path) -> str:
    sizes = [each.lstat().st_size for each in folder.rglob("*") if each.is_file()]
    return f"{plural(len(sizes), 'file')}, {format_size(sum(sizes))}"
