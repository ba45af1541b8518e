"""What a bank keeps of a repository's files, beside the search index itself."""

from __future__ import annotations

from typing import Annotated

import msgspec

from perdure.search.engine import SearchIndex
from perdure.storage.record_keys import numbered
from perdure.storage.records import Key, system_record

#: Another number, and all files are indexed anew.
RECIPE = 1


@system_record("file_indexes")
class FileIndexState(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far the files of a project are indexed."""

    id: Annotated[str, Key()]  # the project's
    recipe: int = RECIPE
    #: The place that the next part gets, and the batches of blobs that there are.
    places: int = 0
    batches: int = 0
    #: By work tree, the commit whose files were all indexed last.
    commits: dict[str, str] = {}


@system_record("file_batches")
class FileBatch(msgspec.Struct, frozen=True, omit_defaults=True):
    """Contents that were indexed, in the order of their places. In a repository with SHA-256 a
    digest has 32 bytes.
    """

    id: Annotated[str, Key()]  # project/number
    #: One after the other.
    digests: bytes = b""
    #: How many places each takes: none, if there is nothing in it to be found.
    parts: bytes = b""


def batch_id(project: str, number: int) -> str:
    return f"{project}/{numbered(number)}"


def index_of(project: str) -> SearchIndex:
    """Each project has an index of its own, so that it is gone at once."""
    return SearchIndex(f"files_{project}", ("words",))
