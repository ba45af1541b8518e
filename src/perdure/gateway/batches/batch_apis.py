"""The batch modes of Anthropic (Message Batches) and OpenAI (Batch, through files).

Neither has an idempotency key. OpenAI keeps metadata with a batch, so that one's own can be found
in the list. Anthropic keeps nothing: a batch is known by the ids in its results, which are there
when it has ended; until then one of the same size and time may be it (`StillUnknown`).

Everything raises `GatewayError`, with the HTTP status where one came.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from perdure.core import clock
from perdure.core.clock import SECOND
from perdure.core.errors import BadAnswer, GatewayError, Rejected
from perdure.core.messages import sound
from perdure.gateway import provider_errors, streams
from perdure.gateway.batches.batch_records import ItemState, number_of
from perdure.gateway.calls import ModelAnswer
from perdure.gateway.catalog import ModelCandidate
from perdure.gateway.provider_keys import secrets_of
from perdure.gateway.requests import ProviderRequest
from perdure.gateway.requests import messages as message_requests
from perdure.gateway.transport import Transport

_log = logging.getLogger(__name__)

#: Seconds for one request: files are large.
_TIMEOUT = 1_800.0
#: Clocks of the provider and of this machine may differ so much. Microseconds.
_SKEW = 3_600 * SECOND
_PAGE = 100
_JSON = {"content-type": "application/json"}
#: The name of our entry in OpenAI's metadata.
_TAG = "perdure"

RemoteState: TypeAlias = Literal["in_progress", "ended", "failed"]


class BatchLimits(msgspec.Struct, frozen=True):
    """What may be sent at once."""

    requests: int
    bytes: int


#: Below the 256 MB and 200 MB that are allowed, since what is sent at once is in memory at once.
ANTHROPIC_LIMITS = BatchLimits(100_000, 64 * 2**20)
OPENAI_LIMITS = BatchLimits(50_000, 64 * 2**20)


class RemoteBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as its provider tells of it."""

    id: str
    state: RemoteState
    #: What became of items without a line in the results; None: each has one.
    unfinished: ItemState | None = None
    #: Files with results, and all files to be deleted at the end.
    outputs: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    error: str = ""
    #: It was refused because too much waits there: it may be sent again later.
    crowded: bool = False


class ResultLine(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one item."""

    wire_id: str
    state: ItemState
    answer: ModelAnswer | None = None
    error: GatewayError | None = None


class StillUnknown(Exception):
    """Whether a batch was sent cannot be told until another one, named here, has ended."""


class SentPart(msgspec.Struct, frozen=True):
    """What is to be recognised among a provider's batches."""

    run: str
    part: int
    numbers: range
    #: When it may have been sent. Microseconds.
    since: int
    #: How many requests were sent.
    lines: int

    @property
    def tag(self) -> str:
        return f"{self.run}.{self.part}"


class BatchApi(Protocol):
    """The batch mode of one provider."""

    limits: BatchLimits

    def line(self, wire_id: str, call: ProviderRequest) -> bytes: ...

    async def upload(self, lines: Sequence[bytes], part: SentPart) -> str:
        """Send the requests beforehand, where that is how it is done; returns the file, or "".
        Costs nothing.
        """

    async def create(self, lines: Sequence[bytes], file: str, part: SentPart) -> RemoteBatch: ...

    async def find(self, part: SentPart, known: frozenset[str]) -> list[str]:
        """Ids of batches that are this part, the first one first; `known` are others'. Raises
        `StillUnknown`.
        """

    async def look(self, id: str) -> RemoteBatch: ...

    def results(self, batch: RemoteBatch) -> AsyncIterator[ResultLine]:
        """In any order; some may be missing."""

    async def cancel(self, id: str) -> None: ...

    async def clean_up(self, *files: str) -> None:
        """Delete files that the provider would keep for ever. Raises nothing."""


def batch_api(transport: Transport, candidate: ModelCandidate, key: str | None) -> BatchApi:
    made = AnthropicBatches if candidate.provider.wire == "messages" else OpenAIBatches
    return made(transport, candidate, key)


def limits_of(candidate: ModelCandidate) -> BatchLimits:
    return ANTHROPIC_LIMITS if candidate.provider.wire == "messages" else OPENAI_LIMITS


class _Connection:
    """Calls of one provider with one key."""

    def __init__(self, transport: Transport, candidate: ModelCandidate, key: str | None) -> None:
        self._transport = transport
        self._candidate = candidate
        self._provider = candidate.provider
        self._key = key
        self._secrets = secrets_of(candidate.provider, key)

    async def _call(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        request = ProviderRequest(path, method=method, **more)
        sent = await self._transport.post(self._provider, request, self._key, timeout=_TIMEOUT)
        return sent.body

    async def _lines(
        self, path: str, headers: dict[str, str] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """The objects in a file of results. A line that is none counts as lost."""
        request = ProviderRequest(path, headers=headers or {})
        async for raw in self._transport.lines(
            self._provider, request, self._key, timeout=_TIMEOUT
        ):
            try:
                line = msgspec.json.decode(raw, type=dict[str, Any])
            except (msgspec.DecodeError, UnicodeDecodeError):
                _log.warning("a line in the results of %s is no JSON", self._candidate.name)
                continue
            yield line

    def _answered(self, wire_id: str, body: dict[str, Any]) -> ResultLine:
        try:
            answer = streams.read_answer(self._provider.wire, body, self._candidate.name)
        except GatewayError as exc:
            return self._errored(wire_id, exc)
        return ResultLine(wire_id=wire_id, state=ItemState.SUCCEEDED, answer=answer)

    def _refused(self, wire_id: str, error: object) -> ResultLine:
        said = provider_errors.from_event(error, where=self._candidate.name)
        return self._errored(wire_id, said)

    def _errored(self, wire_id: str, error: GatewayError) -> ResultLine:
        provider_errors.conceal(error, self._secrets)
        return ResultLine(wire_id=wire_id, state=ItemState.ERRORED, error=error)


class AnthropicBatches(_Connection):
    """Message Batches: all requests in one body."""

    limits = ANTHROPIC_LIMITS
    _PATH = "/messages/batches"

    def __init__(self, transport: Transport, candidate: ModelCandidate, key: str | None) -> None:
        super().__init__(transport, candidate, key)
        self._headers = message_requests.headers(candidate.model)

    def line(self, wire_id: str, call: ProviderRequest) -> bytes:
        return _encoded({"custom_id": wire_id, "params": call.body})

    async def upload(self, lines: Sequence[bytes], part: SentPart) -> str:
        return ""

    async def create(self, lines: Sequence[bytes], file: str, part: SentPart) -> RemoteBatch:
        content = b'{"requests":[' + b",".join(lines) + b"]}"
        headers = {**self._headers, **_JSON}
        return self._read(await self._call("POST", self._PATH, content=content, headers=headers))

    async def find(self, part: SentPart, known: frozenset[str]) -> list[str]:
        unknown = ""
        found = list[str]()
        async for each in self._list(part.since - _SKEW):
            counts = each.get("request_counts") or {}
            if each.get("id") in known or sum(counts.values()) != part.lines:
                continue
            if each.get("processing_status") != "ended":
                unknown = unknown or str(each["id"])
            elif await self._is_ours(self._read(each), part):
                found.append(str(each["id"]))
        if not found and unknown:
            raise StillUnknown(unknown)
        return found[::-1]  # the newest is listed first

    async def look(self, id: str) -> RemoteBatch:
        return self._read(await self._call("GET", f"{self._PATH}/{id}", headers=self._headers))

    async def results(self, batch: RemoteBatch) -> AsyncIterator[ResultLine]:
        async for line in self._lines(f"{self._PATH}/{batch.id}/results", self._headers):
            match line:
                case {"custom_id": str(id), "result": {"type": "succeeded", "message": body}}:
                    yield self._answered(id, body)
                case {"custom_id": str(id), "result": {"type": "errored", **rest}}:
                    yield self._refused(id, rest.get("error"))
                case {"custom_id": str(id), "result": {"type": "expired"}}:
                    yield ResultLine(wire_id=id, state=ItemState.EXPIRED)
                case {"custom_id": str(id), "result": {"type": "canceled"}}:
                    yield ResultLine(wire_id=id, state=ItemState.CANCELLED)

    async def cancel(self, id: str) -> None:
        await self._call("POST", f"{self._PATH}/{id}/cancel", headers=self._headers)

    async def clean_up(self, *files: str) -> None:
        """Nothing: results are gone after 29 days."""

    async def _list(self, since: int) -> AsyncIterator[dict[str, Any]]:
        after = ""
        while True:
            path = f"{self._PATH}?limit={_PAGE}{f'&after_id={after}' if after else ''}"
            page = await self._call("GET", path, headers=self._headers)
            for each in page.get("data") or ():
                if _moment(each.get("created_at")) < since:
                    return
                yield each
            after = page.get("last_id") or ""
            if not page.get("has_more") or not after:
                return

    async def _is_ours(self, batch: RemoteBatch, part: SentPart) -> bool:
        async for line in self._lines(f"{self._PATH}/{batch.id}/results", self._headers):
            return number_of(str(line.get("custom_id")), part.run) in part.numbers
        return False

    def _read(self, body: dict[str, Any]) -> RemoteBatch:
        has_ended = body.get("processing_status") == "ended"
        return RemoteBatch(
            id=_id(body, self._candidate), state="ended" if has_ended else "in_progress"
        )


class OpenAIBatches(_Connection):
    """Batch: a file of requests, then files of results and errors."""

    limits = OPENAI_LIMITS

    def line(self, wire_id: str, call: ProviderRequest) -> bytes:
        url = f"/v1{call.path}"
        return _encoded({"custom_id": wire_id, "method": "POST", "url": url, "body": call.body})

    async def upload(self, lines: Sequence[bytes], part: SentPart) -> str:
        border = part.run.encode()  # random, and in no request but as the beginning of ids
        name = f"perdure-{part.tag}.jsonl"
        content = b"".join(_multipart(b"perdure-" + border, name, lines))
        kind = f"multipart/form-data; boundary=perdure-{part.run}"
        body = await self._call("POST", "/files", content=content, headers={"content-type": kind})
        return _id(body, self._candidate)

    async def create(self, lines: Sequence[bytes], file: str, part: SentPart) -> RemoteBatch:
        endpoint = "/v1/responses" if self._provider.wire == "responses" else "/v1/chat/completions"
        body = {
            "input_file_id": file,
            "endpoint": endpoint,
            "completion_window": "24h",
            "metadata": {_TAG: part.tag},
        }
        return self._read(await self._call("POST", "/batches", body=body))

    async def find(self, part: SentPart, known: frozenset[str]) -> list[str]:
        found = list[str]()
        after = ""
        while True:
            path = f"/batches?limit={_PAGE}{f'&after={after}' if after else ''}"
            page = await self._call("GET", path)
            for each in page.get("data") or ():
                if each.get("created_at", 0) * SECOND < part.since - _SKEW:
                    return found[::-1]
                is_ours = (each.get("metadata") or {}).get(_TAG) == part.tag
                # One that was refused cost nothing, and may have been sent again since.
                if is_ours and each.get("status") != "failed" and each["id"] not in known:
                    found.append(str(each["id"]))
            after = page.get("last_id") or ""
            if not page.get("has_more") or not after:
                return found[::-1]

    async def look(self, id: str) -> RemoteBatch:
        return self._read(await self._call("GET", f"/batches/{id}"))

    async def results(self, batch: RemoteBatch) -> AsyncIterator[ResultLine]:
        for file in batch.outputs:
            async for line in self._lines(f"/files/{file}/content"):
                if isinstance(wire_id := line.get("custom_id"), str):
                    yield self._result(wire_id, line)

    def _result(self, wire_id: str, line: dict[str, Any]) -> ResultLine:
        match line:
            case {"error": {"code": "batch_expired"}}:
                return ResultLine(wire_id=wire_id, state=ItemState.EXPIRED)
            case {"error": {"code": "batch_cancelled"}}:
                return ResultLine(wire_id=wire_id, state=ItemState.CANCELLED)
            case {"response": {"status_code": 200, "body": dict(body)}}:
                return self._answered(wire_id, body)
            case {"response": {"status_code": int(status), "body": body}}:
                said = provider_errors.from_response(
                    status, {}, msgspec.json.encode(body), where=self._candidate.name
                )
                return self._errored(wire_id, said)
        return self._refused(wire_id, line.get("error"))

    async def cancel(self, id: str) -> None:
        await self._call("POST", f"/batches/{id}/cancel")

    async def clean_up(self, *files: str) -> None:
        for each in dict.fromkeys(files):
            if each:
                with suppress(GatewayError):  # gone already, or kept: nothing depends on it
                    await self._call("DELETE", f"/files/{each}")

    def _read(self, body: dict[str, Any]) -> RemoteBatch:
        status = body.get("status")
        outputs = [body.get("output_file_id"), body.get("error_file_id")]
        errors = [each for each in (body.get("errors") or {}).get("data") or () if each]
        said = "; ".join(str(each.get("message") or each.get("code") or "") for each in errors)
        state: RemoteState = "in_progress"
        if status == "failed":
            state = "failed"
        elif status in {"completed", "expired", "cancelled"}:
            state = "ended"
        unfinished = {"expired": ItemState.EXPIRED, "cancelled": ItemState.CANCELLED}
        return RemoteBatch(
            id=_id(body, self._candidate),
            state=state,
            unfinished=unfinished.get(str(status)),
            outputs=tuple(str(each) for each in outputs if each),
            files=tuple(str(each) for each in (*outputs, body.get("input_file_id")) if each),
            error=provider_errors.one_line(said, provider_errors.MAX_WORDS),
            crowded=any(each.get("code") == "token_limit_exceeded" for each in errors),
        )


def is_refused(error: GatewayError) -> bool:
    """Whether it is certain that the provider made nothing of a request."""
    if isinstance(error, provider_errors.Unreachable):
        return True
    return error.status is not None and error.status in {400, 401, 402, 403, 404, 413, 422, 429}


def is_not_there(error: GatewayError) -> bool:
    return isinstance(error, Rejected) and error.status == 404


def _multipart(border: bytes, name: str, lines: Iterable[bytes]) -> Iterable[bytes]:
    part = b"--" + border + b'\r\ncontent-disposition: form-data; name="'
    yield part + b'purpose"\r\n\r\nbatch\r\n'
    yield part + b'file"; filename="' + name.encode() + b'"\r\ncontent-type: application/jsonl'
    yield b"\r\n\r\n"
    for line in lines:
        yield line + b"\n"
    yield b"\r\n--" + border + b"--\r\n"


def _encoded(value: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(sound(value))


def _id(body: dict[str, Any], candidate: ModelCandidate) -> str:
    if isinstance(id := body.get("id"), str) and id:
        return id
    raise BadAnswer(
        f"{candidate.provider.name} names no id in its answer about a batch.",
        hint="Does it have a batch mode? Set batch = false for it, if not.",
    )


def _moment(text: object) -> int:
    try:
        return clock.from_datetime(datetime.fromisoformat(str(text)))
    except ValueError:
        return clock.now()  # unreadable: not too old
