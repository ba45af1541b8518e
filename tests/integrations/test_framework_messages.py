"""What integrations of frameworks share. Those themselves: tests/frameworks, `make frameworks`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perdure
from perdure.core import messages as canonical
from perdure.core.errors import InvalidInput
from perdure.core.messages import Media, Message, Reasoning, Text, ToolCall, ToolResult
from perdure.integrations.framework_bank import session_name
from perdure.integrations.framework_messages import fold, unfold
from perdure.sessions.framework_records import FrameworkRecord

WORDS = ("short", "a text that is long enough", "another one, also long enough", "$")
texts = st.sampled_from(WORDS) | st.text(max_size=30)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts, plain, max_size=3)
parts = st.one_of(
    texts.map(Text),
    texts.map(Reasoning),
    objects.map(lambda each: ToolCall("c", "f", msgspec.json.encode(each).decode())),
    texts.map(lambda each: ToolResult("c", (Text(each),))),
    st.binary(min_size=1, max_size=30).map(lambda each: Media("image/png", data=each)),
)


@given(st.lists(parts, max_size=3), st.data())
def test_a_folded_form_comes_back_as_it_was(found: list[Any], data: st.DataObject) -> None:
    said: list[Any] = [canonical.words_of(part) for part in found]
    said += [msgspec.json.decode(part.arguments) for part in found if isinstance(part, ToolCall)]
    form = data.draw(objects) | {"said": said, "again": {"inner": said, "$": "key"}}
    message = fold(Message("user", tuple(found)), "theirs", form)
    stored = canonical.decode(canonical.encode([message]))[0]
    assert unfold(stored, "theirs") == form
    assert unfold(stored, "others") is None


def test_words_are_kept_once() -> None:
    long = "one long text with many words in it " * 20
    call = {"path": "a path that is long enough", "text": long}
    message = Message(
        "assistant", (Text(long), ToolCall("c", "write", msgspec.json.encode(call).decode()))
    )
    form = {"content": [{"type": "text", "text": long}], "calls": [{"args": call, "id": "c"}]}
    folded = fold(message, "theirs", form)
    assert long not in str(folded.native)
    assert unfold(folded, "theirs") == form


def test_names_of_sessions_never_meet() -> None:
    assert session_name("a", "plain id-1") == "a/plain id-1"
    odd = [("x/y",), ("x", "y"), ("x-y",), ("x#y",), ("",), (" ",), ("x" * 500,), ("x" * 501,)]
    names = [session_name("a", *each) for each in odd]
    assert len(set(names)) == len(odd)
    assert all(name.count("/") == 1 and len(name) <= 120 for name in names)
    with pytest.raises(InvalidInput, match="cannot be the name"):
        session_name("a/b", "x")


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("openai_agents", "openai-agents"),
        ("langgraph", "langgraph"),
        ("claude_agent_sdk", "claude-agent-sdk"),
        ("pydantic_ai", "pydantic-ai-slim"),
        ("google_adk", "google-adk"),
        ("llama_index", "llama-index-core"),
    ],
)
def test_a_missing_framework_is_one_clear_error(module: str, package: str) -> None:
    blocked = (
        "import sys; sys.modules.update(dict.fromkeys(('agents', 'google.adk', 'langgraph')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{blocked}import perdure.integrations.{module}"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    *_, last = done.stderr.splitlines()
    install = f"pip install 'perdure[{module.replace('_', '-')}]'"
    assert f"This needs {package}, which is not installed. Run: {install}" in last


async def test_records_are_forgotten_with_their_session_and_agent(tmp_path: Path) -> None:
    async with perdure.open(f"sqlite:///{tmp_path}/memory.db") as bank:
        records = bank.collection(FrameworkRecord)
        session = await bank.session("planner/auth")
        for text in ("one", "two"):
            await session.append([canonical.user(text), canonical.assistant(text)])
        await bank.session("planner/other")
        for id, copies in {
            "planner/auth/state": False,
            "planner/auth/writes/1": True,
            "planner/other/writes/1": True,
            "planner/#store/a": False,
            "else/#store/a": False,
        }.items():
            await records.put(FrameworkRecord(id, b"x", copies))

        async def left() -> list[str]:
            return [record.id async for record in records.walk()]

        await bank.forget("planner/auth", turns=1)
        assert "planner/auth/writes/1" not in await left()
        assert len(await left()) == 4
        await bank.forget("planner/auth")
        assert await left() == ["else/#store/a", "planner/#store/a", "planner/other/writes/1"]
        await bank.forget_agent("planner")
        assert await left() == ["else/#store/a"]
