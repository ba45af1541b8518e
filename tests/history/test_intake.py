"""What happens to messages before they are written: large content moves out, and comes back."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.artifacts import Artifact
from perdure.bank import Bank
from perdure.config import ArtifactRule, Config, SecretsConfig
from perdure.core.messages import (
    ArtifactPointer,
    Media,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    assistant,
    sound,
    user,
)
from perdure.core.tokens import EstimatedCounter, o200k
from perdure.history.log_records import TurnPiece, Use
from perdure.history.session_export import jsonl
from perdure.history.session_markdown import markdown
from perdure.sessions.session import Session
from perdure.storage.middleware import Call, Commit, Handler
from perdure.storage.rows import Put
from tests.history.conftest import MakeBank, config_for, everywhere
from tests.history.talk import Fault, call, chat, one, problems, result, said, whole, work

MEGABYTE = 1024 * 1024


async def located(bank: Bank) -> dict[str, str]:
    """Where each artifact lies."""
    return {found.artifact: found.place.value async for found in bank.artifacts.located()}


async def stored_bytes(bank: Bank) -> int:
    rows = await bank.collection(TurnPiece).query().values()
    return sum(len(piece.content) for piece in rows)


def reference_of(message: Message) -> ArtifactPointer:
    """The only reference in a message."""
    parts = [
        inner
        for part in message.parts
        for inner in (part.content if isinstance(part, ToolResult) else (part,))
    ]
    (found,) = [part for part in parts if isinstance(part, ArtifactPointer)]
    return found


# Large content --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_a_tool_result_of_fifty_megabytes(
    make_bank: MakeBank, tmp_path: Path, store_url: str
) -> None:
    bank = await make_bank()
    session = await bank.session("coder/build")
    bank.services.token_counts._counter = EstimatedCounter()  # counting is not what this is about
    output = "0" + "compiling the next one\n" * (50 * MEGABYTE // 23)
    messages = [user("build it"), call("c1"), result("c1", text=output), assistant("done")]
    await session.append(messages)

    turn = await session.turn(1)
    reference = reference_of(turn.messages[2])
    assert (reference.size, reference.of) == (len(output), "text")
    assert (reference.session, reference.agent) == ("coder/build", "coder")
    assert output.startswith(reference.head)
    assert len(reference.head) == 200
    assert await stored_bytes(bank) < 1_000
    assert await located(bank) == {reference.artifact: "disk"}
    files = [path for path in (tmp_path / "artifacts").rglob("*") if path.is_file()]
    assert [path.stat().st_size for path in files] == [len(output)]
    assert reference.artifact == Artifact.of(output.encode()).hash

    assert list((await session.turn(1, resolve=True)).messages) == messages
    assert list((await session.turns(resolve=True))[0].messages) == messages
    assert (await session.resolve(turn.messages))[2] == messages[2]
    assert await problems(bank) == []


@everywhere
async def test_everything_large_moves_out_and_comes_back(bank: Bank, session: Session) -> None:
    messages = [
        Message("user", (Text("p " * 20_000, {"chat": {"x": 1}}), Text("short"))),
        Message(
            "assistant",
            (
                Reasoning("r " * 20_000, signature="sig", native={"messages": {"k": "v"}}),
                Reasoning(encrypted="e" * 40_000),
                Reasoning(summary=("s " * 10_000, "t " * 10_000)),
                ToolCall("c1", "lint", json.dumps({"path": "src/a.py", "text": "x " * 20_000})),
                Unknown("responses", {"type": "odd", "data": "u" * 40_000}),
            ),
            id="m1",
            model="m",
        ),
        Message(
            "tool",
            (
                ToolResult(
                    "c1",
                    (
                        Text("o " * 20_000),
                        Media("image/png", data=bytes(range(256)) * 300, filename="shot.png"),
                        Unknown("messages", ["w" * 40_000]),
                    ),
                    is_error=True,
                ),
            ),
        ),
        Message("user", (Media("application/pdf", data=b"%PDF" * 9_000),)),
        assistant("a " * 20_000),
    ]
    await session.append(messages)
    assert await stored_bytes(bank) < 6_000
    stored = await said(session)
    assert len(str(stored)) < 12_000
    assert list(await session.resolve(stored)) == messages
    assert stored[1].calls[0].arguments == ""
    assert stored[1].calls[0].reference is not None
    assert stored[1].calls[0].reference.filename == "a.py"
    assert stored[2].results[0].is_error
    image = stored[2].results[0].content[1]
    assert isinstance(image, Media)
    assert (image.data, image.size, image.filename) == (None, 76_800, "shot.png")
    assert await problems(bank) == []


async def test_a_lightweight_turn_makes_no_artifact(bank: Bank, session: Session) -> None:
    await session.append([*work(1), *chat(2)])
    await session.append(
        [
            Message("user", (Text("x" * 16_384), Media("image/png", data=b"x" * 512))),
            assistant("y" * 16_384),
        ]
    )
    assert await located(bank) == {}
    assert await bank.collection(Use).query().count() == 0


async def test_the_limit_is_a_setting(make_bank: MakeBank) -> None:
    bank = await make_bank(offload_over=300)
    session = await bank.session("a/b")
    await session.append([user("x" * 300), assistant("y" * 301)])
    stored = await said(session)
    assert stored[0] == user("x" * 300)
    assert reference_of(stored[1]).size == 301


async def test_characters_that_take_several_bytes(session: Session) -> None:
    text = "日本語 \U0001f600 " * 5_000
    await session.append(user(text))
    (message,) = await said(session)
    assert reference_of(message).size == len(text.encode())
    assert (await session.turn(1, resolve=True)).messages == (user(text),)


async def test_half_surrogate_pairs_in_large_content(bank: Bank, session: Session) -> None:
    await session.append(
        [
            user("\ud800 " * 20_000),
            Message("assistant", (Unknown("chat", {"x": "\ud800" * 40_000}),)),
            Message("assistant", (Reasoning("\udfff " * 20_000), Unknown("chat", "\ud800"))),
        ]
    )
    messages = (await session.turn(1, resolve=True)).messages
    assert messages[0].text == "\ufffd " * 20_000
    assert messages[1].parts == (Unknown("chat", {"x": "\ufffd" * 40_000}),)
    assert messages[2].parts == (Reasoning("\ufffd " * 20_000), Unknown("chat", "\ufffd"))
    assert await problems(bank) == []


async def test_memory_does_not_grow_with_copies(bank: Bank, session: Session) -> None:
    """A result is held a few times over, not once for each look at it."""
    bank.services.token_counts._counter = EstimatedCounter()
    text = "line of output\n" * (20 * MEGABYTE // 15)
    messages = [user("go"), call("c"), result("c", text=text)]
    tracemalloc.start()
    await session.append(messages)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 * len(text)


# Tools that make artifacts --------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["create_code_artifact", "create_artifact", "Create_HTML_Artifact", "artifacts"]
)
async def test_results_of_tools_that_make_artifacts_always_move(
    bank: Bank, session: Session, name: str
) -> None:
    arguments = json.dumps({"filename": "src/app/main.py", "language": "python"})
    await session.append(
        [user("write it"), call("c1", name=name, arguments=arguments), result("c1", text="x = 1")]
    )
    reference = reference_of((await session.turn(1)).messages[2])
    assert (reference.session, reference.agent) == ("planner/auth", "planner")
    assert (reference.filename, reference.size) == ("main.py", 5)
    assert await located(bank) == {reference.artifact: "row"}
    assert await bank.artifacts.read(reference.artifact) == b"x = 1"


async def test_a_result_that_names_its_tool_needs_no_call(session: Session) -> None:
    part = ToolResult("c9", (Text("x = 1"),), name="create_code_artifact")
    await session.append([user("go"), Message("tool", (part,))])
    assert reference_of((await session.turn(1)).messages[1]).size == 5


@everywhere
async def test_the_call_may_have_been_written_by_another_process(bank: Bank) -> None:
    """A server opens the session anew for each request."""
    asked = call("c1", name="create_code_artifact", arguments='{"path": "a/b.py"}')
    for messages in ([user("go")], [asked], [result("c1", text="x = 1")]):
        await (await bank.session("a/b")).append(messages)
    session = await bank.session("a/b")
    assert reference_of((await session.turn(1)).messages[2]).filename == "b.py"


async def test_a_large_call_is_remembered_by_its_file(bank: Bank) -> None:
    arguments = json.dumps({"wishes": "x" * 50_000, "file_path": "C:\\work\\deep.py"})
    asked = call("c1", name="create_code_artifact", arguments=arguments)
    session = await bank.session("a/b")
    await session.append([user("go"), asked])
    await session.append(result("c1", text="1"))
    await (await bank.session("a/b")).append(result("c1", text="2"))
    stored = (await session.turn(1)).messages
    assert [reference_of(message).filename for message in stored[2:]] == ["deep.py", "deep.py"]


async def test_other_tools_do_not_move_small_results(bank: Bank, session: Session) -> None:
    for name in ("read_artifact", "list_artifacts", "shell", "recreate_artifact"):
        await session.append([user("go"), call("c", name=name), result("c", text="x = 1")])
    assert await located(bank) == {}


async def test_which_tools_make_artifacts_is_a_setting(make_bank: MakeBank) -> None:
    rules = (
        ArtifactRule("publish_*", content="page", over=0, result=True),
        ArtifactRule("create_artifact", content=()),
    )
    bank = await make_bank(artifacts=rules)
    session = await bank.session("a/b")
    for name in ("publish_page", "create_artifact", "create_code_artifact"):
        await session.append([user("go"), call("c", name=name), result("c", text=name)])
    page = call("c", name="publish_page", arguments='{"page": "<h1>hi</h1>", "content": "x"}')
    await session.append([user("go"), page, result("c", text="ok")])
    assert [reference_of((await session.turn(n)).messages[2]).size for n in (1, 3)] == [12, 20]
    assert (await session.turn(2)).messages[2] == result("c", text="create_artifact")
    published = (await session.turn(4)).messages[1].calls[0].reference
    assert published is not None
    assert await bank.artifacts.read(published.artifact) == b"<h1>hi</h1>"


CODE = 'print("Grüße")\n\tif a < b / c: pass  # \U0001f600\n'


@everywhere
@pytest.mark.parametrize("field", ["content", "code", "file_text"])
async def test_the_pointer_of_a_code_artifact_holds_the_code(
    bank: Bank, session: Session, field: str
) -> None:
    arguments = json.dumps({"filename": "src/app/main.py", field: CODE, "language": "python"})
    messages = [
        user("write it"),
        call("c1", name="create_code_artifact", arguments=arguments),
        result("c1", text="Artifact saved"),
        assistant("done"),
    ]
    await session.append(messages)
    stored = (await session.turn(1)).messages
    (asked,) = stored[1].calls
    pointer = asked.reference
    assert pointer is not None
    assert (pointer.session, pointer.agent) == ("planner/auth", "planner")
    assert (pointer.filename, pointer.size) == ("main.py", len(CODE.encode()))
    assert await bank.artifacts.read(pointer.artifact) == CODE.encode()
    assert json.loads(asked.arguments) == {
        "filename": "src/app/main.py",
        field: {"type": "artifact_ref", "key": pointer.artifact, "ascii": True},
        "language": "python",
    }
    assert stored[2] == messages[2]  # the tool's answer is no artifact
    assert list(await session.resolve(stored)) == messages
    # As a server does that writes the result later, with a session of its own.
    await (await bank.session("planner/auth")).append(result("c1", text="Saved again"))
    assert (await session.turn(1)).messages[-1] == result("c1", text="Saved again")
    assert await problems(bank) == []
    gone = await bank.forget("planner/auth", turns=[1])
    assert gone.artifacts == 1
    assert await located(bank) == {}


@pytest.mark.parametrize("in_ascii", [True, False])
@pytest.mark.parametrize("form", [{}, {"ascii": True}])
@pytest.mark.parametrize("text", ["x = 1\n", "x = 'ü'\n", "x = 1\n" * 9_000])
async def test_arguments_that_hold_a_stand_in_stay_as_they_are(
    session: Session, form: dict[str, bool], text: str, in_ascii: bool
) -> None:
    note = {"type": "artifact_ref", "key": Artifact.of(text.encode()).hash, **form}
    fields = {"note": note, "content": text}
    arguments = json.dumps(fields, separators=(",", ":"), ensure_ascii=in_ascii)
    messages = [user("go"), call("c", name="create_code_artifact", arguments=arguments)]
    await session.append(messages)
    stored = (await session.turn(1)).messages
    assert list(await session.resolve(stored)) == messages


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("write_file", {"path": "a/b.py", "content": CODE * 500}),
        ("Write", {"file_path": "/a/b.py", "content": CODE * 500}),
        ("mcp__files__create_file", {"path": "b.py", "text": CODE * 500}),
        ("str_replace_editor", {"command": "create", "path": "b.py", "file_text": CODE * 500}),
        ("NotebookEdit", {"notebook_path": "b.py", "new_source": CODE * 500}),
    ],
)
async def test_large_files_that_tools_write_are_their_content(
    bank: Bank, session: Session, name: str, fields: dict[str, str]
) -> None:
    messages = [user("go"), call("c", name=name, arguments=json.dumps(fields, ensure_ascii=False))]
    await session.append(messages)
    stored = (await session.turn(1)).messages
    pointer = stored[1].calls[0].reference
    assert pointer is not None
    assert pointer.filename == "b.py"
    assert await bank.artifacts.read(pointer.artifact) == (CODE * 500).encode()
    assert list(await session.resolve(stored)) == messages
    small = call("d", name=name, arguments=json.dumps(fields | {"content": CODE, "text": CODE}))
    if "content" in fields:  # a few lines are no artifact
        await session.append(small)
        assert (await session.turn(1)).messages[2] == small


@pytest.mark.parametrize(
    "written",
    [
        '{"content": "a\\/b", "path": "x.py"}',  # an escape that no encoder of ours writes
        '{ "path" : "x.py",\n "content" :\t"caf\\u00e9 \u00e9" }',
        '{"path": "x.py", "meta": {"content": "abc"}, "content": "abc"}',
        '{"content": "half \\ud800", "path": "x.py"}',
        '{"content": "no end',
        '{"content": 7}',
        '{"content": ""}',
        "",
    ],
)
async def test_arguments_come_back_byte_for_byte(
    bank: Bank, session: Session, written: str
) -> None:
    messages = [user("go"), call("c", name="create_artifact", arguments=written)]
    await session.append(messages)
    stored = (await session.turn(1)).messages
    assert list(await session.resolve(stored)) == messages
    assert list((await session.turn(1, resolve=True)).messages) == messages
    pointer = stored[1].calls[0].reference
    if pointer is not None:
        content = json.loads(written)["content"]
        assert await bank.artifacts.read(pointer.artifact) == sound(content).encode()


async def test_a_file_in_a_call_reaches_readers_whole(
    bank: Bank, session: Session, tmp_path: Path
) -> None:
    """What a model is sent, what people see, what is exported: the code, fetched when needed."""
    arguments = json.dumps({"filename": "main.py", "content": CODE}, ensure_ascii=False)
    messages = [
        user("write it"),
        call("c1", name="create_code_artifact", arguments=arguments),
        result("c1", text="Saved"),
        assistant("done"),
    ]
    await session.append(messages)
    context = await session.context("and now?", budget=4_000, recall=False)
    sent = json.dumps(context.to_chat(), ensure_ascii=False)
    assert json.dumps(arguments, ensure_ascii=False)[1:-1] in sent
    assert "artifact_ref" not in sent
    assert "main.py" in (await session.turn(1, level="C")).text
    lines = [line async for line in jsonl(session)]
    assert b"artifact_ref" not in b"".join(lines)
    pages = "".join([section async for section in markdown(session)])
    assert 'print("Grüße")' in pages
    # Appended elsewhere as it is stored, the pointer goes along.
    other = await bank.session("coder/copy")
    await other.append((await session.turn(1)).messages)
    assert list((await other.turn(1, resolve=True)).messages) == messages


@pytest.mark.parametrize(
    ("arguments", "filename"),
    [
        ('{"path": "a/b.py"}', "b.py"),
        ('{"notebook_path": "/x/n.ipynb"}', "n.ipynb"),
        ('{"file_path": "C:\\\\x\\\\y.txt"}', "y.txt"),
        ('{"title": "plan"}', "plan"),
        ('{"path": ""}', ""),
        ('{"path": 7}', ""),
        ("[1]", ""),
        ("not json", ""),
        ("", ""),
        ("[" * 100_000, ""),
    ],
    ids=range(10),
)
async def test_files_are_named_by_the_call(
    make_bank: MakeBank, arguments: str, filename: str
) -> None:
    bank = await make_bank(offload_over=1_000_000)
    session = await bank.session("a/b")
    asked = call("c", name="create_artifact", arguments=arguments)
    await session.append([user("go"), asked, result("c", text="x")])
    assert reference_of((await session.turn(1)).messages[2]).filename == filename


# The same content twice -----------------------------------------------------------------------


@everywhere
async def test_the_same_content_is_stored_once_and_each_use_is_known(bank: Bank) -> None:
    large, larger = "x" * 20_000, "y" * 100_000
    first, second = await bank.session("a/1"), await bank.session("a/2")
    await first.append([user(large), assistant(larger), user(large)])
    await second.append([user(larger), assistant(large), Message("user", (Text(large),) * 3)])
    kept = await located(bank)
    assert sorted(kept.values()) == ["disk", "row"]
    uses = await bank.collection(Use).query().values()
    by_turn = sorted((use.id.rpartition(".")[0], use.artifact in kept) for use in uses)
    assert by_turn == [
        *[("a/1/00000001", True)] * 2,
        ("a/1/00000002", True),
        *[("a/2/00000001", True)] * 2,
        ("a/2/00000002", True),
    ]


async def test_artifacts_of_two_sessions_survive_forgetting_one(bank: Bank) -> None:
    first, second = await bank.session("a/1"), await bank.session("a/2")
    shared, own = "x" * 20_000, "y" * 100_000
    await first.append([user(shared), assistant(own)])
    await second.append([user(shared)])
    forgotten = await bank.forget("a/1")
    assert forgotten.artifacts == 1
    assert list(await located(bank)) == [Artifact.of(shared.encode()).hash]
    assert (await second.turn(1, resolve=True)).messages == (user(shared),)
    assert (await bank.forget("a/2")).artifacts == 1
    assert await located(bank) == {}


async def test_artifacts_of_two_turns_survive_forgetting_one(bank: Bank, session: Session) -> None:
    shared = "x" * 20_000
    await session.append([user(shared), assistant("1"), user(shared), assistant("2")])
    assert (await bank.forget("planner/auth", turns=[1])).artifacts == 0
    assert (await session.turn(2, resolve=True)).messages[0] == user(shared)
    assert (await bank.forget("planner/auth", turns=[2])).artifacts == 1
    assert await located(bank) == {}


class _Interferes:
    """Middleware that deletes an artifact while the turn that refers to it is being committed."""

    def __init__(self) -> None:
        self.artifact: Artifact | None = None
        self.bank: Bank | None = None

    async def __call__(self, call: Call, proceed: Handler) -> Any:
        answer = await proceed(call)
        if (
            self.artifact is not None
            and self.bank is not None
            and isinstance(call, Commit)
            and any(
                isinstance(write, Put) and write.collection == "perdure_heads"
                for write in call.batch.writes
            )
        ):
            artifact, self.artifact = self.artifact, None
            await self.bank.artifacts.delete(artifact)
        return answer


@pytest.mark.parametrize("size", [20_000, 100_000])
async def test_an_artifact_that_somebody_deletes_meanwhile_is_stored_again(
    make_bank: MakeBank, size: int
) -> None:
    interferes = _Interferes()
    bank = await make_bank(middleware=(interferes,))
    session = await bank.session("a/b")
    text = "z" * size
    interferes.bank, interferes.artifact = bank, Artifact.of(text.encode())
    await session.append(user(text))
    assert interferes.artifact is None  # it was deleted
    assert (await session.turn(1, resolve=True)).messages == (user(text),)


async def test_an_append_that_fails_refers_to_nothing(make_bank: MakeBank) -> None:
    fault = Fault()
    bank = await make_bank(middleware=(fault,))
    session = await bank.session("a/b")
    await session.append(chat(1))
    fault.error = perdure.Unavailable("gone")
    with pytest.raises(perdure.Unavailable):
        await session.append(user("x" * 20_000))
    fault.error = None
    assert await bank.collection(Use).query().count() == 0
    assert await located(bank) == {}
    assert len(await whole(session)) == 1


async def test_an_artifact_that_is_missing_is_named(bank: Bank, session: Session) -> None:
    text = "x" * 20_000
    await session.append([user(text), assistant("ok")])
    await bank.artifacts.delete(Artifact.of(text.encode()))
    assert (await session.turn(1)).messages[1] == assistant("ok")
    with pytest.raises(perdure.ArtifactMissing, match="sha256:"):
        await session.turn(1, resolve=True)


# Secrets and pruning ---------------------------------------------------------------------------

SECRET = "gh" + "p_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"


@everywhere
async def test_secrets_are_masked_before_anything_is_written(
    make_bank: MakeBank, tmp_path: Path, store_url: str
) -> None:
    bank = await make_bank()
    session = await bank.session("a/b")
    long = f"{'x' * 100_000} {SECRET} {'y' * 100}"
    turn = one(
        await session.append(
            [
                user(f"my token is {SECRET}."),
                call("c", arguments=json.dumps({"token": SECRET})),
                result("c", text=long),
                assistant("done"),
            ]
        )
    )
    assert sum(turn.masked.values()) >= 3
    found = await session.turn(1, resolve=True)
    assert found.masked == turn.masked
    assert SECRET not in str(found)
    assert "my token is " in found.messages[0].text
    assert (await session.append(chat(2))).masked == {}  # type: ignore[union-attr]
    await bank.close()
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert SECRET.encode() not in file.read_bytes()


async def test_masking_can_be_switched_off(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    config = Config(artifacts=config.artifacts, secrets=SecretsConfig(mask=False))
    async with Bank("memory://", config=config) as bank:
        session = await bank.session("a/b")
        turn = one(await session.append(user(f"my token is {SECRET}.")))
        assert turn.masked == {}
        assert SECRET in (await session.turn(1)).prompt


@everywhere
@pytest.mark.parametrize("lines", [1_200, 30_000])
async def test_what_pruning_leaves_out_is_in_the_artifact_store(
    bank: Bank, session: Session, lines: int
) -> None:
    """Also of many short lines, which would be no artifact for their length."""
    content = "".join(f"line {number}\n" for number in range(lines))
    asked = call("c", name="read_file", arguments='{"path": "src/long.txt"}')
    messages = [user("go"), asked, result("c", text=content), assistant("done")]
    await session.append(messages)
    view = await session.turn(1, prune=True)
    (pointer,) = view.messages[2].results[0].content
    assert isinstance(pointer, ArtifactPointer)
    assert (pointer.session, pointer.filename) == ("planner/auth", "long.txt")
    assert await bank.artifacts.read(pointer.artifact) == content.encode()
    shown = content.splitlines(keepends=True)
    notice = f"[… {lines - 1_000:,} lines left out; the whole result: T-1.1, {pointer.artifact}]\n"
    assert view.messages[2].results[0].text == "".join([*shown[:500], notice, *shown[-500:]])
    assert list(await session.resolve(view.messages)) == messages
    text = await session.turn(1, prune=True, resolve=True)
    assert text.messages[2].results[0].content == (Text(pointer.head),)


async def test_the_tokens_of_a_pruned_result_are_a_setting(make_bank: MakeBank) -> None:
    bank = await make_bank(prune_tokens=300)
    session = await bank.session("a/b")
    for times in (1_000, 150):
        output = "some words of output\n" * times
        await session.append([user("go"), call("c"), result("c", text=output), assistant("done")])
        (shown,) = (await session.turns(1, prune=True))[0].messages[2].results[0].content
        assert isinstance(shown, ArtifactPointer)
        assert 200 < o200k().count(shown.head) <= 300
        assert await bank.artifacts.read(shown.artifact) == output.encode()


async def test_pruning_is_a_view(bank: Bank, session: Session) -> None:
    output = "\n".join(f"line {number}" for number in range(3_000))
    messages = [user("go"), call("c"), result("c", text=output), assistant("done")]
    await session.append(messages)
    pruned = await session.turn(1, prune=True, resolve=True)
    shown = pruned.messages[2].results[0].text
    assert len(shown) < len(output) / 2
    assert "line 0" in shown
    assert "line 2999" in shown
    assert "T-1.1" in shown  # where the rest is
    assert list((await session.turn(1, resolve=True)).messages) == messages
    assert (await session.turns(prune=True, resolve=True))[0].messages == pruned.messages
    assert await problems(bank) == []
