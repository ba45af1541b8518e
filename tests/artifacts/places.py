"""What the tests look at from outside: the files under a root."""

from __future__ import annotations

import hashlib
from pathlib import Path

from perdure.artifacts import Artifact, ArtifactPlace, PlaceAddress
from perdure.artifacts.artifact import object_path


def file_of(root: Path, artifact: Artifact) -> Path:
    return root / object_path(artifact.hash)


def final_files(root: Path) -> list[Path]:
    return sorted(path for path in (root / "sha256").rglob("*") if not path.is_dir())


def leftovers(root: Path) -> list[Path]:
    return sorted((root / "incoming").iterdir()) if (root / "incoming").exists() else []


def all_whole(root: Path) -> bool:
    """Whether every file under a final name has the content that its name says."""
    return all(
        hashlib.sha256(path.read_bytes()).hexdigest() == path.name for path in final_files(root)
    )


def is_there(path: Path) -> bool:
    return path.exists()


def kind_of(place: PlaceAddress) -> ArtifactPlace:
    return ArtifactPlace.DISK if isinstance(place, Path) else ArtifactPlace.S3


def nothing_left(place: PlaceAddress) -> bool:
    """Whether no unfinished write is to be seen; on S3 none ever is."""
    return not isinstance(place, Path) or leftovers(place) == []


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write(file: Path, text: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


def text_in(file: Path) -> str:
    return file.read_text()
