"""Reads the messages of ChatGPT along one branch.

What the assistant says to a tool (its ``recipient``) is a call, and what tools say until somebody
else speaks is its result. Neither has an id of its own: the message's stands for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perdure.core.messages import Media, Message, Part, Reasoning, Text, ToolCall, ToolResult
from perdure.importers.importer import Say, Step, TranscriptReader, kind, word
from perdure.importers.message_parts import attachment, items, mapping, moment_of
from perdure.wire.media import stand_in

_Told = Text | Media
#: Content that is no more than words.
_WORDS = {
    "text": "text",
    "code": "text",
    "execution_output": "text",
    "system_error": "text",
    "tether_quote": "text",
    "tether_browsing_display": "result",
    "tether_browsing_code": "text",
    "audio_transcription": "text",
}
#: What a person or the model has told about the person, which every request has.
_ABOUT = (
    "user_profile",
    "user_instructions",
    "model_set_context",
    "structured_context",
)


class ChatGPTReader(TranscriptReader):
    """Reads one conversation."""

    def __init__(self) -> None:
        super().__init__()
        self._reply = ""  # its first message
        self._call: ToolCall | None = None  # the newest, without its result
        self._told: list[_Told] = []  # what tools said
        self._teller: tuple[str, int | None] = ("", None)
        self._failed = False

    def read(self, record: Any) -> Iterator[Step]:
        found = mapping(record)
        message = mapping(found.get("message"))
        role = word(mapping(message.get("author")).get("role"))
        if "file" in found:
            name = word(found["file"]).rpartition("/")[2]
            is_text = name.endswith((".json", ".html", ".txt"))
            self.skip(f"file {kind(name)}" if is_text else "attached file")
        elif "other" in found:
            self.skip("message of another branch")
        elif role == "tool":
            self._tool(message)
        elif role in {"user", "assistant", "system"}:
            yield from self._say_result()
            if role == "assistant":
                yield from self._assistant(word(found.get("id")), message)
            else:
                yield from self._spoken(role, message)
        else:
            self.skip(f"message: {kind(role)}" if message else "no conversation")

    def finish(self) -> Iterator[Step]:
        yield from self._say_result()

    def _spoken(self, role: str, message: dict[str, Any]) -> Iterator[Step]:
        parts: list[Part] = [*self._content(message)]
        metadata, content = mapping(message.get("metadata")), mapping(message.get("content"))
        is_about = any(name in content for name in _ABOUT)
        shown = {part.filename for part in parts if isinstance(part, Media)}
        for each in items(metadata.get("attachments")):
            name = word(each.get("name"))
            images = word(each.get("mime_type") or each.get("mimeType")).startswith("image/")
            if name not in shown and not (images and any(isinstance(p, Media) for p in parts)):
                media_type = word(each.get("mime_type") or each.get("mimeType"))
                parts.append(Text(stand_in(Media(media_type, filename=name, file_id=name))))
        if not parts:
            self._nothing(content)
            return
        self._reply = ""
        hidden = bool(metadata.get("is_visually_hidden_from_conversation")) or is_about
        said = "system" if role == "system" else "user"
        time = moment_of(message.get("create_time"))
        put_in = said == "user" and hidden
        yield Say(Message(said, tuple(parts), time=time, injected=put_in))  # type: ignore[arg-type]

    def _assistant(self, name: str, message: dict[str, Any]) -> Iterator[Step]:
        recipient = word(message.get("recipient"))
        told = self._content(message)
        parts: list[Part] = []
        if recipient not in {"", "all"}:
            given = "\n".join(part.text for part in told if isinstance(part, Text))
            self._call = ToolCall(name, recipient, given)
            parts.append(self._call)
        else:
            parts += self._thoughts(message) or told
        if not parts:
            self._nothing(mapping(message.get("content")))
            return
        self._reply = self._reply or name
        model = word(mapping(message.get("metadata")).get("model_slug"))
        time = moment_of(message.get("create_time"))
        yield Say(Message("assistant", tuple(parts), id=self._reply, model=model, time=time))

    def _thoughts(self, message: dict[str, Any]) -> list[Reasoning]:
        content = mapping(message.get("content"))
        thoughts = content.get("thoughts")
        if isinstance(thoughts, str):
            return [Reasoning(thoughts)]
        found = []
        for each in items(thoughts):
            said = [word(each.get("summary")), word(each.get("content"))]
            if any(said):
                found.append(Reasoning("\n".join(filter(None, said))))
        return found

    def _tool(self, message: dict[str, Any]) -> None:
        told = self._content(message)
        if not told:
            self._nothing(mapping(message.get("content")))
            return
        name = word(mapping(message.get("author")).get("name"))
        self._teller = self._teller if self._told else (name, moment_of(message.get("create_time")))
        self._told += told
        kind_ = mapping(message.get("content")).get("content_type")
        self._failed = self._failed or kind_ == "system_error"

    def _say_result(self) -> Iterator[Step]:
        """What tools said; nobody asked for some of it, such as the text of files."""
        if not self._told:
            return
        (name, time), told, call = self._teller, tuple(self._told), self._call
        failed, self._told, self._call, self._failed = self._failed, [], None, False
        self._reply = ""
        if call is not None:
            result = ToolResult(call.id, told, is_error=failed, name=call.name)
            yield Say(Message("tool", (result,), time=time))
        else:
            yield Say(Message("user", told, name=name, time=time, injected=True))

    def _content(self, message: dict[str, Any]) -> list[_Told]:
        found: list[_Told] = []
        content = mapping(message.get("content"))
        parts = content.get("parts")
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, str):
                found += [Text(part)] if part.strip() else []
            elif isinstance(part, dict):
                found += self._part(part)
        name = _WORDS.get(word(content.get("content_type")), "text")
        if not found and (text := word(content.get(name))).strip():
            title = word(content.get("title")) or word(content.get("url"))
            quoted = f"{title}\n{text}" if title else text
            found.append(Text(quoted))
        about = [word(content.get(name)) for name in _ABOUT]
        found += [Text(each) for each in about if each]
        return found

    def _nothing(self, content: dict[str, Any]) -> None:
        """Why nothing of a message is said."""
        what = content.get("content_type")
        is_known = what in {"multimodal_text", "thoughts", *_WORDS}
        self.skip("empty message" if is_known else f"content: {kind(what)}")

    def _part(self, part: dict[str, Any]) -> list[_Told]:
        what, pointer = word(part.get("content_type")), word(part.get("asset_pointer"))
        if url := word(part.get("data_url")):
            return [attachment(url, "", pointer.rpartition("://")[2])]
        if pointer or what.endswith("asset_pointer"):
            media_type = what.partition("_")[0]
            return [Text(stand_in(Media(media_type, file_id=pointer.rpartition("://")[2])))]
        if text := word(part.get(_WORDS.get(what, "text"))):
            return [Text(text)]
        self.skip_part(f"part: {kind(part.get('content_type'))}")
        return []
