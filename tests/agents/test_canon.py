"""The canon: written by people or by promotion, versioned, for its readers only."""

from __future__ import annotations

import pytest

import perdure
from perdure.bank import Bank
from perdure.core.errors import Conflict, Denied, InvalidInput, NotFound
from perdure.recall.memory_records import machine, person
from tests.agents.conftest import MakeAgentBank

TEXT = "---\ntriggers: [refund]\n---\n# Refunds\nRefunds above 500 euros go to Zephyrine.\n"
ADA = person("ada")


@pytest.fixture
async def bank(make_bank: MakeAgentBank) -> Bank:
    return await make_bank(recalls=True)


async def keys(bank: Bank, agent: str, query: str) -> set[str]:
    session = await bank.session(f"{agent}/work")
    return {hit.key for hit in (await session.recall(query, kinds="reference")).hits}


async def test_a_person_writes_and_machines_do_not(bank: Bank) -> None:
    with pytest.raises(Denied, match="written by people"):
        await bank.canon.write("refunds", TEXT)
    with pytest.raises(Denied):
        await bank.canon.write("refunds", TEXT, by=machine("router"))
    with perdure.acting_as("ada"):
        entry = await bank.canon.write("refunds", TEXT, reason="agreed in May")
    assert (entry.version, entry.title, entry.readers) == (1, "Refunds", ("*",))
    assert (entry.author, entry.reason) == (ADA, "agreed in May")
    assert "Zephyrine" in (await bank.canon.get("refunds")).text


async def test_a_former_version_is_for_its_own_readers(bank: Bank) -> None:
    await bank.canon.write("pay", "Ann earns 90,000.", readers=["hr"], by=ADA)
    await bank.canon.write("pay", "Ask HR.", readers=["*"], by=ADA)
    with pytest.raises(NotFound, match="version 1"):
        await bank.canon.get("pay", agent="coder", version=1)
    assert [each.text for each in await bank.canon.history("pay", agent="coder")] == ["Ask HR."]
    assert len(await bank.canon.history("pay", agent="hr")) == 2
    assert len(await bank.canon.history("pay")) == 2


async def test_only_its_readers_see_it_anywhere(bank: Bank) -> None:
    await bank.canon.write("refunds", TEXT, readers=["router"], by=ADA)
    await bank.settle()
    for query in ("Who gets refunds?", "Zephyrine"):
        assert await keys(bank, "router", query) == {"refunds"}
        assert await keys(bank, "coder", query) == set()
    assert [each.name for each in await bank.canon.list(agent="router")] == ["refunds"]
    assert await bank.canon.list(agent="coder") == []
    with pytest.raises(NotFound):
        await bank.canon.get("refunds", agent="coder")
    with pytest.raises(NotFound):
        await bank.canon.history("refunds", agent="coder")
    coder = await bank.session("coder/work")
    answer = await coder.run_tool("reference_get", {"name": "refunds"})
    assert "no reference layer" in answer
    assert "There are none" in answer
    context = await coder.context("Who gets a refund, Zephyrine?")
    assert "500 euros" not in str(context.to_messages())
    router = await bank.session("router/work")
    assert "500 euros" in str((await router.context("Who gets a refund?")).to_messages())
    # Taken back, it holds at once.
    await bank.canon.write("refunds", TEXT, readers=["coder"], by=ADA)
    assert await keys(bank, "router", "Zephyrine") == set()
    assert await keys(bank, "coder", "Zephyrine") == {"refunds"}


async def test_versions_are_kept_and_come_back(bank: Bank) -> None:
    await bank.canon.write("refunds", TEXT, readers=["router"], by=ADA)
    second = await bank.canon.write("refunds", "Refunds go to Max.", by=ADA, expected=1)
    assert (second.version, second.readers) == (2, ("router",))
    with pytest.raises(Conflict, match="version 2, not 1"):
        await bank.canon.write("refunds", TEXT, by=ADA, expected=1)
    with pytest.raises(Conflict):
        await bank.canon.write("refunds", TEXT, by=ADA, expected=0)
    assert "Zephyrine" in (await bank.canon.get("refunds", version=1)).text
    third = await bank.canon.restore("refunds", 1, by=ADA)
    assert third.version == 3
    assert (await bank.canon.get("refunds")).text == (
        await bank.canon.get("refunds", version=1)
    ).text
    assert [each.entry.version for each in await bank.canon.history("refunds")] == [3, 2, 1]
    layer = await bank.references.get("refunds")
    assert layer is not None
    assert layer.triggers == ("refund",)
    with pytest.raises(NotFound, match="version 9"):
        await bank.canon.get("refunds", version=9)


async def test_a_memory_is_promoted(bank: Bank) -> None:
    memory = await bank.memories.add("router", "Invoices of Acme go to Ann.", tags=["acme, inc"])
    entry = await bank.canon.promote(memory.name, name="acme", by=machine("router"))
    assert (entry.source, entry.author.person) == ("router/M-1", False)
    assert await keys(bank, "coder", "Where do invoices of Acme go?") == {"acme"}
    await bank.canon.write("acme", "Invoices of Acme go to Max.", by=ADA)
    with pytest.raises(Conflict, match="A person wrote"):
        await bank.canon.promote(memory.name, name="acme", by=machine("router"))
    with pytest.raises(Conflict, match="A person wrote"):
        await bank.canon.remove("acme", by=machine("router"))
    with pytest.raises(NotFound):
        await bank.canon.promote("router/M-9", name="other")


async def test_what_a_machine_promoted_goes_with_its_memory(bank: Bank) -> None:
    session = await bank.session("router/work")
    await session.append("Invoices of Acme go to Ann.")
    for number, author in ((1, machine("router")), (2, ADA)):
        memory = await bank.memories.add(
            "router", f"Invoices of Acme {number} go to Ann.", provenance=["router/work#T-1"]
        )
        await bank.canon.promote(memory.name, name=f"acme-{number}", readers=["router"], by=author)
    await bank.forget_agent("router")
    (left,) = await bank.canon.list()
    assert (left.name, left.readers) == ("acme-2", ())  # nobody reads it until a person says so
    assert await bank.references.get("acme-1") is None


async def test_layers_and_the_canon_do_not_take_each_others_names(bank: Bank) -> None:
    await bank.references.add("Some text.", name="oauth")
    with pytest.raises(InvalidInput, match="The name oauth"):
        await bank.canon.write("oauth", TEXT, by=ADA)
    await bank.canon.write("refunds", TEXT, by=ADA)
    with pytest.raises(InvalidInput, match="an entry of the canon"):
        await bank.references.add("Other text.", name="refunds", replace=True)
    with pytest.raises(InvalidInput, match="canon remove"):
        await bank.references.remove("refunds")
    await bank.canon.remove("refunds", by=ADA)
    assert await bank.canon.list() == []
    assert await bank.references.get("refunds") is None
    assert {each.where for each in await bank.references.check()} == {"oauth"}


async def test_secrets_are_masked(bank: Bank) -> None:
    secret = "sk-ant-api03-" + "Ab1" * 31 + "AA"
    await bank.canon.write("keys", f"The key is {secret}.", by=ADA)
    assert secret not in (await bank.canon.get("keys")).text
