"""Reads the transcripts of Claude Code.

One JSON object a line. A reply is spread over several records, one for each block, with tool
results among them; it is put together again here, results behind it. Most other records
(progress, snapshots, hooks) are skipped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from perdure.core.messages import Message, event
from perdure.core.turns import is_prompt
from perdure.importers.claude_code.claude_records import (
    Record,
    Voice,
    agent_named_in,
    decode_record,
    named_by,
    user_messages,
    words,
)
from perdure.importers.importer import (
    Begun,
    Describe,
    Spawn,
    Step,
    TranscriptReader,
    Undo,
    kind,
    word,
)
from perdure.importers.transcript_source import decode, moment

K = TypeVar("K")
V = TypeVar("V")

#: Sub-agents inside a file that may speak at the same time.
_VOICES = 64
#: Names that are remembered: of sub-agents, of their records, of what they were told.
_AGENTS = 10_000
_TOLD = 100
#: Records that are remembered, by their hashes: all of them take some ten megabytes.
_RECORDS = 50_000


class ClaudeCodeReader(TranscriptReader):
    """Reads one file: a session, or the sub-agent `agent`.
    Records of sub-agents in a session's file (older versions) become conversations of their own.
    """

    def __init__(self, agent: str = "") -> None:
        super().__init__()
        self._is_agent = bool(agent)
        self._main = Voice("")
        self._asides: dict[str, Voice] = {}
        self._aside_of = OrderedDict[str, str]()  # uuid of a sub-agent's record → its voice
        self._calls = OrderedDict[str, str]()  # what a sub-agent was told → the call that did
        self._spawned = OrderedDict[str, str]()  # sub-agent → its call
        self._lineage = Lineage()
        self._facts: dict[str, str] = {}
        self._begun = False
        self._titled = False
        self._boundary: tuple[dict[str, Any], int | None] | None = None

    def decode(self, line: bytes) -> Record:
        return decode_record(line)

    def read(self, record: Record) -> Iterable[Step]:
        what = word(record.type)
        if what == "progress":
            yield from self._progress(record)
        elif what in {"user", "assistant"}:
            yield from self._message(record)
        elif what == "attachment":
            yield from self._attachment(record)
        elif what == "compact_boundary" or record.subtype == "compact_boundary":
            yield from self._boundary_of(record)
        elif what in {"summary", "ai-title", "custom-title"}:
            yield from self._title(record)
        else:
            self._hang(record)
            system = what == "system"
            self.skip(f"system: {kind(record.subtype)}" if system else kind(record.type))

    def finish(self) -> Iterator[Step]:
        # The boundary of a compaction goes on waiting: its summary is written right behind it.
        for voice in [*self._asides.values(), self._main]:
            yield from voice.flush()

    def _message(self, record: Record) -> Iterator[Step]:
        body = decode(record.message) if bytes(record.message) else None
        if not isinstance(body, dict) or not isinstance(body.get("content"), str | list):
            self.skip(f"{record.type} record without content")
            return
        raw = bytes(record.message)
        if self._lineage.known(record.uuid, word(record.timestamp), raw):
            self.skip("repeated record")
            return
        yield from self._describe(record)
        yield from self._spawns(record, body)
        if record.is_sidechain and not self._is_agent:
            yield from self._aside(record, body)
        elif record.is_compact_summary:
            yield from self._main.flush()
            yield from self._compacted(words(body["content"]), moment(record.timestamp))
            self._hang(record)
        else:
            yield from self._compacted()
            if record.type == "assistant":
                self._note_calls(body)
                yield from self._main.reply(record, body)
                self._hang(record)
            else:
                yield from self._user(record, body["content"], len(raw))

    def _user(self, record: Record, content: Any, size: int) -> Iterator[Step]:
        said = user_messages(record, content)
        if not said:
            self._hang(record)
            self.skip("user record without content")
            return
        taken = 0
        if not record.is_meta and not any(message.results for message in said):
            taken = self._lineage.rewound(record.parent_uuid, self._main.turn)
        yield from self._spoken(record, said, size, taken)

    def _spoken(
        self, record: Record, said: list[Message], size: int, taken: int = 0
    ) -> Iterator[Step]:
        """A prompt, before which turns may be taken back; or something that is none."""
        if not taken and not any(is_prompt(message) for message in said):
            yield from self._main.say_behind(said, size)
            self._hang(record)
            return
        yield from self._main.flush()
        if taken:
            yield Undo(taken)
            self._main.start_over()
        for message in said:
            yield self._main.say(named_by(record, message))
        self._lineage.open(record.uuid, record.parent_uuid, self._main.turn)

    def _attachment(self, record: Record) -> Iterator[Step]:
        """What a user says while the agent works arrives as an attachment."""
        raw = bytes(record.attachment)
        found = decode(raw) if raw else None
        found = found if isinstance(found, dict) else {}
        what, prompt = found.get("type"), found.get("prompt")
        if what != "queued_command" or not isinstance(prompt, str | list):
            self._hang(record)
            self.skip(f"attachment: {kind(what)}")
            return
        if self._lineage.known(record.uuid, word(record.timestamp), raw):
            self.skip("repeated record")
            return
        said = user_messages(record, prompt)
        if found.get("commandMode", "prompt") != "prompt":
            said = [msgspec.structs.replace(message, injected=True) for message in said]
        yield from self._spoken(record, said, len(raw))

    def _boundary_of(self, record: Record) -> Iterator[Step]:
        """A compaction is two records: its boundary, and the summary."""
        yield from self._main.flush()
        yield from self._compacted()
        facts = record.compact_metadata if isinstance(record.compact_metadata, dict) else {}
        wanted = ("trigger", "preTokens", "postTokens", "durationMs")
        known = {name: facts[name] for name in wanted if _is_plain(facts.get(name))}
        self._boundary = known, moment(record.timestamp)
        self._lineage.compacted(word(record.timestamp))
        self._hang(record)

    def _compacted(self, summary: str = "", time: int | None = None) -> Iterator[Step]:
        if self._boundary is None and not summary:
            return
        facts, began = self._boundary or ({}, None)
        self._boundary = None
        happened = event("compaction", summary, **facts)
        yield self._main.say(msgspec.structs.replace(happened, time=time or began))

    def _title(self, record: Record) -> Iterator[Step]:
        title = record.custom_title or record.ai_title or record.summary
        given = record.type == "custom-title"
        if not isinstance(title, str) or not title or (self._titled and not given):
            self.skip(kind(record.type))
            return
        self._titled = self._titled or given
        yield Describe({"title": title[:500]})

    def _describe(self, record: Record) -> Iterator[Step]:
        if record.is_sidechain and not self._is_agent:
            return
        found = {"cwd": record.cwd, "branch": record.git_branch, "version": record.version}
        new = {
            name: value
            for name, value in found.items()
            if isinstance(value, str) and value and self._facts.get(name) != value
        }
        if new:
            self._facts.update(new)
            yield Describe(new)
        if self._is_agent and not self._begun and isinstance(record.session_id, str):
            self._begun = True
            yield Begun(record.session_id)

    def _aside(self, record: Record, body: dict[str, Any]) -> Iterator[Step]:
        name = self._aside_named(record)
        voice = self._asides.get(name)
        if voice is None:
            if len(self._asides) >= _VOICES:
                yield from self._asides.pop(next(iter(self._asides))).flush()
            voice = self._asides[name] = Voice(name)
            call = self._spawned.get(name) or self._calls.pop(words(body["content"]), "")
            yield Begun("", call, to=name)
        if record.type == "assistant":
            yield from voice.reply(record, body)
            return
        said = user_messages(record, body["content"])
        if any(is_prompt(message) for message in said):
            yield from voice.flush()
        yield from voice.say_behind(said, len(bytes(record.message)))

    def _aside_named(self, record: Record) -> str:
        name = record.agent_id if isinstance(record.agent_id, str) else ""
        if not name and isinstance(record.parent_uuid, str):
            name = self._aside_of.get(record.parent_uuid, "")
        if isinstance(record.uuid, str):
            name = name or record.uuid[:8]
            _remember(self._aside_of, record.uuid, name, _AGENTS)
        return name or "agent"

    def _progress(self, record: Record) -> Iterator[Step]:
        raw = bytes(record.data)
        if b'"agent_progress"' in raw:
            yield from self._spawn(agent_named_in(raw), record.parent_tool_use_id)
        self._hang(record)
        self.skip("progress")

    def _spawns(self, record: Record, body: dict[str, Any]) -> Iterator[Step]:
        raw = bytes(record.tool_use_result)
        if b'"agentId"' not in raw or not isinstance(body["content"], list):
            return
        for block in body["content"]:
            if isinstance(block, dict) and block.get("type") == "tool_result":
                yield from self._spawn(agent_named_in(raw), block.get("tool_use_id"))

    def _spawn(self, agent: Any, call: Any) -> Iterator[Step]:
        if isinstance(agent, str) and isinstance(call, str) and agent and call:
            if self._spawned.get(agent) != call:
                yield Spawn(agent, call)
            _remember(self._spawned, agent, call, _AGENTS)

    def _note_calls(self, body: dict[str, Any]) -> None:
        for block in body["content"]:
            if isinstance(block, dict) and isinstance(block.get("input"), dict):
                prompt, call = block["input"].get("prompt"), block.get("id")
                if isinstance(prompt, str) and isinstance(call, str):
                    _remember(self._calls, prompt, call, _TOLD)

    def _hang(self, record: Record) -> None:
        if record.is_sidechain and not self._is_agent:
            self._aside_named(record)
        else:
            self._lineage.hang(record.uuid, record.parent_uuid, self._main.turn)


def _remember(known: OrderedDict[K, V], name: K, value: V, limit: int) -> None:
    known[name] = value
    if len(known) > limit:
        known.popitem(last=False)


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | bool) or (isinstance(value, int) and abs(value) < 2**53)


class Lineage:
    """Which turn of a conversation a record belongs to."""

    def __init__(self) -> None:
        self._turns = OrderedDict[int, int]()  # hash of a uuid → turn
        self._said = OrderedDict[int, int]()  # hashes of what was said, and when
        self._live: list[int] = []  # turns that were not taken back
        self._counted = 0
        self._rooted: bool | None = None  # the first record hangs on nothing
        self._chained = False
        self._compacted = ""

    def known(self, uuid: Any, time: str, said: bytes) -> bool:
        """Whether a message was there before.
        After a compaction Claude Code may write messages again, under old or new ids, but with
        their old times.
        """
        repeated = isinstance(uuid, str) and hash(uuid) in self._turns
        if time:
            older, name = time < self._compacted, hash((time, said))
            repeated = repeated or (older and name in self._said)
            _remember(self._said, name, 0, _RECORDS)
        return repeated

    def hang(self, uuid: Any, parent: Any, turn: int) -> None:
        """Note a record; it belongs to its parent's turn if that is older."""
        if self._rooted is None:
            self._rooted = parent is None
        found = self._turns.get(hash(parent)) if isinstance(parent, str) else None
        self._chained = self._chained or found is not None
        if isinstance(uuid, str):
            own = turn if found is None else min(found, turn)
            _remember(self._turns, hash(uuid), own, _RECORDS)

    def open(self, uuid: Any, parent: Any, turn: int) -> None:
        self.hang(uuid, parent, turn)
        if isinstance(uuid, str):
            self._turns[hash(uuid)] = turn

    def compacted(self, time: str) -> None:
        """After a compaction records have no parent; that is no return to the beginning."""
        self._rooted = False
        self._compacted = time

    def rewound(self, parent: Any, turn: int) -> int:
        """How many turns up to `turn` a user's record takes back by its `parent`."""
        if isinstance(parent, str):
            base = self._turns.get(hash(parent))
        else:
            # Back to the beginning; unless nothing in this file hangs on anything.
            base = 0 if parent is None and self._rooted and self._chained else None
        if base is None:  # it hangs on something that we have not seen, or not for long
            return 0
        self._live.extend(range(self._counted + 1, turn + 1))
        self._counted = turn
        keep = len(self._live)
        while keep and self._live[keep - 1] > base:
            keep -= 1
        taken = len(self._live) - keep
        del self._live[keep:]
        return taken
