"""A simulated client does all that clients do; each message is in its line of the bank once."""

from __future__ import annotations

import asyncio
import copy
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import perdure
from perdure import wire as wires
from perdure.bank.bank import Bank
from perdure.core.messages import Message, Text, ToolCall
from perdure.gateway.calls import TextDelta
from perdure.server.proxy.alignment import ItemFacts, Recorded, align, gap
from perdure.server.proxy.answer_recorder import AnswerRecorder
from perdure.server.proxy.client_habits import parse
from perdure.server.proxy.recorder import Recorder
from tests.proxy.simulated_client import SimulatedClient

Wire = Literal["messages", "chat", "responses"]
_SUMMARY = "This session is being continued from a previous conversation. It was about {}."
_PATHS = {"messages": "/v1/messages", "chat": "/v1/chat/completions", "responses": "/v1/responses"}

#: One thing that was said: ("user", text), ("reply", text), ("call", id), ("result", id). Of a
#: reply that was broken off, the client has its beginning: ("cut", text).
Words = tuple[str, str]


class TruthfulClient(SimulatedClient):
    """A client whose `truth` is what was said in its conversation, whatever it sends."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world.wire, bare=True)
        self.world = world
        self.name = name
        self.truth: list[Words] = []
        #: For each item how much of the truth there is up to its end.
        self.upto: list[int] = []
        self.waits = False  # for the result of a call
        self.floor = 1  # items that it does not take back
        self.untold = False  # It went back, or has no answer, and nobody knows yet why.

    def copied(self, name: str) -> TruthfulClient:
        other = TruthfulClient(self.world, name)
        other.truth, other.items = list(self.truth), copy.deepcopy(self.items)
        other.upto, other.waits, other.floor = list(self.upto), self.waits, self.floor
        return other

    def add(self, item: dict[str, Any], *words: Words) -> None:
        self.items.append(item)
        self.told(*words)

    def told(self, *words: Words) -> None:
        self.truth += words
        self.upto.append(len(self.truth))

    def prompt(self, text: str = "") -> None:
        item = {"role": "user", "content": text}
        if self.world.wire == "messages" and self.world.blocks:
            reminder = f"<system-reminder>{len(self.items)}</system-reminder>"
            blocks = [{"type": "text", "text": reminder}, {"type": "text", "text": text}]
            item = {"role": "user", "content": blocks}  # type: ignore[dict-item]
        self.add(item, ("user", text))

    def result(self, call: str) -> None:
        self.waits = False
        self.results([call], f"output {self.world.count()}")
        self.told(("result", call))

    def says(self, text: str, call: str = "", *, cut: bool = False) -> None:
        words: list[Words] = [("cut" if cut else "reply", text)]
        parts: list[Any] = [Text(text)]
        if call:
            words.append(("call", call))
            parts.append(ToolCall(call, "shell", "{}"))
            self.waits = True
        items = wires.codec(self.world.wire).encode([Message("assistant", tuple(parts))])
        for at, item in enumerate(items):
            if len(items) == 1:
                self.add(item, *words)
            else:
                self.add(item, words[at])

    def rewind(self, items: int) -> None:
        """Take back so many items of what it sends; not the first, nor what it kept when it
        compacted: that would look like a prompt that is said again.
        """
        for _ in range(min(items, len(self.items) - self.floor)):
            self.items.pop()
            self.upto.pop()
            self.untold = True
        while (
            len(self.items) > self.floor
            and self.truth[self.upto[-1] : self.upto[-1] + 1] == self._call_behind()
        ):
            self.items.pop()  # not in the middle of a reply
            self.upto.pop()
        if self.items:
            del self.truth[self.upto[-1] :]
        self.waits = bool(self.truth) and self.truth[-1][0] == "call"

    def _call_behind(self) -> list[Words]:
        behind = self.truth[self.upto[-1] : self.upto[-1] + 1]
        return behind if behind and behind[0][0] == "call" else [("", "")]

    def compact(self, keep: int) -> None:
        text = _SUMMARY.format(self.world.count())
        keep = min(keep, len(self.items))
        self.items = [{"role": "user", "content": text}, *self.items[len(self.items) - keep :]]
        self.upto = [len(self.truth), *self.upto[len(self.upto) - keep :]]
        self.floor = len(self.items)

    def forgets(self, words: list[Words]) -> None:
        """Its truth has these words no more; what it sends has them."""
        for at in range(len(self.truth) - len(words) + 1):
            if words and is_line(words, self.truth[at : at + len(words)]):
                end = at + len(words)
                del self.truth[at:end]
                self.upto = [n if n <= at else max(n - len(words), at) for n in self.upto]
                self.floor = len(self.items)  # nobody could tell how far it went back
                return

    def clear_results(self) -> None:
        for item in self.items:
            content = item.get("content")
            if item.get("role") == "tool":
                item["content"] = "[cleared]"
            elif item.get("type") == "function_call_output":
                item["output"] = "[cleared]"
            elif isinstance(content, list) and content[0].get("type") == "tool_result":
                content[0]["content"] = "[cleared]"

    def move_markers(self) -> None:
        if self.world.wire != "messages":
            return
        for at, item in enumerate(self.items):
            content = item["content"]
            if isinstance(content, str):
                item["content"] = content = [{"type": "text", "text": content}]
            content[-1].pop("cache_control", None)
            if at == len(self.items) - 1:
                content[-1]["cache_control"] = {"type": "ephemeral"}

    def drop(self, first: int, count: int) -> None:
        """Old items go, whole rounds or not; never the first, and never the newest four."""
        first += 1
        first = min(first, max(len(self.items) - 4, 0))
        last = min(first + count, max(len(self.items) - 4, 0))
        del self.items[first:last], self.upto[first:last]
        if last > first:  # What is left behind the gap proves that it is one.
            self.floor = max(self.floor - (last - first), first + 2)


class World:
    """Clients in front of one recorder."""

    def __init__(self, bank: Bank, wire: Wire, *, blocks: bool, same_ids: bool) -> None:
        self.bank = bank
        self.wire: Wire = wire
        self.blocks = blocks
        self.same_ids = same_ids
        self.recorder = Recorder(bank)
        self.failures: list[Exception] = []
        #: Who spoke last in a conversation.
        self.spoke: dict[str, TruthfulClient] = {}
        self._count = 0

    def count(self) -> int:
        self._count += 1
        return self._count

    async def ask(self, client: TruthfulClient, how: str) -> None:
        body = {"model": "m", "stream": True, "tools": [{}]}
        body["input" if self.wire == "responses" else "messages"] = client.items
        headers = {"x-claude-code-session-id": client.name, "user-agent": "claude-cli/2"}
        raw = msgspec.json.encode(body)
        request = parse(self.wire, headers, _PATHS[self.wire], raw)
        answer = AnswerRecorder(self.recorder.items, "m", self.failures.append)
        recording = asyncio.ensure_future(self.recorder.record(request, answer))
        writing = asyncio.ensure_future(answer.run(recording))
        self.spoke[client.name] = client
        client.untold = how.startswith(("abort", "error"))
        text, call = f"Reply {self.count()} is this one.", ""
        if how == "call":
            call = "call_0" if self.same_ids else f"call_{self.count()}"
        if how == "error":
            answer.finish(None)
        elif how.startswith("abort"):
            answer.grow([TextDelta(text[:12]), TextDelta(text[12:20])])
            if how == "abort live":
                await recording  # the client is back before we know that it left
            else:
                answer.finish(None)
        else:
            parts: tuple[Any, ...] = (Text(text),)
            if call:
                parts = (Text(text), ToolCall(call, "shell", "{}"))
            answer.grow([TextDelta(text)])
            answer.finish(Message("assistant", parts, wire=self.wire))
            client.says(text, call)
        if how == "abort kept":
            client.says(text[:12], cut=True)
        if how != "abort live":
            await writing
        else:
            self._late = writing, answer
        assert not self.failures

    async def forget(self, client: TruthfulClient, number: int) -> None:
        """Forget a turn of its line, in the bank; the client still has its words."""
        for info in await self.bank.sessions():
            session = await self.bank.existing_session(info.name)
            turns = [turn async for turn in session.read()]
            words = [[each for m in turn.messages for each in told(m)] for turn in turns]
            own = [n for n, turn in enumerate(turns) if turn.number > session.record.forked_at]
            if not own or not is_line([each for turn in words for each in turn], client.truth):
                continue
            gone = own[number % len(own)]
            await self.bank.forget(info.name, turns=[turns[gone].number])
            client.forgets(words[gone])
            return

    async def lines(self) -> dict[str, list[Words]]:
        """What each session has; partial answers and events aside."""
        found: dict[str, list[Words]] = {}
        for info in await self.bank.sessions():
            session = await self.bank.existing_session(info.name)
            turns = [turn async for turn in session.read()]
            found[info.name] = [
                each
                for turn in turns
                for message in turn.messages
                if message.role != "event" and not (message.partial and turn.status == "partial")
                for each in told(message)
            ]
        return found


def told(message: Message) -> list[Words]:
    """What a message says, without events."""
    if message.role == "event":
        return []
    found: list[Words] = []
    for part in message.parts:
        if isinstance(part, Text) and not part.text.startswith("<system-reminder>"):
            kind = "user" if message.role == "user" else "reply"
            found.append(("cut" if message.partial else kind, part.text))
    found += [("call", call.id) for call in message.calls]
    found += [("result", result.call) for result in message.results]
    return found


def is_line(line: list[Words], truth: list[Words]) -> bool:
    return len(line) == len(truth) and all(
        mine == theirs or (theirs[0] == "cut" and mine[1].startswith(theirs[1]))
        for mine, theirs in zip(line, truth, strict=True)
    )


_OPS = st.sampled_from(
    [
        "say", "say", "say", "say call", "say call", "say again", "error", "abort kept",
        "abort dropped", "abort live", "retry", "rewind", "rewind far", "edit", "markers",
        "clear", "drop", "forget", "compact", "compact keeping", "fork", "second client", "switch",
        "restart",
    ]
)  # fmt: skip


async def play(world: World, ops: list[tuple[str, int]]) -> None:
    clients = [TruthfulClient(world, "c0")]
    client = clients[0]
    for op, number in ops:
        if client.waits and op in {"say", "say call", "say again", "edit", "compact"}:
            client.result(client.truth[-1][1])
            await world.ask(client, "reply" if number % 2 else "call")
        elif op == "say":
            client.prompt(f"Prompt {world.count()}")
            await world.ask(client, "reply")
        elif op == "say call":
            client.prompt(f"Prompt {world.count()}")
            await world.ask(client, "call")
        elif op == "say again":
            client.prompt("yes")
            await world.ask(client, "reply")
        elif op in {"error", "abort kept", "abort dropped", "abort live"}:
            if client.waits:
                client.result(client.truth[-1][1])
            else:
                client.prompt(f"Prompt {world.count()}")
            await world.ask(client, op)
            if op == "abort live":
                late, answer = world._late
                await world.ask(client, "reply")
                answer.finish(None)
                await late
        elif op == "retry" and len(client.items) > client.floor:
            if client.truth[-1][0] == "reply":
                client.rewind(1)
                await world.ask(client, "reply")
        elif op in {"rewind", "rewind far"}:
            client.rewind(2 if op == "rewind" else number % 9)
        elif op == "edit" and len(client.items) >= 3:
            client.rewind(2)
            if not client.waits:
                client.prompt(f"Edited {world.count()}")
                await world.ask(client, "reply")
        elif op == "markers":
            client.move_markers()
        elif op == "clear":
            client.clear_results()
        elif op == "drop":
            client.drop(number % 5, 1 + number % 4)
        elif op == "forget" and len(clients) == 1 and not client.waits and not client.untold:
            await world.forget(client, number)
        elif op.startswith("compact") and len(client.items) > 2 and not client.waits:
            if client.untold or world.spoke[client.name] is not client:
                continue  # nobody could tell what was taken back, and what compacted
            client.compact(number % 3 if op == "compact keeping" else 0)
            client.prompt(f"Prompt {world.count()}")
            await world.ask(client, "reply")
        elif op in {"fork", "second client"} and len(clients) < 3 and len(client.items) > 1:
            name = f"c{len(clients)}" if op == "fork" else client.name
            client = client.copied(name)
            clients.append(client)
            if client.waits:
                client.result(client.truth[-1][1])
            else:
                client.prompt(f"Prompt {world.count()}")
            await world.ask(client, "reply")
        elif op == "switch":
            client = clients[number % len(clients)]
        elif op == "restart":
            world.recorder = Recorder(world.bank)
    note(str(ops))
    # Every client speaks once more, so that what it has is known.
    for client in clients:
        if client.waits:
            client.result(client.truth[-1][1])
        else:
            client.prompt(f"Last prompt {world.count()}")
        await world.ask(client, "reply")
        lines = await world.lines()
        assert any(is_line(line, client.truth) for line in lines.values()), (
            f"{client.name}\n{client.truth}\nis none of\n"
            + "\n".join(f"{name}: {line}" for name, line in lines.items())
        )


@pytest.mark.parametrize("wire", ["messages", "chat", "responses"])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    ops=st.lists(st.tuples(_OPS, st.integers(0, 20)), max_size=14),
    blocks=st.booleans(),
    same_ids=st.booleans(),
)
def test_each_message_is_in_its_line_once(
    wire: Wire, ops: list[tuple[str, int]], blocks: bool, same_ids: bool
) -> None:
    async def run() -> None:
        async with perdure.open("memory://") as bank:
            await play(World(bank, wire, blocks=blocks, same_ids=same_ids), ops)

    asyncio.run(run())


@pytest.mark.parametrize("forgotten", [False, True])
def test_the_same_words_a_thousand_times_take_no_longer(forgotten: bool) -> None:
    """Behind a summary, and beside what was forgotten; counted in comparisons."""
    compared = 0

    class Counted(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    def work(count: int) -> int:
        nonlocal compared
        same = [Counted("reply yes") for _ in range(count)]
        line = [Recorded(each, n, 1, 0, by_model=True) for n, each in enumerate(same, 1)]
        first = Recorded(Counted("user a"), 0, 1, 0)
        begin = [first, gap(0)] if forgotten else [first]
        said = ItemFacts((Counted("user b"),), summary=not forgotten)
        items = [ItemFacts((each,), by_model=True) for each in same]
        start = [ItemFacts((Counted("user a"),)), said] if forgotten else [said]
        compared = 0
        align([*begin, *line], [*start, *items[1:], ItemFacts((Counted("user c"),))])
        return compared

    assert work(400) < 3 * work(200)
