"""Providers as data: address, wire format, key variable, habits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

CallWire: TypeAlias = Literal["chat", "responses", "messages"]


class Habits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a server of a wire format differs from the format's owner."""

    #: The field that limits the length of the answer (Chat Completions has had two).
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_completion_tokens"
    #: How an answer's shape is asked for: by schema, as some JSON, or in words.
    shape: Literal["schema", "object", "words"] = "schema"
    #: Whether `stream_options` asks for usage at the end of a stream.
    stream_usage: bool = True
    #: How much to think is said as `reasoning_effort`, as an object `reasoning`, or not at all.
    effort: Literal["reasoning_effort", "reasoning", "none"] = "reasoning_effort"
    #: The role of instructions, where the format has two.
    instructions: Literal["system", "developer"] = "system"
    #: Joins neighbours of the same role, which the templates of local models need.
    alternate: bool = False
    seed: bool = True
    prompt_cache_key: bool = False
    #: Tokens of an answer, where the format wants a number and the caller gave none.
    default_max_tokens: int = 8_192


class Provider(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One server of models."""

    name: str
    wire: CallWire = "chat"
    base_url: str
    #: The variable that holds the key, and the name under which the system's keyring keeps it.
    key_variable: str = ""
    #: Whether calls without a key make sense: servers on this machine need none.
    needs_key: bool = True
    #: Embeddings, as of OpenAI, under this path; empty if it has none.
    embeddings: str = "/embeddings"
    #: Whether it has the batch mode of its wire format's owner.
    batch: bool = False
    headers: dict[str, str] = {}
    habits: Habits = Habits()
    #: Calls at the same time, for each model.
    concurrency: int = 64


LOCAL = "local"
LOCAL_MODEL = "wordllama"

#: OpenAI-compatible servers know the older field; some ignore the newer one, so that the answer
#: would have no limit.
COMPATIBLE = Habits(max_tokens_field="max_tokens")
#: The templates of open models often refuse two messages of the same role.
SELF_HOSTED = Habits(max_tokens_field="max_tokens", alternate=True)
_OPENAI = Habits(instructions="developer", prompt_cache_key=True)

_BUILT_IN = (
    Provider(
        name="openai",
        wire="responses",
        base_url="https://api.openai.com/v1",
        key_variable="OPENAI_API_KEY",
        batch=True,
        habits=_OPENAI,
    ),
    Provider(
        name="openai-chat",
        base_url="https://api.openai.com/v1",
        key_variable="OPENAI_API_KEY",
        batch=True,
        habits=_OPENAI,
    ),
    Provider(
        name="anthropic",
        wire="messages",
        base_url="https://api.anthropic.com/v1",
        key_variable="ANTHROPIC_API_KEY",
        batch=True,
        embeddings="",
        habits=Habits(seed=False),
    ),
    Provider(
        name="huggingface",
        base_url="https://router.huggingface.co/v1",
        key_variable="HF_TOKEN",
        embeddings="",  # its embeddings are another API, by model
        habits=COMPATIBLE,
    ),
    Provider(
        name="cloudflare",
        base_url="https://api.cloudflare.com/client/v4/accounts/{CLOUDFLARE_ACCOUNT_ID}/ai/v1",
        key_variable="CLOUDFLARE_API_TOKEN",
        habits=COMPATIBLE,
    ),
    Provider(
        name="openrouter",
        base_url="https://openrouter.ai/api/v1",
        key_variable="OPENROUTER_API_KEY",
        habits=Habits(max_tokens_field="max_tokens", effort="reasoning"),
    ),
    Provider(
        name="ollama",  # joins neighbours of the same role by itself
        base_url="http://127.0.0.1:11434/v1",
        key_variable="OLLAMA_API_KEY",
        needs_key=False,
        habits=COMPATIBLE,
    ),
    Provider(
        name="vllm",
        base_url="http://127.0.0.1:8000/v1",
        key_variable="VLLM_API_KEY",
        needs_key=False,
        habits=SELF_HOSTED,
    ),
    Provider(
        name="llamacpp",
        base_url="http://127.0.0.1:8080/v1",
        key_variable="LLAMA_API_KEY",
        needs_key=False,
        habits=SELF_HOSTED,
    ),
    Provider(name=LOCAL, base_url="", needs_key=False),
)
BUILT_IN: Mapping[str, Provider] = {provider.name: provider for provider in _BUILT_IN}

#: Variables that other programs read for the address of a server. The configuration comes first.
ADDRESSES = {
    "openai": "OPENAI_BASE_URL",
    "openai-chat": "OPENAI_BASE_URL",
    "anthropic": "ANTHROPIC_BASE_URL",
    "openrouter": "OPENROUTER_BASE_URL",
    "ollama": "OLLAMA_HOST",
    "vllm": "VLLM_BASE_URL",
    "llamacpp": "LLAMACPP_BASE_URL",
}
