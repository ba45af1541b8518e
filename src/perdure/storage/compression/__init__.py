"""Compression: zstd with dictionaries trained on a collection's own records.

A short text alone hardly compresses; with a dictionary of what such texts look like it shrinks to a
third. Once a collection has seen enough values, `Compression.train` makes one. Dictionaries are
numbered per collection, or per key scope in it, and no number is used twice; a value's content type
names the one it needs: ``application/msgpack;zstd=2``.

A dictionary holds fragments of what was stored, so deleting a record is not enough to forget it.
`Compression.renew` replaces the dictionaries of a collection by one that is trained on what is
there now, writes the values that need an older one anew, and deletes the older ones. Everybody may
read and write meanwhile, in every process.

What keeps that safe: a row for each collection says which dictionary is *in use*, and every commit
of values that were compressed with a dictionary checks that this row is unchanged. So once it has
changed, nobody anywhere can add a value that needs an older dictionary. And a reader who finds that
a dictionary has been deleted reads the row again: it has been written anew before.

`dictionaries` keeps them, `middleware` compresses and expands `values`, `renewal` replaces them.
"""

from perdure.storage.compression.dictionaries import Dictionary, InUse
from perdure.storage.compression.middleware import Compression
from perdure.storage.compression.renewal import Renewal

__all__ = ["Compression", "Dictionary", "InUse", "Renewal"]
