from __future__ import annotations

from pathlib import Path

import pytest

from perdure import InvalidConfig, config


def load(tmp_path: Path, text: str, **environ: str) -> config.Config:
    file = tmp_path / "config.toml"
    file.write_text(text)
    return config.load(file, environ)


def test_defaults_need_no_file(tmp_path: Path) -> None:
    loaded = config.load(None, {"XDG_CONFIG_HOME": str(tmp_path)})
    assert loaded.jobs.concurrency == 4
    assert loaded.bank_url().startswith("sqlite:///")


def test_variables_come_before_the_file(tmp_path: Path) -> None:
    text = 'bank = "memory://"\n[jobs]\nconcurrency = 2\n[storage]\ncompression = false\n'
    loaded = load(tmp_path, text, PERDURE_JOBS_CONCURRENCY="9", PERDURE_STORAGE_SWEEP_EVERY="2.5")
    assert loaded.bank == "memory://"
    assert loaded.jobs.concurrency == 9
    assert loaded.storage.sweep_every == 2.5
    assert not loaded.storage.compression


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[jobs]\nconcurrency = 'many'", "jobs.concurrency"),
        ("[jobs]\nconcurrency = 0", "jobs.concurrency"),
        ("[jobs]\nworkers = 3", "jobs.workers"),
        ("bnak = 'memory://'", "bnak"),
        ("bank = 3", "bank"),
        ("storage = 'fast'", "storage"),
        ("bank = ", "config.toml"),
    ],
)
def test_a_bad_file_is_refused_and_the_key_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(InvalidConfig, match=named):
        load(tmp_path, text)


def test_a_bad_variable_is_refused_and_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="PERDURE_JOBS_CONCURRENCY"):
        load(tmp_path, "", PERDURE_JOBS_CONCURRENCY="lots")


def test_a_file_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="no configuration file"):
        config.load(None, {"PERDURE_CONFIG": str(tmp_path / "nowhere.toml")})
    with pytest.raises(InvalidConfig, match="cannot be read"):
        config.load(tmp_path, {})
