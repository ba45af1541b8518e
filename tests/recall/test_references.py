from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import InvalidInput, TooLarge
from perdure.core.tokens import o200k
from perdure.recall.places import REFERENCES
from perdure.recall.references import files as layer_files
from perdure.recall.references import front_matter, layers
from perdure.recall.references.layers import LayerText
from perdure.recall.references.references import References, Synced
from perdure.storage.store import Store
from tests.conftest import BACKENDS, url_on
from tests.recall.shelf import Shelf

everywhere = pytest.mark.parametrize("store_url", BACKENDS, indirect=True)
OAUTH = """---
name: oauth
title: How we do OAuth
tags: [Security, "log in"]
weight: 0.7
triggers:
  - token refresh   # what it is about
  - tool:Bash
  - "path:src/auth/**"
---
# OAuth

The refresh token expires after 30 days.
"""


@pytest.fixture(params=["sqlite"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_on(request.param, request, tmp_path)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "references"
    made.mkdir()
    return made


@pytest.fixture
def references(store: Store, folder: Path, shelf: Shelf) -> References:
    return References(store, folder, o200k, shelf)


def write(file: Path, text: str, *, age: float = 60) -> None:
    """Write a file that was last changed so many seconds ago."""
    file.write_text(text)
    then = time.time() - age
    os.utime(file, (then, then))


async def names(references: References) -> list[str]:
    return [record.name for record in await references.list()]


# Front matter ---------------------------------------------------------------------------------


def test_front_matter_is_taken_apart() -> None:
    text = (
        '---\r\n# a comment\nname: a\nempty:\nquoted: "b: \'c\' # d \\"e\\""  # f\n'
        "single: 'it''s'\nurl: http://x/y#z\nlist: [a, \"b, c\", 'd']\nnone: []\n"
        'items:\n- one\n\n  # between\n- "two: 2"\nlast: x # y\n---\n\nBody\n---\nmore\n'
    )
    found = front_matter.parse(text, "a.md")
    assert found.values == {
        "name": "a",
        "empty": "",
        "quoted": "b: 'c' # d \"e\"",
        "single": "it's",
        "url": "http://x/y#z",
        "list": ("a", "b, c", "d"),
        "none": (),
        "items": ("one", "two: 2"),
        "last": "x",
    }
    assert found.body == "Body\n---\nmore\n"
    assert (found.lines["name"], found.lines["last"]) == (3, 15)
    assert front_matter.parse("# No front matter", "a.md").given is False


def test_front_matter_may_be_nested() -> None:
    text = (
        "---\ndescription: |\n  Reviews code.\n  Be brief.\ntools: Read, Grep\nhooks:\n"
        "  PreToolUse:\n    - matcher: Bash\n      hooks:\n        - {type: command, timeout: 10}\n"
        "---\nBody"
    )
    found = front_matter.parse(text, "a.md")
    hook = {"matcher": "Bash", "hooks": ({"type": "command", "timeout": "10"},)}
    assert found.values == {
        "description": "Reviews code.\nBe brief.\n",
        "tools": "Read, Grep",
        "hooks": {"PreToolUse": (hook,)},
    }
    assert found.lines["hooks.PreToolUse[0].hooks[0].type"] == 10


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        ("name: a\n", 1),
        ("name: a\nnonsense\n---", 3),
        ("name: a\nname: b\n---", 3),
        ("name: a\n  nested: b\n---", 3),
        ("- a\n---", 2),
        ("tags: [a, b\n---", 2),
        ("tags: [a,, b]\n---", 2),
        ("tags: [a] b\n---", 2),
        ('title: "a\n---', 2),
        ('title: "a" b\n---', 2),
        ("title: &a b\n---", 2),
        ("title: a\ntags: *a\n---", 3),
        ("title: !!int 1\n---", 2),
        ("a: b\n? [c]\n: d\n---", 3),
        ("a:\n  b: c\n  b: d\n---", 4),
        ("a: b\nc: \x07\n---", 3),
        (f"a: {'[' * 5_000}{']' * 5_000}\n---", 2),
    ],
)
def test_faults_name_the_file_and_the_line(lines: str, where: int) -> None:
    with pytest.raises(InvalidInput, match=rf"^deep/a\.md, line {where}: ") as fault:
        front_matter.parse(f"---\n{lines}\nBody", "deep/a.md")
    assert fault.value.hint


@given(st.text(alphabet="-:[]'\"#, \nab|>&\\\t\ufeff", max_size=60))
def test_any_front_matter_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidInput):
        assert "Body" in front_matter.parse(f"---\n{text}\n---\nBody", "a.md").body


@pytest.mark.parametrize(
    ("front", "where"),
    [
        ("name: Not A Name", "Not A Name"),
        ("weight: heavy", "line 2: weight"),
        ("weight: 1.5", "line 2: weight"),
        ("title: [a]", "line 2: title"),
        ("nonsense: a", "line 2: nonsense"),
        ("title: {a: b}", "line 2: title is no text"),
        ("tags: {a: b}", "line 2: tags is no list"),
        ("tags: [[a], b]", r"line 2: tags\[0\]"),
        ("tags:\n  - a\n  - [b]", r"line 4: tags\[1\]"),
        ("tags:\n  -", r"line 3: tags\[0\]"),
        (f"tags: [{'x' * 61}]", "line 2: tags"),
        (f"triggers: [{'x' * 201}]", "line 2: triggers"),
    ],
)
def test_values_that_cannot_be_used(front: str, where: str) -> None:
    with pytest.raises(InvalidInput, match=where):
        layers.read(f"---\n{front}\n---\nBody", "a.md", o200k(), name="a")


def test_a_text_without_front_matter_is_a_layer() -> None:
    layer = layers.read("Intro.\n\n## The Title ##\n", "a.md", o200k(), name="a")
    assert (layer.name, layer.title, layer.weight) == ("a", "The Title", 0.5)
    with pytest.raises(InvalidInput, match="There is no text"):
        layers.read("---\nname: a\n---\n  \n", "a.md", o200k())
    with pytest.raises(TooLarge, match="at most 20,000"):
        layers.read("word " * 20_500, "a.md", o200k(), name="a")


# Records --------------------------------------------------------------------------------------


@everywhere
async def test_a_text_becomes_a_record(references: References, shelf: Shelf, store: Store) -> None:
    made = await references.add(OAUTH)
    assert (made.name, made.ordinal, made.title) == ("oauth", 1, "How we do OAuth")
    assert (made.tags, made.weight, made.origin) == (("log in", "security"), 0.7, None)
    found = await references.get("oauth")
    assert found is not None
    assert found.text == "# OAuth\n\nThe refresh token expires after 30 days.\n"
    assert found.tokens == o200k().count(found.text)
    assert list(shelf.texts) == [(REFERENCES, 1)]
    assert shelf.texts[REFERENCES, 1].startswith("oauth How we do OAuth log in security\n# OAuth")
    assert shelf.notes[REFERENCES, 1].tags == {"log in": "", "security": ""}
    numbered = await references.numbered([1, 2])
    assert {number: layer.name for number, layer in numbered.items()} == {1: "oauth"}
    again = await references.add("New text.", name="oauth")
    assert (again.ordinal, again.tags) == (1, ())
    assert (await references.add("Other.", name="other")).ordinal == 2
    await references.remove("oauth")
    assert await names(references) == ["other"]
    assert list(shelf.texts) == [(REFERENCES, 2)]
    assert [text.name for text in await store.collection(LayerText).query().values()] == ["other"]
    with pytest.raises(InvalidInput):
        await references.remove("oauth")


async def test_a_file_can_be_added_from_anywhere(references: References, tmp_path: Path) -> None:
    (tmp_path / "Git Rules.md").write_text("Commit often.")
    made = await references.add_file(tmp_path / "Git Rules.md")
    assert (made.name, made.origin) == ("git-rules", None)
    with pytest.raises(InvalidInput, match=r"absent\.md"):
        await references.add_file(tmp_path / "absent.md")


async def test_what_cannot_be_a_record(references: References) -> None:
    for wrong in ("", "---\nname: a\n---\n"):
        with pytest.raises(InvalidInput):
            await references.add(wrong, name="a")
    with pytest.raises(InvalidInput, match="name"):
        await references.add("Text.")
    assert await references.get("../../etc/passwd") is None
    assert await references.get("") is None


async def test_secrets_are_masked(store: Store) -> None:
    references = References(
        store,
        None,
        o200k,
        plain=lambda data: {key: str(text).replace("hunter2", "…") for key, text in data.items()},
    )
    await references.add("# hunter2\nThe password is hunter2.", name="a")
    found = await references.get("a")
    assert found is not None
    assert "hunter2" not in found.title + found.text


async def test_refilling_puts_all_again(references: References, shelf: Shelf) -> None:
    await references.add("One.", name="one")
    await references.add("Two.", name="two")
    before = dict(shelf.texts)
    shelf.texts.clear()
    assert await references.refill() == 2
    assert shelf.texts == before


# Files ----------------------------------------------------------------------------------------


async def test_files_are_found_and_followed(
    references: References, folder: Path, shelf: Shelf
) -> None:
    write(folder / "oauth.md", OAUTH)
    (folder / "deep").mkdir()
    write(folder / "deep" / "Git.markdown", "Commit often.")
    write(folder / "notes.txt", "not one")
    write(folder / ".hidden.md", "not one")
    first = await references.sync()
    assert (sorted(first.added), first.problems) == (["git", "oauth"], ())
    assert await names(references) == ["git", "oauth"]
    assert await references.sync() == type(first)()
    write(folder / "oauth.md", OAUTH.replace("30 days", "60 days"), age=30)
    changed = await references.sync()
    assert (changed.changed, changed.added) == (("oauth",), ())
    assert "60 days" in shelf.texts[REFERENCES, 2]
    (folder / "oauth.md").unlink()
    assert (await references.sync()).removed == ("oauth",)
    assert await references.get("oauth") is None
    assert [text.split("\n")[1] for text in shelf.texts.values()] == ["Commit often."]


async def test_a_file_that_was_only_touched_is_not_indexed_again(
    references: References, folder: Path, shelf: Shelf
) -> None:
    write(folder / "a.md", "Text.")
    await references.sync()
    (before,) = await references.list()
    shelf.texts.clear()
    write(folder / "a.md", "Text.", age=20)
    assert await references.sync() == type(await references.sync())()
    (after,) = await references.list()
    assert shelf.texts == {}
    assert before.origin is not None
    assert after.origin is not None
    assert after.origin.modified > before.origin.modified
    assert after.updated == before.updated


async def test_a_change_within_the_same_tick_is_noticed(
    references: References, folder: Path
) -> None:
    write(folder / "a.md", "one", age=0)
    await references.sync()
    then = (folder / "a.md").stat().st_mtime_ns
    (folder / "a.md").write_text("two")
    os.utime(folder / "a.md", ns=(then, then))
    assert (await references.sync()).changed == ("a",)


async def test_what_is_the_same_is_not_read(references: References, folder: Path) -> None:
    write(folder / "a.md", "one")
    await references.sync()
    then = (folder / "a.md").stat().st_mtime_ns
    (folder / "a.md").write_text("two")  # of the same size
    os.utime(folder / "a.md", ns=(then, then))
    assert await references.sync() == type(await references.sync())()


async def test_a_recent_look_will_do(references: References, folder: Path) -> None:
    await references.sync()
    write(folder / "a.md", "one")
    assert (await references.sync(max_age=600)).added == ()
    assert (await references.sync()).added == ("a",)


async def test_a_renamed_layer_and_a_moved_file(references: References, folder: Path) -> None:
    write(folder / "a.md", "---\nname: first\n---\nText.")
    await references.sync()
    write(folder / "a.md", "---\nname: second\n---\nText.", age=30)
    renamed = await references.sync()
    assert (renamed.changed, renamed.removed) == (("second",), ("first",))
    (folder / "a.md").rename(folder / "b.md")
    moved = await references.sync()
    assert (moved.added, moved.removed, moved.problems) == (("second",), ("second",), ())
    assert await names(references) == ["second"]


async def test_a_broken_file_keeps_what_it_was(references: References, folder: Path) -> None:
    write(folder / "a.md", "---\ntags: [x]\n---\nGood.")
    await references.sync()
    write(folder / "a.md", "---\ntags: [x\n---\nBad.", age=30)
    (problem,) = (await references.sync()).problems
    assert problem.where == "a.md"
    assert problem.what.startswith("line 2: ")
    kept = await references.get("a")
    assert kept is not None
    assert kept.text == "Good."


async def test_two_of_one_name(references: References, folder: Path) -> None:
    await references.add("A record.", name="taken")
    write(folder / "taken.md", "A file.")
    write(folder / "x.md", "---\nname: same\n---\nFirst.")
    write(folder / "y.md", "---\nname: same\n---\nSecond.")
    done = await references.sync()
    assert done.added == ("same",)
    assert {problem.where for problem in done.problems} == {"taken.md", "y.md"}
    found = await references.get("same")
    assert found is not None
    assert found.text == "First."
    with pytest.raises(InvalidInput, match=r"x\.md"):
        await references.add("A record.", name="same")
    assert {p.where for p in await references.check() if not p.warning} == {"taken.md", "y.md"}


async def test_odd_files_are_one_problem_each(
    references: References, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)  # the name of a socket is short
    (tmp_path / "outside.md").write_text("Private.")
    (folder / "outside.md").symlink_to(tmp_path / "outside.md")
    (folder / "loop.md").symlink_to("loop.md")
    (folder / "nowhere.md").symlink_to("absent.md")
    (folder / "round").symlink_to(folder)
    (folder / "latin.md").write_bytes(b"fine\nna\xefve")
    (folder / "huge.md").write_bytes(b"x" * (layer_files.MAX_BYTES + 1))
    (folder / "long.md").write_text("word " * 30_000)
    (folder / "empty.md").write_text("")
    os.mkfifo(folder / "pipe.md")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.md")
        write(folder / "inside.md", "Good.")
        (folder / "link.md").symlink_to("inside.md")
        done = await references.sync()
    assert done.added == ("inside", "link")
    assert sorted(problem.where for problem in done.problems) == [
        *("empty.md", "huge.md", "latin.md", "long.md", "loop.md", "nowhere.md", "outside.md"),
        *("pipe.md", "round", "socket.md"),
    ]
    told = {problem.where: problem.what for problem in done.problems}
    assert told["latin.md"] == "Line 2 is not UTF-8."
    assert "Private." not in str([await references.get(n) for n in await names(references)])
    (folder / os.fsdecode(b"\xff.md")).write_text("Text.")
    deep = folder.joinpath(*"123456789")
    deep.mkdir(parents=True)
    write(deep / "deep.md", "Text.")
    more = {problem.where for problem in (await references.sync()).problems} - set(told)
    assert more == {"'\\udcff.md'", "1/2/3/4/5/6/7/8/9"}


def test_what_became_something_else_is_a_problem(folder: Path) -> None:
    """Between the look at a folder and the reading, anything may happen."""
    (folder / "a.md").mkdir()
    os.mkfifo(folder / "pipe.md")
    found = [layer_files.load(folder, name) for name in ("a.md", "pipe.md", "absent.md")]
    assert all(isinstance(each, layer_files.LayerProblem) for each in found)


async def test_a_folder_that_is_gone_takes_nothing_along(
    references: References, folder: Path
) -> None:
    write(folder / "a.md", "Text.")
    await references.sync()
    folder.rename(folder.with_name("elsewhere"))
    done = await references.sync()
    assert done.removed == ()
    assert done.problems[0].what == "There is no such folder."
    assert await names(references) == ["a"]


async def test_layers_of_another_folder_stay(
    references: References, folder: Path, store: Store, tmp_path: Path
) -> None:
    write(folder / "a.md", "Text.")
    await references.sync()
    (tmp_path / "other").mkdir()
    other = References(store, tmp_path / "other", o200k)
    assert (await other.sync()).removed == ()
    assert await (References(store, None, o200k)).sync() == type(await other.sync())()
    assert await names(other) == ["a"]


async def test_layers_move_with_their_folder(
    references: References, folder: Path, store: Store, tmp_path: Path
) -> None:
    write(folder / "a.md", "Text.")
    await references.sync()
    moved = References(store, tmp_path / "moved", o200k)
    (tmp_path / "moved").mkdir()
    write(tmp_path / "moved" / "a.md", "Text.")
    (problem,) = (await moved.sync()).problems  # both are there
    assert problem.what == f"The name a is that of {folder / 'a.md'}, too."
    (folder / "a.md").unlink()
    assert (await moved.sync()).problems == ()
    (tmp_path / "moved" / "a.md").unlink()
    assert (await moved.sync()).removed == ("a",)


async def test_files_may_swap_their_names(references: References, folder: Path) -> None:
    for file, name in (("a", "x"), ("b", "y"), ("c", "z")):
        write(folder / f"{file}.md", f"---\nname: {name}\n---\nText of {file}.")
    await references.sync()
    for file, name in (("a", "y"), ("b", "x"), ("c", "w"), ("d", "z")):
        write(folder / f"{file}.md", f"---\nname: {name}\n---\nText of {file}, changed.")
    done = await references.sync()
    assert (done.added, done.changed, done.removed) == (("z",), ("y", "x", "w"), ())
    assert done.problems == ()
    texts = {name: await references.get(name) for name in await names(references)}
    assert {name: layer.text for name, layer in texts.items() if layer is not None} == {
        "x": "Text of b, changed.",
        "y": "Text of a, changed.",
        "w": "Text of c, changed.",
        "z": "Text of d, changed.",
    }
    assert await references.sync() == Synced()


async def test_files_that_are_too_many_keep_their_layers(
    references: References, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_files, "MAX_FILES", 2)
    for name in "bc":
        write(folder / f"{name}.md", "Text.")
    await references.sync()
    for name in "ad":
        write(folder / f"{name}.md", "Text.")
    done = await references.sync()
    assert (done.added, done.removed) == (("a",), ())
    (problem,) = done.problems
    assert "There are 4 files; 2 are read." in problem.what
    assert problem.what.endswith("from c.md on.")
    assert await names(references) == ["a", "b", "c"]
    (folder / "c.md").unlink()
    assert (await references.sync()).removed == ("c",)


async def test_what_cannot_be_looked_at_keeps_its_layers(
    references: References, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "deep").mkdir()
    write(folder / "deep" / "a.md", "Text.")
    write(folder / "b.md", "Text.")
    await references.sync()
    scan = os.scandir

    def refused(path: Path) -> object:
        if Path(path).name in locked:
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", refused)
    locked = {"deep"}
    (folder / "b.md").unlink()
    done = await references.sync()
    assert done.removed == ("b",)
    assert [(each.where, each.warning) for each in done.problems] == [("deep", False)]
    locked = {folder.name}
    done = await references.sync()
    assert (done.removed, done.problems[0].where) == ((), str(folder))
    assert await names(references) == ["a"]
    monkeypatch.undo()
    (folder / "deep" / "a.md").unlink()
    (folder / "deep").rmdir()
    folder.rmdir()
    folder.write_text("a file")
    assert (await references.sync()).removed == ()
    with pytest.raises(InvalidInput, match="There is no reference layer 'nothing'"):
        await references.remove("nothing")
    await references.remove("a")  # its file is gone


# Matching and checking ------------------------------------------------------------------------


async def test_triggers_and_tags_call_for_layers(references: References) -> None:
    await references.add(OAUTH)
    await references.add("---\nname: git\ntriggers: [commit, the, path:*.lock]\n---\nText.")

    async def find(
        text: str, tools: Sequence[str] = (), paths: Sequence[str] = ()
    ) -> list[tuple[str, str]]:
        found = layers.fitting(await references.list(), text, tools, paths)
        return [(each.name, why) for each, why in found]

    assert await find("How does refreshing tokens work?") == []
    assert await find("The Token-Refresh fails") == [("oauth", "says 'token refresh'")]
    assert await find("users log in") == [("oauth", "tag log in")]
    assert await find("the catalogue", ["bash"]) == [("oauth", "tool Bash")]
    assert await find("", [], ["/srv/app/src/auth/deep/token.py"]) == [
        ("oauth", "path src/auth/**")
    ]
    assert await find("", [], ["src/author/x.py"]) == []
    assert await find("", [], ["a/poetry.lock", "b"]) == [("git", "path *.lock")]
    both = await find("committing a token refresh", ["Bash"])
    assert both == [("oauth", "says 'token refresh', tool Bash"), ("git", "says 'commit'")]
    assert await find("x" * 1_000_000) == []
    assert await find("See `src/auth/token.py`.") == [("oauth", "path src/auth/**")]
    assert await find("Why does (deep/poetry.lock) differ?") == [("git", "path *.lock")]


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("*.py", ["a.py", "src/deep/a.py"], ["a.pyc", "a.py/b"]),
        ("src/*.py", ["src/a.py", "/home/src/a.py", "./src/a.py"], ["src/deep/a.py"]),
        ("src/**", ["src/a", "src/deep/a.py"], ["asrc/a", "lib/a"]),
        ("src/**/a.py", ["src/a.py", "src/x/y/a.py"], ["src/x/b.py"]),
        ("**/test_?.py", ["test_a.py", "x/test_b.py"], ["test_ab.py"]),
        ("src/test**.py", ["src/test_a.py", "src/tests/deep/a.py"], ["src/a.py"]),
        ("a[1].py", ["a[1].py"], ["a1.py"]),
        ("./a.py", ["a.py"], ["b.py"]),
        ("/etc/*", ["/etc/hosts"], ["etc/hosts"]),
    ],
)
def test_patterns_of_paths(pattern: str, fitting: list[str], others: list[str]) -> None:
    assert [path for path in (*fitting, *others) if layers.fits(pattern, path)] == fitting


def test_no_pattern_takes_for_ever() -> None:
    """Each of these would take a regular expression longer than anybody waits."""
    path = "/".join(["a"] * 2_000)
    assert not layers.fits("**/a/" * 40 + "b", path)
    assert not layers.fits("**a" * 60 + "b", path)
    assert not layers.fits("*a" * 90 + "b", "a" * 4_000)


async def test_check_names_what_is_unwise(references: References, folder: Path) -> None:
    assert await references.check() == []
    write(folder / "all.md", '---\ntriggers: [the, "path:**", "tool:*"]\n---\n' + "word " * 600)
    write(folder / "big.md", "---\ntags: [x]\n---\n" + "word " * 6_000)
    write(folder / "bad.md", "---\nnonsense\n---\nText.")
    await references.add("Short.", name="short")
    found = await references.check()
    assert [(p.where, p.what) for p in found if not p.warning] == [
        ("bad.md", "line 2: 'nonsense' is no entry.")
    ]
    told = [f"{problem.where} {problem.what}" for problem in found if problem.warning]
    assert [line for line in told if "fits everything" in line] == [
        "all.md The trigger 'path:**' fits everything.",
        "all.md The trigger 'tool:*' fits everything.",
    ]
    assert any("never pulled" in line for line in told)
    assert any("big.md It has 6,0" in line for line in told)
    assert any("short It has 2 tokens" in line for line in told)
    assert any("neither triggers nor tags" in line for line in told)
    assert [line for line in told if "is new" in line] == ["all.md It is new.", "big.md It is new."]
    await references.sync()
    write(folder / "big.md", "other " * 600, age=30)
    (folder / "all.md").unlink()
    told = [f"{problem.where} {problem.what}" for problem in await references.check()]
    assert "big.md It has changed since it was indexed." in told
    assert "all.md It is gone." in told
    assert await names(references) == ["all", "big", "short"]


def test_a_listing_of_a_project_is_not_compared_path_by_path() -> None:
    record = layers.LayerRecord(name="auth", ordinal=1, triggers=("path:src/auth/**",))
    listing = "\n".join(f"docs/{number}.md" for number in range(1_000))
    assert layers.fitting([record], f"Look at src/auth/a.py, of these:\n{listing}")
    assert not layers.fitting([record], f"{listing}\nsrc/auth/a.py")
