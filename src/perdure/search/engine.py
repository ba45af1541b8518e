"""Search indexes: documents by number, found by their words and by their vectors.

An index holds documents. A document is a *place*, a number that its caller chose; a few texts, one
for each *field* of the index; a *note*, some bytes that come back with it; and later, for each, the
vector of what it means. An index is made from what stands elsewhere: it is not in backups, and
whoever filled it can fill it again. It is written in the same commit as the rows that it is about:
`Document` and `Withdrawal` are given to `Transaction.include`.

Texts are *terms*, one space between two of them: whoever writes them has folded case, cut words and
taken endings off. A backend neither cuts nor changes them, so every backend finds the same. A term
has letters and digits of any script, but no capital A to Z, and ``_ = : . / -``.

A search by words answers with occurrences, not with scores: which of the terms stand where. Scores
are the caller's business, who knows what a place means; that neighbours have neighbouring numbers,
say.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, TypeAlias, cast

import msgspec

from perdure.core.errors import InvalidInput, Unsupported
from perdure.storage.adapter import Adapter
from perdure.storage.extension import Extension, ExtensionChange
from perdure.storage.options import DEFAULT, Options

if TYPE_CHECKING:
    import numpy as np

#: A place is below this, so that every backend has a type for it.
MAX_PLACE = 2**62
#: From the first place to the last, both included.
Range: TypeAlias = tuple[int, int]


class SearchIndex(msgspec.Struct, frozen=True):
    """A search index, as it is declared."""

    name: str
    fields: tuple[str, ...]


class Document(ExtensionChange, frozen=True, gc=False):
    """Put a document in its place, instead of one that stands there. It has no vector then."""

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
    """What the document of a place means: signed bytes, see `perdure.recall.embedders`."""

    place: int
    vector: bytes


class TextSearch(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked for by words."""

    index: str
    #: Different ones.
    terms: tuple[str, ...]
    #: Only there: in order, without overlap. None: everywhere.
    within: Sequence[Range] | None = None
    #: Occurrences that are read at most. The rarest terms come first; a term that would exceed it
    #: is left out, but for the rarest of all, which is cut off.
    most: int = 12_000


class Postings(msgspec.Struct, frozen=True):
    """Where a term stands."""

    #: Documents of the whole index that have it; at most a little out of date.
    documents: int
    #: A row for each occurrence: place, field, and the number of terms before it in the field. In
    #: order of place. Empty if it was left out.
    found: np.ndarray
    #: All of `within` was read.
    complete: bool = True


class TextFound(msgspec.Struct, frozen=True):
    """What a search by words found."""

    #: Documents in the whole index; at most a little out of date.
    documents: int
    #: In the order of `TextSearch.terms`.
    terms: tuple[Postings, ...]


class VectorSearch(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked for by meaning, among the vectors of one model."""

    index: str
    model: str
    vector: bytes
    within: Sequence[Range] | None = None
    limit: int = 100


class Near(msgspec.Struct, frozen=True, gc=False):
    """A document near a vector: the cosine of the angle between them."""

    place: int
    score: float


class VectorRows(msgspec.Struct, frozen=True):
    """The vectors of some places."""

    #: Which of the places have one: their numbers among those that were asked for, in order.
    at: np.ndarray
    #: Of each of these, a row of signed bytes.
    rows: np.ndarray


class SearchState(msgspec.Struct, frozen=True):
    """What an index holds."""

    documents: int = 0
    #: Vectors by model.
    vectors: dict[str, int] = {}
    #: Documents that are found by words, but wait to be filed where that is fast.
    unfiled: int = 0
    #: What is wrong with it, in sentences. Erase it and fill it again then.
    faults: tuple[str, ...] = ()


class SearchEngine(Extension):
    """Search indexes in a store. Got from an open one with `engine_of`."""

    name: ClassVar[str] = "search"

    @abstractmethod
    async def prepare(self, index: SearchIndex) -> bool:
        """Make the index unless it is there; whether it was made now, and so holds nothing.

        One that was declared with other fields is made anew.
        """

    @abstractmethod
    async def erase(self, index: str) -> None:
        """Remove the index, even if it is damaged. `prepare` makes it anew."""

    @abstractmethod
    async def search_text(self, search: TextSearch, options: Options = DEFAULT) -> TextFound:
        """Where terms stand. Sees every document that was committed before.

        Raises `Corrupted` if the index is damaged.
        """

    @abstractmethod
    async def search_vectors(self, search: VectorSearch, options: Options = DEFAULT) -> list[Near]:
        """The documents nearest to a vector, best first. It may miss a few of them."""

    @abstractmethod
    async def notes(self, index: str, places: Sequence[int]) -> list[bytes | None]:
        """The notes of documents, in this order; None where there is no document."""

    @abstractmethod
    async def places(self, index: str, after: int, limit: int) -> list[int]:
        """Places that hold a document, in order, behind one (-1: from the first on)."""

    @abstractmethod
    async def embed(self, index: str, model: str, embeddings: Sequence[Embedding]) -> int:
        """Keep the vectors of documents, instead of those of any model; returns how many.

        Where there is no document any more, nothing is kept. Vectors of one model have one length.
        """

    @abstractmethod
    async def vectors(self, index: str, model: str, places: Sequence[int]) -> VectorRows:
        """The vectors of documents, as far as they have one of this model."""

    @abstractmethod
    async def unembedded(self, index: str, model: str, after: int, limit: int) -> list[int]:
        """Places of documents that have no vector of this model, in order, behind one (or -1)."""

    @abstractmethod
    async def state(self, index: str, *, thorough: bool = False) -> SearchState:
        """What the index holds, and what is wrong with it, as far as a short look tells.

        If it is to be `thorough`, all that can be damaged without being noticed is read.
        """

    async def tend(self, index: str) -> bool:
        """Do a little of what keeps the index fast and was put off; whether more is left."""
        return False


def has_search(adapter: Adapter) -> bool:
    """Whether the store has search indexes."""
    return adapter.extension(SearchEngine.name) is not None


def engine_of(adapter: Adapter) -> SearchEngine:
    """The search indexes of a store.

    Raises `Unsupported` if it has none.
    """
    engine = adapter.extension(SearchEngine.name)
    if engine is None:
        raise Unsupported(
            f"{type(adapter).__name__} has no search.",
            hint="Open the bank on a backend that has it, such as sqlite:// or postgresql://.",
        )
    return cast("SearchEngine", engine)


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
    """The error for an index that nobody made."""
    return InvalidInput(
        f"There is no search index {index!r} in this store.",
        hint="Call SearchEngine.prepare first.",
    )
