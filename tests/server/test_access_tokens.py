"""Tokens in the bank: made, used, expired, revoked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure.bank.bank import Bank
from perdure.config import Config
from perdure.core.errors import InvalidInput, NotFound
from perdure.server import access_tokens
from perdure.server.access_tokens import AccessToken, AccessTokens, hash_of
from perdure.server.operations import TokenScope
from perdure.testing import ManualClock
from tests.server.conftest import RunningServer

READ = (TokenScope.READ,)
DAY = 86_400_000_000


@pytest.fixture
async def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def tokens(clock: ManualClock) -> AsyncIterator[AccessTokens]:
    async with Bank("memory://", config=Config(), clock=clock) as bank:
        found = AccessTokens(bank.store)
        yield found
        await found.settle()


async def test_a_token_says_who_calls(tokens: AccessTokens) -> None:
    secret, record = await tokens.make("laptop", scopes=(TokenScope.WRITE, *READ), agent="ada")
    caller = await tokens.caller_by_hash(hash_of(secret))
    assert caller is not None
    assert (caller.name, caller.agent) == ("laptop", "ada")
    assert caller.scopes == {TokenScope.READ, TokenScope.WRITE}
    assert await tokens.caller_by_hash(hash_of(secret + "x")) is None
    assert await tokens.caller_by_hash(hash_of(record.id)) is None  # the hash opens nothing


async def test_the_bank_never_holds_the_token(server: RunningServer, tmp_path: Path) -> None:
    secret, _ = await AccessTokens(server.bank.store).make("laptop", scopes=READ)
    client = await server.client(secret)
    assert (await client.get("/openapi.json")).status_code == 200
    assert (await client.get(f"/t/{secret}/v1/nothing")).status_code == 403
    await server.app.state.part(AccessTokens).settle()
    files = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert files
    assert not [file for file in files if secret.encode() in file]
    # What a token looks like is long and random, so that a plain hash is enough.
    assert secret.startswith("pd_")
    assert len(secret) == 3 + 43


async def test_a_token_expires(tokens: AccessTokens, clock: ManualClock) -> None:
    secret, _ = await tokens.make("laptop", scopes=READ, lasts=DAY)
    clock.advance(DAY / 1e6 - 1)
    assert await tokens.caller_by_hash(hash_of(secret)) is not None
    assert await tokens.has_any()
    clock.advance(1)
    assert await tokens.caller_by_hash(hash_of(secret)) is None
    assert not await tokens.has_any()
    await tokens.make("laptop", scopes=READ)  # the name is free again


async def test_a_revoked_token_is_refused_at_once_by_who_revoked_it(tokens: AccessTokens) -> None:
    secret, record = await tokens.make("laptop", scopes=READ)
    assert await tokens.caller_by_hash(hash_of(secret)) is not None
    assert (await tokens.revoke(record.short)).name == "laptop"
    assert await tokens.caller_by_hash(hash_of(secret)) is None
    with pytest.raises(NotFound):
        await tokens.revoke("laptop")
    with pytest.raises(NotFound):
        await tokens.revoke("")


async def test_and_by_a_running_server_when_it_looks_again(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_tokens, "_RECHECK", 0.0)
    others = AccessTokens(server.bank.store)  # as another process has them
    secret, _ = await others.make("laptop", scopes=READ)
    client = await server.client(secret)
    assert (await client.get("/openapi.json")).status_code == 200
    await others.revoke("laptop")
    answer = await client.get("/openapi.json")
    assert answer.status_code == 401
    assert "revoked" in answer.json()["error"]["message"]


async def test_a_use_is_written_once_a_minute(tokens: AccessTokens, clock: ManualClock) -> None:
    secret, _ = await tokens.make("laptop", scopes=READ)
    assert [each.used for each in await tokens.describe()] == [None]

    async def used() -> object:
        assert await tokens.caller_by_hash(hash_of(secret))
        await tokens.settle()
        return (await tokens.describe())[0].used

    first = await used()
    clock.advance(59)
    assert await used() == first
    clock.advance(1)
    assert await used() != first


async def test_a_use_that_is_written_late_brings_no_token_back(tokens: AccessTokens) -> None:
    secret, record = await tokens.make("laptop", scopes=READ)
    assert await tokens.caller_by_hash(hash_of(secret))
    await tokens.revoke("laptop")
    await tokens.settle()
    assert await tokens.all() == []
    assert await tokens.caller_by_hash(hash_of(secret)) is None
    assert isinstance(record, AccessToken)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"name": ""}, "cannot be the name"),
        ({"name": "a\nb"}, "cannot be the name"),
        ({"scopes": ()}, "needs scopes"),
        ({"scopes": (TokenScope.OPEN,)}, "needs scopes"),
        ({"agent": "a/b"}, "cannot be an agent"),
        ({"agent": "ada", "scopes": (TokenScope.ADMIN,)}, "cannot have the scope admin"),
        ({"name": "taken"}, "There is a token named"),
    ],
    ids=str,
)
async def test_what_cannot_be_a_token(
    tokens: AccessTokens, given: dict[str, object], says: str
) -> None:
    await tokens.make("taken", scopes=READ)
    with pytest.raises(InvalidInput, match=says):
        await tokens.make(**{"name": "laptop", "scopes": READ, **given})  # type: ignore[arg-type]


async def test_a_token_for_one_agent(server: RunningServer) -> None:
    """It is refused where the whole bank is meant."""
    client = await server.client(server.token(TokenScope.READ, agent="ada"))
    answer = await client.get("/metrics")
    assert answer.status_code == 403
    assert "for ada alone" in answer.json()["error"]["message"]
