"""Bytes on disk per byte of text: transcripts imported, everything counted, then the bank closed.

The text is that of messages, reasoning, tool arguments and tool results, in UTF-8, as it is read
back from the bank. What else a transcript holds (signatures, encrypted reasoning, usage, ids) is on
our disk but not in that count. The peers are given the text alone, and have one level only: what
our others take is left out here, and counted in `disk_levels`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

from benchmarks import ours, peers, transcripts
from benchmarks.conversations import Chat
from benchmarks.harness import Report, bytes_in, work_folder
from benchmarks.importing import import_all
from benchmarks.peers import Peer
from perdure.bank import Bank
from perdure.core.messages import Message, Part, Reasoning, Text, ToolCall, ToolResult
from perdure.history.intake import resolved
from perdure.history.log_records import TurnPiece
from perdure.history.renditions.rendition_records import Rendition, Tiny
from perdure.storage.records import type_of

_PAGE = 200
_LEVELS = {type_of(Rendition).name, type_of(Tiny).name}


async def run(report: Report, *, quick: bool) -> None:
    figures = report.figures
    figures["ratio"] = figures["ratio_best_peer"] = None
    given = transcripts.found(report)
    if given is None:
        return
    with work_folder() as name:
        folder = Path(name)
        home, out = folder / "ours", folder / "out"
        home.mkdir()
        out.mkdir()
        await import_all(home / "bank.db", given)
        stored = bytes_in(home) - await _levels_in(home / "bank.db")
        text = await _write_out(home / "bank.db", out)
        figures["ratio"] = round(stored / text, 3)
        figures["ratio_to_files"] = round(stored / given.size, 3)
        report.say(f"  {text:,} bytes of text, {stored:,} bytes on our disk")
        with peers.all_running(report) as everyone:
            theirs = [
                round(_stored_by(peer, folder / f"{peer.module}.db", out) / text, 3)
                for peer in everyone[: 1 if quick else None]
            ]
    for peer, figure in zip(everyone, theirs, strict=False):
        figures[f"ratio_{peer.module}"] = figure
        report.say(f"  {peer.name}: {figure} bytes on disk per byte of text")
    figures["ratio_best_peer"] = min(theirs, default=None)


def _stored_by(peer: Peer, file: Path, out: Path) -> int:
    """The bytes that a peer takes for all sessions."""
    # LangGraph writes all of a session again with each turn; with the others, a turn takes the
    # same room however it came in.
    operation = "append" if peer.module == "langgraph_saver" else "fill"
    for session in sorted(out.iterdir()):
        made = {"kind": "stored", "path": str(session)}
        peer.ask(operation, bank=str(file), session=session.stem, made=made)
    return int(peer.ask("close", bank=str(file)))


async def text_in(file: Path) -> int:
    """The bytes of all text that was said in a bank."""
    async with ours.open_bank(file) as bank:
        return sum([text_of(turn) async for _, turn in _turns(bank)])


async def _levels_in(file: Path) -> int:
    """The bytes that renditions take."""
    async with ours.open_bank(file) as bank:
        sizes = (await bank.info()).collections
    return sum(size.bytes or 0 for size in sizes if size.collection in _LEVELS)


async def _write_out(file: Path, folder: Path) -> int:
    """Write each session to a file, a turn a line, as Chat Completions; the bytes of their text."""
    text = 0
    numbers: dict[str, int] = {}
    async with ours.open_bank(file) as bank:
        async for session, turn in _turns(bank):
            text += text_of(turn)
            number = numbers.setdefault(session, len(numbers))
            chats = [chat for message in turn for chat in _chats(message)]
            with (folder / f"{number:04d}.jsonl").open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(chats) + "\n")
    return text


async def _turns(bank: Bank) -> AsyncIterator[tuple[str, list[Message]]]:
    """Every turn of every session, once: what a fork shares with its parent is the parent's."""
    place: tuple[str, int] | None = None
    said: list[Message] = []
    cursor: str | None = None
    while True:
        page = await bank.collection(TurnPiece).list(limit=_PAGE, after=cursor)
        for piece in page.values:
            found = piece.id.rpartition("/")[0], piece.turn
            if place is not None and found != place:
                yield place[0], said
                said = []
            place = found
            said += await resolved(piece.messages(), bank.artifacts)
        cursor = page.next
        if cursor is None:
            break
    if place is not None:
        yield place[0], said


def text_of(messages: Iterable[Message]) -> int:
    return sum(bytes_of(part) for message in messages for part in message.parts)


def bytes_of(part: Part) -> int:
    if isinstance(part, Text):
        return len(part.text.encode())
    if isinstance(part, Reasoning):
        return len(part.text.encode()) + sum(len(summary.encode()) for summary in part.summary)
    if isinstance(part, ToolCall):
        return len(part.arguments.encode())
    if isinstance(part, ToolResult):
        return sum(bytes_of(inner) for inner in part.content)
    return 0


def _chats(message: Message) -> Iterator[Chat]:
    for result in message.results:
        yield {"role": "tool", "tool_call_id": result.call, "content": result.text}
    role = message.role if message.role in ("user", "assistant") else "system"
    chat: Chat = {"role": role, "content": message.text}
    thoughts = [part for part in message.parts if isinstance(part, Reasoning)]
    thought = "\n".join(said for part in thoughts for said in (part.text, *part.summary) if said)
    if thought:
        chat["reasoning_content"] = thought
    if message.calls:
        chat["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.calls
        ]
    if message.text or thought or message.calls:
        yield chat
