"""Content-addressed blobs: small ones are rows of the bank, large ones files or objects on S3."""

from perdure.artifacts.artifact import (
    INLINE_BELOW,
    Artifact,
    ArtifactFault,
    ArtifactPlace,
    FaultKind,
    Located,
)
from perdure.artifacts.artifact_places import PlaceAddress, S3Address, place_of
from perdure.artifacts.artifact_references import ReferenceSource, Referrer
from perdure.artifacts.artifact_rows import ARTIFACT_ROWS
from perdure.artifacts.artifact_store import ArtifactStore

__all__ = [
    "ARTIFACT_ROWS",
    "INLINE_BELOW",
    "Artifact",
    "ArtifactFault",
    "ArtifactPlace",
    "ArtifactStore",
    "FaultKind",
    "Located",
    "PlaceAddress",
    "ReferenceSource",
    "Referrer",
    "S3Address",
    "place_of",
]
