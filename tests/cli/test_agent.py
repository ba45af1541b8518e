"""``perdure agent``: agents on the command line, with a scripted model."""

from __future__ import annotations

from pathlib import Path

import pytest

import perdure
from perdure.core.messages import ToolCall
from perdure.gateway.outcomes import Outcome
from perdure.testing.model import ReceivedRequest, ScriptedAnswer
from tests.cli.conftest import Ask, Run, Serve

FILE = "---\nname: router\nskills: mail\ntasks: routing\nmood: good\n---\nYou route emails.\n"


@pytest.fixture(autouse=True)
def router(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of an agent that is in the bank."""
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    monkeypatch.setenv("PERDURE_BANK", url)
    path = tmp_path / "router.md"
    path.write_text(FILE, encoding="utf-8")
    with perdure.open_sync(url) as bank:
        bank.agent(file=path)
    return path


def script(request: ReceivedRequest) -> ScriptedAnswer:
    last = request.messages[-1]
    if last.results:
        return ScriptedAnswer(f"So: {last.results[0].text}")
    if "order" in last.text:
        return ScriptedAnswer("", (ToolCall("c1", "ask_person", '{"question": "How many?"}'),))
    return ScriptedAnswer("To sales.")


def test_files_make_versions(run: Run, ask: Ask, router: Path) -> None:
    again = run("agent", "add", str(router))
    assert again.stdout.startswith("router is unchanged: version 1, ag_")
    assert again.stderr == ""
    router.write_text(FILE.replace("route emails", "route all emails"), encoding="utf-8")
    code, made = ask("agent", "add", str(router), "--reason", "More emails.")
    assert (code, made["version"], made["definition"]["front_matter"]["mood"]) == (0, 2, "good")
    _, versions = ask("agent", "versions", "router")
    assert [each["number"] for each in versions["versions"]] == [2, 1]
    assert versions["versions"][0]["reason"] == "More emails."
    _, back = ask("agent", "versions", "router", "--use", "1")
    assert back["versions"][0]["prompt"] == "You route emails."
    assert "as version 1" in run("agent", "versions", "router").stdout
    _, found = ask("agent", "list", "--skill", "mail")
    assert [each["name"] for each in found["agents"]] == ["router"]
    assert ask("agent", "list", "--task", "cooking")[1] == {"agents": []}
    assert "router" in run("agent", "list").stdout
    shown = run("agent", "show", "router").stdout
    assert "You route emails." in shown
    assert "as the gateway chooses" in shown
    refused = run("agent", "add", "absent.md")
    assert refused.exit_code == 1
    assert "There is no agent file absent.md." in refused.stderr
    assert run("agent", "show", "nobody").exit_code == 1


def test_tools_that_do_not_exist_here_are_named(run: Run, router: Path) -> None:
    router.write_text(FILE.replace("mood: good", "tools: Read, Bash, ask_person"), encoding="utf-8")
    added = run("agent", "add", str(router))
    assert added.stdout.startswith("router is kept: version 2")
    assert "do not exist here: Read, Bash." in added.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (FILE.replace("mood: good", "limits: {steps: many}"), "steps cannot be 'many'"),
        (FILE.replace("mood: good", "budget: many"), "budget is a whole number"),
        (b"\xff\xfe", "is no UTF-8 text"),
        (None, "it is a folder"),
    ],
)
def test_a_file_that_is_none_is_one_clear_error(
    run: Run, tmp_path: Path, content: str | bytes | None, said: str
) -> None:
    path = tmp_path / "odd.md"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    refused = run("agent", "add", str(path))
    assert refused.exit_code == 1
    assert said in refused.stderr
    assert "Errno" not in refused.stderr
    assert "Expected" not in refused.stderr


def test_whoever_asks_is_told_what_it_waits_for(
    run: Run, ask: Ask, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(script)
    monkeypatch.setattr("perdure.cli.agent_ask_commands._MOMENT", 0.05)

    def lookup() -> str:
        """Look it up."""
        return "gold"

    with perdure.open_sync(f"sqlite:///{tmp_path / 'bank.db'}") as bank:
        bank.agent("router", tools=[lookup])
    waited = run("agent", "ask", "router", "Where?", "--wait", "2")
    assert waited.exit_code == 1
    assert "queued as router/00000001: waits for a process that has its tools" in waited.stderr
    assert waited.stderr.count("queued as") == 1
    assert "lookup" in waited.stderr
    assert run("agent", "cancel", "router/00000001").stdout == "router/00000001 is taken back.\n"
    assert ask("agent", "messages", "router")[1]["messages"][0]["state"] == "cancelled"
    assert run("agent", "cancel", "router/00000009").exit_code == 1


def test_a_reply_is_rated_by_its_message(run: Run, ask: Ask, serve: Serve, tmp_path: Path) -> None:
    serve(script)
    asked = run("agent", "ask", "router", "Where?")
    assert asked.stderr.endswith(
        "1 model call · rate it: perdure agent rate router/00000001 SCORE\n"
    )
    assert run("agent", "rate", "router/00000001", "0.5", "So so.").stdout == "Rated 0.5.\n"
    (message,) = ask("agent", "messages", "router")[1]["messages"]
    with perdure.open_sync(f"sqlite:///{tmp_path / 'bank.db'}") as bank:
        rated = bank.collection(Outcome).get(message["outcomes"][-1])
        assert rated is not None
        assert (rated.quality, rated.quality_by, rated.comment) == (0.5, "user", "So so.")
    ask("agent", "send", "router", "Later.")
    refused = run("agent", "rate", "router/00000002", "0.5")
    assert refused.exit_code == 1
    assert "is accepted" in refused.stderr


def test_nobody_is_no_agent(run: Run) -> None:
    for command in (("stats",), ("episodes",), ("evolve", "show")):
        refused = run("agent", *command, "nobody")
        assert refused.exit_code == 1
        assert "There is no agent 'nobody'" in refused.stderr
        assert run("agent", *command, "router").exit_code == 0


def test_asking(run: Run, ask: Ask, serve: Serve) -> None:
    model = serve(script)
    result = run("agent", "ask", "router", "Where?", "--context", '{"from": "ada"}')
    assert (result.exit_code, result.stdout) == (0, "To sales.\n")
    assert "router/00000001" in result.stderr
    assert '"from": "ada"' in model.requests[0].prompt
    _, again = ask("agent", "ask", "router", "Where?", "--task", "routing", "--key", "k")
    _, same = ask("agent", "ask", "router", "Where?", "--key", "k")
    assert (again["id"], again["state"], again["reply"]) == (same["id"], "done", "To sales.")
    assert run("agent", "ask", "router", "x", "--context", "[1]").exit_code == 1
    _, sent = ask("agent", "send", "router", "Later.")
    assert sent["state"] == "accepted"
    assert run("agent", "send", "router", "Much later.").stdout == "Accepted as router/00000004.\n"
    _, listed = ask("agent", "messages", "router", "--state", "accepted")
    assert len(listed["messages"]) == 2
    # Whoever works for the agent next does what waits, in its order.
    assert run("agent", "ask", "router", "Now.").stdout == "To sales.\n"
    assert ask("agent", "messages", "router", "--state", "accepted")[1] == {"messages": []}
    assert "To sales." in run("agent", "messages", "router").stdout


def test_questions_are_answered(run: Run, ask: Ask, serve: Serve) -> None:
    serve(script)
    result = run("agent", "ask", "router", "order")
    assert result.exit_code == 0
    assert "How many?" in result.stdout
    _, found = ask("agent", "questions")
    (question,) = found["questions"]
    assert (question["text"], question["answered"]) == ("How many?", None)
    assert question["id"] in run("agent", "questions", "router").stdout
    answered = run("agent", "answer", question["id"], "Twelve.")
    assert answered.stdout == "Answered.\n"
    assert "when a process works for router" in answered.stderr
    assert run("agent", "answer", question["id"], "Ten.").exit_code == 1
    assert run("agent", "ask", "router", "Now.", "--session", "other").exit_code == 0
    _, listed = ask("agent", "messages", "router", "--state", "done")
    assert "So: Twelve." in {each["reply"] for each in listed["messages"]}


def test_schedules(run: Run, ask: Ask) -> None:
    _, made = ask("agent", "schedule", "router", "0 9 * * 1-5", "Sort.", "--timezone", "UTC")
    assert made["cron"] == "0 9 * * 1-5"
    assert made["next"].endswith("T09:00:00+00:00")
    assert "every 1:00:00" in run("agent", "schedule", "router", "every 1h", "Look.").stdout
    assert run("agent", "schedule", "router", "2100-01-01 10:00", "Wake up.").exit_code == 0
    assert run("agent", "schedule", "router", "0 9 * *", "Bad.").exit_code == 1
    _, found = ask("agent", "schedules", "router")
    assert len(found["schedules"]) == 3
    assert "Wake up." in run("agent", "schedules").stdout
    assert run("agent", "unschedule", made["id"]).exit_code == 0
    assert run("agent", "unschedule", made["id"]).exit_code == 1


def test_pausing_and_removing(run: Run, ask: Ask) -> None:
    assert run("agent", "pause", "router").stdout == "router is paused.\n"
    assert ask("agent", "list", "--status", "paused")[1]["agents"][0]["name"] == "router"
    assert run("agent", "resume", "router").stdout == "router is active.\n"
    assert "retired" in run("agent", "remove", "router").stdout
    assert run("agent", "send", "router", "Hi").exit_code == 1
    assert run("agent", "remove", "router", "--forget", answer="n\n").exit_code == 1
    assert ask("agent", "show", "router")[1]["status"] == "retired"
    assert ask("agent", "remove", "router", "--forget", "--yes")[1]["forgotten"] == "router"
    assert run("agent", "show", "router").exit_code == 1


def test_parked_messages_are_retried(run: Run, ask: Ask) -> None:
    """Without a model, nothing can be done: it is told, and nothing is lost."""
    failed = run("agent", "ask", "router", "Where?")
    assert failed.exit_code == 1
    assert "perdure agent retry router/00000001" in failed.stderr
    assert ask("agent", "retry", "router/00000001")[1]["state"] == "accepted"
    assert run("agent", "retry", "router/00000001").exit_code == 1
