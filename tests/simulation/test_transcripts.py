from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.core.errors import InvalidInput
from perdure.core.messages import Message, Text, ToolCall, ToolResult, assistant, event, user
from perdure.core.tokens import count_message, count_messages, o200k
from perdure.core.turns import Position
from perdure.simulation import History, read_history
from perdure.simulation.replay_input import PLACEHOLDER
from perdure.simulation.transcript_formats import detect_format, format_of
from tests.importers.transcripts import SESSION, Claude, write

LONG = "a line of what the tool said\n" * 40
ASKED = Message("assistant", (Text("Let me look."), ToolCall("c1", "shell", '{"command": "ls"}')))
ANSWERED = Message("tool", (ToolResult("c1", (Text(LONG),)),))


def chat(path: Path, *texts: str) -> Path:
    roles = ("user", "assistant")
    lines = [
        json.dumps({"role": roles[number % 2], "content": text})
        for number, text in enumerate(texts)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_round_is_a_call() -> None:
    history = History.of(
        [
            (Position(1, 1), [event("compacted"), user("List the files."), ASKED, ANSWERED]),
            (Position(1, 2), [assistant("There are two.")]),
            (Position(2, 1), [event("ended")]),
        ]
    )
    first, second = history.calls
    counter = o200k()
    assert first.opening == 1
    assert first.prompt_tokens == count_message(counter, user("List the files."))
    assert first.tokens == count_messages(counter, (user("List the files."), ASKED, ANSWERED))
    assert (second.opening, second.prompt) == (0, ())
    assert history.tokens == first.tokens + second.tokens
    assert history.turns == 1


def test_there_are_no_gaps() -> None:
    history = History.of(
        [
            (Position(2, 1), [event("started")]),
            (Position(2, 2), [user("One."), assistant("1")]),
            (Position(3, 1), [event("compacted")]),
            (Position(5, 1), [user("Two."), ASKED, ANSWERED]),
            (Position(5, 2), [assistant("2")]),
        ]
    )
    assert [str(call.position) for call in history.calls] == ["T-1.1", "T-2.1", "T-2.2"]


def test_every_call_was_sent_a_prompt_or_results() -> None:
    note = Message("user", (Text("<task-notification>"),), injected=True)
    history = History.of(
        [
            (Position(1, 1), [Message("system", (Text("Be brief."),)), user("One."), ASKED]),
            (Position(1, 2), [assistant("1")]),
            (Position(1, 3), [assistant("and that is all.")]),  # one reply with the one before
            (Position(2, 1), [user("Two."), assistant("2"), note]),
            (Position(2, 2), [assistant("It is done.")]),  # the harness said something
        ]
    )
    assert [str(call.position) for call in history.calls] == ["T-1.1", "T-1.2", "T-2.1", "T-3.1"]
    assert [call.opening for call in history.calls] == [1, 0, 1, 1]
    assert [message.text for message in history.calls[1].messages] == ["1", "and that is all."]
    assert history.calls[3].messages[0] == note


def test_equal_messages_have_equal_keys_and_others_have_not() -> None:
    words = [user("yes"), user("yes"), user("no"), assistant("yes")]
    (call,) = History.of([(Position(1, 1), words)]).calls
    keys = [block.key for block in call.blocks]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def test_masks_are_shorter_or_not_there() -> None:
    short = Message("tool", (ToolResult("c2", (Text("ok"),)),))
    (call,) = History.of([(Position(1, 1), [user("?"), ASKED, ANSWERED, short])]).calls
    assert call.masked[:2] == call.blocks[:2]
    assert call.masked[3] == call.blocks[3]
    masked = Message("tool", (ToolResult("c1", (Text(PLACEHOLDER),)),))
    assert call.masked[2].tokens == count_message(o200k(), masked) < call.blocks[2].tokens


async def test_several_files_are_one_session(tmp_path: Path) -> None:
    claude = Claude()
    records = [*claude.turn("One.", "1", calls=2), *claude.turn("Two.", "2")]
    first = write(tmp_path / f"{SESSION}.jsonl", records)
    second = chat(tmp_path / "chat.jsonl", "Where is the key?", "Under the mat.", "Thanks.", "Yes.")
    history = await read_history([first, second])
    turns = [call.position.turn for call in history.calls]
    assert turns == sorted(turns)
    assert (turns[0], turns[-1], history.turns) == (1, 4, 4)
    assert [message.text for message in history.calls[-1].messages] == ["Thanks.", "Yes."]
    # The same path again adds nothing: it is the same conversation.
    assert await read_history([first, second, first]) == history


async def test_content_that_was_moved_out_is_counted(tmp_path: Path) -> None:
    text = "many words of a long prompt " * 20_000
    history = await read_history([chat(tmp_path / "chat.jsonl", text, "Yes.")])
    assert history.calls[0].prompt_tokens > 90_000


async def test_undone_turns_are_left_out(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    target = tmp_path / "exported.jsonl"
    async with perdure.open(url) as bank:
        session = await bank.session("ada/one")
        await session.append([user("One."), assistant("1")])
        await session.append([user("Two."), assistant("2")])
        await session.undo()
        await session.append([user("Three."), assistant("3")])
        from perdure.history.session_export import jsonl

        target.write_bytes(b"".join([line async for line in jsonl(session)]))
    assert format_of(target) == "perdure"
    history = await read_history([target])
    assert [call.messages[0].text for call in history.calls] == ["One.", "Three."]


CALL = {"id": "c1", "type": "function", "function": {"name": "shell", "arguments": "{}"}}
USE = {"type": "tool_use", "id": "c1", "name": "shell", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": LONG}
PLAIN = {"role": "user", "content": "Hi."}
ANTHROPIC: list[dict[str, Any]] = [
    PLAIN,
    {"role": "assistant", "content": [{"type": "text", "text": "Let me look."}, USE]},
    {"role": "user", "content": [RESULT]},
    {"role": "assistant", "content": "Two files."},
]
OPENAI: list[dict[str, Any]] = [
    PLAIN,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": LONG},
    {"role": "assistant", "content": "Two files."},
]
FLAT = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi."}]}


@pytest.mark.parametrize(
    ("records", "known"),
    [
        (ANTHROPIC, "anthropic"),
        (OPENAI, "openai-chat"),
        ([PLAIN] * 150 + ANTHROPIC, "anthropic"),
        ([PLAIN, {"role": "assistant", "content": "Yes?"}], ""),
        ([{"messages": OPENAI}], "openai-chat"),
        ([{"messages": ANTHROPIC}], "anthropic"),
        ([{"messages": [PLAIN], "system": "Be brief."}], "anthropic"),
        ([{"choices": [{"message": OPENAI[3]}]}], "openai-chat"),
        (Claude().turn("One.", "1"), "claude-code"),
        ([{"type": "response_item", "payload": FLAT}], "codex"),
        ([FLAT], "codex"),
        ([{"a": 1}], None),
    ],
)
def test_the_first_record_that_only_one_format_has_tells(
    records: list[dict[str, Any]], known: str | None, tmp_path: Path
) -> None:
    assert format_of(write(tmp_path / "lines.jsonl", records)) == known
    if known not in {"claude-code", "codex"}:
        document = tmp_path / "document.json"
        document.write_text(json.dumps(records, indent=1))
        assert format_of(document) == known


async def test_results_of_tools_are_found_in_files_that_begin_like_any_chat(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", ANTHROPIC)
    history = await read_history([path])
    assert history.formats == {str(path): "anthropic"}
    assert history.unread == ()
    assert (history.turns, len(history.calls)) == (1, 2)
    assert history.calls[0].messages[-1].results[0].text == LONG


async def test_a_folder_of_several_formats(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", ANTHROPIC)
    second = write(tmp_path / "b.jsonl", OPENAI)
    plain = chat(tmp_path / "c.jsonl", "Hi.", "Yes?")
    broken = tmp_path / "d.jsonl"
    broken.write_bytes(b"nonsense\n")
    history = await read_history([tmp_path])
    assert history.formats == {
        str(first): "anthropic",
        str(second): "openai-chat",
        str(plain): "openai-chat",
    }
    assert history.unread == (str(broken),)
    assert history.turns == 3


def test_a_folder_of_one_format_is_read_as_a_whole(tmp_path: Path) -> None:
    claude = tmp_path / "claude"
    write(claude / f"{SESSION}.jsonl", Claude().turn("One.", "1"))
    # A run of the program's own, which the importer leaves out.
    write(claude / SESSION / "subagents" / "agent-acompact-1.jsonl", Claude().turn("Sum up.", "1"))
    (claude / "notes.json").write_text("[]")  # no name of a transcript of Claude Code
    assert detect_format(claude).formats == {claude: "claude-code"}
    assert detect_format(claude).unread == ()
    codex = tmp_path / "codex"
    file = write(codex / "kept.jsonl", [{"type": "response_item", "payload": FLAT}])
    assert detect_format(codex).formats == {file: "codex"}  # which its importer would not look for
    chats = tmp_path / "chats"
    write(chats / "a.jsonl", ANTHROPIC)
    chat(chats / "b.jsonl", "Hi.", "Yes?")
    assert detect_format(chats).formats == {chats: "anthropic"}


def test_files_that_are_not_of_the_format_given(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", ANTHROPIC)
    other = write(tmp_path / "b.jsonl", Claude().turn("One.", "1"))
    empty = tmp_path / "c.jsonl"
    empty.touch()
    told = detect_format(tmp_path, "anthropic")
    assert (told.formats, told.unread) == ({tmp_path: "anthropic"}, (other, empty))


@pytest.mark.parametrize("content", [b"", b"nonsense\n", bytes(range(256)) * 9, b'{"a": 1}\n'])
async def test_files_in_which_nothing_is_said(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"chat\.jsonl holds no transcript of a known format"):
        await read_history([path])
    with pytest.raises(InvalidInput, match=r"Nothing was said in .*chat\.jsonl"):
        await read_history([path], "claude-code")


@pytest.mark.parametrize("kind", [None, "codex"])
async def test_a_path_that_is_not_there(kind: str | None, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="There is no "):
        await read_history([tmp_path / "absent.jsonl"], kind)
