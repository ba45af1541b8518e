"""Identity and registry: who an agent is, whatever becomes of its name."""

from __future__ import annotations

import pytest

import perdure
from perdure.agents.agent_identity import MOST_KEYS
from perdure.agents.agent_records import AgentVersion
from perdure.agents.agent_registry import AgentRegistry
from perdure.bank import Bank
from perdure.core.errors import InvalidInput, NotFound


async def defined(bank: Bank, name: str, **fields: object) -> str:
    said = AgentVersion(id="", number=0, **fields)  # type: ignore[arg-type]
    record, _ = await AgentRegistry(bank.store).define(name, said)
    return record.id


async def test_an_agent_signs_and_others_verify(bank: Bank) -> None:
    id = await defined(bank, "router", prompt="Route.")
    key, stranger = perdure.SigningKey.make(), perdure.SigningKey.make()
    identity = await bank.identities.add_key("router", key.public)
    assert [*identity.keys.values()] == [key.public]
    signed = key.sign("Pay invoice 7.", id)
    verify = bank.identities.verify
    assert await verify("router", "Pay invoice 7.", signed)
    assert await verify("router", b"Pay invoice 7.", signed)
    assert await verify(id, "Pay invoice 7.", signed)
    assert not await verify("router", "Pay invoice 8.", signed)
    assert not await verify("router", "Pay invoice 7.", stranger.sign("Pay invoice 7.", id))
    assert not await verify("router", "Pay invoice 7.", "ed25519:nonsense")
    assert not await verify("router", "Pay invoice 7.", signed[:-8] + "!!!!!!!!")
    again = perdure.SigningKey(key.private)
    assert (again.public, again.sign("x", id)) == (key.public, key.sign("x", id))
    assert key.private not in repr(key)


async def test_a_key_that_was_taken_back_verifies_nothing(bank: Bank) -> None:
    id = await defined(bank, "router", prompt="Route.")
    key = perdure.SigningKey.make()
    identity = await bank.identities.add_key("router", key.public)
    (name,) = identity.keys
    assert (await bank.identities.remove_key("router", name)).keys == {}
    assert not await bank.identities.verify("router", "x", key.sign("x", id))
    with pytest.raises(NotFound):
        await bank.identities.remove_key("router", name)


async def test_another_agent_with_the_same_name_is_another(bank: Bank) -> None:
    first, key = await defined(bank, "router", prompt="Route."), perdure.SigningKey.make()
    await bank.identities.add_key("router", key.public)
    signed = key.sign("x", first)
    await bank.forget_agent("router")
    second = await defined(bank, "router", prompt="Route.")
    await bank.identities.add_key("router", key.public)
    assert first != second
    assert not await bank.identities.verify("router", "x", signed)
    with pytest.raises(NotFound):
        await bank.identities.get(first)


async def test_keys_that_are_none_are_refused(bank: Bank) -> None:
    await defined(bank, "router", prompt="Route.")
    for public in ("", "rsa:AAAA", "ed25519:AAAA", "ed25519:?"):
        with pytest.raises(InvalidInput):
            await bank.identities.add_key("router", public)
    with pytest.raises(InvalidInput):
        perdure.SigningKey("ed25519:AAAA")
    with pytest.raises(NotFound):
        await bank.identities.add_key("nobody", perdure.SigningKey.make().public)
    for _ in range(MOST_KEYS):
        await bank.identities.add_key("router", perdure.SigningKey.make().public)
    with pytest.raises(InvalidInput, match="20 keys"):
        await bank.identities.add_key("router", perdure.SigningKey.make().public)


async def test_the_evolution_tells_of_versions(bank: Bank) -> None:
    await defined(bank, "router", prompt="Route.")
    await defined(bank, "router", prompt="Route well.")
    history = (await bank.agent_memory("router").stats()).evolution_history
    assert [each.change for each in history] == ["version 1", "version 2"]
