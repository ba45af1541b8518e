"""Where a bank keeps its large artifacts."""

from __future__ import annotations

import tempfile
import zlib
from pathlib import Path
from urllib.parse import urlsplit

from perdure import config as configuration
from perdure.artifacts import artifact_places
from perdure.artifacts.artifact_places import S3Address
from perdure.config import ArtifactsConfig
from perdure.core.clock import new_id
from perdure.core.errors import AccessDenied
from perdure.storage import registry


def artifact_place(url: str, config: ArtifactsConfig, *, temporary: bool) -> Path | S3Address:
    """The configured place, else a folder of this bank alone. Raises `InvalidURL` if it cannot be
    read.
    """
    if config.url:
        return artifact_places.parse(config.url)
    if config.folder:
        return Path(config.folder).expanduser().absolute()
    address = registry.parse(url)
    if address.scheme == "sqlite":
        file = Path(address.path).absolute()
        return file.with_name(f"{file.name}.artifacts")
    if temporary:
        return Path(tempfile.gettempdir()) / f"perdure-{new_id()}"
    return configuration.data_folder() / "artifacts" / _slug(url)


def former_place(config: ArtifactsConfig) -> Path | S3Address | None:
    """The second place to look in, while artifacts are being moved."""
    return artifact_places.place_of(config.former) if config.former else None


def make_folder(folder: Path) -> None:
    """Make the folder, for this user alone, if there is none. Raises `AccessDenied`."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise AccessDenied(
            f"The folder {folder} cannot be made: {exc.strerror}.",
            hint="Set PERDURE_BANK to an address that you may write to.",
        ) from exc


def _slug(url: str) -> str:
    """A folder name for a bank on a server: two banks never share one."""
    parts, options = urlsplit(url), registry.parse(url).options
    schema = options.get("schema", "perdure")
    servers = parts.netloc.rpartition("@")[2]
    if "," in servers and ":" in servers:  # several, each with its port
        server = servers.lower()
    else:
        server = f"{parts.hostname or options.get('host', 'local')}-{parts.port or 5432}"
    place = f"{server}-{parts.path.strip('/')}-{schema}"
    readable = "".join(char if char.isalnum() or char in "-_." else "_" for char in place)
    return f"{readable}-{zlib.crc32(place.encode()):08x}"
