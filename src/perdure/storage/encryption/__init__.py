"""Encryption of records: AES-GCM, data keys wrapped by a master key, rotation without a pause.

Values are encrypted below compression and above caches. What queries need stays in clear: keys,
declared columns, tags, times and sizes. A field marked `Encrypted` cannot be indexed (`DESIGN.md`
15).

The master key (`master_keys`) comes from a file, a variable or a function, and never reaches the
store. It wraps data keys (`data_keys`), which are kept in the store: one row for each *scope*, a
collection or an agent (`key_scopes`). A value is bound to its place: under another key it cannot be
decrypted.

Rotation is safe because every commit of encrypted values checks that its scope's row of keys is
unchanged: once a new key is current, no value can be added that needs an older one. A reader who
finds a key destroyed reads the row again, which was rewritten.
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
