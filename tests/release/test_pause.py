"""While Perdure is paused, none of its surfaces records anything, and what was said meanwhile stays
out afterwards.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import perdure
from perdure.cli.app import app
from perdure.config.pauses import Pause, Pauses, pauses_file
from perdure.core.errors import Corrupted, Unavailable
from perdure.core.messages import ToolCall
from perdure.importers import import_files
from perdure.testing.model import ScriptedAnswer, ScriptedModel
from tests.proxy.proxy_setup import proxied
from tests.proxy.test_recording import WIRES, SdkClient, Wire, recorded, settled

_HOUR = 3_600


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of its own."""
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    return pauses_file().parent


def command(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def write_pauses(*pauses: Pause) -> None:
    """Pauses of another time, as `Pauses` writes them."""
    pauses_file().parent.mkdir(parents=True, exist_ok=True)
    lines = (f"{each.since} {'-' if each.until is None else each.until}\n" for each in pauses)
    pauses_file().write_text("".join(lines))


# The command ----------------------------------------------------------------------------------


def test_a_pause_lasts_until_somebody_ends_it() -> None:
    assert command("pause", "--status") == {"paused": False}
    since = command("pause")["since"]
    assert command("pause", "--status") == {"paused": True, "since": since, "until": None}
    given = command("pause", "--for", "2h")  # it gets an end, and stays the same pause
    assert given["since"] == since
    assert 0 < given["until"] - time.time() <= 2 * _HOUR
    assert CliRunner().invoke(app, ["pause", "--status"]).stdout.startswith("Paused since ")
    assert command("resume") == {"paused": False}
    assert command("resume") == {"paused": False}
    assert Pauses().current() is None
    assert Pauses().covers(since * 1_000_000 + 500)


def test_a_pause_that_ends_in_its_first_second_holds_in_it() -> None:
    write_pauses(Pause(since=1_000, until=1_000))
    covered = [Pauses().covers(moment * 1_000_000) for moment in (999, 1_000, 1_001)]
    assert covered == [False, True, False]


def test_it_ends_by_itself() -> None:
    now = int(time.time())
    write_pauses(Pause(now - 2 * _HOUR, now - _HOUR))
    assert command("pause", "--status") == {"paused": False}
    Pauses().refuse_writing()
    write_pauses(Pause(now - _HOUR, now + _HOUR))
    assert command("pause", "--status")["until"] == now + _HOUR
    with pytest.raises(Unavailable, match="paused"):
        Pauses().refuse_writing()


def test_doctor_tells() -> None:
    def told() -> str:
        found = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
        (check,) = (each for each in found["checks"] if each["part"] == "Recording")
        return str(check["what"])

    assert told() == "It is on."
    command("pause")
    assert "nothing is recorded until `perdure resume`" in told()


def test_a_file_that_cannot_be_read_is_no_permission_to_record(data: Path) -> None:
    pauses_file().parent.mkdir(parents=True)
    pauses_file().write_text("since yesterday\n")
    with pytest.raises(Corrupted, match="cannot be read"):
        Pauses().current()


def test_it_is_for_its_owner_alone() -> None:
    command("pause")
    assert pauses_file().stat().st_mode & 0o777 == 0o600


# The proxy ------------------------------------------------------------------------------------


def _answers() -> list[Any]:
    return [ScriptedAnswer(f"Answer {number}.") for number in range(1, 8)]


@pytest.mark.parametrize("headers", [{}, {"x-claude-code-session-id": "c1"}])
@pytest.mark.parametrize("wire", WIRES)
async def test_the_proxy_passes_on_and_leaves_a_gap(
    wire: Wire, headers: dict[str, str], tmp_path: Path
) -> None:
    """Its client sends all of it again, and another process may be the one that hears it."""
    url = f"sqlite:///{tmp_path}/memory.db"
    async with ScriptedModel(_answers()) as model:
        async with proxied(model.url, url) as running:
            client = SdkClient(running, wire, stream=True, **headers)
            assert await client.say("Before.") == "Answer 1."
            await settled(running)
            Pauses().begin()
            assert await client.say("A secret.") == "Answer 2."
            assert await client.say("Another secret.") == "Answer 3."
            await settled(running)
            assert await recorded(running.bank) == ["user: Before.", "assistant: Answer 1."]
            figures = running.proxy.report.figures
            assert (figures.paused, figures.answers, figures.failures) == (2, 1, 0)
            await client.close()
        async with proxied(model.url, url) as running:
            Pauses().end()
            again = SdkClient(running, wire, stream=False, **headers)
            again.items = client.items
            assert await again.say("After.") == "Answer 4."
            assert await again.say("And on.") == "Answer 5."
            await again.close()
            await settled(running)
            assert await recorded(running.bank) == [
                "user: Before.",
                "assistant: Answer 1.",
                "event: Nothing was recorded here: Perdure was paused.",
                "user: After.",
                "assistant: Answer 4.",
                "user: And on.",
                "assistant: Answer 5.",
            ]
            assert running.proxy.report.figures.failures == 0
    assert "secret" not in str((tmp_path / "memory.db").read_bytes())


async def test_a_conversation_that_began_in_a_pause(tmp_path: Path) -> None:
    async with (
        ScriptedModel(_answers()) as model,
        proxied(model.url, f"sqlite:///{tmp_path}/memory.db") as running,
    ):
        Pauses().begin()
        client = SdkClient(running, "messages", stream=True)
        await client.say("A secret.")
        await settled(running)
        assert await running.bank.sessions() == []
        Pauses().end()
        await client.say("After.")
        await client.close()
        await settled(running)
        assert await recorded(running.bank) == [
            "event: Nothing was recorded here: Perdure was paused.",
            "user: After.",
            "assistant: Answer 2.",
        ]


async def test_recording_goes_on_with_the_next_prompt() -> None:
    """A pause ends between a call and its result, which belongs to what was said in it."""
    call = ToolCall("call_1", "shell", '{"command": "ls"}')
    script = [ScriptedAnswer("I look.", calls=(call,)), *_answers()]
    async with ScriptedModel(script) as model, proxied(model.url) as running:
        Pauses().begin()
        client = SdkClient(running, "messages", stream=True)
        await client.say("A secret.")
        Pauses().end()
        await client.answer("call_1", "a.py")
        await settled(running)
        assert await running.bank.sessions() == []
        await client.say("After.")
        await client.close()
        await settled(running)
        said = await recorded(running.bank)
        assert said[1:] == ["user: After.", "assistant: Answer 2."]
        assert running.proxy.report.figures.failures == 0


# Transcripts ----------------------------------------------------------------------------------


def _line(kind: str, number: int, moment: float, text: str) -> str:
    content: Any = text if kind == "user" else [{"type": "text", "text": text}]
    message = {"role": kind, "content": content}
    if kind == "assistant":
        message |= {"id": f"msg_{number}", "model": "m"}
    said = datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")
    record = {"sessionId": "s1", "version": "2.1", "cwd": "/demo", "isSidechain": False}
    record |= {"type": kind, "uuid": f"u{number}", "timestamp": said, "message": message}
    return json.dumps(record) + "\n"


async def _import(bank: str, file: Path) -> tuple[list[str], dict[str, int]]:
    async with perdure.open(bank) as opened:
        report = await import_files(opened, "claude-code", [file])
        skipped = {why: n for each in report.sessions for why, n in each.skipped.items()}
        if not await opened.sessions():
            return [], skipped
        return await recorded(opened), skipped


@pytest.mark.parametrize("parts", [(7,), (1, 1, 1, 1, 1, 1, 1), (3, 2, 2)])
async def test_what_a_transcript_says_of_a_pause_is_left_out(
    tmp_path: Path, parts: Sequence[int]
) -> None:
    """However it is cut: a reply that comes after the pause answers what was said in it."""
    start = 1_790_000_000
    write_pauses(Pause(start + 100, start + 200))
    lines = [
        _line("user", 1, start + 1, "Before."),
        _line("assistant", 2, start + 2, "Yes."),
        _line("user", 3, start + 150, "A secret."),
        _line("assistant", 4, start + 151, "A secret, too."),
        _line("assistant", 5, start + 250, "And the rest of it."),
        _line("user", 6, start + 300, "After."),
        _line("assistant", 7, start + 301, "Of course."),
    ]
    file, bank, at = tmp_path / "s1.jsonl", f"sqlite:///{tmp_path}/memory.db", 0
    counted, told = 0, list[str]()
    for part in parts:
        with file.open("a") as opened:
            opened.writelines(lines[at : at + part])
        at += part
        told, skipped = await _import(bank, file)
        counted += sum(n for why, n in skipped.items() if "paused" in why)
    assert told == ["user: Before.", "assistant: Yes.", "user: After.", "assistant: Of course."]
    assert counted == 3
    told, _ = await _import(bank, file)
    assert len(told) == 4
    assert "secret" not in str((tmp_path / "memory.db").read_bytes())


async def test_a_whole_conversation_of_a_pause_leaves_nothing(tmp_path: Path) -> None:
    now = int(time.time())
    write_pauses(Pause(now - 100))
    file = tmp_path / "s1.jsonl"
    file.write_text(
        json.dumps({"type": "summary", "summary": "A secret.", "leafUuid": "u2"})
        + "\n"
        + _line("user", 1, now - 50, "A secret.")
        + _line("assistant", 2, now - 49, "A secret, too.")
    )
    told, skipped = await _import(f"sqlite:///{tmp_path}/memory.db", file)
    assert told == []
    assert sum(skipped.values()) >= 2
    assert "secret" not in str((tmp_path / "memory.db").read_bytes())
