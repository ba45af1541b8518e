"""Content-addressed blobs: small ones are rows in the bank, large ones files in a folder."""

from perdure.artifacts.artifact import INLINE_BELOW, Artifact, Fault, Located, Place, Problem
from perdure.artifacts.store import ArtifactStore

__all__ = ["INLINE_BELOW", "Artifact", "ArtifactStore", "Fault", "Located", "Place", "Problem"]
