"""Whatever of another type is given where text or a path is needed: one clear error of ours.

Walks the public face by its signatures, so that what is added later is held to the same.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

import perdure
from perdure import config, importers, wire
from perdure.bank import Bank
from perdure.core.errors import InvalidInput, PerdureError
from perdure.core.messages import assistant, user

#: What takes text or paths: in these annotations, nothing else is allowed.
TEXTS = {
    *("str", "str | None", "Path | str", "Path | str | None", "Iterable[str]", "Sequence[str]"),
    *("str | int | Position", "str | int | Position | None", "Level | str"),
}
#: Never raises: it answers to a model. Not for callers: parts of their own use them.
APART = {"Session.run_tool", "References.numbered", "Memories.rivals", "QueryBuilder.include"}


@perdure.record("face_notes")
class FaceNote(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]
    kind: Annotated[str, perdure.Indexed()] = ""


async def public_objects(bank: Bank) -> dict[str, Any]:
    session = await bank.session("planner/auth")
    await session.append([user("hi"), assistant("yes")])
    notes = bank.collection(FaceNote)
    await notes.put(FaceNote("a"))
    found = (bank, session, bank.memories, bank.references, bank.artifacts, bank.contexts)
    memory = bank.agent_memory("planner")
    agents = (memory, memory.working, memory.episodes, bank.canon, bank.identities)
    return {type(each).__name__: each for each in (*found, *agents, notes, notes.query())}


def parameters() -> Iterator[tuple[str, str, str, str]]:
    from perdure.agents.agent_identity import Identities
    from perdure.agents.agent_memory import AgentMemory
    from perdure.agents.canon import Canon
    from perdure.agents.episodes import Episodes
    from perdure.agents.working_memory import WorkingMemory
    from perdure.artifacts import ArtifactStore
    from perdure.bank.contexts import Contexts
    from perdure.recall.memories.memories import Memories
    from perdure.recall.references.references import References
    from perdure.storage.finder import QueryBuilder

    faces = (Bank, perdure.Session, Memories, References, ArtifactStore, Contexts)
    agents = (AgentMemory, WorkingMemory, Episodes, Canon, Identities)
    for cls in (*faces, *agents, perdure.Collection, QueryBuilder):
        for name, method in inspect.getmembers(cls, inspect.isfunction):
            if name.startswith("_") or f"{cls.__name__}.{name}" in APART:
                continue
            for each in inspect.signature(method).parameters.values():
                if str(each.annotation) in TEXTS:
                    yield cls.__name__, name, each.name, str(each.annotation)


@pytest.fixture
async def bank(tmp_path: Path) -> AsyncIterator[Bank]:
    async with perdure.open(f"sqlite:///{tmp_path / 'face.db'}") as opened:
        yield opened


USABLE: dict[str, Any] = {
    "name": "planner/auth",
    "session": "planner/auth",
    "agent": "planner",
    "id": "T-1",
    "turn": "T-1",
    "at": "T-1",
    "level": "S",
    "messages": "hi",
    "query": "words",
    "key": "a",
    "facts": {},
    "keys": ["a", "b"],
    "wanted": ["a"],
    "op": "=",
    "field": "kind",
    "start": "a",
    "handler": print,
    "artifact": f"sha256:{'0' * 64}",
    "text": "words",
    "prefix": "",
    "type": "session",
    "state": {},
    "change": lambda found: found,
    "cls": FaceNote,
    "since": datetime.now(UTC),
    "record": perdure.StateRecord(id="a", type="task"),
}


async def called(function: Callable[..., Any], wrong: str, given: Any) -> Any:
    """Call it with one unusable value, and something usable for all else that it needs."""
    args, named = list[Any](), dict[str, Any]()
    for each in inspect.signature(function).parameters.values():
        value = given if each.name == wrong else USABLE.get(each.name, "x")
        if each.kind is each.VAR_POSITIONAL:
            args += [value] if each.name == wrong else []
        elif each.kind is each.VAR_KEYWORD:
            named |= {"topic": value} if each.name == wrong else {}
        elif each.name == wrong or each.default is each.empty:
            if each.kind is each.POSITIONAL_ONLY:
                args.append(value)
            else:
                named[each.name] = value
    found = function(*args, **named)
    if inspect.isawaitable(found):
        return await found
    if hasattr(found, "__anext__"):
        return [each async for each in found]
    return found


@pytest.mark.parametrize(
    "given", [Path("x.md"), b"x", 7, None, object()], ids=lambda g: type(g).__name__
)
async def test_the_methods_of_a_bank(bank: Bank, given: Any) -> None:
    objects, wrong = await public_objects(bank), list[str]()
    for cls, name, parameter, annotation in parameters():
        accepted = {
            "None": given is None,
            "Path": isinstance(given, Path),
            "int": isinstance(given, int),
        }
        if any(fits and kind in annotation for kind, fits in accepted.items()):
            continue
        if given is None and parameter in {"branch", "task", "outcome"}:
            continue  # as if it was left out
        try:
            await called(getattr(objects[cls], name), parameter, given)
        except PerdureError as exc:
            if not isinstance(exc, InvalidInput) or not exc.hint:
                wrong.append(f"{cls}.{name}({parameter}=…) says {exc!r}")
        except Exception as exc:  # noqa: BLE001 (they are what is looked for)
            wrong.append(f"{cls}.{name}({parameter}=…) raises {exc!r}")
        else:
            wrong.append(f"{cls}.{name}({parameter}=…) takes it")
    assert not wrong, "\n".join(wrong)


def test_the_walk_finds_them() -> None:
    """So that a change of the signatures does not empty the test above."""
    found = {f"{cls}.{name}({parameter})" for cls, name, parameter, _ in parameters()}
    assert {"References.add(text)", "Session.append(key)", "Collection.list(prefix)"} <= found
    assert len(found) > 80


@pytest.mark.parametrize(
    "given", [Path("a/b.db"), b"x", 7, object()], ids=lambda g: type(g).__name__
)
@pytest.mark.parametrize("opens", [perdure.open, perdure.open_store, perdure.open_sync])
def test_the_address_of_a_bank(opens: Callable[[Any], object], given: Any) -> None:
    with pytest.raises(perdure.InvalidURL, match="is text, not") as caught:
        opens(given)
    assert ("sqlite:///a/b.db" in caught.value.hint) is isinstance(given, Path)


@pytest.mark.parametrize("given", [b"x", 7, object()], ids=lambda g: type(g).__name__)
async def test_files_and_folders(bank: Bank, given: Any) -> None:
    for work in (
        lambda: perdure.restore(given, "memory://"),
        lambda: perdure.check_backups(given),
        lambda: importers.import_files(bank, "perdure", given),
        lambda: importers.import_files(bank, given),
    ):
        with pytest.raises(InvalidInput, match=r"not an? |cannot be filled"):
            await work()
    with pytest.raises(InvalidInput, match="is a path, not a"):
        config.load(given)
    for reads in (perdure.prune_tool_results, wire.decode):
        with pytest.raises(InvalidInput, match="holds no messages"):
            reads(given)


async def test_paths_are_taken_where_files_are_meant(bank: Bank, tmp_path: Path) -> None:
    layer = tmp_path / "rules.md"
    layer.write_text("# Rules\n\nAlways run the tests before a release.\n")
    with pytest.raises(InvalidInput, match="text is text, not a") as caught:
        await bank.references.add(layer)  # type: ignore[arg-type]
    assert "add_file" in caught.value.hint
    assert (await bank.references.add_file(layer)).name == "rules"
    assert (await bank.references.add_file(str(layer))).name == "rules"
    session = await bank.session("planner/auth")
    await session.append([user("hi"), assistant("yes")])
    from perdure.history.session_export import jsonl

    file = tmp_path / "auth.jsonl"
    file.write_bytes(b"".join([line async for line in jsonl(session)]))
    for paths in (file, str(file), [file]):
        await importers.import_files(bank, "perdure", paths, session="copy/auth")
    assert (await (await bank.session("copy/auth")).turn(1)).prompt == "hi"
    await bank.backup(tmp_path / "backups")
