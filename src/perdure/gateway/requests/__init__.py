"""Requests as the wire formats say them.

One module builds the body of each format, on top of the codec of `perdure.wire`, which says the
messages. `request_parts` is what they share.

The same request always gives the same body, key by key and in the same order: prompt caches and the
response cache depend on it. `Request.extra` is laid over it last, field by field, unchecked.

What a format cannot say
    is left out where the answer is still one to the question: a seed, the key of a prompt cache,
    temperatures for models that have none. It is `NoModel` where it is not (stop words at
    Responses, a picture that the format cannot show): another candidate may do it. `InvalidInput`
    is what no provider could make sense of.
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
    """What is to be posted, and where below the provider's address. It holds no key."""

    path: str
    body: dict[str, Any]
    #: What the wire format wants beside the body.
    headers: dict[str, str] = {}


def build(request: Request, provider: Provider, model: str, *, stream: bool) -> ProviderRequest:
    """The call that asks this model for it.

    The messages are sent as `wire.repaired` shows them, so any history will do. Reasoning of
    another model is left out: it is signed, sealed or refused there.

    Raises `InvalidInput` if something in it stands for content elsewhere (a reference, or media in
    the artifact store) or contradicts itself, and `NoModel` if this provider's format cannot say
    it.
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
    """The call that asks for the vectors of the texts, as OpenAI's API has it.

    Raises `NoModel` if the provider has none, `InvalidInput` if there is no text, or an empty one:
    providers refuse them, and nothing can be found by their vectors.
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
    """The header that carries the key; none for an empty one.

    Raises `Unauthorized` for what cannot stand in a header, such as a key with a line break.
    """
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
