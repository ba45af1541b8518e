"""What people would lose: banks with their artifacts, and what else is kept in the data folder.

In doubt it stays, and is told: what is no bank for sure, what lies in a place that several banks
may share, and what belongs to a bank that stays.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from perdure.artifacts.artifact_places import S3Address
from perdure.artifacts.folder_objects import remove_objects
from perdure.bank import Bank
from perdure.bank.artifact_location import artifact_place, former_place
from perdure.config import ArtifactsConfig, Config, data_folder
from perdure.core.display import format_size, plural
from perdure.core.errors import PerdureError, Unavailable
from perdure.storage import registry
from perdure.storage.backends.sqlite.deletion import check_bank, delete_bank
from perdure.storage.encryption import file_key, read_key

_COUNTED = ("sessions", "turns", "memories", "agents")
#: Files of the data folder that are of the user, beside banks. The list of projects goes last.
_REFERENCES, _ARTIFACTS = "references", "artifacts"
_PAUSES = ("pauses", "paused-conversations")
_BY_HAND = "delete them by hand, if no bank needs them"


class DataRemoval(msgspec.Struct, frozen=True):
    """One thing that is deleted with ``--data`` only. `work` raises a `PerdureError`, or OSError,
    if it cannot be. `of_all` belongs to all banks: it goes only if none stays.
    """

    what: str
    work: Callable[[], None]
    of_all: bool = False


class DataFindings(msgspec.Struct):
    """What ``--data`` deletes; what it does not, and is told; files that seemed to be banks, and
    why they stay.
    """

    going: list[DataRemoval] = []
    elsewhere: list[str] = []
    refused: list[str] = []
    #: A bank that stays was found.
    bank_stays: bool = False


async def removable_data(config: Config, urls: Iterable[str]) -> DataFindings:
    """What lies on this machine, and what lies elsewhere. `urls` are of banks."""
    found = DataFindings()
    default = msgspec.structs.replace(config, bank="").bank_url()
    seen = set[Path]()
    for url in dict.fromkeys((config.bank_url(), default, *urls)):
        address = registry.parse(url)
        if address.scheme == "memory":
            continue
        if address.scheme != "sqlite":
            found.bank_stays = True
            found.elsewhere.append(f"the bank {registry.shown(url)}, which is on a server")
            continue
        path, real = _places(address.path)
        if real not in seen:
            seen.add(real)
            await _look_at_file(found, msgspec.structs.replace(config, bank=url), path)
    _look_at_places(found, config.artifacts)
    _look_at_own_folder(found)
    return found


def _places(path: str) -> tuple[Path, Path]:
    """The full path of a file, and the one without links."""
    return Path(path).absolute(), Path(path).resolve()


async def _look_at_file(found: DataFindings, config: Config, path: Path) -> None:
    place = artifact_place(config.bank_url(), ArtifactsConfig(), temporary=False)
    assert isinstance(place, Path)  # noqa: S101  # nothing else was configured
    beside = f"large artifacts in {place} ({folder_size(place)})" if place.is_dir() else ""
    try:
        key = await _file_key(config)
        check_bank(path, key)
    except (FileNotFoundError, NotADirectoryError):
        if beside:
            found.elsewhere.append(f"{beside}, whose bank {path} is not there: {_BY_HAND}")
        return
    except (PerdureError, OSError) as exc:
        found.bank_stays = True
        found.refused.append(f"{path} stays, for you to delete by hand: {exc}")
        if beside:
            found.elsewhere.append(f"{beside}, as {path} stays")
        return
    held = ", ".join(filter(None, (await _content(config), _size(path))))
    what = f"the bank {path} ({held})" + (f" and {beside}" if beside else "")
    found.going.append(DataRemoval(what, lambda: _delete(path, key, place)))


def _delete(path: Path, key: bytes | None, place: Path) -> None:
    """A bank, and only then its artifacts."""
    delete_bank(path, key)
    try:
        is_gone = not place.is_dir() or remove_objects(place)
    except OSError as exc:
        raise Unavailable(
            f"The bank {path} is deleted, but artifacts stay in {place}: {exc}.",
            hint="Delete them by hand.",
        ) from exc
    if not is_gone:
        raise Unavailable(
            f"The bank {path} is deleted, but {place} is kept: there is more in it than artifacts.",
            hint="Look into it.",
        )


async def _file_key(config: Config) -> bytes | None:
    if not config.encryption.whole_file:
        return None
    return file_key(await read_key(config.encryption.key))


async def _content(config: Config) -> str:
    """``sessions 3, turns 120``; empty if it cannot be read."""
    try:
        bank = Bank(config=config)
        async with bank.looked_at():
            held = await bank.store.adapter.sizes()
    except (PerdureError, OSError):
        return ""
    sizes = {each.collection.removeprefix("perdure_"): each.rows for each in held}
    counted = [f"{name} {sizes[name]:,}" for name in _COUNTED if sizes.get(name)]
    return ", ".join(counted) or "nothing"


def _look_at_places(found: DataFindings, config: ArtifactsConfig) -> None:
    """Places of the configuration: which banks use them, nobody can tell."""
    places = [former_place(config)]
    if config.url or config.folder:
        places.append(artifact_place("memory://", config, temporary=False))
    for place in places:
        if isinstance(place, S3Address):
            found.elsewhere.append(f"artifacts at {place}")
        elif place is not None and place.is_dir():
            found.elsewhere.append(
                f"large artifacts in {place}, which several banks may share (sha256, copies and"
                f" incoming are ours): {_BY_HAND}"
            )


def _look_at_own_folder(found: DataFindings) -> None:
    folder = data_folder()
    artifacts, references = folder / _ARTIFACTS, folder / _REFERENCES
    if artifacts.is_dir():
        found.elsewhere.append(
            f"large artifacts of banks on servers: {artifacts} ({folder_size(artifacts)}):"
            f" {_BY_HAND}"
        )
    of_all = []
    if references.is_dir():
        what = f"reference layers: {references} ({folder_size(references)})"
        of_all.append(DataRemoval(what, lambda: shutil.rmtree(references), of_all=True))
    pauses = [folder / name for name in _PAUSES if (folder / name).is_file()]
    if pauses:
        what = f"when Perdure was paused: {', '.join(map(str, pauses))}"
        of_all.append(DataRemoval(what, lambda: _unlink(pauses), of_all=True))
    if found.bank_stays:
        found.elsewhere += [f"{each.what}, because a bank stays" for each in of_all]
    else:
        found.going += of_all


def _unlink(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _size(path: Path) -> str:
    return format_size(path.stat().st_size)


def folder_size(folder: Path) -> str:
    sizes = [each.lstat().st_size for each in folder.rglob("*") if each.is_file()]
    return f"{plural(len(sizes), 'file')}, {format_size(sum(sizes))}"
