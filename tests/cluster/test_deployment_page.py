"""docs/deployment.md: what it tells people to copy is accepted by what reads it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from perdure.config import load
from perdure.storage.registry import adapter_for
from tests.server.serve_process import PERDURE, environment

PAGE = Path(__file__).parents[2] / "docs" / "deployment.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for name, text in _BLOCK.findall(PAGE.read_text("utf-8")) if name == language]


def commands(text: str) -> list[list[str]]:
    """The arguments of each `perdure` in it."""
    found = re.findall(r"perdure ((?:serve|worker) ?[^\n]*)", text)
    return [line.split() for line in found]


def test_the_configuration_is_one(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    file = tmp_path / "config.toml"
    file.write_text(text)
    config = load(file, {})
    assert config.agents.working_store == config.cache.shared
    for url in (config.bank, config.cache.shared):
        adapter_for(url)  # an address that it can read


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    units = [text for text in blocks("ini") if "[Unit]" in text]
    assert len(units) == 2
    for text in units:
        name = "perdure-worker" if " worker " in text else "perdure-serve"
        user = f"User={os.environ.get('USER', 'root')}"
        file = tmp_path / f"{name}.service"
        # What has to be on the host that checks it, too.
        here = text.replace("/opt/perdure/bin/perdure", sys.executable)
        file.write_text(here.replace("User=perdure", user))
        command = ["systemd-analyze", "verify", "--man=no", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        complaints = [line for line in done.stderr.splitlines() if file.name in line]
        assert complaints == []


def test_the_compose_file_names_what_is_there() -> None:
    (text,) = blocks("yaml")
    compose = yaml.safe_load(text)
    services = compose["services"]
    assert set(services) == {"serve", "worker", "db", "s3", "valkey"}
    for name in ("serve", "worker"):
        assert set(services[name]["depends_on"]) <= set(services)
        variables = services[name]["environment"]
        ours = {key: value for key, value in variables.items() if key.startswith("PERDURE_")}
        config = load(None, ours)
        assert len(ours) == 4
        for url in (config.bank, config.artifacts.url, config.cache.shared):
            host = re.search(r"(?:@|endpoint=http://|valkey://)(\w+)", url)
            assert host is not None
            assert host[1] in services
    kept = {
        volume.split(":")[0] for each in services.values() for volume in each.get("volumes", ())
    }
    assert kept == set(compose["volumes"])


def test_its_commands_have_the_options_that_they_are_given(tmp_path: Path) -> None:
    found = [command for text in blocks("ini") + blocks("yaml") for command in commands(text)]
    assert len(found) == 4
    for command in found:
        done = subprocess.run(
            [*PERDURE, *command, "--help"],
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
