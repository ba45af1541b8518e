"""Conversations of ChatGPT's data export."""

from __future__ import annotations

import json
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.bank import Bank
from perdure.core.errors import InvalidInput
from perdure.core.messages import Media, Message, Reasoning, Text
from perdure.importers import Imported, import_files
from tests.importers.outcomes import names

ID = "6651c7a1-0f2c-8004-9c1e-1f0a5b7c9d11"
NAME = f"chatgpt/{ID}"
PIXEL = b"\x89PNG\r\n\x1a\n"


def node(id: str, parent: str | None, role: str = "", content: Any = "", **more: Any) -> Any:
    if isinstance(content, str):
        content = {"content_type": "text", "parts": [content]}
    author = {"role": role, "name": more.pop("name", None), "metadata": {}}
    message = {"id": id, "author": author, "content": content, "recipient": "all"}
    message |= {"create_time": 1_716_000_000.5 + len(id), "metadata": {}, **more}
    return {"id": id, "parent": parent, "children": [], "message": message if role else None}


THOUGHTS = {"content_type": "thoughts", "thoughts": [{"summary": "Plan", "content": "Add up."}]}
CODE = {"content_type": "code", "language": "python", "text": "print(6 * 7)"}
OUTPUT = {"content_type": "execution_output", "text": "42"}
IMAGE = {"content_type": "image_asset_pointer", "asset_pointer": "sediment://file_01"}
SEEN = {"content_type": "multimodal_text", "parts": [IMAGE, "What is six times this?"]}
FILES = {"attachments": [{"id": "file_02", "name": "sums.pdf", "mime_type": "application/pdf"}]}
TREE = [
    node("root", None),
    node("s", "root", "system", ""),
    node("about", "s", "user", {"content_type": "user_editable_context", "user_profile": "Ada"}),
    node("u1", "about", "user", SEEN, metadata=FILES),
    node("t1", "u1", "assistant", THOUGHTS, metadata={"model_slug": "o3"}),
    node("c1", "t1", "assistant", CODE, recipient="python", metadata={"model_slug": "o3"}),
    node("r1", "c1", "tool", OUTPUT, name="python"),
    node("r2", "r1", "tool", {"content_type": "reasoning_recap", "content": "Thought a bit"}),
    node("a1", "r2", "assistant", "It is 42.", metadata={"model_slug": "o3"}),
    node("old", "r2", "assistant", "It is 41."),
    node("odd", "a1", "oracle", "Beware."),
    node("u2", "odd", "user", "Thanks."),
    node("a2", "u2", "assistant", {"content_type": "hologram", "shape": 1}),
]


def conversation(*nodes: Any, **more: Any) -> dict[str, Any]:
    found = {"title": "Sums", "create_time": 1_716_000_000.5, "conversation_id": ID, "id": ID}
    last = nodes[-1]["id"]
    return {**found, "mapping": {each["id"]: each for each in nodes}, "current_node": last, **more}


def export(path: Path, conversations: Any, **files: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("conversations.json", json.dumps(conversations))
        for name, content in files.items():
            made.writestr(name.replace("__", "."), content)
    return path


@pytest.fixture
async def bank() -> AsyncIterator[Bank]:
    async with perdure.open("memory://") as bank:
        yield bank


def said(imported: Imported) -> dict[str, int]:
    return {session.name: session.messages for session in imported.sessions}


async def messages(bank: Bank) -> list[Message]:
    return [m for turn in await (await bank.session(NAME)).turns() for m in turn.messages]


async def test_the_open_branch_of_a_conversation(bank: Bank, tmp_path: Path) -> None:
    path = export(
        tmp_path / "export.zip", [conversation(*TREE)], user__json=b"{}", file_01__png=PIXEL
    )
    found = {each.name: each for each in (await import_files(bank, "chatgpt", [path])).sessions}
    assert found[NAME].skipped == {
        "empty message": 1,
        "content: reasoning_recap": 1,
        "message: oracle": 1,
        "content: hologram": 1,
        "message of another branch": 1,
    }
    assert found["chatgpt/export"].skipped == {"file user.json": 1, "attached file": 1}
    session = await bank.session(NAME)
    assert session.state["title"] == "Sums"
    first, second = await session.turns()
    about, asked, thought, called, result, answer = first.messages
    assert (about.injected, about.text) == (True, "Ada")
    image, words, file = asked.parts
    assert isinstance(image, Media)
    assert (image.media_type, first.prompt.splitlines()[0]) == ("image/png", words.text)  # type: ignore[union-attr]
    assert file == Text("[application/pdf sums.pdf, sums.pdf]")
    assert thought.parts == (Reasoning("Plan\nAdd up."),)
    assert (called.id, called.model) == (thought.id, "o3")
    assert (called.calls[0].name, called.calls[0].arguments) == ("python", "print(6 * 7)")
    assert (result.results[0].call, result.results[0].text) == (called.calls[0].id, "42")
    assert answer.text == "It is 42."
    assert answer.time == 1_716_000_002_500_000
    assert [round.number for round in first.rounds] == [1, 2]
    assert second.prompt == "Thanks."


async def test_a_later_export_adds_what_is_new(bank: Bank, tmp_path: Path) -> None:
    first = export(tmp_path / "1.zip", [conversation(*TREE[:-4])])
    await import_files(bank, "chatgpt", [first])
    assert said(await import_files(bank, "chatgpt", [first])) == {NAME: 0}
    more = [node("u3", "a1", "user", "And seven?"), node("a3", "u3", "assistant", "49.")]
    await import_files(
        bank, "chatgpt", [export(tmp_path / "2.zip", [conversation(*TREE[:9], *more)])]
    )
    assert [m.text for m in await messages(bank)][-3:] == ["It is 42.", "And seven?", "49."]
    # The answer was made anew, and the title changed.
    again = node("a4", "u3", "assistant", "Forty-nine.")
    third = conversation(*TREE[:9], *more, again, title="Products")
    (found,) = (await import_files(bank, "chatgpt", [export(tmp_path / "3.zip", [third])])).sessions
    assert (found.messages, found.skipped["message of another branch"]) == (1, 1)
    assert [m.text for m in await messages(bank)][-2:] == ["49.", "Forty-nine."]
    assert (await bank.session(NAME)).state["title"] == "Products"


@pytest.mark.parametrize("leaf", [None, "nowhere"])
async def test_without_a_leaf_the_newest_message_is_it(
    bank: Bank, tmp_path: Path, leaf: str | None
) -> None:
    nodes = [node("a", None, "user", "Hi."), node("bcd", "a", "assistant", "Hello.")]
    nodes.append(node("c", "a", "assistant", "Yes?"))
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps(conversation(*nodes, current_node=leaf)))
    await import_files(bank, "chatgpt", [path])
    assert [m.text for m in await messages(bank)] == ["Hi.", "Hello."]


async def test_exports_of_several_files_and_folders(bank: Bank, tmp_path: Path) -> None:
    folder = tmp_path / "unpacked"
    folder.mkdir()
    for number in range(3):
        talk = conversation(
            node("a", None, "user", f"Number {number}."), conversation_id=f"c{number}"
        )
        (folder / f"conversations-{number:03}.json").write_text(json.dumps([talk]))
    found = await import_files(bank, "chatgpt", [folder])
    assert said(found) == {f"chatgpt/c{number}": 1 for number in range(3)}
    export(tmp_path / "another.zip", [conversation(*TREE)])
    assert set(said(await import_files(bank, "chatgpt", [tmp_path / "another.zip"]))) == {NAME}


async def test_what_is_broken_stops_nothing(bank: Bank, tmp_path: Path) -> None:
    whole = json.dumps(conversation(*TREE))
    path = tmp_path / "conversations.json"
    path.write_text(f'[{{"a": 01}}, {{"title": "no"}}, {whole}, {{"title": ')
    found = {
        each.name: each.skipped for each in (await import_files(bank, "chatgpt", [path])).sessions
    }
    place = "cannot be read: conversations.json"
    assert found["chatgpt/conversations"] == {
        f"{place}, conversation 1: broken line: not JSON": 1,
        f"{place}, conversation 2: it is no conversation of this format": 1,
        f"{place} behind conversation 3: it is cut off behind object 3": 1,
    }
    assert await names(bank) == [NAME]
    (tmp_path / "x.zip").write_bytes(b"PK\x03\x04 nothing")
    (other,) = (await import_files(bank, "chatgpt", [tmp_path / "x.zip"])).sessions
    assert [reason.partition(":")[0] for reason in other.skipped] == ["cannot be read"]


async def test_exports_do_not_grow(bank: Bank, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="do not grow"):
        await import_files(bank, "chatgpt", [tmp_path], watch=True)
