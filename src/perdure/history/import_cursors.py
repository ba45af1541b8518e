"""How far files were imported into sessions. Here, and not with the importers: when a session is
forgotten, the cursor stays and says that the conversation is not to be imported again. A client's
conversation that went through the proxy gets such a cursor when it is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec

from perdure.history.log_records import SessionRecord, TurnSpan
from perdure.storage.records import Key, system_record
from perdure.storage.store import Store


class FilePosition(msgspec.Struct, frozen=True, array_like=True):
    """How far a file was read."""

    offset: int = 0
    #: Steps taken of the line that begins there.
    steps: int = 0
    checksum: int = 0
    ends: tuple[int, ...] = ()  # Where the reader was asked for what it held back.
    #: The steps were taken of what it held back at the last of them, and not all were.
    ending: bool = False

    @property
    def is_start(self) -> bool:
        return not self.offset and not self.steps


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """Tells cheaply that a file has not changed."""

    path: str = ""
    size: int = -1
    modified: int = -1


@system_record("imports")
class Cursor(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a file was imported into a session."""

    id: Annotated[str, Key()]  # session/hash of the conversation's name
    place: FilePosition = FilePosition()
    stamp: Stamp = Stamp()  # The file as it was when all of it had been imported.
    turn: int = 0  # The turn that it was writing to: what comes next may belong to it.
    anew: bool = False  # The file was rewritten, and is not compared completely yet.
    own: tuple[TurnSpan, ...] = ()  # The turns that it opened in its session.
    #: The session's newest piece and turn when the two were last in step: what others wrote since,
    #: such as the proxy, may be in the file, too.
    pieces: int = 0
    newest: int = 0
    forgotten: bool = False  # The session was forgotten: do not import it again.
    #: What comes next belongs to a prompt that was said in a pause (`perdure pause`).
    paused: bool = False

    @property
    def turns(self) -> Iterator[int]:
        for span in reversed(self.own):
            yield from range(span.last, span.first - 1, -1)


def with_turns(own: tuple[TurnSpan, ...], numbers: Iterable[int]) -> tuple[TurnSpan, ...]:
    spans = list(own)
    for number in numbers:
        if spans and number <= spans[-1].last:
            continue
        if spans and number == spans[-1].last + 1:
            spans[-1] = TurnSpan(spans[-1].first, number)
        else:
            spans.append(TurnSpan(number, number))
    return tuple(spans)


#: The tag of a session that holds a client's conversation: the client's id of it.
CONVERSATION = "conversation"


async def bury_cursors(store: Store, session: str) -> None:
    """Leave of each cursor of a session only that it was forgotten; and one for a conversation that
    has none, because its client may go on with it. Repeatable.
    """
    cursors = store.collection(Cursor)
    async for cursor in cursors.walk(f"{session}/"):
        await cursors.put(Cursor(cursor.id, forgotten=True))
    record = await store.collection(SessionRecord).get(session)
    if record is not None and CONVERSATION in record.tags:
        await cursors.put(Cursor(f"{session}/{CONVERSATION}", forgotten=True))


async def was_forgotten(store: Store, session: str) -> bool:
    """Whether a conversation that was recorded or imported under this name was forgotten, so that
    what its client still has of it does not come back.
    """
    async for cursor in store.collection(Cursor).walk(f"{session}/"):
        if cursor.forgotten:
            return True
    return False
