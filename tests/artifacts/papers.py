"""Records that refer to artifacts, in every way in which they can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgspec

from perdure.artifacts import Artifact
from perdure.storage.records import Key, record


@record("papers")
class Paper(msgspec.Struct, frozen=True):
    """Refers to one artifact, or none."""

    id: Annotated[str, Key()]
    body: Artifact | None = None


class Page(msgspec.Struct, frozen=True):
    image: Artifact | None = None
    inner: Page | None = None


@dataclass(frozen=True)
class Cover:
    image: Artifact


class Pair(NamedTuple):
    left: Artifact
    right: Artifact


@record("books")
class Book(msgspec.Struct, frozen=True):
    """Refers from deep inside."""

    id: Annotated[str, Key()]
    title: str = ""
    pages: tuple[Page, ...] = ()
    named: dict[str, list[Artifact]] = {}
    cover: Cover | None = None
    pair: Pair | None = None
    either: Annotated[int | Artifact, "or"] = 0


@record("passing", ttl="1h")
class Passing(msgspec.Struct, frozen=True):
    """Refers for an hour."""

    id: Annotated[str, Key()]
    body: Artifact


@record("plain_notes")
class Plain(msgspec.Struct, frozen=True):
    """Cannot refer: a hash in a text is only text."""

    id: Annotated[str, Key()]
    text: str = ""
    data: dict[str, int] = {}
