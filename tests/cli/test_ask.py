"""Questions to a scripted model: what is printed where, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.cli.app import app
from perdure.cli.ask_commands import reply_summary, waiting_for
from perdure.config import GatewayConfig
from perdure.core.messages import Usage, assistant
from perdure.gateway.calls import Reply
from perdure.gateway.catalog import ModelCatalog
from perdure.gateway.outcomes import Outcome
from perdure.testing import ScriptedAnswer, ScriptedFault
from tests.cli.conftest import Ask, Run, Serve, Tty

PERDURE = [sys.executable, "-m", "perdure"]
BANK = "sqlite:///bank.db"
#: An answer that takes its time, and has everything that can go wrong on a terminal.
RICH = ScriptedAnswer(
    "naïve 日本語 🎉\n\tif x:\r\n\x1b[31mred", reasoning="Let me see.\nAh.", chunk=3
)


@pytest.fixture(autouse=True)
def bank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_BANK", BANK)


def outcomes() -> list[Outcome]:
    with perdure.open_sync(BANK) as bank:
        found: list[Outcome] = bank.collection(Outcome).query().order_by("started").values()
        return found


def test_an_answer_for_people(run: Run, serve: Serve) -> None:
    model = serve(RICH)
    result = run("ask", "What", "is it?")
    assert result.exit_code == 0
    assert result.stdout_bytes == f"{RICH.text}\n".encode()  # a file gets it as it is
    assert result.stderr.startswith(f"{model.url}#any · ")
    assert " in, " in result.stderr
    assert " · cost unknown · " in result.stderr
    assert result.stderr.count("\n") == 1
    assert model.requests[0].prompt == "What is it?"
    assert model.requests[0].stream


def test_an_answer_as_json(ask: Ask, serve: Serve) -> None:
    model = serve(
        ScriptedAnswer("Yes.", reasoning="Hm.", usage=Usage(input=12, output=3, cache_read=4))
    )
    code, found = ask("ask", "Well?", "--agent", "ada", "--task", "debug")
    assert code == 0
    took = {name: found.pop(name) for name in ("first_token", "latency", "outcome")}
    assert found == {
        "text": "Yes.",
        "reasoning": "Hm.",
        "finish": "stop",
        "provider": model.url,
        "model": "any",
        "usage": {
            "input": 12,
            "output": 3,
            "cache_read": 4,
            "cache_write": None,
            "reasoning": found["usage"]["reasoning"],
        },
        "cost": None,
        "dollars": None,
        "cached": False,
        "fallback": 0,
    }
    assert 0 < took["first_token"] <= took["latency"]
    (outcome,) = outcomes()
    assert outcome.id == took["outcome"]
    assert (outcome.agent, outcome.task, outcome.complexity) == ("ada", "debug", "complex")
    assert (outcome.success, outcome.streamed, outcome.purpose) == (True, True, "chat")


def test_what_is_sent(run: Run, serve: Serve) -> None:
    model = serve()
    done = run("ask", "Hi.", "--system", "Be brief.", "--max-tokens", "7", "-m", f"{model.url}#b")
    assert done.exit_code == 0
    (request,) = model.requests
    assert [(m.role, m.text) for m in request.messages] == [
        ("system", "Be brief."),
        ("user", "Hi."),
    ]
    assert request.body["max_tokens"] == 7
    assert request.model == "b"


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], "from\nstdin\n"),
        (["-"], "from\nstdin\n"),
        (["Look", "at this:", "-"], "Look at this:\n\nfrom\nstdin\n"),
        (["-", "Well?"], "from\nstdin\n\n\nWell?"),
        (["Only this."], "Only this."),
    ],
)
def test_the_question_may_be_on_stdin(
    args: list[str], expected: str, run: Run, serve: Serve
) -> None:
    model = serve()
    assert run("ask", *args, answer="from\nstdin\n").exit_code == 0
    assert model.requests[0].prompt == expected


@pytest.mark.parametrize("args", [[], [""], [" "], ["-"]])
def test_there_must_be_a_question(args: list[str], run: Run, serve: Serve) -> None:
    model = serve()
    result = run("ask", *args, answer="")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Invalid value for QUESTION: There is no question. Write it" in result.stderr
    assert not model.requests
    assert not Path("bank.db").exists()


def test_what_is_on_stdin_must_be_text(serve: Serve) -> None:
    model = serve()
    done = subprocess.run(
        [*PERDURE, "ask", "Well?", "-"], input=b"GIF89a\xff\x00", capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"What is on stdin is not text in UTF-8, from its byte 6 on. Give text" in done.stderr
    assert not model.requests
    assert not Path("bank.db").exists()


def test_help_shows_no_default_that_is_none(run: Run) -> None:
    assert "()" not in run("ask", "--help").stdout


def test_without_a_model_nothing_is_made(run: Run, ask: Ask) -> None:
    result = run("ask", "Hello?")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("perdure: No model is configured for chat. ")
    assert 'PERDURE_MODEL_CHAT="' in result.stderr
    assert result.stderr.count("\n") == 1
    assert ask("ask", "Hello?", "--purpose", "judge")[1]["error"]["type"] == "NoModel"
    assert "nobody" in run("ask", "Hello?", "--model", "nobody/x").stderr
    assert not Path("bank.db").exists()


def test_local_does_not_chat(run: Run) -> None:
    result = run("ask", "Hello?", "--model", "local/wordllama")
    assert result.exit_code == 1
    assert "it does not answer" in result.stderr


def test_thoughts_are_shown_on_demand_and_beside_the_answer(run: Run, serve: Serve) -> None:
    serve(RICH)
    shown = run("ask", "Well?", "--reasoning")
    assert shown.stderr.startswith("Let me see.\nAh.\n")
    assert "Let me see." not in shown.stdout
    assert "Let me see." not in run("ask", "Well?").output


def test_the_cache_is_a_switch(ask: Ask, run: Run, serve: Serve) -> None:
    model = serve()
    first = ask("ask", "Hi.", "--cache")[1]
    second = ask("ask", "Hi.", "--cache")[1]
    assert (first["cached"], second["cached"], second["cost"]) == (False, True, 0)
    assert len(model.requests) == 1
    told = run("ask", "Hi.", "--cache").stderr
    assert " · cached · free · " in told
    ask("ask", "Hi.", "--no-cache")
    ask("ask", "Hi.")
    assert len(model.requests) == 3


def test_another_model_answers_for_one_that_fails(
    run: Run, ask: Ask, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = serve(ScriptedFault(status=401)), serve("I am here.")
    monkeypatch.setenv("PERDURE_MODEL_CHAT", f"{bad.url}#bad, {good.url}#good")
    assert " · fallback, after 1 other" in run("ask", "Hi.").stderr
    code, found = ask("ask", "Hi.")  # the next process knows, and asks the good one first
    assert (code, found["model"], found["fallback"]) == (0, "good", 0)


def test_the_time_is_that_of_all_tries(
    run: Run, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = serve(ScriptedFault(status=400, delay=0.3)), serve("I am here.")
    monkeypatch.setenv("PERDURE_MODEL_CHAT", f"{bad.url}#bad, {good.url}#good")
    told = run("ask", "Hi.").stderr
    seconds = re.search(r" · (\d+\.\d\d) s · fallback, after 1 other\n$", told)
    assert seconds is not None
    assert float(seconds[1]) >= 0.3
    (_, answered) = outcomes()
    assert answered.latency < float(seconds[1]) - 0.2


@pytest.mark.parametrize("others", [0, 2])
def test_who_is_waited_for(others: int, tty: Tty, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.cli.terminal.PATIENCE", 0.0)
    catalog = ModelCatalog(GatewayConfig(), {})
    candidates = [catalog.find(f"ollama/m{place}") for place in range(others + 1)]

    async def wait(seconds: float) -> None:
        async with waiting_for(candidates):
            await asyncio.sleep(seconds)

    with contextlib.redirect_stderr(tty):
        asyncio.run(wait(0.05))
    more = ", or 2 others" if others else ""
    assert f"waiting for ollama/m0{more} …" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", tty.getvalue())
    assert "0/" not in tty.getvalue()
    assert tty.getvalue().endswith("\x1b[2K")  # it is gone
    with contextlib.redirect_stderr(io.StringIO()) as file:
        asyncio.run(wait(0.02))
    assert not file.getvalue()


def test_errors_are_one_line(
    run: Run, ask: Ask, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_GATEWAY_RETRIES", "0")
    serve(ScriptedFault(status=400, message="No\nsuch \x1b[31mthing."))
    result = run("ask", "Hi.")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("perdure: ")
    assert result.stderr.count("\n") == 1
    assert "\x1b" not in result.stderr
    code, found = ask("ask", "Hi.")
    assert (code, found["error"]["type"]) == (1, "Rejected")
    with pytest.raises(perdure.PerdureError):
        run("ask", "Hi.", "--debug")


BROKEN = ScriptedFault(
    how="reset", after=4, answer=ScriptedAnswer("It begins well, and then", chunk=5)
)


def test_an_answer_that_breaks_off(run: Run, serve: Serve) -> None:
    model = serve(BROKEN)
    result = run("ask", "Hi.")
    assert result.exit_code == 1
    assert result.stdout.startswith("It begins")
    assert result.stdout.endswith("\n")
    assert "stopped halfway" in result.stderr
    assert result.stderr.endswith("What arrived is above. Ask again.\n")
    told = run("ask", "Hi.", "--json")
    found = json.loads(told.stdout)
    assert (told.exit_code, told.stderr) == (1, "")
    assert found["error"]["type"] == "StreamBroken"
    assert found["partial"].startswith("It begins")
    assert len(model.requests) == 2  # none was begun again by itself


def test_a_budget_that_is_reached(run: Run, serve: Serve, tmp_path: Path) -> None:
    model = serve()
    config = tmp_path / "config.toml"
    config.write_text("[[gateway.budgets]]\nname = 'tiny'\ntokens = 10\n")
    result = run("ask", "Hi.", "--config", str(config))
    assert result.exit_code == 1
    assert "The budget 'tiny' does not allow the call" in result.stderr
    assert not model.requests


def test_on_a_terminal(serve: Serve, tty: Tty) -> None:
    serve(RICH)
    with contextlib.redirect_stdout(tty), contextlib.redirect_stderr(Tty()) as beside:
        app(["ask", "Well?", "--reasoning"], standalone_mode=False)
    assert tty.getvalue() == "naïve 日本語 🎉\n    if x:\n\\x1b[31mred\n"
    told = beside.getvalue()
    assert "\x1b[2m" in told
    assert "Let me see." in told.replace("\x1b[0m", "").replace("\x1b[2m", "")


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_a_line_that_ends_in_two_characters(chunk: int, serve: Serve, tty: Tty) -> None:
    serve(ScriptedAnswer("a\r\nb\rc\r", chunk=chunk))
    with contextlib.redirect_stdout(tty), contextlib.redirect_stderr(Tty()):
        app(["ask", "Well?"], standalone_mode=False)
    assert tty.getvalue() == "a\nb\\rc\\r\n"


def test_off_a_terminal_nothing_is_coloured(serve: Serve) -> None:
    serve(ScriptedAnswer("naïve 日本語 🎉", reasoning="Hm."))
    done = subprocess.run(
        [*PERDURE, "ask", "Hi.", "--reasoning"], capture_output=True, check=True, text=True
    )
    assert done.stdout == "naïve 日本語 🎉\n"
    assert done.stderr.startswith("Hm.\n")
    assert "\x1b" not in done.stderr


def test_control_c(serve: Serve) -> None:
    serve(
        ScriptedFault(
            how="hang", after=4, answer=ScriptedAnswer("It begins well, and then", chunk=5)
        )
    )
    with subprocess.Popen(
        [*PERDURE, "ask", "Hi."], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        said = os.read(process.stdout.fileno(), 100)  # it is printed as it arrives
        assert said.startswith(b"It be")
        process.send_signal(signal.SIGINT)
        rest, told = process.communicate(timeout=100)
    assert process.returncode == 130
    assert (said + rest).endswith(b"\n")
    assert told == b""
    (outcome,) = outcomes()
    assert (outcome.success, outcome.error) == (False, "cancelled")


def test_control_c_before_anything_arrived(serve: Serve) -> None:
    model = serve(ScriptedFault(how="hang"))
    with subprocess.Popen(
        [*PERDURE, "ask", "Hi."], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        deadline = time.monotonic() + 100
        while not model.requests and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=100) == (b"", b"")
    assert process.returncode == 130


def test_streams_that_are_ascii(serve: Serve) -> None:
    serve(RICH)
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for args in (["ask", "é?"], ["ask", "é?", "--json"], ["ask", "é?", "--reasoning"]):
        done = subprocess.run([*PERDURE, *args], capture_output=True, env=env, check=True)
        assert done.stdout.isascii()
        assert done.stderr.isascii()
        assert b"na\\" in done.stdout


def test_nobody_reads_on(serve: Serve) -> None:
    serve(ScriptedAnswer("word " * 20_000, chunk=1_000))
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*PERDURE, "ask", "Hi."], stdout=writer, stderr=subprocess.PIPE, check=False, timeout=100
    )
    os.close(writer)
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "p/m · 1,200 in, 30 out · $0.000420 · 1.50 s"),
        ({"cost": 0}, "p/m · 1,200 in, 30 out · free · 1.50 s"),
        ({"cost": None}, "p/m · 1,200 in, 30 out · cost unknown · 1.50 s"),
        ({"cached": True, "cost": 0}, "p/m · cached · free · 1.50 s"),
        ({"usage": None}, "p/m · tokens unknown · $0.000420 · 1.50 s"),
        ({"usage": Usage(input=5)}, "p/m · 5 in, ? out · $0.000420 · 1.50 s"),
        ({"fallback": 2}, "p/m · 1,200 in, 30 out · $0.000420 · 1.50 s · fallback, after 2 others"),
        (
            {"finish": "length"},
            "p/m · 1,200 in, 30 out · $0.000420 · 1.50 s · cut off: it reached the limit of length",
        ),
    ],
)
def test_what_it_took_in_one_line(changes: dict[str, Any], expected: str) -> None:
    usage = changes.pop("usage", Usage(input=1_200, output=30))
    message = assistant("x")
    given = {
        "message": type(message)(message.role, message.parts, usage=usage),
        "finish": "stop",
        "provider": "p",
        "model": "m",
        "cost": 420_000_000,
        "latency": 0.5,
        **changes,
    }
    assert reply_summary(Reply(**given), 1.5) == expected


def test_one_json_object_and_nothing_else(serve: Serve) -> None:
    serve(RICH)
    done = subprocess.run([*PERDURE, "ask", "Hi.", "--json"], capture_output=True, check=True)
    assert json.loads(done.stdout)["text"] == RICH.text
    assert done.stderr == b""
