"""The checkpointer: checkpoints as records, the messages in them as turns."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Self
from urllib.parse import quote, unquote

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)

from perdure.bank.bank import Bank
from perdure.core.errors import Conflict, InvalidInput
from perdure.integrations.framework_bank import FrameworkStore, session_name
from perdure.integrations.langgraph.checkpoint_records import (
    StoredCheckpoint,
    StoredValue,
    StoredWrite,
    Typed,
    pack,
    read_checkpoint,
    read_writes,
)
from perdure.integrations.langgraph.graph_messages import has_messages, is_messages
from perdure.integrations.langgraph.thread_log import CheckpointMessages, Spans, ThreadLog
from perdure.integrations.langgraph.thread_messages import Span
from perdure.sessions.framework_records import FrameworkRecord
from perdure.storage.collection import Collection
from perdure.storage.transaction import Transaction
from perdure.sync import SyncBank

_INLINE = 512  # Bytes of a value that stays in the checkpoint.
_THREADS = 64  # Threads whose messages are kept in memory.
_END = "~"  # Sorts behind every id.


class PerdureSaver(FrameworkStore, BaseCheckpointSaver[str]):
    """Checkpoints of graphs. All methods, with and without ``a``, may be called from any thread.

    `bank` is an open one, or a URL that the first use opens; `close`, ``with`` or ``async with``
    closes that. A thread is the session ``agent/thread_id``.
    """

    def __init__(
        self,
        bank: Bank | SyncBank | str | None = None,
        *,
        agent: str = "langgraph",
        serde: Any = None,
    ) -> None:
        FrameworkStore.__init__(self, bank)
        BaseCheckpointSaver.__init__(self, serde=serde)
        self._agent = agent
        self._threads = OrderedDict[str, ThreadLog]()

    @classmethod
    def open(cls, url: str | None = None, *, agent: str = "langgraph", serde: Any = None) -> Self:
        """A saver over the bank at a URL; without one, the configured bank."""
        return cls(url, agent=agent, serde=serde)

    def session_name(self, thread_id: str) -> str:
        """The session of a thread: to recall from it, to show it, to fork it."""
        return session_name(self._agent, str(thread_id))

    def get_next_version(self, current: str | int | None, channel: None) -> str:
        """Two branches that go on from one checkpoint never give the same version."""
        number = int(current.partition(".")[0]) if isinstance(current, str) else current or 0
        return f"{number + 1:08d}.{secrets.token_hex(4)}"

    # Reading ----------------------------------------------------------------------------------

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self._access.run(self._get_tuple(config))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._access.wait(self._get_tuple(config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 (LangGraph's name)
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        for found in await self._access.run(self._list(config, filter or {}, before, limit)):
            yield await self._access.run(self._tuple(*found))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 (LangGraph's name)
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        for found in self._access.wait(self._list(config, filter or {}, before, limit)):
            yield self._access.wait(self._tuple(*found))

    async def _get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        thread, namespace = _place(config)
        folder, wanted = self._folder(thread, "checkpoints", namespace), get_checkpoint_id(config)
        if wanted:
            found = await (await self._records()).get(folder + wanted)
        else:
            found = await self._newest(folder)
        return None if found is None else await self._tuple(thread, namespace, found)

    async def _newest(self, folder: str) -> FrameworkRecord | None:
        records = await self._records()
        found = await records.behind(folder + _END, folder, limit=1, descending=True)
        return found[0] if found else None

    async def _list(
        self,
        config: RunnableConfig | None,
        filter: dict[str, Any],  # noqa: A002
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Sequence[tuple[str, str, FrameworkRecord]]:
        records = await self._records()
        given = config["configurable"] if config else {}
        threads = [given["thread_id"]] if config else await self._all_threads()
        end = get_checkpoint_id(before) if before else None
        wanted = get_checkpoint_id(config) if config else None
        found: list[tuple[str, str, FrameworkRecord]] = []
        for thread in threads:
            prefix = f"{self.session_name(thread)}/checkpoints/"
            kept = [
                (unquote(record.id.rsplit("/", 2)[1])[1:], record.id.rpartition("/")[2], record)
                async for record in records.walk(prefix)
            ]
            for namespace, id, record in sorted(kept, key=lambda each: each[1], reverse=True):
                if given.get("checkpoint_ns") not in (None, namespace):
                    continue
                if (wanted and id != wanted) or (end and id >= end):
                    continue
                metadata = self.serde.loads_typed(read_checkpoint(record.content).metadata)
                if all(metadata.get(name) == value for name, value in filter.items()):
                    found.append((thread, namespace, record))
        return found[: max(limit, 0)] if limit is not None else found

    async def _tuple(self, thread: str, namespace: str, record: FrameworkRecord) -> CheckpointTuple:
        stored, id = read_checkpoint(record.content), record.id.rpartition("/")[2]
        records = await self._records()
        apart = {name: value.apart for name, value in stored.values.items() if value.apart}
        values: dict[str, Any] = {}
        for name, found in zip(apart, await records.get_many(apart.values()), strict=True):
            if found is not None:  # else it held words that were forgotten
                kind, data = msgspec.msgpack.decode(found.content, type=Typed)
                values[name] = self.serde.loads_typed((kind, data))
        for name, value in stored.values.items():
            if value.inline is not None:
                values[name] = self.serde.loads_typed(value.inline)
            elif value.spans is not None:
                values[name] = await self._messages(thread, f"{namespace}|{name}", value.spans)
        ordered = {name: values[name] for name in stored.values if name in values}
        writes = await self._stored_writes(thread, namespace, id)
        return CheckpointTuple(
            config=_config(thread, namespace, id),
            checkpoint={**self.serde.loads_typed(stored.checkpoint), "channel_values": ordered},
            metadata=self.serde.loads_typed(stored.metadata),
            parent_config=_config(thread, namespace, stored.parent) if stored.parent else None,
            pending_writes=[
                (each.task, each.channel, self.serde.loads_typed(each.value)) for each in writes
            ],
        )

    async def _messages(self, thread: str, channel: str, spans: Sequence[Span]) -> Any:
        session = await self._access.existing(self.session_name(thread))
        return (
            [] if session is None else await (await self._log(thread)).read(session, channel, spans)
        )

    async def _stored_writes(
        self, thread: str, namespace: str, checkpoint: str
    ) -> Sequence[StoredWrite]:
        records, folder = await self._records(), self._folder(thread, "writes", namespace)
        found = [
            each
            async for record in records.walk(f"{folder}{checkpoint}.")
            for each in read_writes(record.content)
        ]
        return sorted(found, key=lambda each: writes_sort_key(each.path, each.task, each.index))

    # Writing ----------------------------------------------------------------------------------

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await self._access.run(self._put(config, checkpoint, metadata, new_versions))

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self._access.wait(self._put(config, checkpoint, metadata, new_versions))

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        await self._access.run(self._put_writes(config, writes, task_id, task_path))

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        self._access.wait(self._put_writes(config, writes, task_id, task_path))

    async def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        thread, namespace = _place(config)
        given = dict(checkpoint)
        channels: dict[str, Any] = given.pop("channel_values")
        log = await self._log(thread)
        async with log.lock:
            session = await self._access.session(self.session_name(thread), thread=thread)
            new, values = CheckpointMessages(), dict[str, StoredValue]()
            records: list[FrameworkRecord] = []
            for name, value in channels.items():
                values[name] = StoredValue()  # keeps the order
                if is_messages(value) and new.add(f"{namespace}|{name}", value, log.known):
                    continue
                copies, typed = has_messages(value), self.serde.dumps_typed(value)
                if len(typed[1]) <= _INLINE and not copies:
                    values[name] = StoredValue(inline=typed)
                    continue
                version = quote(str(checkpoint["channel_versions"].get(name, "")), safe="")
                folder = self._folder(thread, f"values/{quote(name, safe='')}", namespace)
                values[name] = StoredValue(apart=f"{folder}{version or checkpoint['id']}")
                if name in new_versions or not version:
                    records.append(FrameworkRecord(values[name].apart, pack(typed), copies))

            async def inside(transaction: Transaction, spans: Spans) -> None:
                for channel, of in spans.items():
                    values[channel.partition("|")[2]] = StoredValue(spans=of)
                stored = StoredCheckpoint(
                    self.serde.dumps_typed(given),
                    self.serde.dumps_typed(get_checkpoint_metadata(config, metadata)),
                    get_checkpoint_id(config) or "",
                    values,
                )
                key = self._folder(thread, "checkpoints", namespace) + checkpoint["id"]
                collection = transaction.collection(FrameworkRecord)
                for record in (*records, FrameworkRecord(key, pack(stored))):
                    await collection.put(record)

            async def newest() -> Sequence[Span]:
                found = await self._newest(self._folder(thread, "checkpoints", ""))
                value = read_checkpoint(found.content).values.get("messages") if found else None
                return (value.spans if value else None) or []

            await log.write(session, new, newest, inside)
        return _config(thread, namespace, checkpoint["id"])

    async def _put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task: str, path: str
    ) -> None:
        thread, namespace = _place(config)
        await self._access.session(self.session_name(thread), thread=thread)
        folder = self._folder(thread, "writes", namespace)
        key = f"{folder}{get_checkpoint_id(config)}.{quote(task, safe='')}"
        given = [
            StoredWrite(
                task, path, WRITES_IDX_MAP.get(name, at), name, self.serde.dumps_typed(value)
            )
            for at, (name, value) in enumerate(writes)
        ]
        copies = any(has_messages(value) for _, value in writes)

        def changed(before: FrameworkRecord | None) -> FrameworkRecord:
            kept = {each.index: each for each in read_writes(before.content)} if before else {}
            for each in given:
                if each.index < 0 or each.index not in kept:
                    kept[each.index] = each
            copied = copies or (before is not None and before.copies)
            return FrameworkRecord(key, pack([*kept.values()]), copied)

        await (await self._records()).change(key, changed)

    # Removing and copying ---------------------------------------------------------------------

    async def adelete_thread(self, thread_id: str) -> None:
        await self._access.run(self._delete_thread(thread_id))

    def delete_thread(self, thread_id: str) -> None:
        """Forget a thread for good, with its turns. What forks share of them is copied to them."""
        self._access.wait(self._delete_thread(thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await self._access.run(self._delete_for_runs(set(run_ids)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints and writes of these runs; the turns stay."""
        self._access.wait(self._delete_for_runs(set(run_ids)))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await self._access.run(self._copy_thread(source_thread_id, target_thread_id))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints to a new thread, which shares the turns."""
        self._access.wait(self._copy_thread(source_thread_id, target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await self._access.run(self._prune(thread_ids, strategy))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete checkpoints but the latest (``keep_latest``; the turns stay), or all of the
        threads (``delete``).
        """
        self._access.wait(self._prune(thread_ids, strategy))

    async def _delete_thread(self, thread: str) -> None:
        async with (await self._log(thread)).lock:
            self._threads.pop(str(thread), None)
            await self._access.forget(self.session_name(thread), reroot=True)

    async def _delete_for_runs(self, runs: set[str]) -> None:
        for thread, namespace, record in await self._list(None, {}, None, None):
            metadata = self.serde.loads_typed(read_checkpoint(record.content).metadata)
            if metadata.get("run_id") in runs:
                await self._delete_checkpoint(thread, namespace, record)

    async def _delete_checkpoint(
        self, thread: str, namespace: str, record: FrameworkRecord
    ) -> None:
        records, id = await self._records(), record.id.rpartition("/")[2]
        await records.query().prefix(f"{self._folder(thread, 'writes', namespace)}{id}.").delete()
        await records.delete(record.id)

    async def _copy_thread(self, source: str, target: str) -> None:
        name, other = self.session_name(source), self.session_name(target)
        session = await self._access.existing(name)
        if session is None:
            return
        if await self._access.existing(other) is not None:
            raise Conflict(
                "perdure_sessions",
                other,
                message=f"There is a thread {target} already.",
                hint="Copy to a new thread.",
            )
        head = await session.head()
        if head.turn:
            made = await session.fork(other, at=head.turn)
            await made.describe({"thread": target})
        else:
            await self._access.session(other, thread=target)
        records = await self._records()
        async for record in records.walk(f"{name}/"):
            content = record.content
            if record.id.startswith(f"{name}/checkpoints/"):
                stored = read_checkpoint(content)
                moved = {
                    key: msgspec.structs.replace(value, apart=other + value.apart[len(name) :])
                    if value.apart
                    else value
                    for key, value in stored.values.items()
                }
                content = pack(msgspec.structs.replace(stored, values=moved))
            await records.put(
                FrameworkRecord(other + record.id[len(name) :], content, record.copies)
            )

    async def _prune(self, threads: Sequence[str], strategy: str) -> None:
        if strategy not in {"keep_latest", "delete"}:
            raise InvalidInput(
                f"{strategy!r} is no strategy.", hint="Use 'keep_latest' or 'delete'."
            )
        for thread in threads:
            if strategy == "delete":
                await self._delete_thread(thread)
                continue
            records, seen, needed = await self._records(), set[str](), set[str]()
            for _, namespace, record in await self._list(_config(thread, None), {}, None, None):
                stored = read_checkpoint(record.content)
                metadata = self.serde.loads_typed(stored.metadata)
                if namespace in seen:
                    await self._delete_checkpoint(thread, namespace, record)
                    continue
                # Its channels are put together from the writes of all checkpoints before it.
                if metadata.get("counters_since_delta_snapshot"):
                    break
                seen.add(namespace)
                needed |= {value.apart for value in stored.values.values() if value.apart}
            else:
                async for record in records.walk(f"{self.session_name(thread)}/values/"):
                    if record.id not in needed:
                        await records.delete(record.id)

    # ------------------------------------------------------------------------------------------

    async def _records(self) -> Collection[FrameworkRecord]:
        return (await self._access.bank()).collection(FrameworkRecord)

    async def _all_threads(self) -> Sequence[str]:
        sessions = await (await self._access.bank()).sessions(agent=self._agent, archived=True)
        return [str(each.state["thread"]) for each in sessions if "thread" in each.state]

    def _folder(self, thread: str, kind: str, namespace: str) -> str:
        return f"{self.session_name(thread)}/{kind}/-{quote(namespace, safe='')}/"

    async def _log(self, thread: str) -> ThreadLog:
        services = (await self._access.bank()).services
        found = self._threads.setdefault(str(thread), ThreadLog(services))
        self._threads.move_to_end(str(thread))
        if len(self._threads) > _THREADS:
            self._threads.popitem(last=False)
        return found


def _place(config: RunnableConfig) -> tuple[str, str]:
    given = config["configurable"]
    return str(given["thread_id"]), given.get("checkpoint_ns") or ""


def _config(thread: str, namespace: str | None, id: str = "") -> RunnableConfig:
    given = {"thread_id": thread}
    if namespace is not None:
        given["checkpoint_ns"] = namespace
    return {"configurable": {**given, "checkpoint_id": id} if id else given}
