"""What is configured, and whether it is there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import keyring
import pytest
from rich.cells import cell_len

import perdure
from perdure.cli import readable
from perdure.cli.app import app
from perdure.core import clock
from perdure.gateway import provider_keys
from perdure.gateway.breaker import BreakerMemory
from perdure.gateway.model_memory import LearnedModel
from perdure.testing import ScriptedModel
from tests.cli.conftest import Ask, Run, Serve, Tty

PERDURE = [sys.executable, "-m", "perdure"]
KEY = "sk-a-key-that-is-never-shown-0123456789"
CONFIG = """
[gateway.models]
chat = ["ours/small", "openai/gpt-5"]
compress = {{ simple = "ours/small", complex = "openai/gpt-5" }}
[gateway.providers.ours]
base_url = "{url}"
key_variable = "OUR_KEY"
[gateway.prices."ours/small"]
input = 0.1
output = 0.4
cache_read = 0.01
cache_write = 0.125
"""


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of whoever runs the tests, and their keyring, are none of its business."""
    for name in [name for name in os.environ if name.endswith(("_API_KEY", "_BASE_URL"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")


@pytest.fixture
def ours(serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ScriptedModel:
    """A server with a key, and OpenAI without one, configured for two purposes."""
    model = serve(key=KEY, models=("small",))
    monkeypatch.delenv("PERDURE_MODEL_CHAT")
    configure(tmp_path / "config.toml", model.url, monkeypatch)
    return model


def configure(file: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(CONFIG.format(url=url))
    monkeypatch.setenv("PERDURE_CONFIG", str(file))
    monkeypatch.setenv("OUR_KEY", KEY)


def by_name(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in found["models"]}


def test_what_is_configured(ask: Ask, run: Run, ours: ScriptedModel) -> None:
    code, found = ask("models", "--no-reach")
    assert code == 0
    assert [each["name"] for each in found["models"]] == [
        "ours/small",
        "openai/gpt-5",
        "local/wordllama",
    ]
    small, gpt, local = found["models"]
    uses = [(use["purpose"], use["complexity"], use["place"]) for use in small.pop("uses")]
    assert uses == [
        *(("chat", level, 1) for level in ("simple", "moderate", "complex")),
        ("compress", "simple", 1),
    ]
    assert small == {
        "name": "ours/small",
        "provider": "ours",
        "model": "small",
        "wire": "chat",
        "base_url": ours.url,
        "key": {"from": "variable", "variable": "OUR_KEY"},
        "reachable": None,
        "problem": None,
        "price": {"input": 0.1, "output": 0.4, "cache_read": 0.01, "cache_write": 0.125},
        "circuit": None,
    }
    assert gpt["key"] == {"from": "missing", "variable": "OPENAI_API_KEY"}
    assert gpt["price"]["input"] > 0
    assert (local["key"]["from"], local["price"]["input"], local["base_url"]) == (
        "not_needed",
        0,
        None,
    )
    assert found["missing"] == ["filter", "judge", "reflect"]
    assert len(found["prices_as_of"]) == 10
    assert not ours.requests
    assert ours.connections == 0
    assert not Path("home").exists()


def test_for_people(run: Run, ours: ScriptedModel) -> None:
    shown = run("models", "--no-reach")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "\x1b" not in shown.stdout
    lines = shown.stdout.splitlines()
    assert not any(line != line.rstrip() for line in lines)
    price = "$0.10 in, $0.40 out, $0.01 read from cache, $0.125 written to it"
    assert lines[:6] == [
        "ours/small",
        "  for      chat (1 of 2); compress (simple 1 of 1)",
        f"  at       {ours.url} (chat)",
        "  key      from OUR_KEY",
        f"  price    {price}, for a million tokens",
        "",
    ]
    assert "  for      chat (2 of 2); compress (moderate 1 of 1, complex 1 of 1)" in lines
    assert "  key      missing: set OPENAI_API_KEY, or keyring set perdure OPENAI_API_KEY" in lines
    assert "local/wordllama  on this machine" in lines
    assert "No model is configured for filter, judge, reflect: their callers do without one." in (
        lines
    )


def test_a_key_is_never_shown(run: Run, ours: ScriptedModel) -> None:
    for args in ([], ["--no-reach"], ["--json"], ["--no-reach", "--json"]):
        assert KEY not in run("models", *args).output


def test_a_key_in_the_keyring(
    ask: Ask, run: Run, ours: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(service: str, name: str) -> str | None:
        return KEY if (service, name) == ("perdure", "OPENAI_API_KEY") else None

    monkeypatch.setattr(keyring, "get_password", get)
    monkeypatch.setattr(provider_keys, "_questions", {})
    gpt = by_name(ask("models", "--no-reach")[1])["openai/gpt-5"]
    assert gpt["key"] == {"from": "keyring", "variable": "OPENAI_API_KEY"}
    shown = run("models", "--no-reach").stdout
    assert "  key      from the keyring (OPENAI_API_KEY)" in shown.splitlines()
    assert KEY not in shown


def test_which_can_be_reached(
    ask: Ask, run: Run, ours: ScriptedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, found = ask("models")
    assert code == 0
    models = by_name(found)
    assert (models["ours/small"]["reachable"], models["ours/small"]["problem"]) == (True, None)
    gpt = models["openai/gpt-5"]
    assert not gpt["reachable"]
    assert gpt["problem"].startswith("There is no key for openai. Set OPENAI_API_KEY")
    assert models["local/wordllama"]["reachable"]
    assert not ours.requests  # no tokens were spent

    lines = run("models").stdout.splitlines()
    assert "ours/small  reachable" in lines
    at = lines.index("openai/gpt-5  cannot be called")
    assert lines[at + 1].startswith("  problem  There is no key for openai.")

    configure(tmp_path / "config.toml", "http://127.0.0.1:9/v1", monkeypatch)
    gone = by_name(ask("models")[1])["ours/small"]
    assert not gone["reachable"]
    assert "nothing listens at 127.0.0.1:9" in gone["problem"]
    assert "\n" not in gone["problem"]


class Refusing(BaseHTTPRequestHandler):
    """A server that is there, and knows nobody."""

    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def test_a_server_that_refuses_the_key_was_reached(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        configure(tmp_path / "config.toml", f"http://127.0.0.1:{server.server_port}", monkeypatch)
        shown = run("models").stdout
        server.shutdown()
        thread.join()
    lines = shown.splitlines()
    at = lines.index("ours/small  cannot be called")
    assert re.match(r"  problem  ours does not accept the key \(status 401\)", lines[at + 1])
    assert "reachable" not in shown


def test_nothing_is_configured(ask: Ask, run: Run, home: Path) -> None:
    shown = run("models")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert '  export PERDURE_MODEL_CHAT="ollama/qwen3"' in shown.stdout.splitlines()
    assert "OPENAI_API_KEY" in shown.stdout
    assert str(home / "config" / "perdure" / "config.toml") in shown.stdout
    assert "local embeds texts on this machine, without a key." in shown.stdout
    _, found = ask("models")
    assert found["missing"] == ["chat", "compress", "filter", "judge", "reflect"]
    assert [each["name"] for each in found["models"]] == ["local/wordllama"]
    assert not (home / "data").exists()  # looking makes no bank


def test_a_configuration_that_cannot_be_used(
    run: Run, monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> None:
    monkeypatch.setenv("PERDURE_MODEL_CHAT", "nobody/x")
    shown = run("models")
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert "'nobody/x' does not name a model" in shown.stderr
    assert ask("models")[1]["error"]["type"] == "InvalidConfig"


@pytest.mark.parametrize(
    ("memory", "ago", "state"),
    [
        (BreakerMemory(False, 0.0, 0, 2), 1, "closed"),
        (BreakerMemory(True, 3_600.0, 1, 5), 1, "open"),
        (BreakerMemory(True, 20.0, 1, 5), 30, "half_open"),
    ],
)
@pytest.mark.usefixtures("ours")
def test_how_circuits_stand(
    memory: BreakerMemory, ago: int, state: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the last process that called the model left them, and time has gone on."""
    monkeypatch.setenv("PERDURE_BANK", "sqlite:///bank.db")
    with perdure.open_sync("sqlite:///bank.db") as bank:
        at = clock.now() - ago * clock.SECOND
        bank.collection(LearnedModel).put(LearnedModel("x", "ours/small", at, memory))
    found = json.loads(run("models", "--no-reach", "--json").stdout)
    circuit = by_name(found)["ours/small"]["circuit"]
    assert (circuit["state"], circuit["failures"]) == (state, memory.failures)
    assert (circuit["next_probe"] is not None) == (state == "open")
    shown = run("models", "--no-reach").stdout.splitlines()
    (line,) = (line for line in shown if "circuit" in line)
    assert line.startswith(f"  circuit  {state.replace('_', ' ')}")
    assert f"{memory.failures} failures in a row" in line


def test_a_circuit_that_nobody_used_is_not_shown(run: Run, ours: ScriptedModel) -> None:
    assert "circuit" not in run("models", "--no-reach").stdout


def test_on_a_narrow_terminal(ours: ScriptedModel, tty: Tty) -> None:
    with contextlib.redirect_stdout(tty):
        app(["models", "--no-reach"], standalone_mode=False)
    shown = tty.getvalue()
    assert "\x1b[1mours/small" in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert all(cell_len(line) <= 60 for line in plain.splitlines())


def test_streams_that_are_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_MODEL_CHAT", "ollama/modèle")
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [*PERDURE, "models", "--no-reach"], capture_output=True, env=env, check=True
    )
    assert done.stdout.isascii()
    assert b"ollama/mod\\xe8le" in done.stdout
    assert not done.stderr


@pytest.mark.parametrize(
    ("rate", "shown"),
    [(1_250_000, "$1.25"), (10_000_000, "$10"), (125_000, "$0.125"), (1, "$0.000001"), (0, "$0")],
)
def test_rates_are_exact(rate: int, shown: str) -> None:
    assert readable.price_in_words(rate) == shown
