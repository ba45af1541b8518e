"""Every error Perdure raises on purpose.

The tree::

    PerdureError
    ├── InvalidInput            what the caller gave cannot be used; nothing was changed
    │   ├── InvalidURL          a bank or store address that cannot be read
    │   ├── UnknownBackend      a well-formed address of a kind nobody registered
    │   ├── InvalidKey          a key that breaks the rules of `storage.record_keys`
    │   ├── InvalidValue        a value that cannot be encoded or indexed
    │   │   └── TooLarge        … because it is over a size limit
    │   ├── InvalidRecordType   a record declaration that contradicts itself
    │   ├── InvalidQuery        a query that cannot be answered as asked
    │   │   └── NotIndexed      … because a field in it has no index
    │   ├── NotFound            what was named is not there
    │   ├── BudgetTooSmall      a prompt does not fit the budget of its context
    │   ├── SchemaMismatch      data that does not fit the schema of its collection
    │   └── InvalidConfig       a configuration file or variable that cannot be used
    ├── Conflict                somebody else wrote first; nothing was changed
    ├── Denied                  the caller of a server may not do that
    ├── AgentError              an agent could not do what it was asked
    │   ├── MessageParked       … after several attempts; it waits to be retried
    │   └── LeaseLost           another process works for the agent; nothing was written
    ├── Unsupported             this backend does not have that capability
    ├── DeadlineExceeded        not done in the time allowed
    ├── GatewayError            a model could not be called, or gave no usable answer
    │   ├── NoModel             none is configured for this, or its provider cannot do it
    │   ├── Rejected            the provider will not have this request; another try changes nothing
    │   │   ├── Unauthorized    … because the key is missing, wrong or not allowed to
    │   │   └── PromptTooLong   … because it does not fit the model
    │   ├── RateLimited         the provider has had enough for now
    │   ├── ProviderDown        it cannot be reached, is overloaded, or answers with its own error
    │   ├── BadAnswer           it answered, but not in its own wire format
    │   ├── StreamBroken        an answer stopped halfway; what arrived is kept in it
    │   ├── BudgetReached       a budget of tokens or money does not allow the call
    │   └── AllFailed           every candidate was tried
    └── StorageError            the store itself is in trouble
        ├── Unavailable         it cannot be reached or is locked; try again
        ├── AccessDenied        a folder or file may not be read or written
        ├── StorageFull         no room is left; nothing was changed
        ├── Corrupted           stored bytes are not what was written
        ├── NewerSchema         written by a newer version of the code; left untouched
        ├── MigrationFailed     an upgrade function raised; the old record is still there
        ├── KeyRefused          the master key is missing, or is not the one that was used
        ├── BadBackup           a backup is not whole, or not what was written
        ├── NotAStore           the place holds something that is not a bank
        ├── ArtifactMissing     an artifact is referred to but not there
        └── Closed              used after `close`

A message is one sentence that says what is wrong, and a hint that says what to do next. Errors of
drivers are wrapped (``raise … from exc``) and never reach a caller bare.
"""

from __future__ import annotations

import re


class PerdureError(Exception):
    """Base of all errors raised by Perdure."""

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        self.message = message or (type(self).__doc__ or "").strip().splitlines()[0]
        self.hint = hint
        super().__init__(f"{self.message} {hint}" if hint else self.message)


class InvalidInput(PerdureError):
    """What was given cannot be used."""


class InvalidURL(InvalidInput):
    """The address cannot be read."""


class UnknownBackend(InvalidInput):
    """No storage backend is registered for this kind of address."""


class InvalidKey(InvalidInput):
    """The key cannot be used."""


class InvalidValue(InvalidInput):
    """The value cannot be stored."""


class TooLarge(InvalidValue):
    """The value is over the size limit."""


class NotFound(InvalidInput):
    """What was named is not there."""


class BudgetTooSmall(InvalidInput):
    """The prompt does not fit the budget of its context."""

    def __init__(
        self, budget: int, needed: int, *, hint: str = "Give a larger budget, or a shorter prompt."
    ) -> None:
        super().__init__(
            f"A budget of {budget:,} tokens is too small: {needed:,} are needed.", hint=hint
        )
        self.budget = budget
        self.needed = needed


class InvalidRecordType(InvalidInput):
    """The record type is declared in a way that cannot work."""


class InvalidQuery(InvalidInput):
    """The query cannot be answered as asked."""


class NotIndexed(InvalidQuery):
    """A field of the query has no index."""


class SchemaMismatch(InvalidInput):
    """The data does not fit the schema of its collection.

    `field` names the place in it, such as ``address.city``.
    """

    def __init__(self, message: str, *, hint: str = "", field: str = "") -> None:
        super().__init__(message, hint=hint)
        self.field = field


class InvalidConfig(InvalidInput):
    """The configuration cannot be used."""


class Conflict(PerdureError):
    """Somebody else wrote this record first."""

    def __init__(
        self,
        collection: str,
        key: str,
        *,
        expected: int | None = None,
        found: int | None = None,
        message: str = "",
        hint: str = "Read it again and repeat the change.",
    ) -> None:
        self.collection = collection
        self.key = key
        self.expected = expected
        self.found = found
        super().__init__(
            message
            or f"{collection}/{key} was expected {_version(expected)} but is {_version(found)}.",
            hint=hint,
        )


class Denied(PerdureError):
    """The caller may not do that."""

    def __init__(self, message: str = "", *, hint: str = "", status: int = 403) -> None:
        super().__init__(message, hint=hint)
        #: Of HTTP.
        self.status = status


class AgentError(PerdureError):
    """The agent could not do what it was asked."""


class MessageParked(AgentError):
    """The message failed too often and waits to be retried."""


class LeaseLost(AgentError):
    """Another process works for the agent."""


class Unsupported(PerdureError):
    """This backend does not have that capability."""


class DeadlineExceeded(PerdureError):
    """The operation was not done in the time allowed."""


class GatewayError(PerdureError):
    """A model could not be called."""

    #: A word for records and metrics.
    kind = "error"
    #: Whether the same request may succeed at the same model a little later.
    retryable: bool = False
    #: The HTTP status that it came with, if one did: then nothing was answered, nor charged for.
    status: int | None = None


class NoModel(GatewayError):
    """No model is configured for this."""

    kind = "no_model"


class Rejected(GatewayError):
    """The provider does not accept the request."""

    kind = "rejected"


class Unauthorized(Rejected):
    """The provider does not accept the key."""

    kind = "unauthorized"


class PromptTooLong(Rejected):
    """The request does not fit the model's window."""

    kind = "too_long"


class _Later(GatewayError):
    """Base of what may pass by itself."""

    retryable = True

    def __init__(
        self, message: str = "", *, hint: str = "", retry_after: float | None = None
    ) -> None:
        #: Seconds, as the provider said.
        self.retry_after = retry_after
        super().__init__(message, hint=hint)


class RateLimited(_Later):
    """The provider has had enough for now."""

    kind = "rate_limited"


class ProviderDown(_Later):
    """The provider cannot be reached or is in trouble."""

    kind = "down"


class BadAnswer(GatewayError):
    """The provider's answer cannot be read."""

    kind = "bad_answer"
    retryable = True


class StreamBroken(GatewayError):
    """An answer stopped halfway. It is not begun again by itself: its reader has seen a part."""

    kind = "broken"

    def __init__(self, message: str = "", *, hint: str = "", partial: object = None) -> None:
        #: The `Message` as far as it came.
        self.partial = partial
        super().__init__(message, hint=hint)


class BudgetReached(GatewayError):
    """A budget does not allow the call."""

    kind = "budget"


class AllFailed(GatewayError):
    """Every candidate was tried, and none answered."""

    kind = "all_failed"

    def __init__(
        self, message: str = "", *, hint: str = "", errors: tuple[GatewayError, ...] = ()
    ) -> None:
        #: What each attempt failed with, in their order.
        self.errors = errors
        super().__init__(message, hint=hint)


class StorageError(PerdureError):
    """The store is in trouble."""


class Unavailable(StorageError):
    """The store cannot be reached."""


class AccessDenied(StorageError):
    """The store may not be read or written."""


class StorageFull(StorageError):
    """There is no room left for the data."""


class Corrupted(StorageError):
    """Stored bytes are not what was written."""

    def __init__(self, message: str = "", *, hint: str = "", record: str = "") -> None:
        #: ``collection/key`` of the damaged record, where one can be named.
        self.record = record
        super().__init__(message, hint=hint)


class NewerSchema(StorageError):
    """The data was written by a newer version of the code."""


class MigrationFailed(StorageError):
    """A migration function raised an error."""


class KeyRefused(StorageError):
    """The master key is missing, or is not the one that the data was encrypted with."""


class BadBackup(StorageError):
    """A backup is not whole, or not what was written."""


class NotAStore(StorageError):
    """The place holds something that is not a Perdure bank."""


class ArtifactMissing(StorageError):
    """The artifact is not in the store."""


class Closed(StorageError):
    """The store is closed."""


def _version(version: int | None) -> str:
    if version is None:
        return "at another version"
    return "absent" if version == 0 else f"at version {version}"


def error_code(kind: type[PerdureError]) -> str:
    """What programs know a class by: ``InvalidInput`` → ``invalid_input``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()
