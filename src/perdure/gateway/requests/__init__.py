"""Request bodies, with a module for each wire format on top of the codecs of `perdure.wire`.

The same request always gives the same bytes: prompt caches and the response cache depend on it.
`Request.extra` is merged last, unchecked.

What a format cannot say is left out where the answer still fits the question (a seed, a prompt
cache key, temperatures for models that have none). Otherwise it is `NoModel`, since another
candidate may do it (stop words at Responses, unsupported media).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.core.errors import InvalidInput, NoModel, Unauthorized
from perdure.gateway.calls import Request
from perdure.gateway.providers import Provider
from perdure.gateway.requests import chat, messages, responses

_BUILDERS = {"chat": chat, "responses": responses, "messages": messages}


class ProviderRequest(msgspec.Struct, frozen=True):
    """Path, headers and body of a call. Holds no key."""

    path: str
    body: dict[str, Any] = {}
    headers: dict[str, str] = {}
    #: Empty: POST with a body, GET without.
    method: str = ""
    #: Instead of `body`, already encoded; its type is in the headers.
    content: bytes = b""


def build(request: Request, provider: Provider, model: str, *, stream: bool) -> ProviderRequest:
    """The request body for this model, made from `wire.repaired` messages.

    Reasoning of another model is left out: it is signed, sealed or refused there. Raises
    `InvalidInput` for content that is in the artifact store or contradicts itself, and `NoModel` if
    the provider's format cannot say it.
    """
    builder = _BUILDERS[provider.wire]
    if request.max_tokens is not None and request.max_tokens < 1:
        raise InvalidInput(
            f"max_tokens is {request.max_tokens}.", hint="Allow at least one token, or say None."
        )
    body = builder.body(request, provider, model, stream=stream)
    body.update(request.extra.get(provider.wire, {}))
    headers = messages.headers(model) if provider.wire == "messages" else {}
    return ProviderRequest(builder.PATH, body, headers)


def build_embeddings(texts: Sequence[str], provider: Provider, model: str) -> ProviderRequest:
    """As OpenAI's API has it. Raises `NoModel` if the provider has none, `InvalidInput` for no text
    or an empty one.
    """
    if not provider.embeddings:
        raise NoModel(
            f"{provider.name} has no embeddings.",
            hint="Name another provider for the purpose embed: local needs no key.",
        )
    if not texts or not all(texts):
        raise InvalidInput(
            "There is nothing to embed." if not texts else "One of the texts to embed is empty.",
            hint="Pass at least one text, and none that is empty.",
        )
    return ProviderRequest(provider.embeddings, {"model": model, "input": list(texts)})


def authorization(provider: Provider, key: str) -> dict[str, str]:
    """The header with the key; none if empty. Raises `Unauthorized` if it fits in no header."""
    key = key.strip()
    if not key:
        return {}
    if not (key.isascii() and key.isprintable()):
        raise Unauthorized(
            f"The key for {provider.name} holds characters that no key has.",
            hint=f"Set {provider.key_variable or 'it'} again; a line break may have got into it.",
        )
    if provider.wire == "messages":
        return {"x-api-key": key}
    return {"authorization": f"Bearer {key}"}
