"""Cached answers: the same request, the same answer, for a time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perdure.core.errors import Unavailable
from perdure.core.messages import Message, Reasoning, Text, ToolCall, Usage
from perdure.gateway.calls import ModelAnswer
from perdure.gateway.response_cache import CachedAnswer, ResponseCache, key_of
from perdure.storage.middleware import Call, Get, Handler
from perdure.storage.options import DEFAULT
from perdure.storage.query import Query
from perdure.storage.registry import adapter_for
from perdure.storage.rows import Batch, Put
from perdure.storage.store import Store
from perdure.testing import ManualClock

HOUR = 3_600.0
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
KEY = key_of("here", "http://127.0.0.1/v1", "m", BODY)
PINNED = "6960bc3867f56ff3cb9a5c75c7c6ae1f408dbfd6dfaf8759"
ANSWER = ModelAnswer(
    Message(
        "assistant",
        (
            Reasoning("Hm.", signature="s"),
            Text("Hello", native={"chat": {"annotations": [1, {"a": None}]}}),
            ToolCall("c1", "shell", '{"command": "ls"}'),
        ),
        id="r1",
        model="m",
        usage=Usage(input=3, output=2, native={"cost": 0.5}),
    ),
    "tools",
)


def said(text: str, **more: Any) -> ModelAnswer:
    return ModelAnswer(Message("assistant", (Text(text),), **more))


async def rows(store: Store) -> list[Any]:
    return await store.adapter.salvage("perdure_answers", "", 1_000)


async def test_it_comes_back_as_it_was(store: Store) -> None:
    cache = ResponseCache(store, HOUR)
    assert await cache.get(KEY) is None
    assert await cache.put(KEY, ANSWER, agent="coder", session="coder/auth")
    assert await cache.get(KEY) == ANSWER
    assert await cache.put(KEY, said("Another."))
    assert await cache.get(KEY) == said("Another.")


async def test_until_it_expires(store: Store, clock: ManualClock) -> None:
    cache, brief = ResponseCache(store, 90 * 24 * HOUR), ResponseCache(store, 0.5)
    await cache.put("long", said("a"))
    await brief.put("short", said("b"))
    clock.advance(0.4)
    assert await cache.get("short") == said("b")
    clock.advance(0.2)
    assert await cache.get("short") is None
    clock.advance("89d")
    assert await cache.get("long") == said("a")
    clock.advance("2d")
    assert await cache.get("long") is None
    assert await store.adapter.sweep(100) == 2
    assert await rows(store) == []


async def test_what_is_not_kept(store: Store) -> None:
    cache = ResponseCache(store, HOUR, mask=mask)
    for answer in (
        ModelAnswer(Message("assistant")),
        said("half", partial=True),
        ModelAnswer(ANSWER.message, "length"),
        ModelAnswer(ANSWER.message, "filter"),
        ModelAnswer(ANSWER.message, "other"),
        said("The key is sk-secret."),
        said("x" * 17_000_000),
    ):
        assert not await cache.put(KEY, answer)
        assert await cache.get(KEY) is None
    assert await cache.put(KEY, said("No secret."))
    assert [b"sk-secret" in row.value for row in await rows(store)] == [False]


def mask(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    return tuple(
        msgspec.structs.replace(
            each,
            parts=tuple(Text(part.text.replace("sk-secret", "***")) for part in each.parts),  # type: ignore[union-attr]  # they are texts
        )
        if "sk-secret" in each.text
        else each
        for each in messages
    )


async def test_text_that_is_no_unicode(store: Store) -> None:
    cache = ResponseCache(store, HOUR)
    assert await cache.put(KEY, said("half \ud800 pair"), agent="x\x00\ud800", session="é" * 500)
    assert await cache.get(KEY) == said("half \ufffd pair")


async def test_forgetting(store: Store) -> None:
    cache = ResponseCache(store, HOUR)
    for key, agent, session in (
        ("1", "coder", "coder/a"),
        ("2", "coder", "coder/b"),
        ("3", "planner", "planner/a"),
        ("4", "", ""),
    ):
        await cache.put(key, said(key), agent=agent, session=session)
    await cache.forget(("coder/a", ""), "")
    assert [row.key for row in await rows(store)] == ["2", "3", "4"]
    await cache.forget((), "coder")
    assert [row.key for row in await rows(store)] == ["3", "4"]
    assert cache.collections == {"perdure_answers"}


# Damage -----------------------------------------------------------------------------------------


async def test_damaged_and_newer_entries_are_not_there(store: Store) -> None:
    cache = ResponseCache(store, HOUR)
    await cache.put(KEY, ANSWER)
    (row,) = await store.adapter.find(Query("perdure_answers"), DEFAULT)
    good = Put("perdure_answers", KEY, row.value, row.content_type, row.schema, columns=("", ""))
    junk = CachedAnswer(id=KEY, content=b"\xc1 no answer")
    for put in (
        msgspec.structs.replace(good, checksum=row.checksum ^ 1),
        msgspec.structs.replace(good, value=b"\xc1"),
        msgspec.structs.replace(good, content_type="application/x-unheard-of"),
        msgspec.structs.replace(good, value=msgspec.msgpack.encode(junk)),
        msgspec.structs.replace(
            good,
            value=msgspec.msgpack.encode(
                CachedAnswer(id=KEY, content=msgspec.msgpack.encode({"finish": 1}))
            ),
        ),
    ):
        if put.checksum:  # the store would mend it
            await store.adapter.commit(Batch((put,)), DEFAULT)
        else:
            await store.write((put,), DEFAULT)
        assert await cache.get(KEY) is None
        assert await cache.put(KEY, ANSWER)  # it is replaced
        assert await cache.get(KEY) == ANSWER
    await store.write((msgspec.structs.replace(good, schema=9),), DEFAULT)
    assert await cache.get(KEY) is None
    assert not await cache.put(KEY, ANSWER)  # what newer code wrote is left alone


async def test_a_store_in_trouble_is_no_cache(clock: ManualClock) -> None:
    async def away(call: Call, proceed: Handler) -> Any:
        raise Unavailable("The store is away.")

    async with Store(adapter_for("memory://", clock), middleware=[away], clock=clock) as store:
        cache = ResponseCache(store, HOUR)
        assert not await cache.put(KEY, ANSWER)
        assert await cache.get(KEY) is None


# Keys -------------------------------------------------------------------------------------------


def test_the_same_request_has_the_same_key() -> None:
    for how in ({}, {"stream": True}, {"stream": False, "stream_options": {"include_usage": True}}):
        assert key_of("here", "http://127.0.0.1/v1", "m", BODY | how) == KEY
    # Pinned: another key after an upgrade means that every cache is void.
    assert KEY == PINNED


def test_any_other_request_has_another() -> None:
    schema = {"type": "object", "properties": {"a": {}, "b": {}}}
    turned = {"type": "object", "properties": {"b": {}, "a": {}}}
    keys = [
        KEY,
        key_of("there", "http://127.0.0.1/v1", "m", BODY),
        key_of("here", "http://127.0.0.1/v2", "m", BODY),
        key_of("here", "http://127.0.0.1/v1", "n", BODY),
        key_of("here", "http://127.0.0.1/v1", "m", BODY | {"temperature": 0}),
        key_of("here", "http://127.0.0.1/v1", "m", BODY | {"temperature": 0.5}),
        key_of("here", "http://127.0.0.1/v1", "m", BODY | {"schema": schema}),
        key_of("here", "http://127.0.0.1/v1", "m", BODY | {"schema": turned}),
        key_of("here", "http://127.0.0.1/v1", "m", {"messages": [{"stream": True}]}),
        key_of("here", "http://127.0.0.1/v1", "m", {"messages": [{"stream": False}]}),
        key_of("here", "http://127.0.0.1/v1", "m", {"messages": ["\ud800"]}),
        key_of("here", "http://127.0.0.1/v1", "m", BODY, {"x-tenant": "a"}),
        key_of("here", "http://127.0.0.1/v1", "m", BODY, {"x-tenant": "b"}),
    ]
    assert len(set(keys)) == len(keys)


# Speed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store_url", ["sqlite", "postgresql"], indirect=True)
async def test_a_hit_is_one_read(store_url: str, clock: ManualClock) -> None:
    """So it takes far less than 50 ms."""
    calls = list[Call]()

    async def noted(call: Call, handler: Handler) -> Any:
        calls.append(call)
        return await handler(call)

    async with Store(adapter_for(store_url, clock), middleware=[noted], clock=clock) as store:
        cache = ResponseCache(store, HOUR)
        for number in range(100):
            await cache.put(f"k{number}", said(f"{number} " * 2_000))
        calls.clear()
        for number in range(100):
            assert await cache.get(f"k{number}") is not None
        assert len(calls) == 100
        assert all(isinstance(call, Get) for call in calls)
