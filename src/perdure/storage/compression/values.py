"""One value: compressed with an edition, expanded with a dictionary."""

from __future__ import annotations

import msgspec
import zstandard

from perdure.core.errors import Corrupted
from perdure.storage.compression.dictionaries import WORTH_IT, Edition
from perdure.storage.rows import Put, Recode, Row, checksum


def compressed(put: Put, edition: Edition) -> Put:
    packed = edition.compress(put.value)
    if len(packed) >= len(put.value):
        return put
    content_type = put.content_type + edition.mark
    return Put(
        put.collection,
        put.key,
        packed,
        content_type,
        put.schema,
        checksum(put.key, content_type, put.schema, packed),
        put.columns,
        put.tags,
        put.expires,
        put.expected,
    )


def compressed_again(recode: Recode, edition: Edition) -> Recode:
    if len(recode.value) < WORTH_IT:
        return recode
    packed = edition.compress(recode.value)
    if len(packed) >= len(recode.value):
        return recode
    content_type = recode.content_type + edition.mark
    return msgspec.structs.replace(recode, value=packed, content_type=content_type, checksum=0)


def expanded(
    collection: str, row: Row, content_type: str, decompressor: zstandard.ZstdDecompressor
) -> Row:
    try:
        value = decompressor.decompress(row.value)
    except zstandard.ZstdError as exc:
        name = f"{collection}/{row.key}"
        raise Corrupted(
            f"The record {name} cannot be decompressed: {exc}.",
            hint="Restore it from a backup.",
            record=name,
        ) from exc
    return Row(
        row.key,
        value,
        content_type,
        row.schema,
        row.version,
        row.created,
        row.updated,
        row.expires,
        row.checksum,
    )
