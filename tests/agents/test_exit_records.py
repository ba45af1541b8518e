"""What agents print, read: tolerant of form, strict of meaning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perdure.agents.one_shot.agent_command import prompt_way, with_prompt
from perdure.agents.one_shot.exit_records import find_record, read_report
from perdure.agents.one_shot.investigator import read_investigation
from perdure.agents.one_shot.run_verdicts import normalised
from perdure.agents.one_shot.work_files import append_log, count_tasks


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ('{"status": "continue"}', "continue"),
        ('Well.\n{"status":"done","summary":"all"}\n', "done"),
        ('```json\n{\n  "status": "Done"\n}\n```\n', "done"),
        ('{"status": "needs feedback", "question": "Why?"}', "needs_feedback"),
        ('{"status": "NEEDS-FEEDBACK"}', "needs_feedback"),
        ('{"status": "continue", "next": {"file": "a.py"}}', "continue"),
        ('First {"status": "continue"} then {"status": "done"}', "done"),
        ('{"status": "done"}\nGood bye!', "done"),
        ("I am done.", None),
        ("status: done", None),
        ('{"status": "finished"}', None),
        ('{"status": "not done"}', None),
        ('{"status": true}', None),
        ('{"state": "done"}', None),
        ('{"status": "done"', None),
        ('End with {"status": "done"}.' + " That is what I was told." * 20, None),
        ("", None),
        ("{" * 50_000, None),
        ('{"a":' * 4_000, None),
    ],
)
def test_records(text: str, status: str | None) -> None:
    found = find_record(text)
    assert (found.status if found else None) == status


def test_who_asks_says_what() -> None:
    found = find_record('{"status": "needs_feedback", "summary": "Which door?"}')
    assert found is not None
    assert found.question == "Which door?"


def test_the_output_of_claude_code() -> None:
    result = {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "result": 'Did it.\n{"status": "done"}',
        "total_cost_usd": 0.0123,
        "permission_denials": [],
    }
    for out in (
        json.dumps(result),
        json.dumps({"type": "system"}) + "\n" + json.dumps(result) + "\n",
        json.dumps([{"type": "system"}, result]),
    ):
        report = read_report(out)
        assert report.record is not None
        assert report.record.status == "done"
        assert (report.cost, report.text.split("\n")[0]) == (12_300_000_000, "Did it.")
    failed = read_report(json.dumps({**result, "is_error": True, "result": "Overloaded"}))
    assert (failed.record, failed.error) == (None, "Overloaded")
    odd = read_report(json.dumps({**result, "total_cost_usd": "NaN", "permission_denials": 5}))
    assert odd.cost is None


def test_the_output_of_codex() -> None:
    lines = [
        {"type": "thread.started"},
        {"type": "item.completed", "item": {"type": "agent_message", "text": "Hm."}},
        {
            "type": "item.completed",
            "item": {"type": "agent_message", "text": 'So.\n{"status": "continue"}'},
        },
        {"type": "turn.completed", "usage": {}},
    ]
    report = read_report("\n".join(map(json.dumps, lines)))
    assert report.record is not None
    assert (report.record.status, report.cost) == ("continue", None)
    failed = {"type": "turn.failed", "error": {"message": "no quota"}}
    assert read_report(json.dumps(failed)).error == "no quota"


def test_costs_of_the_proxy() -> None:
    report = {"requests": 3, "figures": {}, "cost": 42, "turns": 1}
    assert read_report("done", json.dumps(report)).cost == 42
    assert read_report("done", json.dumps({**report, "cost": None})).cost is None
    said = "perdure: kept 1 turn\nperdure: $1,234.50 at list prices; the client alone: about $2\n"
    assert read_report("done", said).cost == 1_234_500_000_000_000
    assert read_report("done", "something else").cost is None


def test_the_file_wins() -> None:
    report = read_report('{"status": "done"}', "", '{"status": "continue"}')
    assert report.record is not None
    assert report.record.status == "continue"


def test_investigations() -> None:
    found = read_investigation('Hm.\n{"verdict": "Continue", "advice": "Go left."}')
    assert found is not None
    assert (found.verdict, found.advice) == ("continue", "Go left.")
    assert read_investigation("I would go on.") is None
    assert read_investigation('{"verdict": "maybe"}') is None


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("- [ ] a\n- [x] b\n* [X] c\n1. [ ] d\n2) [x] e\n  - [ ] nested\n> - [ ] quoted", (4, 3)),
        ("- [-] dropped\n- [~] begun", (2, 0)),
        ("- [] none\n- [ ]none\n[ ] none\ntext - [ ] none", (0, 0)),
        ("```\n- [ ] example\n```\n- [x] real\n~~~\n- [ ] ``` x\n~~~", (0, 1)),
        ("", (0, 0)),
    ],
)
def test_tasks(text: str, counts: tuple[int, int]) -> None:
    found = count_tasks(text)
    assert (found.open, found.done) == counts


def test_an_entry_is_written_once(tmp_path: Path) -> None:
    log = tmp_path / "LOG.md"
    for _ in range(2):
        append_log(str(log), "## Run 1 (run-a)", ["It changed nothing."])
    log.write_text(log.read_text() + "no newline")
    append_log(str(log), "## Run 2 (run-a)", ["So."])
    assert log.read_text() == (
        "## Run 1 (run-a)\n\nIt changed nothing.\nno newline\n\n## Run 2 (run-a)\n\nSo.\n"
    )


def test_errors_are_compared_without_what_varies() -> None:
    one = "Exit code 1: timeout after 12.5 s at 0x7fa3, request 9f86d081884c7d65"
    other = "exit code 1:  timeout after 3 s at 0xbeef, request 2c26b46b68ffc68f"
    assert normalised(one) == normalised(other)
    assert normalised(one) != normalised("Exit code 1: refused")


def test_where_a_prompt_goes() -> None:
    assert prompt_way(["claude", "-p"]) == "stdin"
    assert with_prompt(["claude", "-p"], "stdin", "Hi") == (("claude", "-p"), "Hi")
    assert with_prompt(["/bin/codex", "exec"], "stdin", "Hi") == (("/bin/codex", "exec", "-"), "Hi")
    assert prompt_way(["opencode", "run"]) == "argument"
    assert with_prompt(["opencode", "run"], "argument", "Hi") == (("opencode", "run", "Hi"), "")
    assert prompt_way(["agent", "--say", "{prompt}", "-v"]) == "argument"
    assert with_prompt(["a", "{prompt}", "-v"], "argument", "Hi") == (("a", "Hi", "-v"), "")
    proxied = ["perdure", "proxy", "--", "codex", "exec", "--json"]
    assert with_prompt(proxied, prompt_way(proxied), "Hi")[0][-1] == "-"
