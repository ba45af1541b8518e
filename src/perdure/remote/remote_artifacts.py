"""Artifacts behind a server."""

from __future__ import annotations

from collections.abc import AsyncIterator

from perdure.artifacts import Artifact
from perdure.artifacts.artifact import checked
from perdure.remote.api_client import ApiClient, segment


class RemoteArtifacts:
    """Reads artifacts that turns refer to."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    async def read(self, artifact: Artifact | str) -> bytes:
        return b"".join([content async for content in self.stream(artifact)])

    def stream(self, artifact: Artifact | str) -> AsyncIterator[bytes]:
        return self._api.stream(f"/artifacts/{segment(checked(artifact))}")
