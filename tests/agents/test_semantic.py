"""The semantic tier: recall, filtered by how interactions went; nobody reads another's."""

from __future__ import annotations

import pytest

from perdure.bank import Bank
from perdure.core.errors import InvalidInput
from tests.agents.conftest import MakeAgentBank
from tests.agents.tiers import interaction, recorded


@pytest.fixture
async def bank(make_bank: MakeAgentBank) -> Bank:
    return await make_bank(recalls=True)


async def filled(bank: Bank) -> None:
    for number in range(1, 31):
        await recorded(
            bank,
            interaction(
                number,
                request=f"Where does the invoice of customer {number} go?",
                task="triage" if number % 10 == 0 else "routing",
                provider="anthropic" if number == 17 else "openai",
                success=number != 5,
                cost=number * 1_000_000_000,
            ),
        )
    await recorded(bank, interaction(1, "coder", request="Where does the invoice go?"))
    await bank.settle()


async def test_five_by_default_and_filters_are_exact(bank: Bank) -> None:
    await filled(bank)
    memory = bank.agent_memory("router")
    found = await memory.recall("invoice of a customer")
    assert len(found.found) == 5
    assert all(each.interaction is not None for each in found.found)

    async def of(**filters: object) -> list[str]:
        got = await memory.recall("invoice of a customer", limit=40, **filters)  # type: ignore[arg-type]
        return sorted(each.interaction.id[-2:] for each in got.found if each.interaction)

    assert await of(task="triage") == ["10", "20", "30"]
    assert await of(provider="anthropic") == ["17"]
    assert await of(outcome="failure") == ["05"]
    assert await of(max_cost=0.003) == ["01", "02", "03"]
    assert await of(model="gpt-5", task="triage", max_cost=0.02) == ["10", "20"]
    assert await of(provider="nobody") == []
    with pytest.raises(InvalidInput, match="success"):
        await of(outcome="good")


async def test_an_agent_never_recalls_anothers_unless_shared(bank: Bank) -> None:
    await filled(bank)
    coder = bank.agent_memory("coder")
    found = await coder.recall("invoice of customer 17", limit=40)
    assert {each.hit.key.partition("/")[0] for each in found.found} == {"coder"}
    session = await bank.session("router/interactions")
    await session.share("coder")
    shared = await coder.recall("invoice of customer 17", limit=40)
    assert "router" in {each.hit.key.partition("/")[0] for each in shared.found}


async def test_a_context_holds_what_matters(bank: Bank) -> None:
    await filled(bank)
    memory = bank.agent_memory("router")
    await memory.working.update("router/inbox", task={"name": "routing"}, messages=[("user", "Hm")])
    await bank.memories.add("router", "Invoices of customer 9 go to Ann.")
    await bank.settle()
    context = await memory.build_context(
        "Where does the invoice of customer 9 go?", session="router/inbox", task="routing"
    )
    assert 'Current task: {"name":"routing"}' in context.text
    assert "- user: Hm" in context.text
    assert "go to Ann" in context.text
    assert "M-1" in context.recalled
    assert len(context.recalled) == 5
    assert any(each.with_ == "openai/gpt-5" for each in context.patterns)


async def test_settings_that_are_none_are_refused(bank: Bank) -> None:
    for tiers in ({"recall_limit": 0}, {"working_bytes": "1 MB"}, {"ttl": "1h"}):
        with pytest.raises(InvalidInput):
            bank.agent_memory("router", tiers=tiers)
    with pytest.raises(InvalidInput):
        await bank.agent_memory("router").recall("x", limit=0)
