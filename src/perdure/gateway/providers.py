"""Who serves models, as data: an address, a wire format, where the key comes from, and habits."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

#: The wire formats that can be called.
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
    #: Neighbours of the same role are joined, which the templates of local models need.
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
    #: Further headers, sent with each request.
    headers: dict[str, str] = {}
    habits: Habits = Habits()
    #: Calls at the same time, for each model.
    concurrency: int = 64
