from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import InvalidConfig
from perdure.config import (
    CompressionModels,
    GatewayConfig,
    ModelsByComplexity,
    ModelsConfig,
    ProviderConfig,
)
from perdure.core.errors import NoModel
from perdure.gateway.calls import PURPOSES, CallOptions, Complexity
from perdure.gateway.catalog import ModelCandidate, ModelCatalog
from perdure.gateway.providers import BUILT_IN, Habits
from perdure.testing import ScriptedModel

NOTHING: dict[str, str] = {}


def configured(environ: dict[str, str] = NOTHING, /, **settings: Any) -> ModelCatalog:
    return ModelCatalog(GatewayConfig(**settings), environ)


def names(catalog: ModelCatalog, **ask: Any) -> list[str]:
    return [candidate.name for candidate in catalog.candidates(CallOptions(**ask))]


# Purposes --------------------------------------------------------------------------------------


def test_the_configuration_knows_every_purpose() -> None:
    assert tuple(field.name for field in msgspec.structs.fields(ModelsConfig)) == PURPOSES


def test_models_come_in_the_order_of_the_configuration() -> None:
    catalog = configured(
        models=ModelsConfig(
            chat=("openai/gpt-5", "openrouter/openai/gpt-5:free", "openai/gpt-5"),
            judge="cloudflare/@cf/meta/llama-3.1-8b-instruct",
        ),
        providers={"cloudflare": ProviderConfig(base_url="https://c.example/v1")},
    )
    assert names(catalog) == ["openai/gpt-5", "openrouter/openai/gpt-5:free"]
    assert names(catalog, purpose="judge") == ["cloudflare/@cf/meta/llama-3.1-8b-instruct"]
    (judge,) = catalog.candidates(CallOptions(purpose="judge"))
    assert judge.model == "@cf/meta/llama-3.1-8b-instruct"
    assert configured(models=ModelsConfig(chat="vllm/x")).candidates(CallOptions()) == [
        ModelCandidate(BUILT_IN["vllm"], "x")
    ]


def test_a_caller_cannot_spoil_the_list_of_the_next() -> None:
    catalog = configured(models=ModelsConfig(chat=("openai/a", "openai/b")))
    catalog.candidates(CallOptions()).clear()
    assert names(catalog) == ["openai/a", "openai/b"]


def test_the_default_provider_comes_first() -> None:
    models = ModelsConfig(chat=("openai/a", "ollama/b", "anthropic/c", "ollama/d"))
    assert names(configured(models=models, default="ollama")) == [
        *("ollama/b", "ollama/d", "openai/a", "anthropic/c")
    ]
    assert names(configured(models=models, default="vllm"))[0] == "openai/a"


def test_a_model_that_is_asked_for_stands_alone() -> None:
    catalog = configured(models=ModelsConfig(chat=("openai/a", "openai/b")), default="ollama")
    assert names(catalog, model="anthropic/c") == ["anthropic/c"]
    assert names(catalog, model="qwen3") == ["ollama/qwen3"]  # the default provider's
    assert names(catalog, purpose="reflect", model="openai/a") == ["openai/a"]


@pytest.mark.parametrize("purpose", ["compress", "filter", "judge", "reflect"])
def test_no_other_purpose_borrows_the_models_of_chat(purpose: Any) -> None:
    catalog = configured(models=ModelsConfig(chat="openai/a"))
    assert catalog.has("chat")
    assert not catalog.has(purpose)
    with pytest.raises(NoModel, match=purpose):
        catalog.candidates(CallOptions(purpose=purpose))


def test_without_models_the_error_says_what_to_write(tmp_path: Path) -> None:
    file = str(tmp_path / "mine.toml")
    with pytest.raises(NoModel) as refused:
        configured({"PERDURE_CONFIG": file}).candidates(CallOptions())
    assert 'PERDURE_MODEL_CHAT="ollama/qwen3"' in refused.value.hint
    assert 'chat = ["ollama/qwen3"] under [gateway.models]' in refused.value.hint
    assert file in refused.value.hint


def test_texts_are_embedded_locally_unless_told_otherwise() -> None:
    assert names(configured(), purpose="embed") == ["local/wordllama"]
    assert configured().has("embed")
    other = configured(models=ModelsConfig(embed="ollama/nomic"))
    assert names(other, purpose="embed") == ["ollama/nomic"]


@pytest.mark.parametrize("provider", ["anthropic", "huggingface"])
def test_a_provider_without_embeddings_is_refused_for_them(provider: str) -> None:
    with pytest.raises(NoModel, match=f"{provider} does not embed"):
        configured().candidates(CallOptions(purpose="embed", model=f"{provider}/x"))


# Complexity ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "complexity"),
    [
        (CallOptions(), "moderate"),
        (CallOptions(task="never heard of it"), "moderate"),
        (CallOptions(task="title"), "simple"),
        (CallOptions(task="email_routing"), "simple"),
        (CallOptions(task="triage"), "simple"),
        (CallOptions(task="document_analysis"), "moderate"),
        (CallOptions(task="legal_reasoning"), "complex"),
        (CallOptions(task="Code Review"), "complex"),
        (CallOptions(task="code_review"), "complex"),
        (CallOptions(task="code-review", complexity="simple"), "simple"),
        (CallOptions(task="classify"), "complex"),  # as configured
        (CallOptions(task="ours"), "simple"),
    ],
)
def test_how_hard_a_task_is(ask: CallOptions, complexity: Complexity) -> None:
    catalog = configured(tasks={"classify": "complex", "Ours": "simple"})
    assert catalog.complexity(ask) == complexity


@pytest.mark.parametrize(
    ("have", "simple", "moderate", "complex_"),
    [
        ({"simple", "moderate", "complex"}, "simple", "moderate", "complex"),
        ({"simple", "complex"}, "simple", "complex", "complex"),
        ({"moderate", "complex"}, "moderate", "moderate", "complex"),
        ({"simple", "moderate"}, "simple", "moderate", "moderate"),
        ({"simple"}, "simple", "simple", "simple"),
        ({"complex"}, "complex", "complex", "complex"),
    ],
)
def test_the_nearest_complexity_that_has_models(
    have: set[str], simple: str, moderate: str, complex_: str
) -> None:
    models = ModelsByComplexity(**{name: (f"openai/{name}",) for name in have})
    catalog = configured(models=ModelsConfig(chat=models))
    assert names(catalog, complexity="simple") == [f"openai/{simple}"]
    assert names(catalog, complexity="moderate") == [f"openai/{moderate}"]
    assert names(catalog, complexity="complex") == [f"openai/{complex_}"]


def test_a_task_of_renditions_may_have_models_of_its_own() -> None:
    models = CompressionModels(moderate="openai/any", tiny=("openai/small", "openai/less"))
    catalog = configured(models=ModelsConfig(compress=models))
    assert names(catalog, purpose="compress", task="tiny") == ["openai/small", "openai/less"]
    assert names(catalog, purpose="compress", task="smooth") == ["openai/any"]
    assert names(catalog, purpose="compress") == ["openai/any"]
    catalog = configured(models=ModelsConfig(compress=CompressionModels(tiny="openai/small")))
    assert catalog.has("compress")
    assert [kind for kind, _ in catalog.uses("compress")] == ["tiny"]
    assert names(catalog, purpose="compress", task="Tiny") == ["openai/small"]
    with pytest.raises(NoModel, match="No model is configured for compress"):
        names(catalog, purpose="compress", task="smooth")
    with pytest.raises(InvalidConfig, match="'nobody/small' does not name"):
        configured(models=ModelsConfig(compress=CompressionModels(tiny="nobody/small")))


# Providers -------------------------------------------------------------------------------------


def test_what_is_built_in() -> None:
    shown = {p.name: (p.wire, p.base_url, p.key_variable, p.needs_key) for p in BUILT_IN.values()}
    assert shown == {
        "openai": ("responses", "https://api.openai.com/v1", "OPENAI_API_KEY", True),
        "openai-chat": ("chat", "https://api.openai.com/v1", "OPENAI_API_KEY", True),
        "anthropic": ("messages", "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY", True),
        "huggingface": ("chat", "https://router.huggingface.co/v1", "HF_TOKEN", True),
        "cloudflare": (
            "chat",
            "https://api.cloudflare.com/client/v4/accounts/{CLOUDFLARE_ACCOUNT_ID}/ai/v1",
            "CLOUDFLARE_API_TOKEN",
            True,
        ),
        "openrouter": ("chat", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", True),
        "ollama": ("chat", "http://127.0.0.1:11434/v1", "OLLAMA_API_KEY", False),
        "vllm": ("chat", "http://127.0.0.1:8000/v1", "VLLM_API_KEY", False),
        "llamacpp": ("chat", "http://127.0.0.1:8080/v1", "LLAMA_API_KEY", False),
        "local": ("chat", "", "", False),
    }


def test_the_account_in_cloudflare_s_address_comes_from_a_variable() -> None:
    catalog = configured({"CLOUDFLARE_ACCOUNT_ID": "abc"})
    found = catalog.find("cloudflare/@cf/x")
    assert found.provider.base_url.endswith("/accounts/abc/ai/v1")
    with pytest.raises(InvalidConfig, match="CLOUDFLARE_ACCOUNT_ID"):
        configured().find("cloudflare/@cf/x")


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("", "http://127.0.0.1:11434/v1"),
        ("gpu", "http://gpu:11434/v1"),
        ("gpu:1", "http://gpu:1/v1"),
        (":99", "http://127.0.0.1:99/v1"),
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0:99", "http://127.0.0.1:99/v1"),
        ("[::1]", "http://[::1]:11434/v1"),
        ("[::1]:99", "http://[::1]:99/v1"),
        ("http://gpu", "http://gpu/v1"),
        ("https://gpu.example/ollama/", "https://gpu.example/ollama/v1"),
        ("http://gpu:11434/", "http://gpu:11434/v1"),
    ],
)
def test_ollama_is_where_its_own_variable_says(host: str, address: str) -> None:
    assert configured({"OLLAMA_HOST": host}).providers["ollama"].base_url == address


def test_variables_of_other_programs_and_of_the_configuration() -> None:
    environ = {
        "OPENAI_BASE_URL": "http://127.0.0.1:1/v1/",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:2",
        "VLLM_BASE_URL": "http://127.0.0.1:3/v1",
    }
    catalog = configured(environ, providers={"vllm": ProviderConfig(base_url="http://vllm:4/v1")})
    addresses = {name: p.base_url for name, p in catalog.providers.items()}
    assert addresses["openai"] == addresses["openai-chat"] == "http://127.0.0.1:1/v1"
    assert addresses["anthropic"] == "http://127.0.0.1:2/v1"
    assert addresses["vllm"] == "http://vllm:4/v1"


def test_a_built_in_provider_is_changed_only_where_told() -> None:
    changes = ProviderConfig(
        headers={"x-team": "ours"}, habits={"seed": False}, concurrency=3, wire="chat"
    )
    openai = configured(providers={"openai": changes}).providers["openai"]
    assert openai == msgspec.structs.replace(
        BUILT_IN["openai"],
        headers={"x-team": "ours"},
        habits=msgspec.structs.replace(BUILT_IN["openai"].habits, seed=False),
        concurrency=3,
        wire="chat",
    )


def test_a_provider_of_one_s_own() -> None:
    catalog = configured(
        {"PORT": "81"},
        providers={
            "ours": ProviderConfig(base_url="http://box:{PORT}/api/", key_variable="OUR_KEY"),
            "claude-like": ProviderConfig(base_url="http://box/v1", wire="messages"),
        },
    )
    ours = catalog.find("ours/m").provider
    assert (ours.wire, ours.base_url, ours.needs_key) == ("chat", "http://box:81/api", True)
    assert ours.habits == Habits(max_tokens_field="max_tokens")
    like = catalog.find("claude-like/m").provider
    assert (like.needs_key, like.embeddings) == (False, "")


def test_a_server_can_be_named_by_its_address() -> None:
    found = configured().find("http://127.0.0.1:8080/v1/#org/model")
    assert found.provider.base_url == "http://127.0.0.1:8080/v1"
    assert not found.provider.needs_key
    assert found.model == "org/model"
    assert configured().find(found.name) == found


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"default": "opnai"}, "gateway.default.*opnai.*openai, "),
        ({"providers": {"ours": ProviderConfig()}}, "gateway.providers.ours.base_url is missing"),
        ({"providers": {"a/b": ProviderConfig(base_url="http://b")}}, "cannot be the name"),
        ({"providers": {"ours": ProviderConfig(base_url="box:80")}}, "ours.base_url.*not the addr"),
        ({"providers": {"ours": ProviderConfig(base_url="http://b:x/")}}, "ours.base_url"),
        ({"providers": {"ours": ProviderConfig(base_url="http://b/?a=1")}}, "ours.base_url"),
        ({"providers": {"openai": ProviderConfig(habits={"seeds": True})}}, "openai.habits.*seeds"),
        (
            {"providers": {"openai": ProviderConfig(habits={"shape": "round"})}},
            "openai.habits.shape: invalid enum value 'round'",
        ),
        ({"providers": {"local": ProviderConfig(base_url="http://b")}}, "providers.local"),
    ],
)
def test_a_provider_that_cannot_be_is_refused_and_named(settings: Any, named: str) -> None:
    with pytest.raises(InvalidConfig, match=named):
        configured(**settings)


@pytest.mark.parametrize("name", ["gpt-5", "opnai/gpt-5", "openai/", "http://box/v1", "ftp://b#m"])
def test_a_model_that_cannot_be_is_refused_and_named(name: str) -> None:
    for models in (
        ModelsConfig(judge=(name,)),
        ModelsConfig(judge=ModelsByComplexity(complex=name)),
    ):
        with pytest.raises(InvalidConfig, match=r"gateway\.models\.judge"):
            configured(models=models)
    with pytest.raises(InvalidConfig):
        configured().candidates(CallOptions(model=name))


def test_an_address_that_lacks_its_variable_is_told_when_it_is_needed() -> None:
    catalog = configured(models=ModelsConfig(chat="cloudflare/m", judge="ollama/m"))
    assert catalog.has("chat")
    assert len(catalog.candidates(CallOptions(purpose="judge"))) == 1
    with pytest.raises(InvalidConfig, match="CLOUDFLARE_ACCOUNT_ID"):
        catalog.candidates(CallOptions())


@pytest.mark.parametrize(
    "address",
    [
        "http://u:s3cret@box/v1",
        "http://s3cret@box/v1",
        "http://box/v1?key=s3cret",
        "http://box/v1?at=http://s3cret",
        "http://box/v1?key=a@s3cret",
        "http://u:s3cret?@box/v1",
        "http://u:s3cret@box:port/v1",
        "http://[u:s3cret@box/v1",
        "u:s3cret@box",
        "box/v1?key=s3cret",
    ],
)
def test_a_key_in_an_address_is_refused_and_not_shown(address: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        configured(providers={"ours": ProviderConfig(base_url=address)})
    assert "s3cret" not in str(refused.value)
    with pytest.raises(InvalidConfig) as refused:
        configured().find(f"{address}#m" if "://" in address else f"http://{address}#m")
    assert "s3cret" not in str(refused.value)
    with pytest.raises(InvalidConfig) as refused:
        configured().find(address if "://" in address else f"http://{address}")
    assert "s3cret" not in str(refused.value)


async def test_a_scripted_model_is_a_provider() -> None:
    async with ScriptedModel() as model:
        catalog = configured(
            providers={"scripted": model.provider_config("messages", concurrency=2)},
            models=ModelsConfig(chat="scripted/x"),
        )
        (found,) = catalog.candidates(CallOptions())
    assert found.provider.base_url == model.url
    assert (found.provider.wire, found.provider.concurrency) == ("messages", 2)
    assert not found.provider.needs_key
