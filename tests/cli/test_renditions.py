"""``perdure renditions``: what there is, what waits, what it takes; making what is missing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import perdure
from perdure.bank import Bank
from perdure.config import Config, GatewayConfig, ModelsConfig, PriceConfig
from perdure.history.renditions.rendition_records import Rendition, Tiny
from perdure.testing import ReceivedRequest, ScriptedModel
from tests.cli.conftest import Ask, Run
from tests.history.scribes import labour

NAME = "planner/auth"


@pytest.fixture
def bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bank with two sessions: one whose renditions are missing, one without turns."""
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    monkeypatch.setenv("PERDURE_BANK", url)

    async def fill() -> None:
        async with perdure.open(url) as bank:
            await bank.session("planner/empty")
            session = await bank.session(NAME)
            await session.append([*labour(1), *labour(2)], count=True)
        # They were made at the latest when it was closed.
        async with perdure.open(url) as bank:
            await bank.collection(Rendition).query().delete()
            await bank.collection(Tiny).query().delete()

    asyncio.run(fill())
    return url


@pytest.mark.usefixtures("bank")
def test_what_is_missing_is_told_and_made(ask: Ask, run: Run) -> None:
    code, found = ask("renditions")
    assert (code, found["made"]) == (0, None)
    (session,) = found["sessions"]
    assert (session["session"], session["rounds"], session["turns"]) == (NAME, 4, 2)
    assert (session["missing"], session["levels"]) == (6, {})
    code, found = ask("renditions", "make", NAME)
    (session,) = found["sessions"]
    assert (code, found["made"], session["missing"]) == (0, 2, 0)
    assert (session["by_algorithm"], session["by_model"]) == (6, 0)
    levels = session["levels"]
    assert 1 > levels["S"]["ratio"] > levels["C"]["ratio"] > levels["T"]["ratio"] > 0
    assert levels["S"]["raw"] == levels["C"]["raw"] == levels["T"]["raw"]
    assert (session["cost"], session["dollars"], session["calls"]) == (0, 0.0, 0)
    assert ask("renditions", NAME)[1]["sessions"] == [session]
    shown = run("renditions", NAME).stdout
    assert "2 turns, 4 rounds." in shown
    assert "Nothing is missing, waits or has failed." in shown
    assert f"{levels['C']['ratio']:.1%}" in shown
    assert NAME in run("renditions").stdout
    assert "nothing is missing now" in run("renditions", "make", NAME).stdout


@pytest.mark.usefixtures("bank")
def test_names_can_be_abbreviated(ask: Ask, run: Run) -> None:
    code, found = ask("renditions", "auth")
    assert (code, [each["session"] for each in found["sessions"]]) == (0, [NAME])
    code, found = ask("renditions", "make", "planner/a")
    assert (code, found["made"]) == (0, 2)
    assert found["sessions"][0]["missing"] == 0
    several = run("renditions", "make", "planner/")
    assert several.exit_code == 1
    assert "fits 2 sessions: planner/auth, planner/empty" in several.stderr


def test_looking_makes_nothing(bank: str, ask: Ask) -> None:
    ask("renditions")

    async def count() -> int:
        async with perdure.open(bank) as opened:
            return await opened.collection(Rendition).query().count()

    assert asyncio.run(count()) == 0


def test_what_failed_and_what_it_cost(bank: str, run: Run, ask: Ask) -> None:
    said = "issue 3: the build failed in src/auth/login.py at line 42 with KeyError."

    def script(request: ReceivedRequest) -> str:
        system = request.messages[0].text
        if "Of all rounds" in system:
            return json.dumps({"text": f"The user wanted {said}"})
        texts = [f"User: {said}", "It is in /etc/evil.conf now."]
        if "a third of its words" not in system:
            texts = ["x", "x"]
        rounds = [{"round": n, "text": text} for n, text in enumerate(texts, 1)]
        return json.dumps({"rounds": rounds})

    async def talk() -> None:
        async with ScriptedModel(script) as model:
            config = Config(
                gateway=GatewayConfig(
                    providers={"ours": model.provider_config()},
                    models=ModelsConfig(compress="ours/small"),
                    prices={"ours/small": PriceConfig(input=1.0, output=2.0)},
                )
            )
            async with Bank(bank, config=config) as opened:
                session = await opened.session("planner/new")
                await session.append(labour(3))
                await opened.settle()

    asyncio.run(talk())
    code, found = ask("renditions", "planner/new")
    (session,) = found["sessions"]
    assert (code, session["given_up"], session["by_model"], session["calls"]) == (0, 2, 2, 5)
    assert session["cost"] > 0
    assert session["problems"]["T-1.2 at C: invented: /etc/evil.conf"] == 1
    shown = run("renditions", "planner/new").stdout
    assert "3 made, 2 of them by a model." in shown
    assert "2 given up." in shown
    assert "1 × T-1.2 at C: invented: /etc/evil.conf" in shown
    assert "1 × T-1.1 at S: too short: " in shown
    assert "5 model calls: $" in shown


@pytest.mark.usefixtures("bank")
@pytest.mark.parametrize("words", [["make"], ["a/b", "c/d"], ["make", "a/b", "c/d"]])
def test_usage(words: list[str], run: Run) -> None:
    result = run("renditions", *words)
    assert result.exit_code == 2
    assert "perdure renditions make SESSION" in result.stderr


@pytest.mark.usefixtures("bank")
def test_a_session_that_is_not_there(ask: Ask, run: Run) -> None:
    code, found = ask("renditions", "no/such")
    assert (code, found["error"]["type"]) == (1, "InvalidInput")
    assert run("renditions", "planner/empty").exit_code == 0


def test_no_bank(run: Run, tmp_path: Path) -> None:
    result = run("renditions", "--bank", f"sqlite:///{tmp_path / 'none.db'}")
    assert result.exit_code == 1
    assert "There is no bank" in result.stderr
