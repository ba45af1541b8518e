"""Encryption of records: AES-GCM, data keys wrapped by a master key, rotation without a pause.

Values are encrypted on their way to the backend, below compression and above caches. What queries
need stays in clear: keys, declared columns, tags, times and sizes. See `DESIGN.md` 15: a field that
is marked `Encrypted` cannot be indexed.

The master key (`master_keys`) comes from a file, a variable or a function, and never reaches the
store. It wraps data keys (`data_keys`), which are kept in the store: one row for each
*scope*, which is a collection or an agent (`key_scopes`). A value is bound to its place: put under
another key, it cannot be decrypted.

What makes rotation safe: every commit of encrypted values checks that its scope's row of keys is
unchanged. So once a new key is current, nobody anywhere can add a value that needs an older one.
And a reader who finds that a key was destroyed reads the row again: it has been written anew.

`encryption_middleware` encrypts and decrypts, `key_rotation` replaces keys, `key_status` tells of
them and destroys those of a scope.
"""

from perdure.storage.encryption.data_keys import DataKeys
from perdure.storage.encryption.encryption_middleware import Encryption
from perdure.storage.encryption.key_rotation import Holder, Rewrapped, Rotated
from perdure.storage.encryption.key_status import GenerationStanding, ScopeStanding
from perdure.storage.encryption.master_keys import Master, MasterKeys, file_key, make_file, read_key

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
