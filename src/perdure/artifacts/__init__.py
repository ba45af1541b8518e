"""Content-addressed blobs: small ones are rows of the bank, large ones files or objects on S3."""

from perdure.artifacts.addresses import PlaceAddress, S3Address, place_of
from perdure.artifacts.artifact import INLINE_BELOW, Artifact, Fault, FaultKind, Located, Place
from perdure.artifacts.references import Referrer, Source
from perdure.artifacts.rows import ARTIFACT_ROWS
from perdure.artifacts.store import ArtifactStore

__all__ = [
    "ARTIFACT_ROWS",
    "INLINE_BELOW",
    "Artifact",
    "ArtifactStore",
    "Fault",
    "FaultKind",
    "Located",
    "Place",
    "PlaceAddress",
    "Referrer",
    "S3Address",
    "Source",
    "place_of",
]
