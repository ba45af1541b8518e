"""What the reader makes of Codex' rollouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perdure.core.messages import Reasoning, Text, ToolCall
from perdure.core.turns import is_prompt
from perdure.importers import Begun, Describe, Spawn
from perdure.importers.codex import CodexImporter
from perdure.importers.codex.codex_reader import CodexReader
from perdure.importers.codex.codex_replies import failed
from tests.importers.reading import messages, of, places, said, steps, undone
from tests.importers.transcripts import THREAD, Codex, write


def read(records: list[Any]) -> list[Any]:
    return steps(CodexReader(), records)


@pytest.mark.parametrize("flat", [False, True], ids=["wrapped", "flat"])
def test_a_conversation(flat: bool) -> None:
    codex = Codex(flat=flat)
    records = [codex.meta(), codex.environment()]
    if flat:
        records.append({"record_type": "state"})
    records += codex.turn("Tidy up.", "Done.", "c1")
    records += codex.turn("Again.", "Done again.", "c2")
    reader = CodexReader()
    found = said(reader, records)
    roles = ["user", "assistant", "tool", "assistant"]
    assert [message.role for message in found] == ["user", *roles, *roles]
    assert [message.injected for message in found[:2]] == [True, False]
    assert [m.text for m in found if is_prompt(m)] == ["Tidy up.", "Again."]
    assert [type(part) for part in found[2].parts] == [Reasoning, ToolCall]
    assert [type(part) for part in found[4].parts] == [Reasoning, Text]
    assert [
        place for place, m in zip(places(found), found, strict=True) if m.role == "assistant"
    ] == [
        (1, 1),
        (1, 2),
        (2, 1),
        (2, 2),
    ]
    assert found[3].results[0].call == "c1"
    assert found[2].time == 1_761_958_800_000_000 if flat else found[2].time is not None
    assert reader.report.skipped == ({"state": 1} if flat else {})


def test_facts() -> None:
    codex = Codex()
    records = [codex.meta(), codex.line("turn_context", {"model": "gpt-5", "cwd": "/srv"})]
    records += [codex.meta("another"), *codex.turn("Go.", "Gone.", "c1")]
    reader = CodexReader()
    found = steps(reader, records)
    first, second = of(Describe, found)
    assert first.facts == {
        "cwd": "/home/ada",
        "version": "0.34.0",
        "branch": "main",
        "commit": "2da7505",
    }
    assert second.facts == {"cwd": "/srv", "model": "gpt-5"}
    assert {m.model for m in messages(found) if m.role == "assistant"} == {"gpt-5"}
    assert reader.report.skipped == {"repeated session_meta": 1}


def test_tokens_belong_to_the_call_that_took_them() -> None:
    codex = Codex()
    before = [*codex.prompt("Go."), codex.tokens(7), codex.reasoning(), codex.call("c1")]
    before += [codex.output("c1"), codex.tokens(8), codex.said("assistant", "Gone.")]
    after = [*codex.prompt("Again."), codex.reasoning(), codex.call("c2"), codex.tokens(9)]
    again = codex.tokens(0)  # it only tells of limits
    after += [again, codex.output("c2"), codex.said("assistant", "So."), codex.tokens(11)]
    after += [codex.said("assistant", "And so."), codex.tokens(12)]
    reader = CodexReader()
    found = [m for m in said(reader, [*before, *after]) if m.role == "assistant"]
    assert [m.usage.output for m in found if m.usage is not None] == [7, 8, 9, 11, 12]
    assert found[0].usage is not None
    assert (found[0].usage.input, found[0].usage.cache_read) == (100, 60)
    assert reader.report.skipped == {"event_msg: token_count without news": 1}


def test_a_person_typed_what_the_screen_shows() -> None:
    codex = Codex()
    instructions = codex.said(
        "user", "# AGENTS.md instructions for /home\n\n<INSTRUCTIONS>Be kind."
    )
    unheard_of = codex.said("user", "A note that nobody typed.")
    developer = codex.said("developer", "<permissions instructions>All.</permissions instructions>")
    typed = "<environment_context> is what?"
    records = [codex.meta(), developer, instructions, codex.environment(), *codex.prompt("Hello.")]
    records += [codex.said("assistant", "Hi."), unheard_of, codex.said("assistant", "Hm.")]
    records += [*codex.prompt(typed), codex.said("assistant", "That.")]
    # Some versions show it first.
    records += [codex.event("user_message", message="Last."), codex.said("user", "Last.")]
    found = said(CodexReader(), records)
    assert [m.text for m in found if is_prompt(m)] == ["Hello.", typed, "Last."]
    assert sum(message.injected for message in found) == 3
    assert found[0].role == "developer"


def test_a_person_typed_what_has_no_marks_where_nothing_is_shown() -> None:
    codex = Codex()
    records = [codex.meta(), codex.environment(), codex.said("user", "Hello.")]
    item = {"type": "UserMessage", "content": [{"type": "text", "text": "Shown."}]}
    records += [
        codex.said("assistant", "Hi."),
        codex.said("user", "<turn_aborted>\nx\n</turn_aborted>"),
    ]
    records += [codex.said("user", "Shown."), codex.event("item_completed", item=item)]
    found = said(CodexReader(), records)
    assert [m.text for m in found if is_prompt(m)] == ["Hello.", "Shown."]


def test_events_that_repeat_what_was_said_are_skipped() -> None:
    codex, reader = Codex(), CodexReader()
    records = [*codex.turn("Go.", "Gone.", "c1"), codex.event("agent_message", message="Gone.")]
    records += [codex.event("agent_reasoning", text="hm"), codex.event("item_completed", item={})]
    records += [codex.item(type="ghost_snapshot", ghost_commit={}), codex.line("world_state", {})]
    records += [codex.item(type="message", role="assistant", content=[]), codex.item(), ["list"]]  # type: ignore[list-item]
    assert len(messages(steps(reader, records))) == 4
    assert reader.report.skipped == {
        "event_msg: agent_message": 1,
        "event_msg: agent_reasoning": 1,
        "event_msg: item_completed": 1,
        "ghost_snapshot": 1,
        "world_state": 1,
        "empty message": 1,
        "without a type": 1,
        "no record": 1,
    }


def test_other_tools_keep_their_results() -> None:
    codex = Codex()
    search = {"type": "search", "query": "engines"}
    shell = {"type": "exec", "command": ["ls"]}
    records = [
        *codex.prompt("Go."),
        codex.item(type="custom_tool_call", name="apply_patch", input="*** Begin", call_id="c1"),
        codex.item(type="custom_tool_call_output", call_id="c1", output="Success."),
        codex.item(type="local_shell_call", call_id="c2", status="completed", action=shell),
        codex.item(type="local_shell_call_output", call_id="c2", output="a.py"),
        codex.item(type="local_shell_call", call_id="c3", status="completed", action=shell),
        codex.item(type="function_call_output", call_id="c3", output="b.py"),
        codex.item(type="web_search_call", status="completed", action=search),
        codex.said("assistant", "Done."),
    ]
    found = said(CodexReader(), records)
    calls = [call for message in found for call in message.calls]
    results = {result.call: result.text for message in found for result in message.results}
    assert [call.name for call in calls] == ["apply_patch", "local_shell", "local_shell"]
    assert results == {"c1": "Success.", "c2": "a.py", "c3": "b.py"}
    assert "engines" in repr(found[-1].parts)


@pytest.mark.parametrize(
    ("output", "is_error"),
    [
        ('{"output":"x","metadata":{"exit_code":1}}', True),
        ('{"output":"x","metadata":{"exit_code":0}}', False),
        ('{"success":false}', True),
        ("{broken", False),
        ("Exit code: 2\nWall time: 0 seconds\nOutput:\nx", True),
        ("Chunk ID: f\nProcess exited with code 0\nOutput:\nExit code: 1\n", False),
        ("failed in sandbox LinuxSeccomp with execution error", True),
        ("all is well", False),
    ],
)
def test_a_failed_command_is_an_error(output: str, is_error: bool) -> None:
    codex = Codex()
    item = codex.item(type="function_call_output", call_id="c1", output=output)
    (_, result) = said(CodexReader(), [codex.call("c1"), item])
    assert result.results[0].is_error is is_error
    assert result.results[0].text == output


def test_a_failed_status_is_an_error() -> None:
    assert failed({"status": "failed"}, "")
    assert failed({"success": False}, "")


def test_a_compaction_is_an_event_and_what_came_before_stays() -> None:
    codex = Codex()
    compacted = codex.line("compacted", {"message": "We counted.", "replacement_history": [{}]})
    records = [*codex.turn("One.", "1", "c1"), compacted, *codex.turn("Two.", "2", "c2")]
    found = said(CodexReader(), records)
    (happened,) = [message for message in found if message.role == "event"]
    assert (happened.name, happened.text) == ("compaction", "We counted.")
    assert [m.text for m in found if is_prompt(m)] == ["One.", "Two."]


def test_a_rollback_takes_turns_back() -> None:
    codex = Codex()
    records = [codex.environment()]
    for number in range(1, 5):
        records += codex.turn(str(number), "ok", f"c{number}")
    records += [codex.event("thread_rolled_back", num_turns=2), *codex.turn("5", "ok", "c5")]
    records += [codex.event("thread_rolled_back", num_turns=1)]
    records += [codex.event("thread_rolled_back", num_turns=9), *codex.turn("6", "ok", "c6")]
    records += [codex.event("thread_rolled_back", num_turns=0)]
    assert undone(read(records)) == [2, 1, 2]


def test_a_rollback_counts_prompts_as_codex_does() -> None:
    codex = Codex()
    records = [*codex.turn("1", "ok", "c1"), *codex.prompt("2"), *codex.prompt("2, again")]
    records += [codex.said("assistant", "ok")]
    # Both prompts of the second turn are taken back, and so is the turn.
    assert undone(read([*records, codex.event("thread_rolled_back", num_turns=2)])) == [1]


def test_sub_agents() -> None:
    codex = Codex()
    source = {"subagent": {"thread_spawn": {"parent_thread_id": "parent", "depth": 1}}}
    assert of(Begun, read([codex.meta("child", source=source)])) == [Begun("parent")]
    assert of(Begun, read([codex.meta("child", parent_thread_id="parent")])) == [Begun("parent")]
    assert of(Begun, read([codex.meta(source="cli")])) == []
    answer = json.dumps({"agent_id": "child", "nickname": "Boyle"})
    records = [
        codex.call("c1", "spawn_agent", "{}"),
        codex.item(type="function_call_output", call_id="c1", output=answer),
        codex.call("c2"),
        codex.item(type="function_call_output", call_id="c2", output=answer),
        codex.event("sub_agent_activity", kind="started", event_id="c3", agent_thread_id="other"),
    ]
    assert of(Spawn, read(records)) == [Spawn("child", "c1"), Spawn("other", "c3")]
    told = codex.item(
        type="agent_message",
        author="/root",
        recipient="/root/worker",
        content=[{"type": "input_text", "text": "Look at x."}],
    )
    (message,) = said(CodexReader(), [told])
    assert (message.name, message.text, is_prompt(message)) == ("/root", "Look at x.", True)


def test_a_reply_that_is_cut_by_the_end_of_the_file_is_one_round() -> None:
    codex, reader = Codex(), CodexReader()
    first = steps(reader, [*codex.prompt("Go."), codex.reasoning()])
    second = steps(reader, [codex.said("assistant", "Going."), codex.tokens(), codex.call("c1")])
    found = messages([*first, *second])
    replies = [message for message in found if message.role == "assistant"]
    assert [message.id for message in replies] == ["piece-1", "piece-1", "piece-2"]
    assert [place for place, _ in enumerate(places(found))] == [0, 1, 2, 3]
    assert places(found) == [(1, 1), (1, 1), (1, 1), (1, 2)]


def test_a_very_long_reply_is_not_held_back_whole() -> None:
    codex = Codex()
    calls = [codex.call(f"c{number}") for number in range(200)]
    outputs = [codex.output(f"c{number}") for number in range(200)]
    found = said(CodexReader(), [*codex.prompt("Go."), *calls, *outputs])
    assert len({message.id for message in found if message.role == "assistant"}) == 1
    assert set(places(found)) == {(1, 1)}


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODEX_HOME", str(tmp_path))
    importer = CodexImporter()
    assert importer.places() == [tmp_path / "sessions"]
    folder = tmp_path / "sessions" / "2025" / "11" / "01"
    name = f"rollout-2025-11-01T01-02-58-{THREAD}"
    write(folder / f"{name}.jsonl", [])
    write(folder / f"{name}.jsonl.zst", [])
    write(folder / "rollout-strange.jsonl", [])
    write(folder / "notes.jsonl", [])
    found = [transcript.id for transcript in importer.transcripts(tmp_path)]
    assert found == [THREAD, THREAD, "rollout-strange"]
    monkeypatch.delenv("CODEX_HOME")
    assert importer.places()[0] == Path.home() / ".codex" / "sessions"
