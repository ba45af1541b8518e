from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import InvalidConfig, config
from perdure.gateway.catalog import ModelCatalog
from perdure.gateway.providers import BUILT_IN, Habits


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
    assert gateway.models.compress == config.CompressionModels("ours/small", (), ("openai/gpt-5",))
    assert gateway.models.reflect == ()
    assert gateway.providers["ours"].habits["shape"] == "words"
    assert [budget.per for budget in gateway.budgets] == ["day", "month"]
    assert gateway.prices["ours/small"] == config.PriceConfig(0, 0.5, 0.1)
    assert (gateway.retries, gateway.timeout, gateway.cache) == (4, 120, False)


def test_each_level_of_a_rendition_may_have_models_of_its_own(tmp_path: Path) -> None:
    levels = '[gateway.models.compress]\nsmooth = "a/b"\ntiny = ["c/d", "e/f"]'
    models = load(tmp_path, levels).gateway.models
    assert models.compress == config.CompressionModels(smooth="a/b", tiny=("c/d", "e/f"))
    assert models.compression_tasks() == ("smooth", "tiny")
    for text, tasks in (
        ("compress = []", ()),
        ('compress = "a/b"', config.COMPRESSION_TASKS),
        ('compress = { simple = "a/b" }', config.COMPRESSION_TASKS),
    ):
        models = load(tmp_path, f"[gateway.models]\n{text}").gateway.models
        assert models.compression_tasks() == tasks


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
    assert gateway.models.compress == config.CompressionModels("ours/small", (), ("openai/gpt-5",))
    assert (gateway.deadline, gateway.cache, gateway.default) == (30, True, "ollama")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[gateway]\nretries = -1", r"gateway\.retries"),
        ("[gateway]\ntimeout = 0", r"gateway\.timeout"),
        ("[gateway.models]\nchta = 'a/b'", r"gateway\.models\.chta is not a setting"),
        ("[gateway.models]\nchat = 3", r"gateway\.models\.chat"),
        ("[gateway.models.chat]\nhard = 'a/b'", r"gateway\.models\.chat\.hard"),
        ("[gateway.tasks]\nreview = 'hard'", r"gateway\.tasks\.review: invalid enum value 'hard'"),
        ("[gateway.providers.a]\nkey = 's3cret'", r"providers\.a\.key is not .* key_variable"),
        ("[gateway.providers.a]\napi_key = 's3cret'", r"\.a\.api_key is not a .* key_variable"),
        ("[gateway.providers.b]\n[gateway.providers.a]\nwire = 'soap'", r"providers\.a\.wire"),
        ("[[gateway.budgets]]\nname = 'a'", r"gateway\.budgets\[0\]: the budget 'a' limits nei"),
        ("[[gateway.budgets]]\nname = 'a'\ntokens = 1\nper = 'moon'", r"budgets\[0\]\.per"),
        ("[gateway.prices.'a/b']\ninput = -1\noutput = 1", r"gateway\.prices\.a/b\.input"),
    ],
)
def test_a_bad_gateway_is_refused_and_the_key_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(InvalidConfig, match=named) as refused:
        load(tmp_path, text)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "choices"),
    [
        ("[gateway.tasks]\nreview = 'hard'", "simple, moderate, complex"),
        ("[gateway.providers.a]\nwire = 'soap'", "chat, responses, messages"),
        ("[[gateway.budgets]]\nname = 'a'\ntokens = 1\nper = 'moon'", "hour, day, month, ever"),
        ("[[history.prune]]\ntool = 'ls'\nkeep = 'some'", "count, ends, all, none"),
    ],
)
def test_a_bad_word_is_refused_with_the_good_ones(tmp_path: Path, text: str, choices: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        load(tmp_path, text)
    assert refused.value.hint == f"Use one of {choices}."


def test_a_misspelled_variable_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"PERDURE_ENCRYPTION_EVERYTHNG names no.*everything"):
        load(tmp_path, "", PERDURE_ENCRYPTION_EVERYTHNG="true")
    # But where a key is may be called anything.
    named = {"PERDURE_ENCRYPTION_KEY": "env:PERDURE_ENCRYPTION_MASTER"}
    load(tmp_path, "", PERDURE_ENCRYPTION_MASTER="…", **named)


def test_a_variable_for_a_purpose_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"PERDURE_MODEL_CHATT .*PERDURE_MODEL_CHAT, "):
        load(tmp_path, "", PERDURE_MODEL_CHATT="openai/gpt-5")


# In code --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "settings", "named"),
    [
        (
            config.BudgetConfig,
            {"name": "a", "tokens": 1, "per": "week"},
            r"BudgetConfig\.per: .*day",
        ),
        (config.BudgetConfig, {"name": "", "tokens": 1}, r"BudgetConfig\.name"),
        (config.BudgetConfig, {"name": "a"}, "'a' limits neither tokens nor dollars"),
        (config.PriceConfig, {"input": -1, "output": 1}, r"PriceConfig\.input"),
        (config.GatewayConfig, {"retries": "two"}, r"GatewayConfig\.retries"),
        (config.GatewayConfig, {"retries": 2.5}, r"GatewayConfig\.retries"),
        (config.GatewayConfig, {"models": {"chat": 5}}, r"GatewayConfig\.models\.chat"),
        (config.GatewayConfig, {"budgets": [{"name": "a"}]}, r"\.budgets\[0\]: the budget 'a' lim"),
        (config.GatewayConfig, {"providers": {"a": 3}}, r"GatewayConfig\.providers\.a"),
        (config.GatewayConfig, {"providers": {"a": {"api_key": "s3"}}}, "a.api_key .*key_variable"),
        (config.ModelsConfig, {"chat": 5}, r"ModelsConfig\.chat"),
        (config.ModelsConfig, {"chat": ("a/b", 5)}, r"ModelsConfig\.chat\[1\]"),
        (config.JobsConfig, {"concurrency": 0}, r"JobsConfig\.concurrency"),
        (config.PruneRule, {"tool": "ls", "keep": "some"}, r"PruneRule\.keep: .*ends"),
        (config.Config, {"jobs": "many"}, r"Config\.jobs"),
        (config.Config, {"bank": None}, r"Config\.bank"),
    ],
)
def test_what_is_made_in_code_is_held_to_the_same_rules(
    section: Any, settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidConfig, match=named):
        section(**settings)


def test_everything_and_the_whole_file_are_not_encrypted_both(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="twice") as caught:
        load(tmp_path, "[encryption]\neverything = true\nwhole_file = true")
    assert "choose whole_file" in caught.value.hint


def test_a_key_may_also_be_given_in_code(tmp_path: Path) -> None:
    assert load(tmp_path, "[encryption]\neverything = true").encryption.everything
    assert load(tmp_path, "[encryption]\nwhole_file = true").encryption.whole_file


def test_what_is_made_in_code_equals_what_is_loaded(tmp_path: Path) -> None:
    made: dict[str, Any] = {
        "models": config.ModelsConfig(chat=["a/b"]),  # type: ignore[arg-type]
        "providers": {"a": config.ProviderConfig(base_url="http://127.0.0.1:1/v1")},
        "budgets": [config.BudgetConfig(name="all", dollars=1)],
    }
    text = """
    [gateway.models]
    chat = ["a/b"]
    [gateway.providers.a]
    base_url = "http://127.0.0.1:1/v1"
    [[gateway.budgets]]
    name = "all"
    dollars = 1
    """
    assert config.GatewayConfig(**made) == load(tmp_path, text).gateway


# The page -------------------------------------------------------------------------------------

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"


def test_the_page_s_examples_are_configurations(tmp_path: Path) -> None:
    examples = re.findall(
        r"^```toml\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert len(examples) >= 3
    for example in examples:
        ModelCatalog(load(tmp_path, example).gateway, {})


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
