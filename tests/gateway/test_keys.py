from __future__ import annotations

import asyncio
import importlib.util
import threading
import time
from collections.abc import Iterator

import keyring
import keyring.backend
import keyring.errors
import pytest

from perdure.core.errors import Unauthorized
from perdure.gateway import provider_keys
from perdure.gateway.provider_keys import key_for
from perdure.gateway.providers import BUILT_IN, Provider
from tests.waiting import until

OURS = Provider(name="ours", base_url="http://127.0.0.1:1", key_variable="OUR_KEY")


class Ring(keyring.backend.KeyringBackend):
    """A keyring in memory, which can be slow or out of order."""

    priority = 1

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept: dict[tuple[str, str], str] = {}
        self.asked: list[tuple[str, str]] = []
        self.unlocked = threading.Event()
        self.unlocked.set()
        self.error: Exception | None = None

    def get_password(self, service: str, username: str) -> str | None:
        self.asked.append((service, username))
        self.unlocked.wait(10)
        if self.error is not None:
            raise self.error
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password


@pytest.fixture(autouse=True)
def ring(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ring]:
    before = keyring.get_keyring()
    ring = Ring()
    keyring.set_keyring(ring)
    monkeypatch.setattr(provider_keys, "_questions", {})
    yield ring
    ring.unlocked.set()
    keyring.set_keyring(before)


async def test_the_variable_comes_first(ring: Ring) -> None:
    ring.set_password("perdure", "OUR_KEY", "from the ring")
    found = await key_for(OURS, {"OUR_KEY": " from-the-variable\n"})
    assert found == "from-the-variable"
    assert not ring.asked


async def test_then_the_keyring_which_is_asked_once(ring: Ring) -> None:
    ring.set_password("perdure", "OUR_KEY", "from-the-ring")
    for _ in range(3):
        found = await key_for(OURS, {"OUR_KEY": ""})
        assert found == "from-the-ring"
    assert ring.asked == [("perdure", "OUR_KEY")]


async def test_without_a_key_there_is_none(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await key_for(OURS, {}) is None
    assert await key_for(OURS, {}) is None
    assert len(ring.asked) == 1
    ring.set_password("perdure", "OUR_KEY", "put-there-later")
    monkeypatch.setattr(provider_keys, "AGAIN", 0.0)
    assert await key_for(OURS, {}) == "put-there-later"


@pytest.mark.parametrize("provider", ["ollama", "vllm", "llamacpp", "local"])
async def test_servers_that_need_no_key_do_not_touch_the_keyring(ring: Ring, provider: str) -> None:
    assert await key_for(BUILT_IN[provider], {}) is None
    assert not ring.asked
    variable = BUILT_IN[provider].key_variable
    if variable:
        assert await key_for(BUILT_IN[provider], {variable: "k"}) == "k"


@pytest.mark.parametrize(
    "error", [keyring.errors.KeyringLocked("locked"), keyring.errors.NoKeyringError(), OSError(5)]
)
async def test_a_keyring_out_of_order_is_no_key(ring: Ring, error: Exception) -> None:
    ring.error = error
    assert await key_for(OURS, {}) is None


async def test_nobody_waits_long_for_a_locked_keyring(ring: Ring) -> None:
    ring.set_password("perdure", "OUR_KEY", "k")
    ring.unlocked.clear()
    started = time.monotonic()
    found = await asyncio.gather(*(key_for(OURS, {}, patience=0.3) for _ in range(10)))
    assert found == [None] * 10
    assert time.monotonic() - started > 0.2
    async with asyncio.timeout(100):  # all patience is used up already: nobody waits again
        for _ in range(1_000):
            assert await key_for(OURS, {}, patience=0.3) is None
    assert len(ring.asked) == 1
    ring.unlocked.set()
    assert await key_for(OURS, {}, patience=5) == "k"
    assert len(ring.asked) == 1


async def test_a_caller_that_gives_up_does_not_spoil_it_for_others(ring: Ring) -> None:
    ring.set_password("perdure", "OUR_KEY", "k")
    ring.unlocked.clear()
    impatient = asyncio.create_task(key_for(OURS, {}))
    patient = asyncio.create_task(key_for(OURS, {}))
    await until(lambda: ring.asked)
    impatient.cancel()
    ring.unlocked.set()
    assert await patient == "k"


async def test_without_the_package_only_variables_count(
    ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert await key_for(OURS, {}) is None
    assert not ring.asked


@pytest.mark.parametrize("key", ["two\nlines", "sk-“quoted”", "a\x00b"])
async def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(Unauthorized, match="OUR_KEY") as refused:
        await key_for(OURS, {"OUR_KEY": key})
    assert key not in str(refused.value)
