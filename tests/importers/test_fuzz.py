"""Files that anything may have happened to."""

from __future__ import annotations

import asyncio
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perdure
from perdure.core.messages import encode
from perdure.history.import_cursors import FilePosition
from perdure.importers import import_files, importer_for
from perdure.importers.importer import Say, Step
from perdure.importers.step_feed import FAILED, StepFeed
from tests.importers.outcomes import everything
from tests.importers.transcripts import SESSION, THREAD, Claude, Codex, Record, lines

pytestmark = pytest.mark.repeated

FORMATS = ("claude-code", "codex", "openai-chat", "anthropic")
FILES = {
    "claude-code": f"{SESSION}.jsonl",
    "codex": f"rollout-2025-11-01T01-02-58-{THREAD}.jsonl",
    "openai-chat": "chat.jsonl",
    "anthropic": "chat.jsonl",
}
formats = st.sampled_from(FORMATS)
FEWER = 1_000 if os.environ.get("HYPOTHESIS_PROFILE") == "fuzz" else 20


def steps(format_: str, content: bytes) -> list[Step]:
    """What a file comes to; what is wrong with it is counted."""
    importer = importer_for(format_)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / FILES[format_]
        path.write_bytes(content)
        (transcript,) = importer.transcripts(path)
        feed = StepFeed(importer, transcript, FilePosition())
        try:
            found = list[Step]()
            more = True
            while more:
                batch = feed.pull()
                found += [taken.step for taken in batch.steps]
                more = batch.more
            found += [taken.step for taken in feed.finish().steps]
        finally:
            feed.close()
    assert feed.report.used >= 0
    assert not [reason for reason in feed.report.skipped if reason.startswith(FAILED)]
    for step in found:
        if isinstance(step, Say):
            encode([step.message])  # it can be stored
    return found


# Nonsense --------------------------------------------------------------------------------------


@given(formats, st.binary(max_size=2_000))
def test_bytes(format_: str, content: bytes) -> None:
    steps(format_, content)


words = st.sampled_from(
    [
        *("type", "user", "assistant", "system", "progress", "message", "attachment", "content"),
        *("role", "text", "tool_use", "tool_result", "id", "tool_use_id", "input", "uuid", "data"),
        *("parentUuid", "timestamp", "isSidechain", "agentId", "isCompactSummary", "subtype"),
        *("compact_boundary", "compactMetadata", "toolUseResult", "sessionId", "usage", "model"),
        *("payload", "response_item", "event_msg", "session_meta", "turn_context", "compacted"),
        *("function_call", "function_call_output", "call_id", "output", "arguments", "reasoning"),
        *("user_message", "token_count", "info", "thread_rolled_back", "num_turns", "messages"),
        *("total_token_usage", "last_token_usage", "output_tokens", "tool", "choices", "summary"),
        *("queued_command", "prompt", "items", "session", "tool_calls", "perdure", "signature"),
    ]
)
texts = words | st.text(max_size=20)
numbers = st.integers() | st.floats() | st.just(10**30)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=12,
)
claude_fields = (
    *("uuid", "parentUuid", "timestamp", "isSidechain", "isMeta", "agentId", "origin", "subtype"),
    *("isCompactSummary", "compactMetadata", "toolUseResult", "data", "summary", "attachment"),
    *("requestId", "customTitle", "parentToolUseID", "cwd"),
)
claude_messages = values | st.fixed_dictionaries(
    {"role": texts, "content": values | st.lists(values, max_size=3)},
    optional={"id": texts, "model": values, "usage": values, "stop_reason": values},
)
claude_records = st.fixed_dictionaries(
    {"type": st.sampled_from(["user", "assistant", "system", "progress", "attachment"]) | values},
    optional=dict.fromkeys(claude_fields, values) | {"message": claude_messages},
)
codex_fields = (
    *("role", "content", "call_id", "output", "name", "arguments", "summary", "info", "source"),
    *("num_turns", "message", "item", "action", "input", "git"),
)
codex_types = (
    *("message", "reasoning", "function_call", "function_call_output", "custom_tool_call"),
    *("local_shell_call", "token_count", "user_message", "thread_rolled_back", "agent_message"),
    *("item_completed",),
)
codex_payloads = (
    values
    | st.dictionaries(texts, values, max_size=6)
    | st.fixed_dictionaries(
        {"type": st.sampled_from(codex_types)}, optional=dict.fromkeys(codex_fields, values)
    )
)
codex_lines = ["response_item", "event_msg", "session_meta", "compacted"]
codex_records = st.fixed_dictionaries(
    {"type": st.sampled_from(codex_lines) | values, "payload": codex_payloads},
    optional={"timestamp": values},
)
chat_records = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system"]) | values, "content": values},
    optional={"tool_calls": values, "tool_call_id": values, "id": values, "perdure": values},
)
records = values | claude_records | codex_records | chat_records


@given(formats, st.lists(records, max_size=12))
def test_json(format_: str, given_records: list[Any]) -> None:
    content = b"\n".join(json.dumps(record).encode() for record in given_records)
    steps(format_, content)


# Damage ----------------------------------------------------------------------------------------

marks = re.compile(r"mark\d+x")


def marked(format_: str) -> list[Record]:
    """A conversation in which every message has a mark of its own."""
    numbers = iter(range(10_000))

    def mark() -> str:
        return f"mark{next(numbers)}x"

    if format_ == "claude-code":
        claude, found = Claude(), list[Record]()
        for turn in range(4):
            found += [claude.prompt(mark()), claude.text(f"m{turn}a", mark())]
            for call in range(3):
                found += [claude.call(f"m{turn}a", f"c{turn}{call}", command=mark())]
                found += [claude.progress(), claude.result(f"c{turn}{call}", mark())]
            found += [claude.text(f"m{turn}b", mark())]
        return found
    codex = Codex()
    found = [codex.meta()]
    for turn in range(4):
        found += [*codex.prompt(mark()), codex.tokens()]
        for call in range(3):
            found += [codex.call(f"c{turn}{call}", arguments=mark())]
            found += [codex.output(f"c{turn}{call}", mark()), codex.tokens()]
        found += [codex.said("assistant", mark())]
    return found


WHOLE = {name: lines(marked(name)) for name in ("claude-code", "codex")}


@st.composite
def damages(draw: st.DrawFn) -> tuple[str, bytes, bytes]:
    """A format, a file, and the file with damage in some places."""
    name = draw(st.sampled_from(sorted(WHOLE)))
    whole = WHOLE[name]
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(content)))
        match draw(st.sampled_from(["cut", "put", "change", "end"])):
            case "cut":
                del content[at : at + draw(st.integers(1, 600))]
            case "put":
                content[at:at] = draw(st.binary(min_size=1, max_size=50))
            case "change" if at < len(content):
                content[at] = draw(st.integers(0, 255))
            case "end":
                del content[max(at, len(content) // 2) :]
            case _:
                pass
    return name, whole, bytes(content)


@given(damages())
def test_intact_records_survive_damage_around_them(case: tuple[str, bytes, bytes]) -> None:
    name, whole, content = case
    originals = set(whole.splitlines())
    if b"\0" in content[:1024]:
        return  # it is taken for a binary file
    intact = [line for line in content.split(b"\n") if line in originals]
    wanted = {mark for line in intact for mark in marks.findall(line.decode()) if _says(line)}
    found = steps(name, content)
    said = {mark for step in found for mark in marks.findall(repr(step))}
    assert wanted <= said


def _says(line: bytes) -> bool:
    """Whether the line is where its mark is said, and not repeated."""
    return b"event_msg" not in line


# Growth ----------------------------------------------------------------------------------------


@st.composite
def conversations(draw: st.DrawFn) -> tuple[str, bytes]:
    """A conversation with whatever may happen in one."""
    name = draw(st.sampled_from(["claude-code", "codex"]))
    happening = draw(st.lists(st.integers(0, 9), min_size=1, max_size=12))
    found = _claude(happening, draw) if name == "claude-code" else _codex(happening, draw)
    return name, lines(found)


def _claude(happening: Iterable[int], draw: st.DrawFn) -> Iterator[Record]:
    claude, agent = Claude(), Claude(agent="a1")
    uuids: list[str] = []
    for number, what in enumerate(happening):
        if what <= 3:
            yield from (turn := claude.turn(f"p{number}", f"r{number}", calls=what))
            uuids.append(turn[-1]["uuid"])
        elif what == 4 and uuids:
            yield claude.prompt(f"back {number}", draw(st.sampled_from(uuids)))
            yield claude.text(f"back{number}", "ok")
        elif what == 5:
            yield claude.boundary()
            yield claude.summary(f"so far {number}")
        elif what == 6:
            yield from agent.turn(f"task {number}", "done")
        elif what == 7:
            yield claude.prompt(f"<local-command-stdout>{number}</local-command-stdout>")
        elif what == 8:
            # A reply whose results arrive while it does, and a prompt right behind.
            yield claude.call(f"x{number}", f"x{number}a")
            yield claude.result(f"x{number}a", str(number))
            yield claude.call(f"x{number}", f"x{number}b")
            yield claude.prompt(f"again {number}")
        else:
            yield claude.prompt(f"alone {number}")


def _codex(happening: Iterable[int], draw: st.DrawFn) -> Iterator[Record]:
    codex = Codex(flat=draw(st.booleans()))
    yield codex.meta()
    for number, what in enumerate(happening):
        if what <= 4:
            yield from codex.turn(f"p{number}", f"r{number}", f"c{number}")
        elif what == 5 and not codex.flat:
            yield codex.event("thread_rolled_back", num_turns=draw(st.integers(1, 3)))
        elif what == 6 and not codex.flat:
            yield codex.line("compacted", {"message": f"so far {number}"})
        elif what == 7:
            yield codex.environment()
        elif what == 8:
            yield from [codex.reasoning(), codex.call(f"x{number}"), codex.call(f"y{number}")]
            yield from [codex.output(f"x{number}"), codex.output(f"y{number}", code=1)]
        else:
            yield from codex.prompt(f"alone {number}")


@settings(max_examples=FEWER)  # each takes two banks
@given(conversations(), st.data())
def test_however_a_file_grows_it_comes_to_the_same(
    case: tuple[str, bytes], data: st.DataObject
) -> None:
    name, content = case
    cuts = data.draw(st.lists(st.integers(0, len(content)), max_size=4).map(sorted))

    async def imported(folder: str, ends: list[int]) -> Any:
        path = Path(folder) / FILES[name]
        async with perdure.open("memory://") as bank:
            for end in ends:
                path.write_bytes(content[:end])
                await import_files(bank, name, [path])
            return await everything(bank)

    with tempfile.TemporaryDirectory() as folder:
        wanted = asyncio.run(imported(folder, [len(content)]))
        assert asyncio.run(imported(folder, [*cuts, len(content)])) == wanted
