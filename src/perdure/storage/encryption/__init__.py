"""Encryption of records: AES-GCM, data keys wrapped by a master key, rotation without a pause.

Values are encrypted on their way to the backend, below compression and above caches. What queries
need stays in clear: keys, declared columns, tags, times and sizes. See `DESIGN.md` 15: a field that
is marked `Encrypted` cannot be indexed.

The master key (`masters`) comes from a file, a variable or a function, and never reaches the store.
It wraps data keys (`keyring`, `keys`), which are kept in the store: one row for each *scope*, which
is a collection or an agent (`scopes`). A value is bound to its place (`sealing`): put under another
key or another version, it cannot be decrypted.

What makes rotation safe: every commit of encrypted values checks that its scope's row of keys is
unchanged. So once a new key is current, nobody anywhere can add a value that needs an older one.
And a reader who finds that a key was destroyed reads the row again: it has been written anew.

`middleware` encrypts and decrypts, `rotation` replaces and destroys keys, `standing` tells of them.
"""

from perdure.storage.encryption.keys import DataKeys
from perdure.storage.encryption.masters import Master, MasterKeys, file_key, make_file, read_key
from perdure.storage.encryption.middleware import Encryption
from perdure.storage.encryption.rotation import Holder, Rewrapped, Rotated
from perdure.storage.encryption.standing import GenerationStanding, ScopeStanding

__all__ = [
    "DataKeys",
    "Encryption",
    "GenerationStanding",
    "Holder",
    "Master",
    "MasterKeys",
    "Rewrapped",
    "Rotated",
    "ScopeStanding",
    "file_key",
    "make_file",
    "read_key",
]
