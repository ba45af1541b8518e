"""``perdure recall``."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import perdure
from perdure.core.messages import assistant, user
from tests.cli.conftest import Ask, Run, Serve

FIELDS = ["kind", "turn", "key", "level", "score", "why", "text"]


@pytest.fixture
def bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bank with two sessions of one agent, and one of another."""
    url = f"sqlite:///{tmp_path / 'recall.db'}"
    monkeypatch.setenv("PERDURE_BANK", url)

    async def fill() -> None:
        async with perdure.open(url) as bank:
            auth = await bank.session("planner/auth")
            await auth.append(
                [user("OAuth tokens\x1b[31m rotate hourly."), assistant("I see.\n" * 9)],
                tags={"topic": "auth"},
            )
            await auth.append([user("And roses?"), assistant("They want water.")])
            other = await bank.session("planner/zoo")
            await other.append([user("The zebra eats at noon."), assistant("Good.")])
            private = await bank.session("bob/private")
            await private.append([user("The zebra password is hunter2."), assistant("Hush.")])
            await bank.session("ada/empty")
            await bank.settle()

    asyncio.run(fill())
    return url


@pytest.mark.parametrize("how", ["copy", "restore"])
def test_a_bank_that_was_filled_from_another_is_indexed_when_it_is_first_used(
    run: Run, ask: Ask, bank: str, tmp_path: Path, how: str
) -> None:
    other, folder = f"sqlite:///{tmp_path / 'other.db'}", str(tmp_path / "kept")
    if how == "copy":
        assert run("bank", "copy", other).exit_code == 0
    else:
        assert run("bank", "backup", folder).exit_code == 0
        assert run("bank", "restore", folder, "--bank", other).exit_code == 0
    code, found = ask("recall", "planner/auth", "zebra noon", "--bank", other)
    assert (code, found["hits"][0]["key"], found["stage"]) == (0, "planner/zoo#T-1.1", "vector")
    assert run("index", "check", "--bank", other).exit_code == 0


def test_memories_of_an_agent_without_a_session_are_pointed_to(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'memories.db'}"
    monkeypatch.setenv("PERDURE_BANK", url)
    assert run("bank", "init").exit_code == 0
    run("memory", "add", "gardener", "Water the roses at noon.")
    refused = run("recall", "gardener", "roses")
    assert refused.exit_code == 1
    assert "There is no session 'gardener'." in refused.stderr
    assert 'perdure memory list gardener --words "…"' in refused.stderr
    assert "gardener/M-1" in run("memory", "list", "gardener", "--words", "noon roses").stdout
    assert "memory list" not in run("recall", "nobody", "roses").stderr


def test_json_has_exactly_what_is_promised(bank: str, ask: Ask) -> None:
    code, found = ask("recall", "planner/auth", "oauth tokens", "-k", "1")
    assert code == 0
    assert list(found) == ["stage", "took_ms", "hits"]
    assert found["stage"] in {"keyword", "vector"}  # a model takes a while to load
    assert found["took_ms"] > 0
    (hit,) = (hit for hit in found["hits"] if "OAuth" in hit["text"])
    assert list(hit) == FIELDS
    assert (hit["kind"], hit["turn"], hit["key"]) == ("turn", "T-1.1", "T-1.1")
    assert hit["level"] in {"R", "S", "C"}
    assert 0 <= hit["score"] <= 1
    assert hit["why"]


def test_json_is_the_same_for_all_kinds(bank: str, run: Run, ask: Ask, home: Path) -> None:
    run("memory", "add", "planner", "OAuth tokens want care.", "--kind", "lesson")
    layer = home / "oauth.md"
    layer.write_text("---\ntags: [auth]\n---\n# OAuth\n\nOAuth tokens are issued here.", "utf-8")
    assert run("reference", "add", str(layer)).exit_code == 0
    _, found = ask("recall", "planner/auth", "oauth tokens")
    by_kind = {hit["kind"]: hit for hit in reversed(found["hits"])}
    assert set(by_kind) == {"turn", "memory", "reference"}
    for hit in found["hits"]:
        assert list(hit) == FIELDS
        assert all(isinstance(hit[name], str) for name in FIELDS if name != "score")
        assert hit["level"] in {"R", "S", "C", "T"}
        assert hit["key"]
        assert hit["text"]
    assert by_kind["turn"]["turn"] == "T-1.1"
    assert (by_kind["memory"]["turn"], by_kind["reference"]["turn"]) == ("", "")
    assert by_kind["reference"]["key"] == "oauth"
    assert by_kind["memory"]["key"] == "M-1"
    shown = run("recall", "planner/auth", "oauth tokens").stdout
    (name,) = re.findall(r"^memory (\S+), ", shown, re.MULTILINE)  # as other commands take it
    assert "OAuth tokens want care." in run("memory", "show", name).stdout
    assert re.search(r"^reference oauth, ", shown, re.MULTILINE)


def test_why_nothing_was_found_is_said(bank: str, run: Run, ask: Ask) -> None:
    option = ("--tag", "topic=oauth")
    shown = run("recall", "planner/auth", "tokens", *option)
    assert shown.stdout == "Nothing was found for 'tokens'.\n"
    assert "none has topic 'oauth'; there is 'auth'." in shown.stderr
    code, found = ask("recall", "planner/auth", "tokens", *option)
    assert (code, found["hits"]) == (0, [])
    assert "there is 'auth'." in found["notes"][0]


def test_a_session_that_is_looked_at_may_be_abbreviated(bank: str, run: Run, ask: Ask) -> None:
    _, found = ask("recall", "planner/auth", "zebra", "--session", "zoo")
    assert [hit["turn"] for hit in found["hits"]] == ["planner/zoo#T-1.1"]
    shown = run("recall", "planner/auth", "zebra", "--session", "zo0")
    assert shown.exit_code == 1
    assert "There is no session 'zo0'. Did you mean planner/zoo?" in shown.stderr


def test_a_short_deadline_is_kept_without_the_model(bank: str) -> None:
    """In a process of its own, as it would be loaded there."""
    code = (
        "import sys\n"
        "from perdure.cli.app import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        "print('perdure.gateway.word_tokens' in sys.modules, file=sys.stderr)"
    )
    args = ["recall", "planner/auth", "oauth tokens", "--deadline", "0.9", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["stage"] in {"keyword", "none"}  # on a very slow machine
    assert done.stderr == "False\n"


def test_other_sessions_are_found_but_not_those_of_others(bank: str, ask: Ask) -> None:
    _, found = ask("recall", "auth", "zebra")
    assert found["hits"][0]["turn"] == "planner/zoo#T-1.1"
    assert "hunter2" not in str(found)


def test_a_list_for_people(bank: str, run: Run) -> None:
    shown = run("recall", "planner/auth", "oauth tokens", "--limit", "1")
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert lines[0].startswith("T-1.1, just now, ")
    assert lines[1] == "  User: OAuth tokens\\x1b[31m rotate hourly."
    assert "more line" in shown.stdout
    assert "by words" in shown.stderr


def test_filters_are_options(bank: str, ask: Ask) -> None:
    def turns(*options: str) -> list[str]:
        code, found = ask("recall", "planner/auth", "oauth tokens", *options)
        assert code == 0, found
        return [hit["turn"] for hit in found["hits"] if "OAuth" in hit["text"]]

    kept = (
        *("--kind=turn", "--agent=planner", "--session=planner/auth", "--line", "--role=user"),
        *("--tag=topic=auth", "--since=1d", "--wide", "--judged", "--deadline=5"),
    )
    for option in kept:
        assert turns(option) == ["T-1.1"], option
    dropped = (
        *("--kind=memory", "--session=planner/zoo", "--role=tool", "--tool=Bash"),
        *("--branch=main", "--task=bug", "--outcome=failed", "--tag=topic=zoo", "--until=1d"),
    )
    for option in dropped:
        assert turns(option) == [], option


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("planner/nobody", "x"), "There is no session 'planner/nobody'."),
        (("planner/oauth", "x"), "Did you mean planner/auth? `perdure sessions` lists those"),
        (("planner/auth", " "), "The query is empty."),
        (("planner/auth", "x", "--kind", "turns"), "Use turn, memory, reference."),
        (("planner/auth", "x", "--role", "human"), "Use user, assistant, tool."),
        (("planner/auth", "x", "--tag", "topic"), "'topic' is no tag."),
        (("planner/auth", "x", "--since", "soon"), "'soon' is no time."),
        (("planner/auth", "x", "--deadline", "0"), "deadline is 0.0."),
        (("planner/auth", "x", "--agent", "planer"), "Did you mean planner?"),
    ],
)
def test_what_is_wrong_is_said(bank: str, run: Run, args: tuple[str, ...], says: str) -> None:
    shown = run("recall", *args)
    assert shown.exit_code == 1
    assert says in shown.stderr
    assert not shown.stdout


def test_nothing_is_found_in_nothing(bank: str, run: Run, ask: Ask) -> None:
    code, found = ask("recall", "ada/empty", "zebra")
    assert code == 0
    assert found["hits"] == []
    shown = run("recall", "ada/empty", "zebra")
    assert shown.exit_code == 0
    assert shown.stdout == "Nothing was found for 'zebra'.\n"


def test_a_bank_without_an_index_says_so(
    bank: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_RECALL_ON", "false")
    shown = run("recall", "planner/auth", "oauth tokens")
    assert shown.stdout.startswith("T-1.1, ")
    assert "The newest turns were read one by one: `perdure index check` says why." in shown.stderr
    assert "recall.on is off" in run("index", "check").stdout
    shown = run("recall", "planner/auth", "oauth tokens", "--since", "1d")
    assert shown.stdout == "Nothing was found for 'oauth tokens'.\n"
    assert "planner/auth has no index: only its own turns can be searched" in shown.stderr


def test_an_index_that_was_never_filled_is_filled_when_it_is_first_used(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'late.db'}"
    monkeypatch.setenv("PERDURE_BANK", url)
    monkeypatch.setenv("PERDURE_RECALL_ON", "false")
    with perdure.open_sync() as bank:
        bank.session("planner/auth").append([user("OAuth tokens rotate."), assistant("So.")])
    monkeypatch.delenv("PERDURE_RECALL_ON")
    shown = run("recall", "planner/auth", "oauth tokens")
    assert shown.stdout.startswith("T-1.1, ")
    assert "not complete" not in shown.stderr
    assert "not by meaning" not in shown.stderr
    assert run("index", "check").exit_code == 0


def test_a_bank_that_is_not_there(run: Run, tmp_path: Path) -> None:
    shown = run("recall", "a/b", "x", "--bank", f"sqlite:///{tmp_path / 'none.db'}")
    assert shown.exit_code == 1
    assert not (tmp_path / "none.db").exists()


def test_the_models_that_are_configured_are_asked(
    bank: str, run: Run, ask: Ask, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = serve()
    monkeypatch.setenv("PERDURE_MODEL_EMBED", f"{model.url}#embed")
    assert run("index", "rebuild").exit_code == 0
    asked = len(model.requests)
    assert asked
    assert ask("recall", "planner/auth", "oauth tokens")[1]["stage"] == "vector"
    assert model.requests[asked].kind == "embeddings"
    monkeypatch.setenv("PERDURE_MODEL_FILTER", f"{model.url}#filter")
    judged = run("recall", "planner/auth", "oauth tokens", "--judged")
    assert "not open" not in judged.output
    assert "chat" in {request.kind for request in model.requests[asked:]}


def test_models_that_are_not_there_are_named(
    bank: str, run: Run, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    for purpose in ("FILTER", "JUDGE"):
        monkeypatch.setenv(f"PERDURE_MODEL_{purpose}", "http://127.0.0.1:9/v1#x")
    asked = ("recall", "planner/auth", "oauth tokens", "--judged", "--deadline", "2")
    code, found = ask(*asked)
    assert (code, found["hits"][0]["turn"]) == (0, "T-1.1")
    assert len(found["notes"]) == 2
    assert found["notes"][0].startswith("Not all of it was filtered by a model. ")
    assert found["notes"][1].startswith("An algorithm judged, as no model did. ")
    assert "An algorithm judged, as no model did." in run(*asked).stderr


def test_a_deadline_that_is_too_short_for_meaning_is_the_reason(
    bank: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("recall", "planner/auth", "oauth tokens", "--deadline", "0.9")
    assert "; not by meaning: that takes longer than the deadline" in run(*asked).stderr
    monkeypatch.setenv("PERDURE_RECALL_VECTORS", "0")
    assert "; not by meaning: recall.vectors is 0" in run(*asked).stderr
