"""What of a turn is indexed: a passage for what one append added to a round.

Three fields keep three voices apart, so that a user's few words are not drowned in what a model or
a tool wrote at length. Of what tools were asked and answered only parts are taken, see `tool_text`,
errors before the rest. What lies in artifacts is not fetched; its beginning stands in the message.

What the tools of recall and history brought back is left out, with what was asked of them: it
stands in the index already, and would find itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from perdure.core.clock import SECOND
from perdure.core.errors import Corrupted
from perdure.core.messages import (
    ArtifactPointer,
    Message,
    Part,
    Text,
    ToolCall,
    ToolResult,
    words_of,
)
from perdure.history.log_records import TurnPiece
from perdure.history.piece_packing import RoundWritten
from perdure.recall import tool_names
from perdure.recall.indexing import tool_text
from perdure.recall.places import INDEX, Spot
from perdure.recall.values import Note
from perdure.recall.words import sets_rule, tells_time, terms
from perdure.search.engine import Document

#: Characters at most: of what was said, answered, and done with tools.
_SAID, _ANSWERED, _TOOLS = 20_000, 8_000, 6_000
#: Characters that are embedded: what was said, then what was answered, then what tools were asked.
_PLAIN, _PLAIN_SAID = 1_500, 1_000
#: Characters of tags that are kept in a note.
_TAG, _TAGS = 80, 240
#: Characters of a name, and how many tools are noted.
_NAME, _NOTED = 40, 12

#: A name, and a colon behind it, where somebody's words begin: ``Caroline: Hi!``.
_speaker = re.compile(r"\s*([^\W\d_][\w.'’-]*(?: [^\W\d_][\w.'’-]*){0,2}):\s+\S").match
#: What begins like a name and is none.
_NO_NAMES = frozenset(
    """
    action actual assistant attention aside background bug but caution code comment context
    correction date description edit error example expected failure feature fix fixme fyi goal
    hint human hypothesis idea important info input issue name nb no note notes observation ok
    okay optional output plan please problem ps question re reason reminder request requirement
    response result results rule solution spec status step subject summary system task test
    thought time tip title todo traceback update url usage user version warning wip yes
    """.split()  # noqa: SIM905 - as a list it would take a page
)
_ends_asking = re.compile(r"\?[\s\"')\]*_]*$").search


class Passage(msgspec.Struct, frozen=True, gc=False):
    """What is indexed of a round, or of what was added to it."""

    #: Terms of each field, one space between two, in the order of `places.INDEX`.
    texts: tuple[str, str, str]
    note: Note
    #: What is embedded. Empty if there is nothing to index.
    plain: str


class Thread(msgspec.Struct, gc=False):
    """What a passage needs to know of its turn that is not in its own messages."""

    turn: int = 0
    tags: dict[str, str] = {}
    #: Calls of tools that fetch what is indexed already: so their results are known.
    fetching: frozenset[str] = frozenset()
    #: Messages that each round has so far.
    said: dict[int, int] = {}


class Moment(msgspec.Struct, frozen=True, gc=False):
    """Messages that were added to a round, and what is known about them from around it."""

    round: RoundWritten
    #: When the first of them was said. Microseconds.
    time: int
    tags: Mapping[str, str]
    #: Calls before them whose results are not indexed.
    fetching: frozenset[str] = frozenset()

    def passage(self) -> Passage:
        """What is indexed of it."""
        return passage(self.round, self.tags, self.time, self.fetching)

    def plain(self) -> str:
        """What is embedded of it. Empty if it has nothing that is indexed."""
        return _words(self.round.messages, self.fetching).plain


def passage(
    round: RoundWritten,
    tags: Mapping[str, str],
    time: int,
    fetching: Collection[str] = frozenset(),
) -> Passage:
    """What is indexed of these messages, which were said at this time (microseconds).

    `fetching` are calls of earlier messages whose results are not to be indexed again.
    """
    words = _words(round.messages, fetching)
    said, answered, tools = (terms(part) for part in (words.said, words.answered, words.tools))
    tools += tool_text.terms_of(words.named, tools)
    speaker = speaker_of(round.messages)
    note = Note(
        time=time // SECOND,
        lengths=(len(said), len(answered), len(tools)),
        asks=_asks(words.said),
        speaker=speaker,
        tools=tuple(dict.fromkeys(words.called))[:_NOTED],
        tags=_kept(tags),
        timed=tells_time(words.said),
        # What people say to each other is no rule for a model.
        binds=not speaker and sets_rule(words.said),
    )
    return Passage((" ".join(said), " ".join(answered), " ".join(tools)), note, words.plain)


def of_text(text: str, note: Note) -> Passage:
    """What is indexed of a text that somebody wrote down: a memory, a reference layer."""
    found = terms(text[:_SAID])
    known = msgspec.structs.replace(
        note, lengths=(len(found), 0, 0), timed=tells_time(text[:_SAID])
    )
    return Passage((" ".join(found), "", ""), known, text.strip()[:_PLAIN])


def moments(
    pieces: Iterable[TurnPiece], thread: Thread, session_tags: Mapping[str, str]
) -> Iterator[Moment]:
    """What pieces of one session, in key order, added to which rounds: as appends wrote it.

    The thread is where the pieces before them ended; it is at the end of these afterwards.
    """
    for piece in pieces:
        if piece.turn != thread.turn:
            thread.turn, thread.tags, thread.said = piece.turn, {}, {}
            thread.fetching = frozenset()
        thread.tags = piece.tags or thread.tags
        for number, messages in _readable(piece):
            before = thread.said.get(number, 0)
            thread.said[number] = before + len(messages)
            if messages:
                yield Moment(
                    RoundWritten(piece.turn, number, messages, before),
                    time_of(messages, piece.time),
                    about(session_tags, thread.tags),
                    thread.fetching,
                )
                thread.fetching |= fetching_calls(messages)


def _readable(piece: TurnPiece) -> list[tuple[int, tuple[Message, ...]]]:
    """Its messages by round; none if they are damaged, which `perdure verify` tells of."""
    try:
        return piece.by_round()
    except Corrupted:
        return []


def fetching_calls(messages: Iterable[Message]) -> frozenset[str]:
    """The calls of tools that fetch what is indexed already."""
    return frozenset(
        call.id
        for message in messages
        for call in message.calls
        if tool_names.reaches_past(call.name)
    )


def about(session: Mapping[str, str], turn: Mapping[str, str]) -> dict[str, str]:
    """What is noted of the tags of a session and a turn, those of the turn first.

    Of a session's, only what its turns are filtered by: its branch, its task's type, its outcome.
    """
    task = session.get("task") or session.get("task_type")
    facts = {"branch": session.get("branch"), "task": task, "outcome": session.get("outcome")}
    found = {name: value for name, value in facts.items() if value} | dict(turn)
    if "task" not in turn and "task_type" in turn:
        found["task"] = turn["task_type"]
    return found


def time_of(messages: Sequence[Message], otherwise: int) -> int:
    """When the first of them was said, as far as they tell."""
    return next((each.time for each in messages if each.time is not None), otherwise)


def speaker_of(messages: Iterable[Message]) -> str:
    """Who speaks, folded; empty if no name is known."""
    for message in messages:
        if message.role != "user" or message.injected:
            continue
        if message.name:
            return message.name.strip()[:_NAME].casefold()
        for part in message.parts:
            found = _speaker(part.text) if isinstance(part, Text) else None
            if found is not None and _is_name(found[1]):
                return found[1].casefold()
    return ""


# ----------------------------------------------------------------------------------------------


class _Words(msgspec.Struct, gc=False):
    """The words of some messages, by field, as far as they are taken."""

    said: str
    answered: str
    tools: str
    #: Names in what is not taken of the work of tools, and the names of the tools.
    named: list[str]
    called: list[str]

    @property
    def plain(self) -> str:
        said = self.said[:_PLAIN_SAID]
        found = f"{said}\n{self.answered[: _PLAIN - len(said)]}".strip()
        return found or self.tools[:_PLAIN].strip()


def _words(messages: Sequence[Message], fetching: Collection[str]) -> _Words:
    said, answered = list[str](), list[str]()
    calls, errors, results = list[str](), list[str](), list[str]()
    named, called = list[str](), list[str]()
    ignored = fetching_calls(messages).union(fetching)
    for message in messages:
        if message.role == "event" or message.injected:
            continue
        for part in message.parts:
            if isinstance(part, ToolCall):
                if part.id not in ignored:
                    asked = tool_text.asked(words_of(part))
                    calls.append(asked.words)
                    named += asked.names
                    called.append(part.name[:_NAME])
            elif isinstance(part, ToolResult):
                if part.call not in ignored and not tool_names.reaches_past(part.name):
                    result = tool_text.answered(part.text)
                    (errors if part.is_error else results).append(result.words)
                    errors += result.faults
                    named += result.names
            elif message.role == "user":
                said.append(_spoken(part))
            elif message.role == "assistant":
                answered.append(_spoken(part))
    return _Words(
        _joined(said, _SAID),
        _joined(answered, _ANSWERED),
        _joined([*errors, *calls, *results], _TOOLS),
        named,
        called,
    )


def _spoken(part: Part) -> str:
    """The words of a part, without what its model only thought."""
    return words_of(part) if isinstance(part, Text | ArtifactPointer) else ""


def _joined(parts: Iterable[str], most: int) -> str:
    return "\n".join(part for part in parts if part)[:most].strip()


def _asks(said: str) -> bool:
    return "?" in said and _ends_asking(said) is not None


def _is_name(found: str) -> bool:
    words = found.split(" ")
    capitalised = all(word[0].isupper() or not word[0].islower() for word in words)
    return capitalised and len(found) <= _NAME and words[0].casefold() not in _NO_NAMES


def _kept(tags: Mapping[str, str]) -> dict[str, str]:
    """Tags as far as they are short: they stand beside every passage."""
    kept, left = dict[str, str](), _TAGS
    for name, value in tags.items():
        length = len(name) + len(value)
        if length <= min(_TAG, left):
            kept[name] = value
            left -= length
    return kept


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Note).decode


def document(place: int, passage: Passage) -> Document:
    """The document of a passage."""
    return Document(INDEX.name, place, passage.texts, _encode(passage.note))


def place_of(number: int, moment: Moment) -> int:
    """Where the document of a session's moment stands; the session's group has this number."""
    round = moment.round
    return Spot(number, round.turn, round.round, round.before).place


def read_notes(notes: Sequence[bytes | None]) -> list[Note | None]:
    """The notes of documents; None for what is not there. Raises `Corrupted`."""
    try:
        return [None if note is None else _decode(note) for note in notes]
    except msgspec.DecodeError as exc:
        raise Corrupted(
            f"A note in the index of recall is damaged: {exc}.",
            hint="Run `perdure index rebuild`: it is made again from what is stored.",
        ) from exc


def is_readable(note: bytes) -> bool:
    """Whether it is a note."""
    try:
        _decode(note)
    except msgspec.DecodeError:
        return False
    return True
