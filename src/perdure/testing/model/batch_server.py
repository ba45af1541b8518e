"""The batch modes of a scripted model: Anthropic's Message Batches and OpenAI's Files and Batch.

A batch is answered by the script when it has been looked at often enough. `paid` tells which
requests were: one that stands there twice was paid for twice.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qs

import msgspec

from perdure.testing.model import wire_answers
from perdure.testing.model.script import (
    Kind,
    ReceivedRequest,
    ScriptedAnswer,
    ScriptedFault,
    error_body,
)

#: What a request to a batch mode is for.
BatchStep: TypeAlias = Literal["upload", "create", "list", "look", "results", "cancel", "delete"]
Item: TypeAlias = dict[str, Any]
Speak: TypeAlias = Callable[[ReceivedRequest], Awaitable[ScriptedAnswer | ScriptedFault]]
#: Called with the step before a request is carried out, and after, before its answer is sent. It
#: may wait: the client waits, too.
BatchHook: TypeAlias = Callable[[BatchStep, Literal["before", "after"]], Awaitable[None]]

_KINDS: dict[str, Kind] = {"/v1/responses": "responses", "/v1/chat/completions": "chat"}
_ANTHROPIC = re.compile(r"/messages/batches(?:/([^/]+)(?:/(results|cancel))?)?$").search
_FILES = re.compile(r"/files(?:/([^/]+)(/content)?)?$").search
_OPENAI = re.compile(r"/batches(?:/([^/]+)(/cancel)?)?$").search


class BatchFaults(msgspec.Struct, kw_only=True):
    """How a batch mode misbehaves. Numbers are used up where it says *next*."""

    #: Results in another order than requests.
    shuffle: bool = True
    #: Looks at a batch, or at the list, that find it in progress before it ends.
    looks: int = 1
    #: Next requests to create a batch, or upload, that are refused for now: status 429.
    busy: int = 0
    #: Next batches that are made, whose answers are lost: the connection is cut.
    cut: int = 0
    #: Next lists that do not have the newest batch yet.
    lists_late: int = 0
    #: Next requests for results that get status 404.
    not_yet: int = 0
    #: Next results that lack their last line, or this many lines.
    lossy: int = 0
    lost_lines: int = 1
    #: Next results whose first line is broken: it is no JSON.
    garbled: int = 0
    #: Items, the last ones, that are not done within the time.
    expired: int = 0
    #: Next batches that are refused as a whole after they were taken, and why.
    refused_late: int = 0
    refusal: str = "The file is no good."
    refusal_code: str = "invalid_json_line"
    #: What may be sent at once: requests, and bytes.
    most_requests: int = 100_000
    most_bytes: int = 256 * 2**20


class HostedBatch(msgspec.Struct):
    """A batch as its provider has it."""

    id: str
    requests: list[tuple[str, Kind, Item]]
    metadata: dict[str, str] | None = None
    file: str = ""
    looks: int = 0
    state: str = "in_progress"  # ended, failed, cancelled
    cancelling: bool = False
    lines: list[Item] = []
    errors: list[Item] = []
    created: datetime = msgspec.field(default_factory=lambda: datetime.now(UTC))


class HttpAnswer(msgspec.Struct, frozen=True):
    """What is sent back; None as body cuts the connection."""

    status: int
    body: bytes | None
    kind: str = "application/json"


class BatchServer:
    """The batch modes of one `ScriptedModel`, as `model.batches`."""

    def __init__(self, speak: Speak, faults: BatchFaults | None = None) -> None:
        self._speak = speak
        self.faults = faults or BatchFaults()
        self.hook: BatchHook | None = None
        #: The batches that were made, in their order; files that are there, and those deleted.
        self.hosted: list[HostedBatch] = []
        self.files: dict[str, bytes] = {}
        self.deleted: set[str] = set()
        #: How often each custom id was answered, and so charged for.
        self.paid: Counter[str] = Counter()
        #: Steps in the order in which they were asked for.
        self.steps: list[BatchStep] = []
        self._count = 0

    async def serve(
        self, method: str, target: str, headers: dict[str, str], raw: bytes
    ) -> HttpAnswer | None:
        """None if it is not about batches."""
        path, _, query = target.partition("?")
        if found := _ANTHROPIC(path):
            id, step = found[1], _step(method, found[1], found[2])
            return await self._served(step, lambda: self._anthropic(step, id, raw, query))
        if found := _FILES(path):
            id, is_read = found[1], method == "GET"
            step = "results" if is_read else "delete" if method == "DELETE" else "upload"
            return await self._served(step, lambda: self._file(step, id, headers, raw))
        if found := _OPENAI(path):
            id, step = found[1], _step(method, found[1], (found[2] or "").strip("/"))
            return await self._served(step, lambda: self._openai(step, id, raw, query))
        return None

    async def _served(
        self, step: BatchStep, work: Callable[[], Awaitable[HttpAnswer]]
    ) -> HttpAnswer:
        self.steps.append(step)
        if self.hook is not None:
            await self.hook(step, "before")
        answer = await work()
        if self.hook is not None:
            await self.hook(step, "after")
        return answer

    # Anthropic --------------------------------------------------------------------------------

    async def _anthropic(
        self, step: BatchStep, id: str | None, raw: bytes, query: str
    ) -> HttpAnswer:
        if step == "create":
            given = msgspec.json.decode(raw)["requests"]
            requests: list[tuple[str, Kind, Item]] = [
                (each["custom_id"], "messages", each["params"]) for each in given
            ]
            return self._create(requests, len(raw), "messages")
        if step == "list":
            return await self._list(query, "after_id", _anthropic_batch)
        batch = self._batch(id)
        if batch is None:
            return _error("messages", 404, f"There is no batch {id}.")
        if step == "results":
            return self._lines(batch, batch.lines, "messages")
        if step == "cancel":
            batch.cancelling = True
        elif step == "look":
            await self._go_on(batch)
        return _json(200, _anthropic_batch(batch))

    # OpenAI -----------------------------------------------------------------------------------

    async def _file(
        self, step: BatchStep, id: str | None, headers: dict[str, str], raw: bytes
    ) -> HttpAnswer:
        if step == "upload":
            if self._takes("busy"):
                return _error("chat", 429, "Too many files.")
            if len(raw) > self.faults.most_bytes:
                return _error("chat", 413, "The file is too large.")
            name = self._id("file")
            self.files[name] = _uploaded(headers["content-type"], raw)
            return _json(200, {"id": name, "object": "file", "purpose": "batch"})
        content = self.files.get(str(id), b"")
        if id not in self.files:
            batch = next((each for each in self.hosted if f"{each.id}-" in f"{id}-"), None)
            if batch is None or batch.state in {"in_progress", "failed"} or id in self.deleted:
                return _error("chat", 404, f"There is no file {id}.")
            if step == "results":
                is_good = str(id).startswith("file-out")
                lines = [line for line in batch.lines if _is_good(line) == is_good]
                return self._lines(batch, lines, "chat")
        if step == "delete":
            self.files.pop(str(id), None)
            self.deleted.add(str(id))
            return _json(200, {"id": id, "object": "file", "deleted": True})
        return HttpAnswer(200, content, "application/octet-stream")

    async def _openai(self, step: BatchStep, id: str | None, raw: bytes, query: str) -> HttpAnswer:
        if step == "create":
            asked = msgspec.json.decode(raw)
            content = self.files.get(asked["input_file_id"])
            if content is None:
                return _error("chat", 400, "There is no such file.")
            lines = [msgspec.json.decode(line) for line in content.splitlines() if line.strip()]
            kind = _KINDS[asked["endpoint"]]
            requests = [(each["custom_id"], kind, each["body"]) for each in lines]
            batch = HostedBatch(
                "", requests, metadata=asked.get("metadata"), file=asked["input_file_id"]
            )
            return self._create(requests, len(content), "chat", batch)
        if step == "list":
            return await self._list(query, "after", _openai_batch)
        found = self._batch(id)
        if found is None:
            return _error("chat", 404, f"There is no batch {id}.")
        if step == "cancel":
            found.cancelling = True
        elif step == "look":
            await self._go_on(found)
        return _json(200, _openai_batch(found))

    # Both -------------------------------------------------------------------------------------

    def _create(
        self,
        requests: list[tuple[str, Kind, Item]],
        size: int,
        kind: Kind,
        batch: HostedBatch | None = None,
    ) -> HttpAnswer:
        if self._takes("busy"):
            return _error(kind, 429, "Too many batches.")
        if len(requests) > self.faults.most_requests or size > self.faults.most_bytes:
            return _error(kind, 413, "The batch is too large.")
        batch = batch or HostedBatch("", requests)
        batch.id = self._id("msgbatch" if kind == "messages" else "batch")
        self.hosted.append(batch)
        if self._takes("cut"):
            return HttpAnswer(0, None)
        return _json(200, (_anthropic_batch if kind == "messages" else _openai_batch)(batch))

    async def _list(
        self, query: str, cursor: str, shown: Callable[[HostedBatch], Item]
    ) -> HttpAnswer:
        asked = {name: values[0] for name, values in parse_qs(query).items()}
        for each in self.hosted:  # time goes on for all of them
            await self._go_on(each)
        hosted = self.hosted[::-1]
        if self._takes("lists_late"):
            hosted = hosted[1:]
        if after := asked.get(cursor):
            hosted = hosted[[each.id for each in hosted].index(after) + 1 :]
        page = hosted[: int(asked.get("limit", "20"))]
        return _json(
            200,
            {
                "object": "list",
                "data": [shown(each) for each in page],
                "has_more": len(hosted) > len(page),
                "first_id": page[0].id if page else None,
                "last_id": page[-1].id if page else None,
            },
        )

    def _lines(self, batch: HostedBatch, lines: list[Item], kind: Kind) -> HttpAnswer:
        if batch.state == "in_progress" or self._takes("not_yet"):
            return _error(kind, 404, "There are no results yet.")
        if lines and self._takes("lossy"):
            lines = lines[: -self.faults.lost_lines]
        written = [msgspec.json.encode(line) for line in lines]
        if written and self._takes("garbled"):
            written[0] = written[0][: len(written[0]) // 2]
        raw = b"".join(line + b"\n" for line in written)
        return HttpAnswer(200, raw, "application/x-jsonl")

    async def _go_on(self, batch: HostedBatch) -> None:
        if batch.state != "in_progress":
            return
        if self._takes("refused_late"):
            batch.state = "failed"
            code, message = self.faults.refusal_code, self.faults.refusal
            batch.errors = [{"code": code, "message": message, "param": None, "line": None}]
            if batch.requests[0][1] == "messages":  # which tells so item by item
                batch.state = "ended"
                said = error_body("messages", 400, self.faults.refusal)
                batch.lines = [
                    {"custom_id": id, "result": {"type": "errored", "error": said}}
                    for id, _, _ in batch.requests
                ]
            return
        batch.looks += 1
        if batch.looks <= self.faults.looks and not batch.cancelling:
            return
        done = len(batch.requests) - self.faults.expired
        for at, (id, kind, body) in enumerate(batch.requests):
            if batch.cancelling or at >= done:
                batch.lines.append(_unfinished(id, kind, cancelled=batch.cancelling))
            else:
                batch.lines.append(await self._answer(id, kind, body))
        if self.faults.shuffle:
            random.Random(len(batch.lines)).shuffle(batch.lines)  # noqa: S311 (the same each time)
        batch.state = "cancelled" if batch.cancelling else "ended"

    async def _answer(self, id: str, kind: Kind, body: Item) -> Item:
        request = ReceivedRequest(kind, f"/batches/{kind}", {}, body, self._count)
        self._count += 1
        said = await self._speak(request)
        if isinstance(said, ScriptedFault):
            told = error_body(kind, said.status, said.message)
            if kind == "messages":
                return {"custom_id": id, "result": {"type": "errored", "error": told}}
            response = {"status_code": said.status, "request_id": id, "body": told}
            return {"id": f"line-{id}", "custom_id": id, "response": response, "error": None}
        self.paid[id] += 1
        whole = wire_answers.whole(said, request)
        if kind == "messages":
            return {"custom_id": id, "result": {"type": "succeeded", "message": whole}}
        response = {"status_code": 200, "request_id": id, "body": whole}
        return {"id": f"line-{id}", "custom_id": id, "response": response, "error": None}

    def _batch(self, id: str | None) -> HostedBatch | None:
        return next((each for each in self.hosted if each.id == id), None)

    def _takes(self, fault: str) -> bool:
        left: int = getattr(self.faults, fault)
        if left:
            setattr(self.faults, fault, left - 1)
        return left > 0

    def _id(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}_{self._count:06}"


def _step(method: str, id: str | None, more: str | None) -> BatchStep:
    if id is None:
        return "create" if method == "POST" else "list"
    if more in {"cancel", "results"}:
        return "cancel" if more == "cancel" else "results"
    return "delete" if method == "DELETE" else "look"


def _anthropic_batch(batch: HostedBatch) -> Item:
    names = [line["result"]["type"] for line in batch.lines]
    has_ended = batch.state in {"ended", "cancelled"}
    counts = {
        name: names.count(name) if has_ended else 0
        for name in ("succeeded", "errored", "canceled", "expired")
    }
    processing = 0 if has_ended else len(batch.requests)
    status = "canceling" if batch.cancelling else "in_progress"
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": "ended" if has_ended else status,
        "request_counts": {"processing": processing, **counts},
        "created_at": batch.created.isoformat(),
        "expires_at": batch.created.isoformat(),
        "ended_at": batch.created.isoformat() if has_ended else None,
        "archived_at": None,
        "cancel_initiated_at": None,
        "results_url": f"https://localhost/{batch.id}/results" if has_ended else None,
    }


def _is_good(line: Item) -> bool:
    return (line["response"] or {}).get("status_code") == 200


def _openai_batch(batch: HostedBatch) -> Item:
    good = [line for line in batch.lines if _is_good(line)]
    bad = [line for line in batch.lines if not _is_good(line)]
    is_over = batch.state in {"ended", "cancelled"}
    expired = any((line["error"] or {}).get("code") == "batch_expired" for line in bad)
    status = {"ended": "expired" if expired else "completed"}.get(batch.state, batch.state)
    if batch.cancelling and not is_over:
        status = "cancelling"
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": "/v1/responses",
        "completion_window": "24h",
        "input_file_id": batch.file,
        "status": "validating" if status == "in_progress" and not batch.looks else status,
        "output_file_id": f"file-out-{batch.id}" if is_over and good else None,
        "error_file_id": f"file-err-{batch.id}" if is_over and bad else None,
        "errors": {"object": "list", "data": batch.errors} if batch.errors else None,
        "created_at": int(batch.created.timestamp()),
        "request_counts": {
            "total": len(batch.requests),
            "completed": len(good),
            "failed": len(bad),
        },
        "metadata": batch.metadata,
    }


def _unfinished(id: str, kind: Kind, *, cancelled: bool) -> Item:
    if kind == "messages":
        return {"custom_id": id, "result": {"type": "canceled" if cancelled else "expired"}}
    code = "batch_cancelled" if cancelled else "batch_expired"
    error = {"code": code, "message": "This request was not executed in time."}
    return {"id": f"line-{id}", "custom_id": id, "response": None, "error": error}


def _uploaded(kind: str, raw: bytes) -> bytes:
    """The file in a form."""
    border = kind.partition("boundary=")[2].strip('"').encode()
    for part in raw.split(b"--" + border):
        head, _, content = part.partition(b"\r\n\r\n")
        if b'name="file"' in head:
            return content.removesuffix(b"\r\n")
    return b""


def _json(status: int, body: Item) -> HttpAnswer:
    return HttpAnswer(status, msgspec.json.encode(body))


def _error(kind: Kind, status: int, message: str) -> HttpAnswer:
    return _json(status, error_body(kind, status, message))
