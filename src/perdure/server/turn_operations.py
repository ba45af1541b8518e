"""What was said: turns, appends, partial answers, search, export."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from starlette.responses import Response, StreamingResponse

from perdure.context.context import Context, compose
from perdure.context.session_tools import Rendering
from perdure.core.errors import InvalidInput, NotFound
from perdure.core.levels import Level
from perdure.core.messages import Message
from perdure.core.turns import Position, Turn
from perdure.history.answer_drafts import Partial
from perdure.history.log_records import Head
from perdure.history.manifest import Injected, ShownHistory
from perdure.history.session_export import jsonl
from perdure.history.session_markdown import markdown
from perdure.history.turn_search import FoundTurn
from perdure.remote.api_results import AppendedTurns, ExportFormat, TurnPage, UndoneNumbers
from perdure.server.operations import Operation, RequestBody, RequestQuery, ServerCall, TokenScope
from perdure.server.session_operations import SESSION, open_session
from perdure.sessions.session import Session

TURN = f"{SESSION}/turns/{{turn}}"
_MEDIA = {"jsonl": "application/x-ndjson", "markdown": "text/markdown; charset=utf-8"}


class TurnsQuery(RequestQuery, frozen=True):
    """Which turns, and how they are shown."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 20
    #: Turns in front of this one, or behind it; else the newest.
    before: str | int | None = None
    after: str | int | None = None
    #: Moments as `Session.turns` takes them: ``2026-02-12``, ``3d``.
    since: str | None = None
    until: str | None = None
    #: ``name=value``, each.
    tag: tuple[str, ...] = ()
    #: Turns that were undone, too.
    undone: bool = False
    #: As texts at this level, instead of whole turns; those that are undone or forgotten have none.
    level: Level | None = None
    resolve: bool = False
    prune: bool = False


class TurnQuery(RequestQuery, frozen=True):
    """How a turn is shown."""

    #: Fetch content from the artifact store.
    resolve: bool = False
    #: Shorten tool results.
    prune: bool = False


class AnsweredContext(RequestBody, frozen=True):
    """What was sent to get the messages that are appended: its prompt is written first."""

    turn: Annotated[int, msgspec.Meta(ge=1)]
    prompt: tuple[Message, ...] = ()
    model: str = ""
    injection: Injected | None = None
    #: The turn that it was written to, if it was: unless that is undone, it is not written again.
    begun: int | None = None


class NewMessages(RequestBody, frozen=True):
    """Messages to append; see `Session.append`."""

    #: A text (a prompt), or messages of any wire format.
    messages: Any = None
    #: Or Perdure's own canonical messages.
    canonical: tuple[Message, ...] = ()
    context: AnsweredContext | None = None
    #: Written once, however often it is sent with this key.
    key: str | None = None
    tags: dict[str, str] | None = None
    #: The newest turn must be this one (0: none), else nothing is written.
    expected: str | int | None = None
    #: Goes on with this turn: what the caller wrote to last.
    continues: str | int | None = None
    #: Opens a turn, whatever is open.
    fresh: bool = False


class UndoRequest(RequestBody, frozen=True):
    """How many of the newest turns, or which."""

    turns: int = 1
    #: Or those of these numbers.
    numbers: list[int] | None = None


class TurnSearchQuery(RequestQuery, frozen=True):
    """Words to look for."""

    query: str
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 20


class ExportQuery(RequestQuery, frozen=True):
    """``jsonl`` can be imported again; ``markdown`` is for people."""

    format: ExportFormat = "jsonl"


async def get_turns(call: ServerCall) -> TurnPage:
    """Turns, page by page: whole, or at a level."""
    session, query = await open_session(call), call.query
    head = await session.head()
    found = await (
        _turns_after(session, query) if query.after is not None else _turns_before(session, query)
    )
    texts = list[Rendering]()
    if query.level is not None:
        live = [turn for turn in found if turn.status not in {"forgotten", "undone"}]
        texts = [await session.turn(turn.number, level=query.level) for turn in live]
    first, last = (found[0].number, found[-1].number) if found else (0, 0)
    is_full = query.after is not None or len(found) == query.limit
    return TurnPage(
        turns=found if query.level is None else [],
        texts=texts,
        newest=head.newest,
        before=f"T-{first}" if first > 1 and is_full else None,
        after=f"T-{last}" if found else _turn_name(query.after),
    )


async def _turns_before(session: Session, query: TurnsQuery) -> list[Turn]:
    return await session.turns(
        query.limit,
        before=query.before,
        since=query.since,
        until=query.until,
        tags=_tags(query.tag),
        undone=query.undone,
        resolve=query.resolve,
        prune=query.prune,
    )


async def _turns_after(session: Session, query: TurnsQuery) -> list[Turn]:
    if query.before is not None or query.since is not None or query.until is not None or query.tag:
        raise InvalidInput(
            "What is behind a turn is not filtered.",
            hint="Leave out before, since, until and tag; or page with before.",
        )
    first = 0 if query.after in {0, "0"} else Position.parse(query.after or 0).turn
    found = list[Turn]()
    async for turn in session.read(first + 1, undone=query.undone):
        found.append(turn)
        if len(found) == query.limit:
            break
    if query.resolve or query.prune:
        return [
            await session.turn(turn.number, resolve=query.resolve, prune=query.prune)
            for turn in found
        ]
    return found


def _turn_name(turn: str | int | None) -> str | None:
    return None if turn in {None, 0, "0"} else str(Position.parse(turn or 0))


def _tags(given: Iterable[str]) -> dict[str, str]:
    found = dict[str, str]()
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise InvalidInput(f"{each!r} is no tag.", hint="Write it like tag=topic=auth.")
        found[name] = value
    return found


async def get_turn(call: ServerCall) -> Turn:
    """One turn (T-12), or a round of it (T-12.3); also an undone or forgotten one."""
    session, query = await open_session(call), call.query
    found: Turn = await session.turn(turn_of(call), resolve=query.resolve, prune=query.prune)
    return found


async def get_turn_text(call: ServerCall) -> Rendering:
    """A turn or a round at R, S, C or T."""
    session = await open_session(call)
    return await session.turn(turn_of(call), level=call.path["level"])


def turn_of(call: ServerCall) -> str:
    """``T-12``, ``T-12.3``, or ``12``."""
    text = call.path["turn"]
    return f"T-{text}" if text[:1].isdigit() else text


async def get_head(call: ServerCall) -> Head:
    """Where a session stands."""
    return await (await open_session(call)).head()


async def append_messages(call: ServerCall) -> AppendedTurns:
    """Append messages: a whole turn, several, or the next messages of an open one."""
    session, body = await open_session(call), call.body
    if body.messages is not None and body.canonical:
        raise InvalidInput(
            "Messages are given as `messages` or as `canonical`.", hint="Give one of them."
        )
    context, continues = body.context, body.continues
    begun = None if context is None else context.begun
    if begun is not None and not (await session.head()).is_undone(begun):
        context, continues = None, None if body.fresh else begun
    if continues is not None:
        await session.resume(continues)
    found = await session.append(
        body.canonical if body.messages is None else body.messages,
        context=None if context is None else _context_of(session.name, context),
        key=body.key,
        tags=body.tags,
        expected=body.expected,
        fresh=body.fresh,
    )
    return AppendedTurns(found if isinstance(found, list) else [found])


def _context_of(session: str, given: AnsweredContext) -> Context:
    """A context as far as an answer to it needs one: whoever has the rest took out what it
    repeats.
    """
    return compose(
        ShownHistory(),
        turn=given.turn,
        budget=0,
        prompt=given.prompt,
        injection=given.injection,
        model=given.model,
        session=session,
    )


async def close_turn(call: ServerCall) -> Head:
    """Close the newest turn: the next message opens another."""
    session = await open_session(call)
    await session.close_turn()
    return await session.head()


async def undo_turns(call: ServerCall) -> UndoneNumbers:
    """Undo the newest turns, or those of these numbers. They are kept."""
    session, body = await open_session(call), call.body
    undone = await session.undo(body.turns, numbers=body.numbers)
    return UndoneNumbers(undone, (await session.head()).mark.fresh)


async def get_partials(call: ServerCall) -> list[Partial]:
    """Answers that are arriving, or were when their process died."""
    return await (await open_session(call)).partials()


async def close_partial(call: ServerCall) -> Turn:
    """Write a partial answer as part of its turn."""
    session = await open_session(call)
    return await session.close_partial(await _partial(session, call))


async def drop_partial(call: ServerCall) -> None:
    """Delete a partial answer."""
    session = await open_session(call)
    await session.drop_partial(await _partial(session, call))


async def _partial(session: Session, call: ServerCall) -> Partial:
    turn = Position.parse(turn_of(call)).turn
    for partial in await session.partials():
        if partial.turn == turn:
            return partial
    raise NotFound(f"No answer to T-{turn} is incomplete.", hint="List them: GET …/partials.")


async def search_turns(call: ServerCall) -> list[FoundTurn]:
    """Rounds that have most words of a query. Recall finds more."""
    session = await open_session(call)
    return await session.search(call.query.query, limit=call.query.limit)


async def export_session(call: ServerCall) -> Response:
    """A session as a file: JSON lines, or Markdown."""
    session, kind = await open_session(call), call.query.format
    suffix = "jsonl" if kind == "jsonl" else "md"
    name = quote(f"{session.name.replace('/', '-')}.{suffix}")
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{name}"}
    return StreamingResponse(_export_lines(session, kind), headers=headers, media_type=_MEDIA[kind])


async def _export_lines(session: Session, kind: ExportFormat) -> AsyncIterator[bytes]:
    """What cannot be read of the artifact store stays a reference, as in the command's files."""
    if kind == "jsonl":
        async for line in jsonl(session, on_missing=lambda _: None):
            yield line
    else:
        async for section in markdown(session, on_missing=lambda _: None):
            yield section.encode()


OPERATIONS = (
    Operation.of("GET", f"{SESSION}/turns", get_turns, TokenScope.READ, query=TurnsQuery),
    Operation.of(
        "POST", f"{SESSION}/turns", append_messages, TokenScope.WRITE, body=NewMessages, status=201
    ),
    Operation.of("GET", TURN, get_turn, TokenScope.READ, query=TurnQuery),
    Operation.of("GET", f"{TURN}/levels/{{level}}", get_turn_text, TokenScope.READ),
    Operation.of("GET", f"{SESSION}/head", get_head, TokenScope.READ),
    Operation.of("POST", f"{SESSION}/close", close_turn, TokenScope.WRITE),
    Operation.of("POST", f"{SESSION}/undo", undo_turns, TokenScope.WRITE, body=UndoRequest),
    Operation.of("GET", f"{SESSION}/partials", get_partials, TokenScope.READ),
    Operation.of("POST", f"{SESSION}/partials/{{turn}}/close", close_partial, TokenScope.WRITE),
    Operation.of("DELETE", f"{SESSION}/partials/{{turn}}", drop_partial, TokenScope.WRITE),
    Operation.of("GET", f"{SESSION}/search", search_turns, TokenScope.READ, query=TurnSearchQuery),
    Operation.of(
        "GET",
        f"{SESSION}/export",
        export_session,
        TokenScope.READ,
        query=ExportQuery,
        produces="application/x-ndjson, text/markdown",
    ),
)
