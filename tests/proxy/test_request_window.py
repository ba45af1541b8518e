"""The body beyond the budget: valid, within it, and an extension of the one before."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest

import perdure
from perdure.bank import Bank
from perdure.gateway.providers import CallWire
from perdure.server.proxy.request_window import BuiltWindow, RequestWindow, is_too_long
from perdure.wire import codec
from tests.proxy.simulated_client import WIRES, SimulatedClient, blocks_of, count_item

SEEDS = 200 if os.environ.get("HYPOTHESIS_PROFILE") == "fuzz" else 4
#: Long stories, told by one wire in the quick lane and by the others in the long one.
_ONE_QUICK = pytest.mark.parametrize(
    "wire",
    ["messages", *(pytest.param(each, marks=pytest.mark.slow) for each in ("chat", "responses"))],
)


class Watched:
    """A client and its windows, checked at each request."""

    def __init__(self, client: SimulatedClient, session: Any, budget: int, bank: Any) -> None:
        self.client, self.session, self.budget = client, session, budget
        self.window = RequestWindow(bank.services)
        self.before: tuple[int, list[str]] = (-1, [])
        self.epochs = set[int]()
        self.extended = 0
        self._counted = dict[bytes, int]()

    def count(self, raw: msgspec.Raw) -> int:
        key = bytes(raw)
        if key not in self._counted:
            self._counted[key] = count_item(self.client.wire, raw)
        return self._counted[key]

    async def ask(self, **options: Any) -> BuiltWindow:
        client, wire = self.client, self.client.wire
        await client.record(self.session)
        request = client.request()
        head = await self.session.head()
        built = await self.window.build(
            request,
            self.session.record,
            head,
            client.places,
            self.count,
            budget=self.budget,
            **options,
        )
        items = [msgspec.json.decode(raw) for raw in built.items]
        assert codec(wire).violations(items) == []
        sent = request.with_items(built.items)
        if wire == "messages":
            assert sent.count(b'"cache_control"') <= 4
        plain = msgspec.json.decode(sent)
        for name, value in msgspec.json.decode(client.body()).items():
            if name != request.items_field:
                assert plain[name] == value
        blocks = blocks_of(built.items, wire)
        if built.shown.epoch == self.before[0]:
            assert blocks[: len(self.before[1])] == self.before[1]
            self.extended += 1
        self.before = built.shown.epoch, blocks
        self.epochs.add(built.shown.epoch)
        return built


async def _talk(watched: Watched, turns: int, rounds: int) -> None:
    client = watched.client
    for _ in range(turns):
        client.prompt()
        built = await watched.ask()
        assert built.tokens <= watched.budget
        for _ in range(client.random.randint(0, rounds)):
            calls = client.random.choice((1, 1, 2, 3))
            client.results(client.reply(calls=calls, thinks=client.random.random() < 0.4))
            built = await watched.ask()
            assert built.tokens <= watched.budget
        client.reply(thinks=client.random.random() < 0.4)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_any_history_gives_a_valid_body_within_the_budget(wire: CallWire, seed: int) -> None:
    client = SimulatedClient(wire, seed, model=("m", "claude-fable-5-1")[seed % 2])
    budget = (3_000, 6_000, 12_000, 4_000)[seed % 4]
    async with perdure.open("memory://") as bank:
        watched = Watched(client, await bank.session("client@demo/one"), budget, bank)
        await _talk(watched, turns=9, rounds=5)
        whole = sum(map(watched.count, client.request().items))
    if whole > 2 * budget:
        assert len(watched.epochs) > 1  # it was rewritten …
    assert watched.extended > 5  # … and mostly extended


async def _opened(bank: Bank, client: SimulatedClient, budget: int) -> Watched:
    return Watched(client, await bank.session("client@demo/one"), budget, bank)


def _texts(built: BuiltWindow) -> str:
    return b"\n".join(map(bytes, built.items)).decode()


def _is_verbatim(built: BuiltWindow, client: SimulatedClient, newest: int) -> bool:
    """Whether the newest items are sent byte for byte."""
    return built.items[-newest:] == client.request().items[-newest:]


@_ONE_QUICK
async def test_a_long_coding_session_behind_a_small_budget(wire: CallWire) -> None:
    client = SimulatedClient(wire, 7)
    async with perdure.open("memory://") as bank:
        watched = await _opened(bank, client, 60_000)
        client.prompt("The secret port is 8123.")
        for turn in range(10):
            for _ in range(12):
                client.results(client.reply(calls=1, thinks=True), client.words(1_600))
            client.reply()
            if turn == 2 and wire == "responses":
                mode = [{"type": "input_text", "text": "Mode: careful."}]
                client.items.append({"type": "message", "role": "developer", "content": mode})
            client.prompt(f"Now task {turn}.")
        built = await watched.ask()  # as a conversation that was begun without the proxy
        assert built.whole > 300_000
        for turn in range(10, 14):
            for _ in range(3):
                client.results(client.reply(calls=1, thinks=True), client.words(1_600))
                built = await watched.ask()
                assert 30_000 < built.tokens <= 60_000
                assert _is_verbatim(built, client, 1 if wire == "messages" else 3)
            client.reply()
            client.prompt(f"Now task {turn}.")
        built = await watched.ask()
        assert "secret port is 8123" in _texts(built)  # the oldest turn, in a few words
        if wire == "responses":  # tools and settings stay, wherever they were said
            assert "additional_tools" in _texts(built)
            assert "<environment_context>" in _texts(built)
            assert "Mode: careful." in _texts(built)
        assert watched.extended > 9


@_ONE_QUICK
async def test_one_turn_with_hundreds_of_rounds(wire: CallWire) -> None:
    client = SimulatedClient(wire, 5)
    async with perdure.open("memory://") as bank:
        watched = await _opened(bank, client, 9_000)
        client.prompt("Rename the module everywhere.")
        built = await watched.ask()
        for number in range(250):
            client.results(client.reply(calls=2), client.words(60), client.words(20))
            if number % 5 == 4:
                built = await watched.ask()
                assert built.tokens <= 9_000
        # The prompt stands as it was sent, however far back it is.
        prompt = client.request().items[{"messages": 0, "chat": 1, "responses": 2}[wire]]
        if wire == "chat":
            assert '"content":"Rename the module everywhere.\\n\\n# Your memory' in _texts(built)
        else:
            assert prompt in built.items
        assert len(watched.epochs) < 60


@pytest.mark.parametrize("wire", WIRES)
async def test_a_client_that_compacts_loses_nothing(wire: CallWire) -> None:
    client = SimulatedClient(wire, 2)
    async with perdure.open("memory://") as bank:
        watched = await _opened(bank, client, 5_000)
        for _ in range(8):
            client.prompt()
            client.results(client.reply(calls=1), client.words(200))
            await watched.ask()
            client.reply()
        client.prompt("Go on.")
        before = await watched.ask()
        # It forgets all but what it was told, and sends a summary in its place.
        client.reply("It is done.")
        await client.record(watched.session)
        kept = {"messages": 0, "chat": 1, "responses": 2}[wire]
        client.forget(kept, "This session is being continued from a previous conversation. Well.")
        client.prompt("And now?")
        after = await watched.ask()
        assert after.shown.epoch == before.shown.epoch  # still the same window …
        said = _texts(after)
        assert "This session is being continued" in said
        assert "It is done." in said  # … and what the client dropped is there from the log
        assert said.index("It is done.") < said.index("This session is being continued")
        assert await watched.window.is_due(client.request(), watched.session.name, 10, 5_000)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_result_larger_than_the_budget_is_shown_in_part(wire: CallWire) -> None:
    client = SimulatedClient(wire, 2)
    async with perdure.open("memory://") as bank:
        watched = await _opened(bank, client, 2_000)
        client.prompt("Read the file.")
        ids = client.reply(calls=1)
        client.results(ids, f"first line\n{client.words(9_000)}\nlast line")
        built = await watched.ask()
        assert built.tokens <= 2_000
        assert "Read the file." in _texts(built)
        assert ids[0] in _texts(built)  # the client's own id of the call
        assert "T-1." in _texts(built)  # where the rest can be had


@pytest.mark.parametrize("wire", WIRES)
async def test_a_prompt_larger_than_the_budget_is_sent_whole(wire: CallWire) -> None:
    client = SimulatedClient(wire, 2)
    async with perdure.open("memory://") as bank:
        watched = await _opened(bank, client, 2_000)
        for _ in range(3):
            client.prompt()
            client.reply()
        client.prompt(f"Read this: {client.words(9_000)}")
        built = await watched.ask()
        assert "Read this:" in _texts(built)
        assert 20_000 < built.tokens < 60_000  # larger than the budget, as it must
        for _ in range(6):
            client.results(client.reply(calls=1), client.words(300))
            built = await watched.ask()
        client.reply()
        client.prompt("Thanks.")
        assert (await watched.ask()).tokens <= 2_000
        assert len(watched.epochs) < 7


async def test_thoughts_that_are_bound_to_what_changed_are_left_out() -> None:
    for model, bound in (("claude-fable-5-1", True), ("claude-sonnet-4-5", False)):
        client = SimulatedClient("messages", 4, model=model)
        async with perdure.open("memory://") as bank:
            watched = await _opened(bank, client, 3_000)
            client.prompt()
            seen = 0
            for _ in range(30):
                before = watched.before[0]
                client.results(client.reply(calls=1, thinks=True), client.words(60))
                built = await watched.ask()
                thoughts = _texts(built).count('"thinking":')
                if built.shown.epoch != before and before >= 0:
                    assert (thoughts == 0) is bound
                    seen += 1
                else:
                    assert thoughts  # the newest is as it was
            assert seen > 2


async def test_what_a_client_put_beside_its_first_prompt_stays() -> None:
    client = SimulatedClient("messages", 4)
    async with perdure.open("memory://") as bank:
        watched = await _opened(bank, client, 2_000)
        client.prompt("Begin.")
        client.items.append({"role": "system", "content": "Skills: none."})
        for _ in range(6):
            client.reply()
            client.prompt(client.words(200))
        built = await watched.ask()
        said = _texts(built)
        assert "<T-1" in said  # the prompt itself is old …
        rules, memory = said.index("Rules: keep commits small."), said.index("# Your memory")
        assert rules < memory < said.index("Skills: none.")  # … but not what stood beside it
        assert {"role": "system", "content": "Skills: none."} in [
            msgspec.json.decode(raw) for raw in built.items
        ]


async def test_a_session_may_change_its_format() -> None:
    one, two = SimulatedClient("messages", 4), SimulatedClient("chat", 5)
    async with perdure.open("memory://") as bank:
        watched = await _opened(bank, one, 3_000)
        for _ in range(6):
            one.prompt(one.words(100))
            one.results(one.reply(calls=1))
            one.reply()
        one.prompt("Go on.")
        await watched.ask()
        one.reply("Gone on.")
        await one.record(watched.session)
        # Another client goes on with it; of what was said it knows nothing.
        two.prompt("And now?")
        two.follow(one)
        other = Watched(two, watched.session, 3_000, bank)
        other.window = watched.window
        built = await other.ask()
        assert "Gone on." in _texts(built)
        assert built.tokens <= 3_000


async def test_markers_of_the_client_come_first() -> None:
    for system in (0, 1, 3):
        client = SimulatedClient("messages", 4)
        marked = {"type": "ephemeral", "ttl": "1h"}
        client.fields["system"] = [
            {"type": "text", "text": "a", "cache_control": marked} for _ in range(system)
        ] or "a"
        async with perdure.open("memory://") as bank:
            watched = await _opened(bank, client, 2_000)
            for _ in range(6):
                client.prompt(client.words(200))
                client.reply()
            client.prompt()
            built = await watched.ask()
            head = next(raw for raw in built.items if b"# Your memory" in bytes(raw))
            assert (b"cache_control" in bytes(head)) is (system < 3)


_OPENAI = "The maximum context length is 128000 tokens. Your messages resulted in 140000 tokens."
_ANSWER = "input length and `max_tokens` exceed context limit: 190000 + 32000 > 200000"


@pytest.mark.parametrize(
    ("words", "code", "least", "most"),
    [
        ("prompt is too long: 215000 tokens > 200000 maximum", "", 0.8, 0.9),
        (_OPENAI, "context_length_exceeded", 0.8, 0.9),
        ("Too long.", "context_length_exceeded", 0.6, 0.8),
        (_ANSWER, "", 0.8, 0.82),
    ],
)
async def test_a_refused_window_gets_smaller(
    words: str, code: str, least: float, most: float
) -> None:
    body = msgspec.json.encode({"error": {"message": words, "code": code}})
    assert is_too_long(400, {}, body)
    assert not is_too_long(429, {}, body)
    assert not is_too_long(400, {}, b'{"error":{"message":"messages: at least one"}}')
    async with perdure.open("memory://") as bank:
        window = RequestWindow(bank.services)
        window.shrink(100_000, 100_000, body)
        assert least <= window.share <= most
        window.shrink(50_000, 100_000, body)  # again: what was sent then was too much
        assert window.share <= most / 2


@pytest.mark.parametrize("wire", WIRES)
async def test_what_is_recalled_stands_in_front_of_its_prompt_and_stays(wire: CallWire) -> None:
    client = SimulatedClient(wire, 9)
    async with perdure.open("memory://") as bank:
        watched = await _opened(bank, client, 6_000)
        client.prompt("The staging server is called zebra and listens on port 8123.")
        client.reply("Noted.")
        for _ in range(25):
            client.prompt(client.words(60))
            client.reply(client.words(200))
        client.prompt("Which port does the staging server zebra listen on?")
        built = await watched.ask(recall=True)
        said = _texts(built)
        assert "<perdure-memory>" in said
        at = said.index("<perdure-memory>")
        assert "zebra" in said[at : said.index("Which port does")]
        assert said.index("Which port does") > at
        client.results(client.reply(calls=1), "ok")
        assert "<perdure-memory>" in _texts(await watched.ask(recall=True))
        # Another process, with nothing in memory, sends the same.
        fresh = Watched(client, watched.session, 6_000, bank)
        again = await fresh.ask(recall=True)
        assert blocks_of(again.items, wire) == watched.before[1]
