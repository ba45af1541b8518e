"""Content-addressed blobs: small ones are rows in the bank, large ones files in a folder."""

from perdure.artifacts.artifact import INLINE_BELOW, Artifact, Fault, FaultKind, Located, Place
from perdure.artifacts.store import ARTIFACT_ROWS, ArtifactStore

__all__ = [
    "ARTIFACT_ROWS",
    "INLINE_BELOW",
    "Artifact",
    "ArtifactStore",
    "Fault",
    "FaultKind",
    "Located",
    "Place",
]
