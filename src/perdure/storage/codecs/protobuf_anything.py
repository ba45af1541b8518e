"""Any plain value as a protobuf message, for values that protobuf has no type for.

`PROTO` is part of exported .proto files; `pack` and `unpack` implement it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

PROTO = """\
// Any value: what a record holds where protobuf has no type for it.
message Anything {
  oneof kind {
    bool null = 1;  // always true
    bool boolean = 2;
    sint64 integer = 3;
    uint64 unsigned = 4;  // a whole number of 2^63 and above
    string big = 5;  // a whole number beyond 64 bits, in decimal digits
    double number = 6;
    string text = 7;
    bytes data = 8;
    google.protobuf.Timestamp time = 9;
    string local_time = 10;  // a time that is no Timestamp, such as one without a zone: ISO 8601
    List list = 11;
    Map map = 12;
  }
  message List {
    repeated Anything items = 1;
  }
  message Map {
    repeated Entry entries = 1;
  }
  message Entry {
    optional Anything key = 1;
    optional Anything value = 2;
  }
}
"""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = datetime.min.replace(tzinfo=UTC) - _EPOCH
_LAST = datetime.max.replace(tzinfo=UTC) - _EPOCH
_INT64, _UINT64 = range(-(2**63), 2**63), range(2**64)

Packed = dict[str, Any]


def pack(value: Any) -> Packed:
    """Raises TypeError if the value is not plain."""
    packer = _PACKERS.get(type(value))
    if packer is None:
        packer = next((each for kind, each in _PACKERS.items() if isinstance(value, kind)), None)
        if packer is None:
            raise TypeError(f"{type(value).__name__} is not supported")
    return packer(value)


def unpack(message: Any) -> Any:
    """The value of an ``Anything``; None if empty, which newer code may have written."""
    fields = message.ListFields()
    if not fields:
        return None
    ((descriptor, value),) = fields
    unpacker = _UNPACKERS.get(descriptor.number)
    return value if unpacker is None else unpacker(value)


def timestamp(moment: datetime) -> Packed | None:
    """The fields of a Timestamp; None for a time without zone, or out of range."""
    if moment.tzinfo is None:
        return None
    span = moment - _EPOCH
    if not _FIRST <= span <= _LAST:
        return None
    # Like proto3 does, zeros are left out.
    seconds, nanos = span.days * 86_400 + span.seconds, span.microseconds * 1_000
    return {**({"f1": seconds} if seconds else {}), **({"f2": nanos} if nanos else {})}


def moment(message: Any) -> datetime:
    """Raises OverflowError if out of range."""
    return _EPOCH + timedelta(seconds=message.f1, microseconds=message.f2 // 1_000)


def _pack_integer(value: int) -> Packed:
    if value in _INT64:
        return {"f3": value}
    return {"f4": value} if value in _UINT64 else {"f5": str(value)}


def _pack_time(value: datetime) -> Packed:
    packed = timestamp(value)
    return {"f10": value.isoformat()} if packed is None else {"f9": packed}


def _pack_list(value: list[Any] | tuple[Any, ...]) -> Packed:
    return {"f11": {"f1": [pack(item) for item in value]}}


def _pack_map(value: dict[Any, Any]) -> Packed:
    return {"f12": {"f1": [{"f1": pack(key), "f2": pack(item)} for key, item in value.items()]}}


def _pack_bytes(value: bytes | bytearray | memoryview) -> Packed:
    return {"f8": bytes(value)}


# In the order in which subclasses are looked for: a bool is an int, too.
_PACKERS: dict[type, Callable[[Any], Packed]] = {
    type(None): lambda _: {"f1": True},
    bool: lambda value: {"f2": value},
    int: _pack_integer,
    float: lambda value: {"f6": value},
    str: lambda value: {"f7": value},
    bytes: _pack_bytes,
    bytearray: _pack_bytes,
    memoryview: _pack_bytes,
    datetime: _pack_time,
    list: _pack_list,
    tuple: _pack_list,
    dict: _pack_map,
}


#: By number; other kinds hold their values as they are.
_UNPACKERS: dict[int, Callable[[Any], Any]] = {
    1: lambda _: None,
    5: int,
    9: moment,
    10: datetime.fromisoformat,
    11: lambda value: [unpack(item) for item in value.f1],
    12: lambda value: {unpack(entry.f1): unpack(entry.f2) for entry in value.f1},
}
