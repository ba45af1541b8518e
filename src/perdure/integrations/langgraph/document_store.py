"""The store: JSON documents in namespaces, found by fields and by meaning.

Without configuration a search with a query ranks by the bank's own embedder, which needs no model
and no key. Documents belong to the store's agent: they go when it is forgotten.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self
from urllib.parse import quote

import msgspec
import numpy as np
from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    get_text_at_path,
    tokenize_path,
)

from perdure.bank.bank import Bank
from perdure.core.clock import to_datetime
from perdure.core.errors import InvalidInput
from perdure.history.log_records import checked_agent
from perdure.integrations.framework_bank import FrameworkStore
from perdure.recall.embedders import Embedder, embedder
from perdure.sessions.framework_records import FrameworkRecord
from perdure.storage.collection import Collection
from perdure.sync import SyncBank

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "$eq": operator.eq,
    "$ne": operator.ne,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


class StoreDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """One item of the store."""

    namespace: tuple[str, ...]
    key: str
    value: dict[str, Any]
    #: Of its texts, by the model that is named.
    vectors: list[bytes] = []
    model: str = ""


_pack = msgspec.msgpack.Encoder().encode
_document = msgspec.msgpack.Decoder(StoreDocument).decode
#: A document with the times of its record.
Found = tuple[StoreDocument, FrameworkRecord]


class PerdureStore(FrameworkStore, BaseStore):
    """Documents of an agent. All methods, with and without ``a``, may be called from any thread.

    `fields` are the paths whose texts a query is compared with; by default the whole document.
    """

    def __init__(
        self,
        bank: Bank | SyncBank | str | None = None,
        *,
        agent: str = "langgraph",
        fields: Sequence[str] = ("$",),
    ) -> None:
        super().__init__(bank)
        self._agent = checked_agent(agent)
        self._fields = tuple(fields)
        self._embedder: Embedder | None = None

    @classmethod
    def open(cls, url: str | None = None, **settings: Any) -> Self:
        """A store over the bank at a URL; without one, the configured bank."""
        return cls(url, **settings)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        return self._access.wait(self._batch(list(ops)))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return await self._access.run(self._batch(list(ops)))

    async def _batch(self, ops: Sequence[Op]) -> list[Result]:
        """What is read is as it was before; all that is written is one transaction."""
        results: list[Result] = []
        puts: dict[str, PutOp] = {}
        for op in ops:
            if isinstance(op, GetOp):
                record = await (await self._records()).get(self._key(op.namespace, op.key))
                results.append(_item(record) if record is not None else None)
            elif isinstance(op, SearchOp):
                results.append(await self._search(op))
            elif isinstance(op, ListNamespacesOp):
                results.append(await self._namespaces(op))
            else:
                puts[self._key(op.namespace, op.key)] = op
                results.append(None)
        if puts:
            await self._put(puts)
        return results

    async def _put(self, puts: dict[str, PutOp]) -> None:
        bank = await self._access.bank()
        made = {
            key: await self._made(op, op.value) for key, op in puts.items() if op.value is not None
        }
        async with bank.store.transaction() as transaction:
            records = transaction.collection(FrameworkRecord)
            for key, op in puts.items():
                if op.value is None:
                    await records.delete(key)
                    continue
                before, now = await records.get(key), bank.store.now()
                first = now if before is None else before.made
                await records.put(FrameworkRecord(key, _pack(made[key]), changed=now, made=first))

    async def _made(self, op: PutOp, value: dict[str, Any]) -> StoreDocument:
        try:
            plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(value))
        except (TypeError, ValueError) as exc:
            raise InvalidInput(
                f"The value of {op.key!r} is no JSON: {exc}.", hint="Keep plain data in it."
            ) from exc
        masked = (await self._access.bank()).services.mask_data(plain)
        paths = self._fields if op.index is None else op.index or ()
        texts = [
            text
            for path in paths
            for text in get_text_at_path(masked, path if path == "$" else tokenize_path(path))
        ]
        found = await self._embedding() if texts else None
        vectors = await found.embed(texts) if found is not None else []
        return StoreDocument(op.namespace, op.key, masked, vectors, found.name if found else "")

    async def _search(self, op: SearchOp) -> list[SearchItem]:
        wanted = [each async for each in self._under(op.namespace_prefix) if _fits(each[0], op)]
        scores: list[float | None] = [None] * len(wanted)
        if op.query:
            scores = await self._scores(op.query, [document for document, _ in wanted])
        ranked = sorted(
            zip(wanted, scores, strict=True),
            key=lambda each: float("-inf") if each[1] is None else each[1],
            reverse=bool(op.query),
        )
        page = ranked[op.offset : op.offset + op.limit]
        return [
            SearchItem(
                document.namespace,
                document.key,
                document.value,
                to_datetime(record.made),
                to_datetime(record.changed),
                score,
            )
            for (document, record), score in page
        ]

    async def _scores(self, query: str, documents: Sequence[StoreDocument]) -> list[float | None]:
        """The cosine of the nearest of each document's texts; None if it has none of this model."""
        found = await self._embedding()
        (question,) = await found.embed([query])
        wanted = np.frombuffer(question, np.int8).astype(np.float32)
        scores: list[float | None] = []
        for document in documents:
            if not document.vectors or document.model != found.name:
                scores.append(None)
                continue
            rows = np.array([np.frombuffer(v, np.int8) for v in document.vectors], np.float32)
            sizes = np.linalg.norm(rows, axis=1) * np.linalg.norm(wanted)
            scores.append(float(np.max(rows @ wanted / np.maximum(sizes, 1e-9))))
        return scores

    async def _namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        found = {document.namespace async for document, _ in self._under(())}
        conditions = op.match_conditions or ()
        kept = {each for each in found if all(_matches(each, one) for one in conditions)}
        if op.max_depth is not None:
            kept = {each[: op.max_depth] for each in kept}
        return sorted(kept)[op.offset : op.offset + op.limit]

    async def _under(self, namespace: tuple[str, ...]) -> Any:
        records = await self._records()
        prefix = f"{self._agent}/#store/{_folder(namespace)}"
        async for record in records.walk(prefix):
            document = _document(record.content)
            if document.namespace[: len(namespace)] == namespace:
                yield document, record

    async def _embedding(self) -> Embedder:
        if self._embedder is None:
            bank = await self._access.bank()
            config = bank.config
            self._embedder = embedder(config.recall, lambda: bank.gateway, config.gateway)
        return self._embedder

    async def _records(self) -> Collection[FrameworkRecord]:
        return (await self._access.bank()).collection(FrameworkRecord)

    def _key(self, namespace: tuple[str, ...], key: str) -> str:
        return f"{self._agent}/#store/{_folder(namespace)}/{quote(key, safe=' ')}"


def _folder(namespace: tuple[str, ...]) -> str:
    return ".".join(quote(label, safe=" ").replace(".", "%2E") for label in namespace)


def _item(record: FrameworkRecord) -> Item:
    document = _document(record.content)
    return Item(
        value=document.value,
        key=document.key,
        namespace=document.namespace,
        created_at=to_datetime(record.made),
        updated_at=to_datetime(record.changed),
    )


def _fits(document: StoreDocument, op: SearchOp) -> bool:
    wanted = (op.filter or {}).items()
    return all(_compares(document.value.get(name), value) for name, value in wanted)


def _compares(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        if any(name.startswith("$") for name in wanted):
            return all(_applies(name, value, operand) for name, operand in wanted.items())
        inner = value if isinstance(value, dict) else {}
        return all(_compares(inner.get(name), each) for name, each in wanted.items())
    return bool(value == wanted)


def _applies(name: str, value: Any, operand: Any) -> bool:
    compare = _COMPARE.get(name)
    if compare is None:
        raise InvalidInput(
            f"{name} is no operator of a filter.", hint=f"There are {', '.join(_COMPARE)}."
        )
    try:
        return compare(value, operand)
    except TypeError:
        return False


def _matches(namespace: tuple[str, ...], condition: MatchCondition) -> bool:
    path = condition.path
    if not path:
        return True
    if len(namespace) < len(path):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[-len(path) :]
    return all(wanted in ("*", label) for label, wanted in zip(part, path, strict=True))
