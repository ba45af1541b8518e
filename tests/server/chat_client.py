"""A client of Chat Completions that streams: what it gets is what it sends next."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2


class ChatClient:
    """One conversation through a proxy."""

    def __init__(self, http: httpx2.AsyncClient, address: str, session: str) -> None:
        self._http = http
        self._url = f"{address}/v1/chat/completions"
        self._headers = {"authorization": "Bearer sk-fake", "x-perdure-session": session}
        self.session = session
        self.messages: list[dict[str, Any]] = []

    async def say(self, text: str) -> str:
        """Raises `httpx2.HTTPError` if the answer is an error, or breaks off."""
        answer = "".join([piece async for piece in self.pieces(text)])
        self.messages.append({"role": "assistant", "content": answer})
        return answer

    async def pieces(self, text: str) -> AsyncIterator[str]:
        self.messages.append({"role": "user", "content": text})
        body = {"model": "any", "stream": True, "messages": self.messages}
        async with self._http.stream(
            "POST", self._url, json=body, headers=self._headers
        ) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        yield choice["delta"].get("content") or ""

    @property
    def said(self) -> list[tuple[str, str]]:
        return [(message["role"], message["content"]) for message in self.messages]
