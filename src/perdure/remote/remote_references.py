"""Reference layers behind a server. The methods are those of `References`, which documents them.

Files are the server's: send the text of one that lies here.
"""

from __future__ import annotations

import builtins

from perdure.core.errors import NotFound
from perdure.core.input_types import require_text
from perdure.recall.references.files import LayerProblem
from perdure.recall.references.layers import Layer
from perdure.remote.api_client import ApiClient, segment
from perdure.remote.api_results import ErasedContent, LayerCheck, LayerInfo

_LAYERS = "/references"


class RemoteReferences:
    """The reference layers of a bank on a server."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    async def get(self, name: str, /) -> Layer | None:
        try:
            return await self._api.get(_path(name), Layer)
        except NotFound:
            return None

    async def list(self) -> builtins.list[LayerInfo]:
        return await self._api.get(_LAYERS, builtins.list[LayerInfo])

    async def add(self, text: str, *, name: str = "", replace: bool = False) -> LayerInfo:
        hint = "Read the file, and give its text."
        body = {
            "text": require_text(text, "text", hint=hint),
            "name": require_text(name, "name"),
            "replace": replace,
        }
        return await self._api.call("POST", _LAYERS, LayerInfo, body)

    async def remove(self, name: str) -> bool:
        return (await self._api.call("DELETE", _path(name), ErasedContent)).erased

    async def check(self) -> builtins.list[LayerProblem]:
        return (await self._api.get("/checks/references", LayerCheck)).problems


def _path(name: str) -> str:
    return f"{_LAYERS}/{segment(require_text(name, 'name'))}"
