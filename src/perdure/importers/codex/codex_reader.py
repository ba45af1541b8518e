"""Reads the rollouts of Codex.

A line is ``{timestamp, type, payload}``; up to August 2025 it is the payload alone. Messages are
in ``response_item``, in the form of the Responses API; ``event_msg`` repeats them for the screen
and adds which messages a person typed, token counts, and which turns were taken back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from perdure.core.messages import Message, ToolResult, event
from perdure.core.turns import ConversationState, TurnSplitter, is_prompt
from perdure.importers.codex.codex_replies import CodexReply, decoded, failed, spawned, usage_of
from perdure.importers.importer import (
    Begun,
    Describe,
    Say,
    Spawn,
    Step,
    TranscriptReader,
    Undo,
    kind,
    word,
)
from perdure.importers.transcript_source import moment

#: A reply is held back until it is whole, but not with more items than this.
_HELD = 64
#: What begins like this was put in by the program, in the user's name.
_injected = re.compile(
    r"\s*(?:<[A-Za-z][\w -]*>.*</[A-Za-z][\w -]*>\s*$|# AGENTS\.md instructions for "
    r"|<user_instructions>|<environment_context>|<turn_aborted>|<user_shell_command>"
    r"|<permissions instructions>|<collaboration_mode>|<skill>|<subagent_notification>)",
    re.DOTALL,
).match
_is_item = re.compile(
    r"message|reasoning|\w+_call(?:_output)?|ghost_snapshot|\w*compaction\w*"
).fullmatch
#: Items that are no messages: file system states, and compactions, which have their own line.
#: Those of the system that are not said, such as lists of tools, are none either.
_PASSED = frozenset({"ghost_snapshot", "compaction", "context_compaction", "compaction_summary"})


class CodexReader(TranscriptReader):
    """Reads one rollout."""

    def __init__(self) -> None:
        super().__init__()
        self._cutter = TurnSplitter()
        self._prompts: list[int] = []  # the turn of each prompt that was not taken back
        self._facts: dict[str, Any] = {}
        self._met = False
        self._time: int | None = None
        # What people and the program said, until it is known who it was.
        self._asked: list[Message] = []
        self._typed: list[str] = []
        self._tells = False
        self._reply = CodexReply()
        self._spawning: dict[str, None] = {}

    def read(self, record: Any) -> Iterable[Step]:
        if not isinstance(record, dict):
            self.skip("no record")
            return
        payload = record.get("payload")
        what = record.get("type")
        self._time = moment(record.get("timestamp")) or self._time
        if not isinstance(payload, dict):
            yield from self._flat(record, what)
        elif what == "response_item":
            yield from self._item(payload)
        elif what == "event_msg":
            yield from self._event(payload)
        elif what == "session_meta":
            yield from self._meta(payload)
        elif what == "turn_context":
            yield from self._describe(payload, ("cwd", "model"))
        elif what == "compacted":
            yield from self._compacted(payload)
        else:
            self.skip(kind(what))

    def finish(self) -> Iterator[Step]:
        # Whatever is typed is shown at once: what was not shown so far may have been typed.
        tells, self._tells = self._tells, False
        yield from self._decide()
        self._tells = tells
        yield from self._say_reply(whole=False)

    def _flat(self, record: dict[str, Any], what: Any) -> Iterator[Step]:
        items = record.get("items")
        if what is not None:
            # Nothing but its type tells such a line from one of another program.
            if isinstance(what, str) and _is_item(what):
                yield from self._item(record)
            else:
                self.skip(kind(what))
        elif isinstance(items, list):  # a whole conversation in one document
            session = record.get("session")
            if isinstance(session, dict):
                self._time = moment(session.get("timestamp")) or self._time
                yield from self._meta(session)
            for item in items:
                if isinstance(item, dict):
                    yield from self._item(item)
        elif isinstance(record.get("id"), str):
            yield from self._meta(record)
        else:
            self.skip(kind(record.get("record_type")))

    def _meta(self, meta: dict[str, Any]) -> Iterator[Step]:
        if self._met:  # a fork repeats that of the conversation it comes from
            self.skip("repeated session_meta")
            return
        self._met = True
        git = meta.get("git")
        found = {
            **meta,
            **(git if isinstance(git, dict) else {}),
            "version": meta.get("cli_version"),
            "commit": git.get("commit_hash") if isinstance(git, dict) else None,
            "forked_from": meta.get("forked_from_id"),
            "agent_type": meta.get("agent_role"),
        }
        names = ("cwd", "version", "branch", "commit", "forked_from", "agent_type", "originator")
        yield from self._describe(found, names)
        parent = _parent(meta)
        if parent:
            yield Begun(parent)

    def _describe(self, found: dict[str, Any], names: Iterable[str]) -> Iterator[Step]:
        new = {
            name: found[name]
            for name in names
            if isinstance(found.get(name), str) and found[name] != self._facts.get(name)
        }
        if new:
            self._facts.update(new)
            yield Describe(new)

    def _compacted(self, payload: dict[str, Any]) -> Iterator[Step]:
        yield from self._decide()
        yield from self._say_reply()
        happened = event("compaction", word(payload.get("message")))
        yield self._say(msgspec.structs.replace(happened, time=self._time))

    def _event(self, payload: dict[str, Any]) -> Iterator[Step]:
        what = word(payload.get("type"))
        if what == "token_count":
            yield from self._tokens(payload.get("info"))
        elif what in {"user_message", "item_completed"}:
            yield from self._told(payload)
        elif what == "thread_rolled_back":
            yield from self._rolled_back(payload.get("num_turns"))
        elif what == "sub_agent_activity" and payload.get("kind") == "started":
            yield from _spawn(payload.get("agent_thread_id"), payload.get("event_id"))
        else:
            self.skip(f"event_msg: {kind(payload.get('type'))}")

    def _item(self, item: dict[str, Any]) -> Iterator[Step]:
        what, role = word(item.get("type")), item.get("role")
        if what in _PASSED or (word(role) in {"developer", "system"} and what != "message"):
            self.skip(kind(what))
        elif what == "agent_message" or (what == "message" and word(role) not in {"assistant", ""}):
            yield from self._say_reply()
            yield from self._spoken(item)
        elif what.endswith(("_output", "_response")):
            yield from self._decide()
            yield from self._say_reply()
            yield from self._output(item)
        elif what == "message" and not item.get("content"):
            self.skip("empty message")
        elif what:
            yield from self._decide()
            if self._reply.complete or len(self._reply.items) >= _HELD:
                yield from self._say_reply(whole=self._reply.complete)
            self._reply.add(item, self._time)
            self._note_call(item)
        else:
            self.skip(kind(item.get("type")))

    def _spoken(self, item: dict[str, Any]) -> Iterator[Step]:
        author = item.get("author") if item.get("type") == "agent_message" else None
        if author is not None:
            item = {"type": "message", "role": "user", "content": item.get("content")}
        said = decoded(item)
        if not any(message.parts for message in said):
            self.skip("empty message")
            return
        for message in said:
            self._asked.append(msgspec.structs.replace(message, time=self._time, name=word(author)))
        newest = self._asked[-1].text.strip()
        if newest in self._typed:
            self._typed.remove(newest)
            yield from self._decide(len(self._asked) - 1)
        elif len(self._asked) >= _HELD:
            yield from self._decide()

    def _told(self, payload: dict[str, Any]) -> Iterator[Step]:
        text = _typed(payload)
        if text is None:
            self.skip(f"event_msg: {kind(payload.get('type'))}")
            return
        self._tells = True
        chosen = _match(self._asked, text)
        if chosen is not None:
            yield from self._decide(chosen)
        else:
            self._typed = [*self._typed[-8:], text]

    def _decide(self, prompt: int | None = None) -> Iterator[Step]:
        asked, self._asked = self._asked, []
        for at, message in enumerate(asked):
            if message.role == "user":
                typed = at == prompt if prompt is not None else self._looks_typed(message)
                message = msgspec.structs.replace(message, injected=not typed)  # noqa: PLW2901
            yield self._say(message)

    def _looks_typed(self, message: Message) -> bool:
        return not self._tells and not _injected(message.text)

    def _output(self, item: dict[str, Any]) -> Iterator[Step]:
        if item.get("type") == "local_shell_call_output" and "id" not in item:
            item = {**item, "id": item.get("call_id")}
        for message in decoded(item):
            parts = tuple(
                msgspec.structs.replace(part, is_error=True)
                if isinstance(part, ToolResult) and failed(item, part.text)
                else part
                for part in message.parts
            )
            yield self._say(msgspec.structs.replace(message, parts=parts, time=self._time))
        if word(item.get("call_id")) in self._spawning:
            yield from _spawn(spawned(item.get("output")), item["call_id"])

    def _say_reply(self, *, whole: bool = True) -> Iterator[Step]:
        for message in self._reply.taken(self._facts.get("model", ""), whole=whole):
            yield self._say(message)

    def _say(self, message: Message) -> Say:
        turn, _ = self._cutter.feed(message)
        if is_prompt(message):
            self._prompts.append(turn)
        return Say(message)

    def _rolled_back(self, turns: Any) -> Iterator[Step]:
        if not isinstance(turns, int) or turns < 1:
            self.skip("event_msg: thread_rolled_back")
            return
        yield from self._decide()
        yield from self._say_reply()
        gone = self._prompts[-turns:]
        del self._prompts[-turns:]
        kept = self._prompts[-1] if self._prompts else 0
        taken = len({turn for turn in gone if turn > kept})
        if taken:
            yield Undo(taken)
            self._cutter = TurnSplitter(ConversationState(self._cutter.turn, fresh=True))

    def _tokens(self, info: Any) -> Iterator[Step]:
        usage = info.get("last_token_usage") if isinstance(info, dict) else None
        total = info.get("total_token_usage") if isinstance(info, dict) else None
        repeated = total is not None and total == self._reply.total
        if not isinstance(usage, dict) or repeated:
            self.skip("event_msg: token_count without news")
            return
        yield from self._decide()
        if self._reply.items and self._reply.usage is not None:
            yield from self._say_reply()
        self._reply.count(usage_of(usage), total)

    def _note_call(self, item: dict[str, Any]) -> None:
        name, call = item.get("name"), item.get("call_id")
        if isinstance(name, str) and name.endswith("spawn_agent") and isinstance(call, str):
            self._spawning[call] = None
            if len(self._spawning) > 100:
                self._spawning.pop(next(iter(self._spawning)))


def _parent(meta: dict[str, Any]) -> str:
    found = meta.get("source")
    for name in ("subagent", "thread_spawn"):
        found = found.get(name) if isinstance(found, dict) else None
    parent = found.get("parent_thread_id") if isinstance(found, dict) else None
    return word(parent or meta.get("parent_thread_id"))


def _typed(payload: dict[str, Any]) -> str | None:
    if payload.get("type") == "user_message":
        text = payload.get("message")
        return text.strip() if isinstance(text, str) else None
    item = payload.get("item")
    if not isinstance(item, dict) or word(item.get("type")) not in {"UserMessage", "user_message"}:
        return None
    content = item.get("content")
    blocks = content if isinstance(content, list) else []
    texts = [word(block.get("text")) for block in blocks if isinstance(block, dict)]
    return "\n".join(text for text in texts if text).strip()


def _match(asked: list[Message], text: str) -> int | None:
    users = [at for at, message in enumerate(asked) if message.role == "user"]
    for at in users:
        if asked[at].text.strip() == text:
            return at
    for at in users:
        if text and text in asked[at].text:
            return at
    plain = [at for at in users if not _injected(asked[at].text)]
    return plain[-1] if plain else None


def _spawn(child: Any, call: Any) -> Iterator[Step]:
    if isinstance(child, str) and isinstance(call, str) and child and call:
        yield Spawn(child, call)
