"""A client of one of three APIs that sends its whole history with each request, as they all do."""

from __future__ import annotations

import random
from typing import Any, TypeAlias

import msgspec

from perdure.core.messages import Message
from perdure.core.tokens import count_messages, o200k
from perdure.core.turns import TurnSplitter
from perdure.gateway.providers import CallWire
from perdure.history.manifest import RoundId
from perdure.history.message_identity import is_injected
from perdure.server.proxy.client_request import ClientRequest, items_field, read_request
from perdure.sessions.session import Session
from perdure.wire import codec

Item: TypeAlias = dict[str, Any]
WIRES: tuple[CallWire, ...] = ("chat", "responses", "messages")
_WORDS = (
    *("alpha", "beta", "src/app/m.py", "ValueError", "decided", "42", "retry", "config.toml"),
    *("<T-3-R>", "</T-1-C>", "function", "née", "日本語", "port 8123", "\n", "refresh"),
)


class SimulatedClient:
    """Keeps its items; `record` writes those that are new, and knows the round of each."""

    def __init__(
        self, wire: CallWire, seed: int = 0, model: str = "m", *, bare: bool = False
    ) -> None:
        """`bare`: nothing stands before the conversation."""
        self.wire, self.model = wire, model
        self.random = random.Random(seed)
        self.items: list[Item] = []
        self.places: list[RoundId | None] = []
        self.fields: Item = {}
        if bare:
            pass
        elif wire == "messages":
            self.fields = {
                "system": [
                    {"type": "text", "text": "Be exact.", "cache_control": {"type": "ephemeral"}}
                ],
                "max_tokens": 64,
                "new_beta_field": {"a": 1},
            }
        elif wire == "chat":
            self.items.append({"role": "system", "content": "Be exact."})
        else:
            self.fields = {"instructions": "Be exact.", "store": False}
            tools = [{"type": "namespace", "name": "functions", "tools": [{"name": "exec"}]}]
            self.items.append({"type": "additional_tools", "role": "developer", "tools": tools})
            told = "<environment_context>\n<cwd>/home/ada/demo</cwd>\n</environment_context>"
            self.items.append(self._user(told))
        self._calls = 0
        self._splitter = TurnSplitter()
        self._recorded = 0

    def words(self, *counts: int) -> str:
        size = self.random.choice(counts)
        return " ".join(self.random.choice(_WORDS) for _ in range(size)).strip() or "well"

    # What is said ---------------------------------------------------------------------------

    def prompt(self, text: str = "") -> None:
        text = text or self.words(4, 20, 60)
        if self.wire == "messages" and len(self.items) == 0:
            rules = "<system-reminder>\nRules: keep commits small.\n</system-reminder>"
            blocks = [{"type": "text", "text": each} for each in (rules, text)]
            self.items.append({"role": "user", "content": blocks})
            return
        if self.random.random() < 0.15:
            self.items.append(
                self._user("<system-reminder>\nThe date changed.\n</system-reminder>")
            )
        self.items.append(self._user(text))

    def _user(self, text: str) -> Item:
        if self.wire == "responses":
            return {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": text}],
            }
        if self.wire == "messages" and self.random.random() < 0.5:
            return {"role": "user", "content": [{"type": "text", "text": text}]}
        return {"role": "user", "content": text}

    def reply(self, text: str = "", calls: int = 0, *, thinks: bool = False) -> list[str]:
        """A reply with so many calls; their ids."""
        ids = list[str]()
        for _ in range(calls):
            self._calls += 1
            ids.append(f"call_{self._calls:05}")
        text = text or ("" if calls and self.random.random() < 0.5 else self.words(5, 40, 150))
        given = [(id, "shell", {"command": self.words(2, 12)}) for id in ids]
        getattr(self, f"_reply_{self.wire}")(text, given, thinks)
        return ids

    def _reply_messages(self, text: str, calls: list[Any], thinks: bool) -> None:
        blocks: list[Item] = []
        if thinks:
            signature = f"sig{len(self.items)}"
            thought = {"thinking": self.words(8), "signature": signature}
            blocks.append({"type": "thinking", **thought})
        if text:
            blocks.append({"type": "text", "text": text})
        for id, name, given in calls:
            blocks.append({"type": "tool_use", "id": id, "name": name, "input": given})
        self.items.append({"role": "assistant", "content": blocks})

    def _reply_chat(self, text: str, calls: list[Any], thinks: bool) -> None:
        item: Item = {"role": "assistant", "content": text or None}
        if thinks:
            item["reasoning_content"] = self.words(8)
        if calls:
            item["tool_calls"] = [
                {
                    "id": id,
                    "type": "function",
                    "function": {"name": name, "arguments": msgspec.json.encode(given).decode()},
                }
                for id, name, given in calls
            ]
        self.items.append(item)

    def _reply_responses(self, text: str, calls: list[Any], thinks: bool) -> None:
        if thinks:
            hidden = f"enc{len(self.items)}"
            self.items.append({"type": "reasoning", "summary": [], "encrypted_content": hidden})
        if text:
            blocks = [{"type": "output_text", "text": text, "annotations": []}]
            self.items.append({"type": "message", "role": "assistant", "content": blocks})
        for id, name, given in calls:
            said = {"name": name, "arguments": msgspec.json.encode(given).decode()}
            self.items.append({"type": "function_call", "call_id": id, **said})

    def results(self, ids: list[str], *texts: str) -> None:
        said = [*texts] or [self.words(5, 80, 400) for _ in ids]
        if self.wire == "messages":
            blocks = [
                {"type": "tool_result", "tool_use_id": id, "content": text}
                for id, text in zip(ids, said, strict=True)
            ]
            self.items.append({"role": "user", "content": blocks})
            return
        for id, text in zip(ids, said, strict=True):
            if self.wire == "chat":
                self.items.append({"role": "tool", "tool_call_id": id, "content": text})
            else:
                item = {"type": "function_call_output", "call_id": id, "output": text}
                self.items.append(item)

    # What becomes of it -----------------------------------------------------------------------

    async def record(self, session: Session) -> None:
        for item in self.items[self._recorded :]:
            place: RoundId | None = None
            for message in self.messages(item):
                place = RoundId(*self._splitter.feed(message))
                await session.append([message])
            self.places.append(place)
        self._recorded = len(self.items)

    def forget(self, keep: int, summary: str) -> None:
        """Compact: a summary in place of all but the first items."""
        self.items[keep:], self.places[keep:] = [self._user(summary)], [None]
        self._recorded = len(self.items)

    def follow(self, other: SimulatedClient) -> None:
        """What it says is part of the other's conversation."""
        self._splitter = other._splitter

    def messages(self, item: Item) -> list[Message]:
        """What is recorded of an item."""
        if item.get("role") in {"system", "developer"}:
            return []
        found = codec(self.wire).decode([item])
        made = list[Message]()
        for message in found:
            injected = is_injected(message)
            model = self.model if message.role == "assistant" else ""
            made.append(msgspec.structs.replace(message, injected=injected, model=model))
        return made

    def body(self) -> bytes:
        """The request, with the newest block marked for the cache as Claude Code does."""
        items = [*self.items]
        if self.wire == "messages":
            content = items[-1]["content"]
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            marked = {**blocks[-1], "cache_control": {"type": "ephemeral"}}
            items[-1] = {**items[-1], "content": [*blocks[:-1], marked]}
        fields = {"model": self.model, **self.fields, items_field(self.wire): items}
        return msgspec.json.encode(fields)

    def request(self) -> ClientRequest:
        return read_request(self.wire, self.body())


def count_item(wire: CallWire, raw: msgspec.Raw) -> int:
    return count_messages(o200k(), codec(wire).decode([msgspec.json.decode(raw)]))


def blocks_of(items: list[Any], wire: CallWire) -> list[str]:
    """The blocks of items in order, without cache markers: by them, extension is judged."""
    found = list[str]()
    for raw in items:
        item = msgspec.json.decode(raw)
        content = item.get("content")
        rest = {name: value for name, value in item.items() if name != "content"}
        if isinstance(content, str) and wire == "messages":
            content = [{"type": "text", "text": content}]
        if not isinstance(content, list):
            found.append(repr((rest, content)))
            continue
        for block in content:
            plain = {name: value for name, value in block.items() if name != "cache_control"}
            found.append(repr((rest, plain)))
    return found
