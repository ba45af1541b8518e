"""What a reply cites, as parts of a UI message: ``source-url`` and ``source-document``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from perdure.core.messages import Message, Text
from perdure.wire.plain import Item


def sources_of(message: Message) -> list[Item]:
    """Each source once, in the order in which they are cited."""
    found: dict[str, Item] = {}
    for cited in _citations(message):
        source = _source(cited)
        if source is not None:
            found.setdefault(source["sourceId"], source)
    return list(found.values())


def _citations(message: Message) -> Iterator[Mapping[str, Any]]:
    said = [message.native.get("chat", {}).get("annotations")]
    for part in message.parts:
        if isinstance(part, Text):
            said.append(part.native.get("messages", {}).get("citations"))
            said.append(part.native.get("responses", {}).get("annotations"))
    for cited in said:
        yield from (each for each in cited or () if isinstance(each, dict))


def _source(cited: Mapping[str, Any]) -> Item | None:
    inner = cited.get("url_citation")  # in Chat Completions
    if isinstance(inner, dict):
        cited = inner
    url, title = cited.get("url"), cited.get("title") or cited.get("document_title")
    if isinstance(url, str) and url:
        named = {"title": title} if isinstance(title, str) else {}
        return {"type": "source-url", "sourceId": url, "url": url, **named}
    name = cited.get("filename") or title
    if not isinstance(name, str) or not name:
        return None
    id = str(cited.get("file_id") or f"document-{cited.get('document_index', name)}")
    return {"type": "source-document", "sourceId": id, "mediaType": "text/plain", "title": name}
