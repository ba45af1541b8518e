"""Search indexes: documents by number, found by their words and by their vectors.

A document has a *place*, a number that its caller chose; a text for each *field* of the index; a
*note*, bytes that come back with it; and later a vector. Indexes are derived data: not in
backups, and filled again by their callers. They are written in the same commit as the rows they
are about: give `Document` and `Withdrawal` to `Transaction.include`.

Texts are *terms*, separated by one space, already folded, split and stemmed. Backends do not
change them, so every backend finds the same. A term has letters and digits of any script, but no
capital A to Z, and ``_ = : . / -``.

A text search returns occurrences, not scores: scoring is the caller's business, who knows what a
place means.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, TypeAlias, cast

import msgspec

from perdure.core.errors import InvalidInput, Unsupported
from perdure.storage.adapter import Adapter
from perdure.storage.extension import Extension, ExtensionChange
from perdure.storage.middleware import SearchCall
from perdure.storage.options import DEFAULT, Options

if TYPE_CHECKING:
    import numpy as np

    from perdure.storage.store import Store

#: A place is below this, so that every backend has a type for it.
MAX_PLACE = 2**62
#: From the first place to the last, both included.
Range: TypeAlias = tuple[int, int]


class SearchIndex(msgspec.Struct, frozen=True):
    """A search index, as it is declared."""

    name: str
    fields: tuple[str, ...]


class Document(ExtensionChange, frozen=True, gc=False):
    """Store a document, replacing the one in its place. It has no vector then."""

    extension: ClassVar[str] = "search"
    index: str
    place: int
    #: Terms, one space between two, in the order of `SearchIndex.fields`.
    texts: tuple[str, ...]
    note: bytes = b""


class Withdrawal(ExtensionChange, frozen=True, gc=False):
    """Remove every document from `first` to `last`, with its note and vector."""

    extension: ClassVar[str] = "search"
    index: str
    first: int
    last: int


class Embedding(msgspec.Struct, frozen=True, gc=False):
    """The vector of a document: signed bytes, see `perdure.recall.embedders`."""

    place: int
    vector: bytes


class TextSearch(msgspec.Struct, frozen=True, kw_only=True):
    """A search by words."""

    index: str
    terms: tuple[str, ...]
    #: Only there: in order, without overlap. None: everywhere.
    within: Sequence[Range] | None = None
    #: Occurrences read at most, from the rarest term on; a term that would exceed it is left out,
    #: but the rarest of all is cut off.
    most: int = 12_000


class Postings(msgspec.Struct, frozen=True):
    """The occurrences of a term."""

    #: Documents of the whole index that have it; at most a little out of date.
    documents: int
    #: A row for each occurrence: place, field, and number of terms before it; ordered by place.
    #: Empty if it was left out.
    found: np.ndarray
    #: All of `within` was read.
    complete: bool = True


class TextFound(msgspec.Struct, frozen=True):
    """The result of a search by words."""

    #: Documents in the whole index; at most a little out of date.
    documents: int
    terms: tuple[Postings, ...]


class VectorSearch(msgspec.Struct, frozen=True, kw_only=True):
    """A search by meaning, among the vectors of one model."""

    index: str
    model: str
    vector: bytes
    within: Sequence[Range] | None = None
    limit: int = 100


class Near(msgspec.Struct, frozen=True, gc=False):
    """A document near a vector, with their cosine."""

    place: int
    score: float


class VectorRows(msgspec.Struct, frozen=True):
    """The vectors of some places."""

    #: Which of the places have one: their numbers among those that were asked for, in order.
    at: np.ndarray
    rows: np.ndarray
    #: The notes that were asked for with them, as `SearchEngine.notes` has them.
    notes: Sequence[bytes | None] = ()


class SearchState(msgspec.Struct, frozen=True):
    """What an index holds."""

    documents: int = 0
    vectors: dict[str, int] = {}
    #: Documents that are found by words, but wait to be filed where that is fast.
    unfiled: int = 0
    #: What is wrong with it, in sentences. Erase it and fill it again then.
    faults: tuple[str, ...] = ()


class SearchEngine(Extension):
    """Search indexes of an open store. Get it with `engine_of`."""

    name: ClassVar[str] = "search"

    @abstractmethod
    async def prepare(self, index: SearchIndex) -> bool:
        """Make the index unless it exists with these fields; returns whether it was made, and so
        is empty.
        """

    @abstractmethod
    async def erase(self, index: str) -> None:
        """Remove the index, even if it is damaged. `prepare` makes it anew."""

    @abstractmethod
    async def search_text(self, search: TextSearch, options: Options = DEFAULT) -> TextFound:
        """Occurrences of terms, in every document committed before. Raises `Corrupted`."""

    @abstractmethod
    async def search_vectors(self, search: VectorSearch, options: Options = DEFAULT) -> list[Near]:
        """The nearest documents, best first. May miss a few."""

    @abstractmethod
    async def notes(self, index: str, places: Sequence[int]) -> list[bytes | None]:
        """The notes of documents, in this order; None where there is no document."""

    @abstractmethod
    async def places(self, index: str, after: int, limit: int) -> list[int]:
        """Places of documents, in order, after one (-1: from the first on)."""

    @abstractmethod
    async def embed(self, index: str, model: str, embeddings: Sequence[Embedding]) -> int:
        """Store vectors of documents, replacing those of any model; returns how many. Places
        without a document are left out. Vectors of one model have one length.
        """

    @abstractmethod
    async def vectors(
        self, index: str, model: str, places: Sequence[int], noted: Sequence[int] = ()
    ) -> VectorRows:
        """The vectors of documents, as far as they have one of this model; and notes of others."""

    @abstractmethod
    async def unembedded(self, index: str, model: str, after: int, limit: int) -> list[int]:
        """Places of documents without a vector of this model, in order, after one (or -1)."""

    @abstractmethod
    async def state(self, index: str, *, thorough: bool = False) -> SearchState:
        """What the index holds and what is wrong with it; `thorough` reads everything."""

    async def tend(self, index: str) -> bool:
        """Do a little deferred upkeep; returns whether more is left."""
        return False


def has_search(adapter: Adapter) -> bool:
    return adapter.extension(SearchEngine.name) is not None


def engine_of(adapter: Adapter) -> SearchEngine:
    """Raises `Unsupported` if the store has no search indexes."""
    engine = adapter.extension(SearchEngine.name)
    if engine is None:
        raise Unsupported(
            f"{type(adapter).__name__} has no search.",
            hint="Open the bank on a backend that has it, such as sqlite:// or postgresql://.",
        )
    return cast("SearchEngine", engine)


async def search_text(store: Store, search: TextSearch, options: Options = DEFAULT) -> TextFound:
    """`SearchEngine.search_text` through the store's middleware: measured, traced, audited."""
    engine = engine_of(store.adapter)
    call = SearchCall(
        search.index,
        "text",
        lambda: engine.search_text(search, options),
        lambda answer: sum(len(postings.found) for postings in answer.terms),
        options,
    )
    return cast("TextFound", await store.search(call))


async def search_vectors(
    store: Store, search: VectorSearch, options: Options = DEFAULT
) -> list[Near]:
    """The same for `SearchEngine.search_vectors`."""
    engine = engine_of(store.adapter)
    call = SearchCall(
        search.index, "vectors", lambda: engine.search_vectors(search, options), len, options
    )
    return cast("list[Near]", await store.search(call))


def check_document(index: SearchIndex, document: Document) -> None:
    """Raises `InvalidInput` if the document does not fit the index."""
    if len(document.texts) != len(index.fields):
        raise InvalidInput(
            f"A document has {len(document.texts)} texts, but {index.name!r} has"
            f" {len(index.fields)} fields.",
            hint="Give one text for each field, empty ones too.",
        )
    if any("\n" in text for text in document.texts):
        raise InvalidInput(
            f"A text of the document {document.place} has several lines.",
            hint="Write terms with one space between two of them.",
        )
    if not 0 <= document.place < MAX_PLACE:
        raise InvalidInput(
            f"{document.place} is no place.", hint="Places are from 0 to below 2 ** 62."
        )


def not_prepared(index: str) -> InvalidInput:
    return InvalidInput(
        f"There is no search index {index!r} in this store.",
        hint="Call SearchEngine.prepare first.",
    )
