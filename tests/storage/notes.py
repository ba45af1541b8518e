"""Record types that the tests of stores use."""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Annotated, Any

import msgspec

from perdure.storage.records import Compressed, Indexed, Key, Tags, record
from perdure.storage.rows import Index


class Mood(enum.Enum):
    CALM = "calm"
    WILD = "wild"


@record("notes", indexes=[Index(("created",)), Index(("author", "stars")), Index(("updated",))])
class Note(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    author: Annotated[str | None, Indexed()] = None
    stars: Annotated[int | None, Indexed()] = None
    weight: Annotated[float | None, Indexed()] = None
    mood: Annotated[Mood | None, Indexed()] = None
    due: Annotated[datetime | None, Indexed()] = None
    done: Annotated[bool, Indexed()] = False
    text: Annotated[str, Compressed()] = ""
    extra: Any = None
    labels: Annotated[dict[str, str], Tags()] = {}


@record("authors")
class Author(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    name: str
    favourites: list[str] = []


@record("replies")
class Reply(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    note: Annotated[str, Indexed()]


@record("sparks", ttl="1h")
class Spark(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    kind: Annotated[str, Indexed()] = "x"


@record("pages", serializer="json")
class Page(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    body: str | None = None
    number: float | None = None
