"""Dictionaries of records that are encrypted with different keys know nothing of each other."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
import pytest

from perdure.storage.compression import Compression, Dictionary, states
from perdure.storage.options import DEFAULT
from perdure.storage.query import Query
from perdure.storage.records import Compressed, Key, record
from perdure.storage.registry import adapter_for
from perdure.storage.store import Store

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "seven",
    "wizards",
    "brew",
    "odd",
    "potions",
]
SECRETS = {"ada": "swordfish-for-ada", "bob": "passphrase-of-bob"}


@record("diaries")
class Page(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    text: Annotated[str, Compressed()]


def page(agent: str, number: int) -> Page:
    dice = random.Random(f"{agent}{number}")
    text = " ".join(dice.choices(WORDS, k=120))
    return Page(
        f"{agent}/{number:03d}" if agent else f"{number:03d}",
        f"{text} {SECRETS.get(agent, '')} {text[:60]}",
    )


def scope_of(collection: str, key: str) -> str:
    return f"agent:{key.partition('/')[0]}" if "/" in key else f"collection:{collection}"


class Diaries:
    """A store whose records have keys by agent."""

    def __init__(self, url: str) -> None:
        self.compression = Compression(scope_of=scope_of)
        self.store = Store(adapter_for(url), middleware=[self.compression])
        self.pages = self.store.collection(Page)

    async def fill(self) -> list[Page]:
        pages = [page(agent, n) for agent in ("ada", "bob", "") for n in range(110)]
        for _ in range(2):  # the second time with dictionaries
            for at in range(0, len(pages), 55):
                await self.pages.put_many(pages[at : at + 55])
            await self.compression.train()
        return pages

    async def contents(self) -> dict[str, bytes]:
        found = await self.store.collection(Dictionary).query().order_by("key").values()
        return {each.id: each.content for each in found}

    async def types(self) -> dict[str, set[str]]:
        rows = await self.store.adapter.find(Query("diaries"), DEFAULT)
        found: dict[str, set[str]] = {}
        for row in rows:
            agent = row.key.partition("/")[0] if "/" in row.key else ""
            found.setdefault(agent, set()).add(row.content_type.partition(";")[2])
        return found


@pytest.fixture
async def diaries(store_url: str) -> AsyncIterator[Diaries]:
    diaries = Diaries(store_url)
    async with diaries.store:
        yield diaries


async def test_each_scope_has_dictionaries_of_its_own(diaries: Diaries) -> None:
    pages = await diaries.fill()
    contents = await diaries.contents()
    assert list(contents) == ["diaries/00000001", "diaries/ada/00000001", "diaries/bob/00000001"]
    assert b"swordfish" in contents["diaries/ada/00000001"]
    assert b"passphrase" in contents["diaries/bob/00000001"]
    for place, content in contents.items():
        for agent, secret in SECRETS.items():
            assert (secret[:9].encode() in content) == (agent in place)
    assert await diaries.types() == {"ada": {"zstd=@1"}, "bob": {"zstd=@1"}, "": {"zstd=1"}}
    assert await diaries.pages.get_many([each.id for each in pages]) == pages


async def test_one_scope_is_forgotten_and_the_others_stay(diaries: Diaries) -> None:
    pages = await diaries.fill()
    await diaries.pages.delete_many([each.id for each in pages if each.id.startswith("ada/")])
    await diaries.compression.renew("diaries")
    contents = await diaries.contents()
    assert list(contents) == ["diaries/00000002", "diaries/bob/00000002"]
    assert b"swordfish" not in b"".join(contents.values())
    kept = [each for each in pages if not each.id.startswith("ada/")]
    assert await diaries.pages.query().order_by("key").values() == sorted(kept, key=lambda p: p.id)
    # She begins anew with a number that was never used.
    await diaries.pages.put_many([page("ada", n) for n in range(110)])
    await diaries.compression.train()
    assert "diaries/ada/00000003" in await diaries.contents()


async def test_what_was_written_before_there_were_scopes_stays_readable(store_url: str) -> None:
    if store_url == "memory://":
        pytest.skip("it ends with its process")
    before = Diaries(store_url)
    before.compression = Compression()
    before.store = Store(adapter_for(store_url), middleware=[before.compression])
    before.pages = before.store.collection(Page)
    async with before.store:
        pages = await before.fill()
        assert list(await before.contents()) == ["diaries/00000001"]
    after = Diaries(store_url)
    async with after.store:
        await after.pages.put(pages[0])
        assert await after.pages.get_many([each.id for each in pages]) == pages
        await after.compression.renew("diaries")
        assert await after.pages.get_many([each.id for each in pages]) == pages
        # The new dictionary of all was trained on what belongs to no agent.
        for place, content in (await after.contents()).items():
            assert "/ada/" in place or b"swordfish" not in content


async def test_what_was_noted_before_a_renewal_is_not_trained_with(store_url: str) -> None:
    first = Diaries(store_url)
    async with first.store:
        second = Diaries(store_url)
        second.store = Store(first.store.adapter, middleware=[second.compression])
        second.pages = second.store.collection(Page)
        for each in (first, second):  # no scope has a dictionary yet
            await each.pages.put_many([page("ada", n) for n in range(70)])
        await first.pages.query().prefix("ada/").delete()
        await first.compression.renew("diaries")
        for each in (first, second):
            await each.pages.put_many([page("ada", n + 500) for n in range(60)])
            assert not await each.contents()
        # The second had noted what is forgotten, and starts over.
        await second.compression.train("diaries")
        assert await second.contents() == {}
        assert second.compression._states["diaries/ada"].samples.values == []
        await first.compression.train("diaries")
        assert "diaries/ada/00000001" in await first.contents()


async def test_not_all_scopes_are_remembered(
    diaries: Diaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "_MOST", 4)
    pages = [page(f"agent{n}", n) for n in range(12)] + [page("", 1)]
    for each in pages:
        await diaries.pages.put(each)
    assert len(diaries.compression._states) <= 5
    assert await diaries.pages.get_many([each.id for each in pages]) == pages
