"""The messages of a window: a pure function of what is shown, what is injected, and the prompt.

Order: old turns as text parts of one leading user message, raw rounds as they were said, the new
prompt with what is injected in front of it::

    user       <T-1-through-50-T>…    <T-180-C>…    <T-181-R> its prompt
    assistant  as it was said, always
    user       </T-181-R> <perdure-board>…          <T-182-R> the new prompt

The closing tag of a turn stands in the next prompt: so a request is never changed by what comes
after it. As long as the same elements are shown (outside an epoch, that is), the messages of one
request are the beginning of the next one's.

No clock, no randomness, nothing is read: the same values give the same messages anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from perdure.core.messages import Message, Part, Reasoning, Text, is_same_model
from perdure.history.manifest import Injected, Native, RoundId, ShownBlock, ShownHistory
from perdure.history.turn_tags import closing, escaped, opening

_SYSTEM = frozenset({"system", "developer"})


class PromptPiece(msgspec.Struct, frozen=True, gc=False):
    """Neighbouring messages that can be repaired for a provider without the others."""

    messages: tuple[Message, ...]
    place: RoundId | None = None  # The round that they are of; None for a prompt and for old text.
    #: How many parts of the first message there are up to the end of the text of old turns.
    old: int = 0
    is_system: bool = False  # System text that the history begins with.


#: Makes messages of a native round fit to be shown: whether in tags, and to which model.
Prepare: TypeAlias = Callable[[Native, bool, str], tuple[Message, ...]]


def assemble(
    shown: ShownHistory,
    injection: Injected | None,
    prompt: tuple[Message, ...],
    turn: int,
    *,
    model: str = "",
) -> tuple[Message, ...]:
    """The messages to be sent: what is shown, and the prompt of `turn` with what is injected.
    Without a prompt, the turn under way goes on. `prompt_encoder` repairs what a provider may
    refuse.
    """
    laid = pieces(shown, injection, prompt, turn, model=model)
    return tuple(message for piece in laid for message in piece.messages)


def pieces(
    shown: ShownHistory,
    injection: Injected | None,
    prompt: tuple[Message, ...],
    turn: int,
    *,
    model: str = "",
    prepare: Prepare | None = None,
) -> list[PromptPiece]:
    """`assemble`, in pieces. `prepare` is a caching `prepared`."""
    layout = _Layout(shown, injection, model, prepare or prepared)
    layout.lay()
    if prompt:
        layout.prompt(turn, prompt)
    layout.flush()
    return layout.laid


class _Layout:
    def __init__(
        self, shown: ShownHistory, injection: Injected | None, model: str, prepare: Prepare
    ) -> None:
        self._shown, self._model, self._prepare = shown, model, prepare
        self._injected = {each.turn: each.text for each in shown.injected}
        if injection is not None:
            self._injected[injection.turn] = injection.text
        self._waiting = list[Text]()
        self._old = 0
        #: The native turn that was opened last.
        self._opened: int | None = None
        self.laid = list[PromptPiece]()

    def lay(self) -> None:
        shown = self._shown
        turns = [(turn, list(of)) for turn, of in groupby(shown.rounds, _turn_of)]
        apart = self._apart()
        if apart is not None and all(turn != apart for turn, _ in turns):
            turns.append((apart, []))
        blocks = list(shown.blocks)
        for turn, of in turns:
            is_apart = turn == apart
            # Up to its first round; of a turn whose prompt stands apart, its rounds follow that.
            edge = RoundId(turn, 0) if is_apart or not of else of[0].place
            self._texts(blocks, lambda block, edge=edge: block.element.first < edge)  # type: ignore[misc]
            if is_apart:
                early = _taken(blocks, lambda block, turn=turn: block.element.first.turn == turn)  # type: ignore[misc]
                self.prompt(turn, shown.prompt, [Text(block.text) for block in early])
            self._turn(turn, of, opened=is_apart)
        self._texts(blocks, lambda _: True)

    def _apart(self) -> int | None:
        """The turn whose prompt is shown though its first round is not. It was under way when the
        window was planned, and stays so until the next epoch: else what was sent would change with
        the next prompt.
        """
        shown = self._shown
        if not shown.prompt:
            return None
        if shown.rounds and shown.rounds[0].place.round > 1:
            return shown.rounds[0].place.turn
        return shown.open_turn

    def prompt(
        self,
        turn: int,
        messages: Sequence[Message],
        behind: Sequence[Text] = (),
        *,
        ready: bool = False,
    ) -> None:
        """`ready` says that the messages are prepared already. A prompt that goes on with the one
        before it, as nothing was replied to that, gets neither a tag nor an injection of its own.
        """
        tagged, goes_on = self._shown.tagged, turn == self._opened
        said = list(messages)
        if not ready:
            said = [_shown_message(each, tagged=tagged) for each in said if each.role != "event"]
        if not self.laid and not self._waiting:
            while said and said[0].role in _SYSTEM:
                self.laid.append(PromptPiece((said.pop(0),), is_system=True))
        front = self._front(turn, "" if goes_on else self._injected.get(turn, ""))
        tag = opening(f"T-{turn}", "R") if tagged and not goes_on else ""
        self._opened = turn
        if said and said[0].role == "user" and not said[0].results:
            first = said.pop(0)
            own = _opened(tag, first.parts)
            made = replace(first, parts=(*front, *own)) if front or own != first.parts else first
        else:
            made = Message("user", (*front, *([Text(tag)] if tag else ())))
        whole = [made, *said] if made.parts else said
        old = self._old
        if behind:
            if whole and whole[-1].role == "user":
                whole[-1] = replace(whole[-1], parts=(*whole[-1].parts, *behind))
            else:
                whole.append(Message("user", tuple(behind)))
            if len(whole) == 1:
                old = len(whole[0].parts)
        if whole:
            self.laid.append(PromptPiece(tuple(whole), old=old))
        self._waiting, self._old = [], 0

    def flush(self) -> None:
        if self._waiting:
            self.laid.append(PromptPiece((Message("user", tuple(self._waiting)),), old=self._old))
        self._waiting, self._old = [], 0

    def _turn(self, turn: int, of: Sequence[Native], *, opened: bool) -> None:
        begins = bool(of) and of[0].place.round == 1
        if not begins and not opened and of:
            self._waiting = self._front(turn)
            if self._shown.tagged:
                self._waiting.append(Text(opening(f"T-{turn}", "R")))
            self._opened = turn
            self.flush()
        for native in of:
            messages = self._prepare(native, self._shown.tagged, self._model)
            if native.place.round == 1:
                edge = next(
                    (at for at, each in enumerate(messages) if each.role == "assistant"),
                    len(messages),
                )
                self.prompt(turn, messages[:edge], ready=True)
                messages = messages[edge:]
            if messages:
                self.laid.append(PromptPiece(messages, native.place))

    def _front(self, turn: int, injection: str = "") -> list[Text]:
        closed = ""
        if self._shown.tagged and self._opened is not None and self._opened != turn:
            closed = closing(f"T-{self._opened}", "R")
        if closed and injection and not self._waiting:
            return [Text(f"{closed}\n{injection}")]
        ends = [Text(closed)] if closed else []
        return [*ends, *self._waiting, *([Text(injection)] if injection else ())]

    def _texts(self, blocks: list[ShownBlock], wanted: Callable[[ShownBlock], bool]) -> None:
        self._waiting += [Text(block.text) for block in _taken(blocks, wanted)]
        if not self.laid:
            self._old = len(self._waiting)


def _turn_of(native: Native) -> int:
    return native.place.turn


def _taken(blocks: list[ShownBlock], wanted: Callable[[ShownBlock], bool]) -> list[ShownBlock]:
    found = [block for block in blocks if wanted(block)]
    if found:
        blocks[:] = [block for block in blocks if not wanted(block)]
    return found


def _opened(tag: str, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    if not tag:
        return parts
    first = parts[0] if parts else None
    if isinstance(first, Text):
        return (replace(first, text=f"{tag}\n{first.text}"), *parts[1:])
    return (Text(tag), *parts)


def prepared(native: Native, tagged: bool, model: str) -> tuple[Message, ...]:  # noqa: FBT001
    """The messages of a native round as they are sent, but for the tags of its turn. Thoughts that
    are no longer valid, or another model's, are left out. If turns are tagged, text that looks like
    a tag of ours is escaped, but never in what a model said.
    """
    return tuple(
        _without_thoughts(message, model, keep=native.thinking)
        if message.role == "assistant"
        else _shown_message(message, tagged=tagged)
        for message in native.messages
        if message.role != "event"
    )


def _without_thoughts(message: Message, model: str, *, keep: bool) -> Message:
    if keep and not (model and message.model and not is_same_model(message.model, model)):
        return message
    parts = tuple(part for part in message.parts if not isinstance(part, Reasoning))
    return message if len(parts) == len(message.parts) else replace(message, parts=parts)


def _shown_message(message: Message, *, tagged: bool) -> Message:
    if message.role in _SYSTEM and (message.native or message.wire):
        # One format has places for it that others do not: it is shown where it was said.
        message = Message(message.role, message.parts, name=message.name)
    return escaped(message) if tagged else message
