"""The items of a request beyond its budget: a pure function of what is shown and what the client
sent.

    standing   what the client says before the conversation: system text, its instructions
    user       what this is, then old turns as text: <T-1-through-50-T>…  <T-180-C>…
    user       what was recalled for a prompt, in front of it
    …          the client's own items of the rounds that are shown raw, byte for byte

A turn that is under way and so long that its first rounds are text shows its prompt as it was sent,
those rounds as text behind it, and the client's items of the rest. A round that the client does not
send any more (it compacted its history), or that is shown in part, is written from the log.

As long as the same elements are shown, the items of one request are the beginning of the next's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, TypeAlias

import msgspec

from perdure.context.prompt_assembly import PromptPiece
from perdure.context.prompt_encoder import encode_piece
from perdure.core.messages import Message, Reasoning
from perdure.gateway.providers import CallWire
from perdure.history.manifest import Native, RoundId, ShownBlock, ShownHistory
from perdure.wire.plain import Item, kind_of
from perdure.wire.responses.form import side_of

Raw: TypeAlias = msgspec.Raw
Side: TypeAlias = Literal["assistant", "tool", "other"]
#: Calls of ours and their results, which the client never saw, by the round of the reply that they
#: were part of: the items in place of those of that reply.
Restored: TypeAlias = Mapping[RoundId, Sequence[Raw]]

#: Anthropic takes so many cache markers in a request.
MOST_MARKERS = 4
_THINKING = frozenset({"thinking", "redacted_thinking"})


class _Kind(msgspec.Struct):
    role: Any = None
    type: Any = None
    id: Any = None


_kind = msgspec.json.Decoder(_Kind)


class KeptRound(msgspec.Struct, frozen=True):
    """A round as the client sent it, and how many messages of the log that is."""

    items: Sequence[Raw]
    messages: int = 0


class SentItems(msgspec.Struct, frozen=True):
    """A client's items, and the round that each is of; None for what no round has."""

    wire: CallWire
    items: Sequence[Raw]
    places: Sequence[RoundId | None]
    #: How many of the first items stand before the conversation.
    standing: int = 0
    #: The items of rounds as they were sent before, for rounds that the client sends no more.
    before: Mapping[RoundId, KeptRound] = {}


class Extras(msgspec.Struct, frozen=True, kw_only=True):
    """What goes into a window besides the history."""

    explanation: str = ""
    #: What stands before the conversation though it is part of an item that is not shown.
    preamble: Sequence[Raw] = ()
    #: The same, where only old turns may stand before it: system text that follows a prompt.
    behind: Sequence[Raw] = ()
    restored: Restored = {}
    #: The model's signatures prove what stood before a thought, too.
    binds: bool = False
    #: Put on the last block of old text; None: nowhere.
    marker: Any = None


def side(raw: Raw, wire: CallWire) -> Side:
    """Whose item it is. A user's message with results is the user's in Messages."""
    try:
        found = _kind.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "other"
    if wire == "responses":
        said = {"role": found.role, "type": found.type, "id": found.id}
        whose = side_of({name: value for name, value in said.items() if value is not None})
        return whose or "other"
    if found.role == "assistant":
        return "assistant"
    return "tool" if found.role == "tool" else "other"


class WindowLayout(msgspec.Struct, frozen=True):
    """The items in place of the client's, and which of them are of a client's own rounds."""

    items: list[Raw]
    rounds: dict[RoundId, KeptRound]


def lay_out(sent: SentItems, shown: ShownHistory, extras: Extras) -> WindowLayout:
    layout = _Layout(sent, shown, extras)
    layout.lay()
    return WindowLayout(layout.out.items(), layout.kept)


class _Layout:
    def __init__(self, sent: SentItems, shown: ShownHistory, extras: Extras) -> None:
        self._sent, self._shown, self._extras = sent, shown, extras
        self._rounds = _by_round(sent)
        self.kept = dict[RoundId, KeptRound]()
        self._said = {native.place: len(native.messages) for native in shown.rounds}
        self._replied = {
            native.place
            for native in shown.rounds
            if any(message.role == "assistant" for message in native.messages)
        }
        self._injected = {each.turn: each.text for each in shown.injected}
        self._texts = list[str]()
        self._blocks = list(shown.blocks)
        self._calls: frozenset[str] | None = None
        self.out = _Output(sent.wire)

    def lay(self) -> None:
        shown, sent, out = self._shown, self._sent, self.out
        for raw in sent.items[: sent.standing]:
            out.add(raw)
        for raw in self._extras.preamble:
            out.add(raw)
        apart = self._apart()
        turns = [(turn, list(of)) for turn, of in groupby(shown.rounds, lambda n: n.place.turn)]
        if apart is not None and all(turn != apart for turn, _ in turns):
            turns.append((apart, []))
        for turn, of in turns:
            edge = RoundId(turn, 0) if turn == apart or not of else of[0].place
            self._wait(lambda block, edge=edge: block.element.first < edge)  # type: ignore[misc]
            if turn == apart:
                early = any(block.element.first.turn == turn for block in self._blocks)
                self._begin(turn, mark=not early)
                self._prompt(turn, shown.prompt)
                self._wait(lambda block, turn=turn: block.element.first.turn == turn)  # type: ignore[misc]
                out.texts(self._taken(), behind=True, marker=self._marker())
            for native in of:
                if native.place.round == 1:
                    self._begin(turn)
                elif self._texts:
                    self._head()
                self._round(native)
        self._wait(lambda _: True)
        out.texts(self._taken())
        for raw in self._unrecorded():
            out.add(raw)

    def _apart(self) -> int | None:
        shown = self._shown
        if not shown.prompt:
            return None
        if shown.rounds and shown.rounds[0].place.round > 1:
            return shown.rounds[0].place.turn
        return shown.open_turn

    def _wait(self, wanted: Callable[[ShownBlock], bool]) -> None:
        found = [block for block in self._blocks if wanted(block)]
        if found:
            self._blocks = [block for block in self._blocks if not wanted(block)]
            if self._extras.explanation and not self.out.explained:
                self.out.explained = True
                self._texts.append(self._extras.explanation)
            self._texts += [block.text for block in found]

    def _taken(self) -> list[str]:
        texts, self._texts = self._texts, []
        return texts

    def _marker(self) -> Any:
        """Once: where the text of old turns ends."""
        marker = None if self.out.marked else self._extras.marker
        self.out.marked = True
        return marker

    def _head(self, *, mark: bool = True) -> None:
        is_first = not self.out.headed
        self.out.headed = True
        self.out.texts(self._taken(), marker=self._marker() if mark else None)
        for raw in self._extras.behind if is_first else ():
            self.out.add(raw)

    def _begin(self, turn: int, *, mark: bool = True) -> None:
        """What stands in front of a prompt."""
        if self._texts:
            self._head(mark=mark)
        if text := self._injected.get(turn, ""):
            self.out.texts([text])

    def _prompt(self, turn: int, messages: Sequence[Message]) -> None:
        """A prompt as the client sent it; from the log if it does not any more."""
        own = list[Raw]()
        for raw in self._rounds.get(RoundId(turn)) or self._own(RoundId(turn)):
            if side(raw, self._sent.wire) == "assistant":
                break
            own.append(raw)
        if own:
            for raw in own:
                self.out.add(raw)
        else:
            self._write(PromptPiece(tuple(m for m in messages if m.role != "event")))

    def _own(self, place: RoundId) -> Sequence[Raw]:
        """The client's items of a round; if it sends them no more, as it sent them last."""
        if place not in self.kept:
            own, before = self._rounds.get(place), self._sent.before.get(place)
            if own is not None and (place not in self._replied or self._has_reply(own)):
                self.kept[place] = KeptRound(own, self._said.get(place, 0))
            elif before is not None:
                items = [without_markers(raw) for raw in before.items]
                self.kept[place] = KeptRound(items, before.messages)
        kept = self.kept.get(place)
        return kept.items if kept is not None else ()

    def _has_reply(self, own: Sequence[Raw]) -> bool:
        """A client that compacts may keep prompts without what was replied."""
        return any(side(raw, self._sent.wire) == "assistant" for raw in own)

    def _round(self, native: Native) -> None:
        own = self._own(native.place)
        rest = native.messages[self.kept[native.place].messages :] if own else ()
        if native.reduced or not own or (rest and rest[0].role != "assistant"):
            messages = self._thought(native)
            if native.place.round == 1:
                edge = next(
                    (at for at, each in enumerate(messages) if each.role == "assistant"),
                    len(messages),
                )
                if edge:
                    self._prompt(native.place.turn, messages[:edge])
                messages = messages[edge:]
            if messages:
                self._write(PromptPiece(messages, native.place))
            return
        void = self._is_void(native)
        restored = self._extras.restored.get(native.place)
        for raw in own:
            is_reply = side(raw, self._sent.wire) == "assistant"
            if restored is not None and is_reply:
                for each in restored:
                    self.out.add(without_thinking(each) if void else each)
                restored = ()  # in place of all items of the reply
            elif restored is None or not is_reply:
                self.out.add(without_thinking(raw) if void and is_reply else raw)
        if rest:
            self._write(PromptPiece(self._thought(native)[-len(rest) :], native.place))

    def _is_void(self, native: Native) -> bool:
        """Whether what the model thought then would be refused now."""
        if not self._extras.binds:
            return False
        return native.place < self._shown.at if self._shown.tagged else not native.thinking

    def _thought(self, native: Native) -> tuple[Message, ...]:
        said = tuple(each for each in native.messages if each.role != "event")
        if not self._is_void(native):
            return said
        return tuple(
            msgspec.structs.replace(
                each, parts=tuple(part for part in each.parts if not isinstance(part, Reasoning))
            )
            for each in said
        )

    def _write(self, piece: PromptPiece) -> None:
        wire = self._sent.wire
        encoded = encode_piece(piece, wire)
        if encoded.asked and (clash := encoded.asked & self._own_calls()):
            encoded = encode_piece(piece, wire, clash)
        for item in encoded.items:
            self.out.add(Raw(msgspec.json.encode(item)))

    def _own_calls(self) -> frozenset[str]:
        """The ids of calls in the client's own items, as far as they are sent."""
        if self._calls is None:
            own = [native.place for native in self._shown.rounds if not native.reduced]
            self._calls = frozenset(
                call
                for place in own
                for raw in self._own(place)
                for call in call_ids(raw, self._sent.wire)
            )
        return self._calls

    def _unrecorded(self) -> Iterable[Raw]:
        """What the client sent behind all that is recorded."""
        newest = max((native.place for native in self._shown.rounds), default=RoundId(0, 0))
        for place, own in self._rounds.items():
            if place > newest and place.turn != self._apart():
                yield from own


class _Output:
    """Collects items. In Chat Completions, text of ours becomes part of the user's message behind
    it: many templates of local models refuse two in a row.
    """

    def __init__(self, wire: CallWire) -> None:
        self._wire = wire
        self._items = list[Raw]()
        self._waiting = list[str]()
        self.explained = self.marked = self.headed = False

    def items(self) -> list[Raw]:
        self._flush()
        return self._items

    def add(self, raw: Raw | None) -> None:
        if raw is None:
            return
        if self._waiting:
            merged = _merged(self._waiting, raw)
            if merged is None:
                self._flush()
            else:
                raw = merged
            self._waiting = []
        self._items.append(raw)

    def texts(self, texts: Sequence[str], *, behind: bool = False, marker: Any = None) -> None:
        """Text of ours as a user's message; `behind`: part of the one before it, if possible."""
        if not texts:
            return
        if self._wire == "chat":
            if behind and self._items and not self._waiting:
                merged = _merged(texts, self._items[-1], behind=True)
                if merged is not None:
                    self._items[-1] = merged
                    return
            self._waiting += texts
            return
        kind = "input_text" if self._wire == "responses" else "text"
        blocks: list[Item] = [{"type": kind, "text": text} for text in texts]
        if marker is not None:
            blocks[-1]["cache_control"] = marker
        item: Item = {"role": "user", "content": blocks}
        if self._wire == "responses":
            item = {"type": "message", **item}
        self._items.append(Raw(msgspec.json.encode(item)))

    def _flush(self) -> None:
        if self._waiting:
            item = {"role": "user", "content": "\n\n".join(self._waiting)}
            self._items.append(Raw(msgspec.json.encode(item)))
            self._waiting = []


def _by_round(sent: SentItems) -> dict[RoundId, list[Raw]]:
    """The items of each round. What no round has goes with what follows it: a thought with what
    came of it, a reminder with its prompt. What nothing follows goes with what is before it.
    """
    found = dict[RoundId, list[Raw]]()
    waiting = list[Raw]()
    last: RoundId | None = None
    for raw, place in zip(sent.items[sent.standing :], sent.places[sent.standing :], strict=True):
        waiting.append(raw)
        if place is not None:
            found.setdefault(place, []).extend(waiting)
            waiting, last = [], place
    if waiting:
        found.setdefault(last or RoundId(1), []).extend(waiting)
    return found


def _merged(texts: Sequence[str], raw: Raw, *, behind: bool = False) -> Raw | None:
    """A user's message of Chat Completions with text before it, or behind; None for another's."""
    item = msgspec.json.decode(raw)
    if not isinstance(item, dict) or item.get("role") != "user":
        return None
    ours, content = "\n\n".join(texts), item.get("content")
    if isinstance(content, str):
        whole: Any = f"{content}\n\n{ours}" if behind else f"{ours}\n\n{content}"
    elif isinstance(content, list):
        block = {"type": "text", "text": ours}
        whole = [*content, block] if behind else [block, *content]
    else:
        return None
    return Raw(msgspec.json.encode({**item, "content": whole}))


def without_thinking(raw: Raw) -> Raw | None:
    """An assistant's message of Messages without its thoughts; None if nothing is left of it."""
    if b"thinking" not in bytes(raw):
        return raw
    item = msgspec.json.decode(raw)
    content = item.get("content")
    if not isinstance(content, list):
        return raw
    kept = [block for block in content if kind_of(block) not in _THINKING]
    if len(kept) == len(content):
        return raw
    return Raw(msgspec.json.encode({**item, "content": kept})) if kept else None


def without_markers(raw: Raw) -> Raw:
    """A message of Messages without cache markers on its blocks."""
    if b'"cache_control"' not in bytes(raw):
        return raw
    item = msgspec.json.decode(raw)
    content = item.get("content") if isinstance(item, dict) else None
    if not isinstance(content, list):
        return raw
    plain = [
        {name: value for name, value in block.items() if name != "cache_control"}
        if isinstance(block, dict)
        else block
        for block in content
    ]
    return Raw(msgspec.json.encode({**item, "content": plain}))


def call_ids(raw: Raw, wire: CallWire) -> Iterable[str]:
    """The ids of the tool calls in an item."""
    if side(raw, wire) != "assistant":
        return
    item = msgspec.json.decode(raw)
    if wire == "responses":
        found: Iterable[Any] = [item.get("call_id")]
    elif wire == "chat":
        found = [call.get("id") for call in item.get("tool_calls") or ()]
    else:
        content = item.get("content")
        blocks = content if isinstance(content, list) else ()
        found = [block.get("id") for block in blocks if kind_of(block) == "tool_use"]
    yield from (each for each in found if isinstance(each, str))
