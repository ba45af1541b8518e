"""Cached answers to identical requests.

The key is a hash of provider, model and body; streaming makes no difference. The request is not
stored. Forgetting a session forgets its answers (`forget`). Answers that hold a secret or were cut
off are not cached. The cache never makes a call fail.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from perdure.core import clock
from perdure.core.errors import DeadlineExceeded, InvalidValue, StorageError
from perdure.core.messages import Message, sound
from perdure.gateway.calls import ModelAnswer, indexable, packed
from perdure.storage.options import DEFAULT
from perdure.storage.records import Compressed, Indexed, Key, system_record
from perdure.storage.store import Store

Mask = Callable[[tuple[Message, ...]], tuple[Message, ...]]

_log = logging.getLogger(__name__)
#: They say how an answer is sent, not what it is.
_STREAMING = ("stream", "stream_options")

_decode = msgspec.msgpack.Decoder(ModelAnswer).decode


@system_record("answers", ttl="1d")  # each is given its own
class CachedAnswer(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An answer, and for whom it was first made."""

    id: Annotated[str, Key()]
    content: Annotated[bytes, Compressed()]
    agent: Annotated[str, Indexed()] = ""
    session: Annotated[str, Indexed()] = ""


class ResponseCache:
    """Answers in the bank, for a time."""

    def __init__(self, store: Store, ttl: float, *, mask: Mask | None = None) -> None:
        """`ttl` is in seconds. Without `mask`, answers are kept as they are."""
        self._store = store
        self._answers = store.collection(CachedAnswer)
        self._ttl = clock.duration(ttl)
        self._mask = mask

    @property
    def collections(self) -> frozenset[str]:
        return frozenset({self._answers.name})

    async def get(self, key: str) -> ModelAnswer | None:
        """The answer, or None if there is none that can be used. Never raises."""
        try:
            found = await self._answers.get(key)
            return None if found is None else _decode(found.content)
        except (StorageError, DeadlineExceeded, msgspec.MsgspecError) as exc:
            # Damaged, written by newer code, or the store is in trouble: ask the model.
            _log.info("the cached answer %s cannot be used: %s", key, exc)
            return None

    async def put(
        self, key: str, answered: ModelAnswer, *, agent: str = "", session: str = ""
    ) -> bool:
        """Keep an answer unless it was cut off, holds a secret or cannot be kept. Never raises."""
        message = answered.message
        if answered.finish not in ("stop", "tools") or message.partial or not message.parts:
            return False
        if self._mask is not None and self._mask((message,)) != (message,):
            return False
        try:
            record = CachedAnswer(
                id=key,
                content=packed(answered),
                agent=indexable(agent),
                session=indexable(session),
            )
            await self._answers.make()
            put = self._answers.declared.encode(record, self._store.now() + self._ttl, None)
            await self._store.write((put,), DEFAULT)
        except (StorageError, DeadlineExceeded, InvalidValue) as exc:
            _log.info("the answer %s is not cached: %s", key, exc)
            return False
        return True

    async def forget(self, sessions: tuple[str, ...], agent: str | None = None) -> None:
        """Delete what is cached for these sessions and this agent: those that asked first."""
        for session in filter(None, sessions):
            await self._answers.query().where("session", "=", indexable(session)).delete()
        if agent:
            await self._answers.query().where("agent", "=", indexable(agent)).delete()


def key_of(
    provider: str,
    address: str,
    model: str,
    body: Mapping[str, Any],
    headers: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """A hash of the bytes that are sent, without the fields about streaming. Field order counts."""
    plain = {name: value for name, value in body.items() if name not in _STREAMING}
    hashed = hashlib.blake2b(digest_size=24, person=b"perdure-answer")
    whole = [provider, address, model, sorted(headers.items()), plain]
    try:
        said = msgspec.json.encode(whole)
    except UnicodeEncodeError:
        said = msgspec.json.encode(sound(whole))
    hashed.update(said)
    return hashed.hexdigest()
