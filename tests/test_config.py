from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from perdure import InvalidConfig, config
from perdure.gateway.builtin import BUILT_IN
from perdure.gateway.catalog import Catalog
from perdure.gateway.providers import Habits


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


# Models ---------------------------------------------------------------------------------------

GATEWAY = """
[gateway]
default = "ours"
retries = 4

[gateway.providers.ours]
base_url = "http://127.0.0.1:8080/v1"
habits = { seed = false, shape = "words", default_max_tokens = 500 }

[gateway.models]
chat = ["openai/gpt-5", "ours/small"]
judge = "ours/small"
compress = { simple = "ours/small", complex = ["openai/gpt-5"] }

[gateway.tasks]
code-review = "complex"

[[gateway.budgets]]
name = "everything"
dollars = 5

[[gateway.budgets]]
name = "background"
purpose = "compress"
agent = "planner"
per = "month"
tokens = 1_000_000

[gateway.prices."ours/small"]
input = 0
output = 0.5
cache_read = 0.1
"""


def test_models_are_configured_in_the_same_file(tmp_path: Path) -> None:
    gateway = load(tmp_path, GATEWAY).gateway
    assert gateway.models.chat == ("openai/gpt-5", "ours/small")
    assert gateway.models.compress == config.ByComplexity("ours/small", (), ("openai/gpt-5",))
    assert gateway.models.reflect == ()
    assert gateway.providers["ours"].habits["shape"] == "words"
    assert [budget.per for budget in gateway.budgets] == ["day", "month"]
    assert gateway.prices["ours/small"] == config.PriceConfig(0, 0.5, 0.1)
    assert (gateway.retries, gateway.timeout, gateway.cache) == (4, 120, False)


def test_variables_name_models_and_come_before_the_file(tmp_path: Path) -> None:
    gateway = load(
        tmp_path,
        GATEWAY,
        PERDURE_MODEL_CHAT=" anthropic/claude, http://127.0.0.1:1/v1#m ,",
        PERDURE_MODEL_JUDGE="",
        PERDURE_GATEWAY_DEADLINE="30",
        PERDURE_GATEWAY_CACHE="true",
        PERDURE_GATEWAY_DEFAULT="ollama",
    ).gateway
    assert gateway.models.chat == ("anthropic/claude", "http://127.0.0.1:1/v1#m")
    assert gateway.models.judge == ()  # switched off
    assert gateway.models.compress == config.ByComplexity("ours/small", (), ("openai/gpt-5",))
    assert (gateway.deadline, gateway.cache, gateway.default) == (30, True, "ollama")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[gateway]\nretries = -1", r"gateway\.retries"),
        ("[gateway]\ntimeout = 0", r"gateway\.timeout"),
        ("[gateway.models]\nchta = 'a/b'", r"gateway\.models\.chta is not a setting"),
        ("[gateway.models]\nchat = 3", r"gateway\.models\.chat"),
        ("[gateway.models.chat]\nhard = 'a/b'", r"gateway\.models\.chat\.hard"),
        ("[gateway.tasks]\nreview = 'hard'", r"gateway\.tasks\.\*: invalid enum value 'hard'"),
        ("[gateway.providers.a]\nkey = 's3cret'", r"gateway\.providers\.\*\.key is not a setting"),
        ("[gateway.providers.a]\nwire = 'soap'", r"gateway\.providers\.\*\.wire"),
        ("[[gateway.budgets]]\nname = 'a'", r"gateway\.budgets\[0\]: the budget 'a' limits nei"),
        ("[[gateway.budgets]]\nname = 'a'\ntokens = 1\nper = 'moon'", r"budgets\[0\]\.per"),
        ("[gateway.prices.'a/b']\ninput = -1\noutput = 1", r"gateway\.prices\.\*\.input"),
    ],
)
def test_a_bad_gateway_is_refused_and_the_key_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(InvalidConfig, match=named) as refused:
        load(tmp_path, text)
    assert "s3cret" not in str(refused.value)


# The page -------------------------------------------------------------------------------------

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"


def test_the_page_s_examples_are_configurations(tmp_path: Path) -> None:
    examples = re.findall(
        r"^```toml\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert len(examples) >= 3
    for example in examples:
        Catalog(load(tmp_path, example).gateway, {})


def test_the_page_names_every_key() -> None:
    page = PAGE.read_text("utf-8")
    for section in msgspec.structs.fields(config.Config):
        default = section.default
        for key in msgspec.structs.fields(default) if isinstance(default, msgspec.Struct) else ():
            name = f"{section.name}.{key.name}"
            assert f"`{name}" in page, name
            variable = f"PERDURE_{section.name}_{key.name}".upper()
            if isinstance(getattr(default, key.name), str | int | float):
                assert f"`{variable}`" in page, variable
    for habit in msgspec.structs.fields(Habits):
        assert f"`{habit.name}`" in page, habit.name
    for provider in BUILT_IN.values():
        assert f"| `{provider.name}` |" in page, provider.name
        assert provider.key_variable in page, provider.key_variable
