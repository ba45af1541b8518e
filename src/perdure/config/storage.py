"""How records and artifacts are kept."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from perdure.config.sections import Count, Refused, Seconds, Section


class StorageConfig(Section, frozen=True):
    """How the bank keeps its records."""

    #: Compress the types that ask for it.
    compression: bool = True
    #: Seconds between two sweeps of expired records.
    sweep_every: Seconds = 60.0
    #: Seconds between two looks for events that other processes emitted.
    deliver_every: Seconds = 1.0
    #: Address of a PostgreSQL replica that answers reads which need not be the newest.
    replica: str = ""


class CacheConfig(Section, frozen=True):
    """Records kept in memory, so that reading them again costs nothing.

    Only records of your own types: Perdure's own always come from the store.
    """

    #: How many records this process keeps. 0: none, there is no cache.
    entries: Count = 0
    #: Seconds for which one may be used without a look at the store.
    ttl: Seconds = 60.0
    #: Address of a Valkey or Redis that processes share as a second cache; empty: none.
    shared: str = ""
    #: The collections to keep; none given: all.
    collections: tuple[str, ...] = ()


class EncryptionConfig(Section, frozen=True):
    """How records are encrypted. What is marked `Encrypted()` is refused without a key."""

    #: Where the master key is: ``file:PATH`` or ``env:VARIABLE``. Never the key itself.
    key: str = ""
    #: Where earlier master keys are, until everything has been wrapped with the present one.
    former_keys: tuple[str, ...] = ()
    #: What has a data key of its own: each collection, or whatever stands before the first slash
    #: of a record's key, which is the agent in Perdure's own collections.
    scope: Literal["collection", "agent"] = "collection"
    #: Encrypt every record and artifact, not only types with a field marked `Encrypted()`.
    everything: bool = False
    #: Encrypt the whole file of a SQLite bank instead, and the large artifacts beside it; needs
    #: apsw-sqlite3mc in the place of apsw.
    whole_file: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for source in (*((self.key,) if self.key else ()), *self.former_keys):
            if source.partition(":")[0] not in {"file", "env"} or not source.partition(":")[2]:
                raise Refused(
                    "A master key is named by file:PATH or env:VARIABLE.",
                    hint="Put the key in a file or a variable, and name that.",
                )
        if self.everything and self.whole_file:
            raise Refused(
                "encryption.everything and encryption.whole_file would encrypt everything twice.",
                hint="For a SQLite bank choose whole_file, for any other everything.",
            )


class AuditConfig(Section, frozen=True):
    """Which records leave a trail: who did what to them, and when."""

    #: Collections whose writes are recorded; ``*`` for all of your own.
    collections: tuple[str, ...] = ()
    #: Collections whose reads are recorded, too.
    reads: tuple[str, ...] = ()
    #: Who acts, unless the program says so with `perdure.acting_as`; empty: the user of the system.
    actor: str = ""


class AlertConfig(Section, frozen=True, kw_only=True):
    """A limit that operations should keep; an event tells when they do not."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    #: What is looked at: seconds that a share of calls took, errors per call, calls, or bytes.
    measure: Literal["p50", "p95", "p99", "error_rate", "errors", "calls", "bytes_written"]
    #: The event is raised above this.
    over: Annotated[float, msgspec.Meta(ge=0)]
    #: Which calls; empty: all.
    operation: Literal["", "get", "find", "summarize", "commit", "remove", "rewrite"] = ""
    collection: str = ""
    #: Seconds that are looked at together.
    window: Seconds = 60.0
    #: Fewer calls than this in a window say nothing.
    least: Count = 1


class MetricsConfig(Section, frozen=True):
    """What is told about operations."""

    #: OpenTelemetry spans and metrics, where opentelemetry is installed and set up.
    telemetry: bool = True
    #: Seconds between two snapshots that a process leaves in the bank for `perdure metrics`; 0:
    #: it leaves none.
    publish_every: Annotated[float, msgspec.Meta(ge=0)] = 15.0
    alerts: tuple[AlertConfig, ...] = ()


class ArtifactsConfig(Section, frozen=True):
    """Where large content lies."""

    #: A folder; empty: beside the bank's file, or in the user's data folder.
    folder: str = ""
    #: An S3 store instead: ``s3://bucket/prefix?region=…&endpoint=…``. Who may use it is said by
    #: the usual AWS variables or files.
    url: str = ""
    #: Where they were before, folder or URL: looked at for what is not in its place yet, until
    #: `perdure artifacts move` has moved everything.
    former: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.folder and self.url:
            raise Refused(
                "Artifacts are in a folder or in an S3 store, not in both.", hint="Set one."
            )
