"""The benchmarks run and report what they promise. Their times are nobody's business here."""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import levels, long_project, ours, peers, results, transcripts
from benchmarks.chats import KINDS
from benchmarks.harness import Report
from benchmarks.raw import Raw
from benchmarks.targets import TARGETS, Target, missed
from benchmarks.texts import Texts
from perdure.storage.backends.sqlite import SQLiteAdapter

#: Of so few calls, the slower one may come out ahead.
_DIFFERENCES = {"overhead_ms", "chunk_ms", "p95_added_ms", "added_ms", "added_ms_long"}
_DIFFERENCES |= {"commit_added_ms"}
#: In so short a chat, everything is among the first, whoever ranks.
_DIFFERENCES |= {f"{kind}.{of}" for kind in KINDS for of in ("gain", "worst_chat", "lost")}
#: What is good about these is that there are none.
_NONE = {"60000.prefix_violations", "120000.prefix_violations", "trend.false_alarms"}
_NONE |= {"duplicates", "anchors_wrong"}
#: What was said is too short for these.
_TOO_LITTLE = {"t", "15000.gap_closed", "30000.gap_closed", "fix_precision"} | {
    f"{kind}.{level}_in_range" for kind in levels.KINDS[1:] for level in "ct"
}
_FILLS = ("fill_after_epoch", "fill_mean")
#: Of transcripts that fit, no window is short of anything.
_FITTING = defaultdict[str, set[str]](
    set, cache={f"{n}.{fill}" for n in (60_000, 120_000) for fill in _FILLS}
)
#: Those that read transcripts, and nothing else.
_READERS = ["import", "disk_turns", "disk_levels", "cache", "known", "keeps"]


def run(name: str, capsys: pytest.CaptureFixture[str], *flags: str) -> dict:
    assert command.main([name, "--quick", "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def unmeasured(name: str) -> dict:
    """The figures of a benchmark that could not be run."""
    figures: dict = {}
    for target in TARGETS[name]:
        group, _, metric = target.metric.rpartition(".")
        (figures.setdefault(group, {}) if group else figures)[metric] = None
    return figures


def write_transcripts(folder: Path) -> None:
    """A short session each, as Claude Code and Codex write them."""
    said = [
        ("user", "Which files are there?"),
        (
            "assistant",
            [{"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}],
        ),
        ("user", [{"type": "tool_result", "tool_use_id": "t1", "content": "a.py\n" * 200}]),
        ("assistant", [{"type": "text", "text": "Only a.py, many times."}]),
    ]
    claude = [
        {
            "type": role,
            "uuid": f"u{number}",
            "parentUuid": f"u{number - 1}" if number else None,
            "sessionId": "s1",
            "timestamp": f"2026-11-01T10:00:0{number}.000Z",
            "message": {"role": role, "content": content}
            | ({"id": f"m{number}", "model": "claude"} if role == "assistant" else {}),
        }
        for number, (role, content) in enumerate(said)
    ]
    question = {"type": "input_text", "text": "Which files are there?"}
    items = [
        {"type": "message", "role": "user", "content": [question]},
        {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "c1"},
        {"type": "function_call_output", "call_id": "c1", "output": "a.py\n" * 200},
    ]
    codex = [
        {"timestamp": "2026-11-01T10:00:00.000Z", "type": "response_item", "payload": item}
        for item in items
    ]
    for name, records in (("s1.jsonl", claude), ("rollout-2026-11-01T10-00-00-x.jsonl", codex)):
        (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "locomo_dev.json").write_text(json.dumps([chat("Ann", "oboe"), chat("Bea", "harp")]))
    for number, told in enumerate((chat("Ann", "oboe"), chat("Bea", "harp"))):
        write(folder / f"realtalk_dev/{number}.json", real_chat(told))
        batches, questions = project(told)
        write(folder / f"beam_dev/{number}/chat.json", batches)
        write(folder / f"beam_dev/{number}/questions.json", questions)


def write(file: Path, told: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(told))


def real_chat(told: dict) -> dict:
    """The same talk, as REALTALK writes it."""
    lines = [
        {
            "speaker": line["speaker"],
            "dia_id": line["dia_id"],
            "clean_text": line["text"],
            "date_time": f"29.12.2023, 22:42:{at:02}",
        }
        for at, line in enumerate(told["conversation"]["session_1"])
    ]
    asked = [{**each, "category": min(each["category"], 3)} for each in told["qa"]]
    return {"session_1": lines, "session_1_date_time": "29.12.2023, 22:42:04", "qa": asked}


def project(told: dict) -> tuple[list, dict]:
    """Its first line of each two as a prompt, the other as the reply, as BEAM writes it."""
    said = [
        {
            "role": "assistant" if id % 2 else "user",
            "id": id,
            "content": f"{line['text']} ->-> 1,{id}",
            "time_anchor": None if id else "March-03-2024",
        }
        for id, line in enumerate(told["conversation"]["session_1"])
    ]
    asked = [
        {"question": each["question"], "source_chat_ids": {"first": [at % 5]}}
        for at, each in enumerate(told["qa"])
    ]
    return [{"batch_number": 1, "turns": [said[:2], said[2:]]}], {"knowledge_update": asked}


def chat(name: str, instrument: str) -> dict[str, object]:
    """A short talk, as LoCoMo writes it, and what is asked about it."""
    said = [f"I bought a new {instrument} for the orchestra.", "How was the weather in Lisbon?"]
    said += ["It rained all week.", "We should paint the kitchen green.", "Green is fine with me."]
    lines = [
        {"speaker": name if at % 2 else "Tom", "dia_id": f"D1:{at}", "text": text}
        for at, text in enumerate(said, 1)
    ]
    questions = [
        (f"What instrument did {name} buy?", "D1:1", 4),
        ("When did it rain in Lisbon?", "D1:3", 2),
        ("Which room is painted, and in which colour?", "D1:4", 1),
        ("What would they like for the kitchen?", "D1:5", 3),
        ("Which instrument was sold?", "D1:1", 5),
    ]
    return {
        "conversation": {"session_1_date_time": "1:56 pm on 8 May, 2023", "session_1": lines},
        "qa": [
            {"question": text, "evidence": [place], "category": category}
            for text, place, category in questions
        ],
    }


@pytest.mark.parametrize("name", TARGETS)
def test_each_runs_without_peers(
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(peers.VARIABLE, "/nowhere/python")
    monkeypatch.setenv(peers.LITELLM_VARIABLE, "/nowhere/python")
    monkeypatch.setenv(peers.FRAMEWORKS_VARIABLE, "/nowhere/python")
    monkeypatch.setenv(transcripts.VARIABLE, str(tmp_path))
    monkeypatch.setattr(long_project, "WORK", tmp_path / "work")  # leaves what is there alone
    write_transcripts(tmp_path)
    figures = run(name, capsys)
    assert figures["benchmark"] == name
    assert figures["quick"]
    for target in TARGETS[name]:
        figure = target.of(figures)
        against_others = name == "frameworks" or "peer" in target.metric
        if target.metric in _DIFFERENCES:
            assert isinstance(figure, float)
        elif target.metric in _NONE:
            assert figure == 0
        elif target.metric.endswith((".bands_in_range", ".bands_kept")):
            assert figure is None or 0 <= figure <= 1  # a short history fills no T
        elif target.metric in _TOO_LITTLE | _FITTING[name] or against_others:
            assert figure is None
        else:
            assert figure is not None
            assert figure > 0


@pytest.mark.parametrize("name", _READERS)
def test_without_transcripts_nothing_is_measured_or_missed(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(transcripts.VARIABLE, "/overwritten/by/the/option")
    figures = run(name, capsys, "--data", str(tmp_path), "--check")
    assert all(target.of(figures) is None for target in TARGETS[name])


async def test_raw_is_as_durable_as_a_bank(tmp_path: Path) -> None:
    raw = Raw(tmp_path / "raw.db")
    async with ours.open_bank(tmp_path / "ours.db") as bank:
        assert isinstance(bank.store.adapter, SQLiteAdapter)
        await bank.collection(ours.Message).put(ours.Message("a/1", "user", "hello"))
        for db in (raw.db, bank.store.adapter._db):
            assert db.pragma("synchronous") == 1  # NORMAL
            assert db.pragma("journal_mode") == "wal"
    raw.close()


def test_messages_follow_from_the_seed_and_pack_like_text() -> None:
    messages = Texts(1).messages(50, 700)
    assert messages == Texts(1).messages(50, 700)
    assert len({*messages, *Texts(2).messages(50, 700)}) == 100
    assert all(len(message.encode()) == 700 for message in messages)
    packed = sum(len(zlib.compress(message.encode())) for message in messages)
    assert 0.5 < packed / (50 * 700) < 0.8


def test_what_is_missed() -> None:
    at_limits = {target.metric: target.limit for target in TARGETS["append"]}
    assert missed("append", at_limits) == []
    assert missed("append", dict.fromkeys(at_limits)) == []  # not measured is not missed
    above = at_limits | {"growth": 1.3}
    assert [target.metric for target in missed("append", above)] == ["growth"]
    assert Target("import_s", 0.15, "", strict=True).met(0.15) is False
    speed = Target("mb_per_s", 5, "", at_least=True)
    assert [speed.met(4.9), speed.met(5.0), speed.met(None)] == [False, True, None]
    assert speed.text == "≥ 5"


def test_a_figure_may_stand_in_a_group() -> None:
    target = Target("60000.hit_ratio", 0.94, "", at_least=True)
    assert target.of({"60000": {"hit_ratio": 0.95}}) == 0.95
    assert not missed("cache", unmeasured("cache"))


async def test_a_long_project_is_made_once_and_given_as_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_project, "WORK", tmp_path / "work")
    (tmp_path / "work" / "project-of-older-code").mkdir(parents=True)
    lines: list[str] = []
    report = Report()
    monkeypatch.setattr(report, "say", lines.append)
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        file = await long_project.copied(20, tmp_path / name, report)
        async with ours.open_bank(file) as bank:
            session = await bank.existing_session(long_project.SESSION)
            await session.append("Each has a file of its own.")
            assert (await session.head()).turn == 21
            (standing,) = await bank.services.renditions.status(session.name)
            assert standing.missing <= 1
    assert len(lines) == 1
    assert len(list((tmp_path / "work").iterdir())) == 1
    long_project.remove()
    assert not list((tmp_path / "work").iterdir())


def test_check_fails_on_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_run", lambda *_, **__: {"ratio": 0.9, "spread": {}})
    assert command.main(["disk_records"]) == 0
    assert command.main(["disk_records", "--check"]) == 1


def test_the_results_hold_every_target_and_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "FILE", tmp_path / "RESULTS.md")
    monkeypatch.setenv(peers.VARIABLE, "/nowhere/python")
    monkeypatch.setenv(peers.LITELLM_VARIABLE, "/nowhere/python")
    results.write({name: {**unmeasured(name), "spread": {}} for name in TARGETS})
    page = results.FILE.read_text()
    assert all(f"`{t.metric}`" in page for targets in TARGETS.values() for t in targets)
    assert "cores" in page
    assert str(peers.ROOT) not in page
    assert str(Path.home()) not in page
    results.write({"batch": {"ratio_to_raw": 1.25, "spread": {}}})
    again = results.FILE.read_text().splitlines()
    batch = next(line for line in again if line.startswith("| batch |"))
    assert batch.split("|")[3] == " 1.25 "
    assert len(again) == len(page.splitlines())
