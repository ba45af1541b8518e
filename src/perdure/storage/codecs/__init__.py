"""Values to bytes and back.

Each stored value carries the content type of the codec that wrote it, so a collection can change
its codec and still read what it has. ``json`` (the default for records that users declare),
``msgpack`` (Perdure's own) and ``protobuf`` are here; `register` adds one of your own::

    codecs.register("yaml", Yaml())

    @record("settings", serializer="yaml")
    class Setting(msgspec.Struct, frozen=True): ...

Whatever text a value holds comes back as it went in, NUL included. Lone surrogates do so in
msgpack, mostly in JSON, and are refused by protobuf.
"""

from __future__ import annotations

from perdure.core.errors import Corrupted, InvalidInput, KeyRefused
from perdure.storage.codecs.json_codec import Json
from perdure.storage.codecs.msgpack_codec import Msgpack
from perdure.storage.codecs.value_codec import PROTOBUF, Foreign, Unbound, ValueCodec

__all__ = ["BY_NAME", "PROTOBUF", "ValueCodec", "codec_of", "register"]

BY_NAME: dict[str, ValueCodec] = {"msgpack": Msgpack(), "json": Json(), "protobuf": Unbound()}
_BY_TYPE: dict[str, ValueCodec] = {codec.content_type: codec for codec in BY_NAME.values()}


def register(name: str, codec: ValueCodec) -> None:
    """Add a serializer for this process: `@record(…, serializer=name)`.

    Every process that reads its values has to register it. What it raises becomes an `InvalidValue`
    or `Corrupted` with its message. Registering the same object again does nothing.

    Raises `InvalidInput` if the name or content type is taken, or the content type is malformed.
    """
    known = BY_NAME.get(name)
    if isinstance(known, Foreign) and known.codec is codec:
        return
    content_type = codec.content_type
    if not name or not content_type or not content_type.isascii() or ";" in content_type:
        raise InvalidInput(
            f"{content_type!r} cannot be the content type of the serializer {name!r}.",
            hint="Use one like 'application/yaml': ASCII, without ';' and parameters.",
        )
    if known is not None or content_type in _BY_TYPE:
        what = f"name {name!r}" if known is not None else f"content type {content_type!r}"
        raise InvalidInput(
            f"There is another serializer with the {what}.", hint="Give yours another one."
        )
    BY_NAME[name] = _BY_TYPE[content_type] = Foreign(codec)


def codec_of(content_type: str) -> ValueCodec:
    """The codec of a content type. Raises `Corrupted` if unknown, `KeyRefused` if encrypted."""
    try:
        return _BY_TYPE[content_type]
    except KeyError:
        if ";aesgcm=" in content_type:
            raise KeyRefused(
                "A record is encrypted, and the store was opened without a master key.",
                hint="Name the key in encryption.key, or give it as master_key=….",
            ) from None
        written = content_type.partition(";zstd=")[0]
        raise Corrupted(
            f"A value has the content type {written!r}, which nothing here can read.",
            hint="Register the codec that wrote it: perdure.storage.codecs.register(name, codec).",
        ) from None
