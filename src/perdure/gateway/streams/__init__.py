"""Answers of models as canonical messages, from a stream of events or a whole body.

    parser, decoder = sse.EventParser(), streams.decoder("chat")
    for chunk in chunks:
        for event in parser.feed(chunk):
            deltas = decoder.feed(event)
    answered = decoder.finish()

`finish` is ``tools`` whenever a tool is asked for and nothing went wrong, and ``filter`` also if
the model itself refused, whatever the server called it.
"""

from __future__ import annotations

from typing import Any

from perdure.core.errors import BadAnswer
from perdure.core.messages import Usage
from perdure.gateway.calls import ModelAnswer
from perdure.gateway.providers import CallWire
from perdure.gateway.streams import chat, messages, responses, sse, stream_decoder
from perdure.gateway.streams.stream_decoder import MISREAD, StreamDecoder, Vectors, failed

__all__ = ["StreamDecoder", "decoder", "read_answer", "read_embeddings", "sse"]

_DECODERS: dict[CallWire, type[StreamDecoder]] = {
    "chat": chat.ChatDecoder,
    "responses": responses.ResponsesDecoder,
    "messages": messages.MessagesDecoder,
}


def decoder(wire: CallWire, where: str = "") -> StreamDecoder:
    return _DECODERS[wire](where)


def read_answer(wire: CallWire, body: dict[str, Any], where: str = "") -> ModelAnswer:
    """Raises `BadAnswer` if there is no answer, or the error that came with status 200."""
    error = body.get("error")
    if error or body.get("status") == "failed":
        raise failed(error or "The response failed.", where)
    try:
        return _DECODERS[wire].read(body)
    except MISREAD as exc:
        raise BadAnswer(
            f"The answer{f' of {where}' if where else ''} cannot be read.",
            hint="Check that the provider speaks the wire format that it is configured with.",
        ) from exc


def read_embeddings(body: dict[str, Any]) -> tuple[Vectors, Usage | None]:
    error = body.get("error")
    if error:
        raise failed(error, "")
    return stream_decoder.read(body)
