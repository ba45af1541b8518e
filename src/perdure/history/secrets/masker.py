"""Masks the secrets in messages."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections import Counter
from operator import is_
from typing import Any

import msgspec

from perdure.config import SecretsConfig
from perdure.core.messages import (
    ArtifactPointer,
    Media,
    Message,
    Native,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    changed,
)
from perdure.history.secrets.masking_rules import Rule, check_installed
from perdure.history.secrets.message_texts import (
    UNTOUCHED,
    after,
    as_bytes,
    contexts,
    decoded,
    in_command,
    is_media,
    named,
    texts_of,
)
from perdure.history.secrets.secret_finder import FoundSecret, SecretFinder, usual_finder

_LITERAL = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
#: A mask in the place of one secret can make another visible that was a part of the same word.
_ROUNDS = 20
_COLON = re.compile(r"\s*:")
_APART = "\n\0\n"  # Between texts that are searched together: no secret reaches across.


class Masked(msgspec.Struct, frozen=True):
    """What kind of secret was masked, where, how often. Never the secret."""

    rule: str
    #: The place in the messages, as one would write it in Python; empty for a lone text.
    where: str
    count: int = 1


class Masker:
    """Replaces secrets with ``[secret:RULE:TAG]``; a value that was masked is masked for ever.

    Equal tags most likely mean equal secrets, so a reader can see that the key which failed is the
    key which was set. The tag is a hash of the secret under `key`, cut to 16 bits. Without the key
    nothing can be told from it. Whoever has the key (it may be in the bank) can try values against
    a tag, so only secrets that a machine made get one; passwords, and whatever is known only by the
    word before it, do not. With no key given the masker makes one, and tags compare within its
    lifetime only.

    The rules are read with the first text (8 ms); the user's settings are checked at once. Raises
    `InvalidConfig` as `SecretFinder` does.
    """

    def __init__(self, settings: SecretsConfig, *, key: bytes = b"") -> None:
        self._settings = settings
        self._key = key or secrets.token_bytes(16)
        self._made: SecretFinder | None = None
        if settings.mask:
            check_installed()
            if settings.allow or settings.off or settings.rules:
                self._finder()

    def text(self, text: str) -> tuple[str, list[Masked]]:
        """The text without secrets, and what was masked. Idempotent, never raises. Returns the same
        object if there was nothing to mask.
        """
        if not self._settings.mask:
            return text, []
        finder = self._finder()
        candidates = finder.candidates(as_bytes(text))
        if not candidates:
            return text, []
        work = _Work(finder, candidates, self._key)
        return work.text(text, ""), work.report()

    def messages(self, messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], list[Masked]]:
        """The messages without secrets, and what was masked. Idempotent.

        Covers every text in them, file names, URLs, and providers' own data. Not covered: ids,
        names of tools and speakers, signatures, encrypted reasoning, bytes of images and files.
        JSON arguments stay JSON of the same shape. A reasoning whose text changes loses its
        signature, which would be void. Unchanged messages are the same objects.
        """
        if not self._settings.mask:
            return messages, []
        finder = self._finder()
        everything = as_bytes(_APART.join(texts_of(messages)))
        candidates = finder.candidates(everything)
        if not candidates or not finder.find(everything, candidates):
            return messages, []
        work = _Work(finder, candidates, self._key)
        masked = tuple(
            work.message(message, f"[{index}]") for index, message in enumerate(messages)
        )
        report = work.report()
        return (masked, report) if report else (messages, [])

    def _finder(self) -> SecretFinder:
        if self._made is None:
            given = self._settings
            if given.allow or given.off or given.rules:
                self._made = SecretFinder(allow=given.allow, off=given.off, rules=given.rules)
            else:
                self._made = usual_finder()
        return self._made


class _Work:
    def __init__(self, finder: SecretFinder, candidates: list[Rule], key: bytes) -> None:
        self._finder = finder
        self._candidates = candidates
        self._key = key
        self._counts: Counter[tuple[str, str]] = Counter()

    def report(self) -> list[Masked]:
        return [Masked(rule, where, count) for (rule, where), count in self._counts.items()]

    def message(self, message: Message, where: str) -> Message:
        masked = tuple(
            self._part(part, f"{where}.parts[{index}]") for index, part in enumerate(message.parts)
        )
        usage = message.usage
        if usage is not None and usage.native:
            usage = changed(usage, native=self._data(usage.native, f"{where}.usage.native"))
        return changed(
            message,
            parts=masked,
            usage=usage,
            native=self._native(message.native, where),
        )

    def _part(self, part: Part, where: str) -> Any:
        match part:
            case Text():
                return changed(
                    part,
                    text=self.text(part.text, f"{where}.text"),
                    native=self._native(part.native, where),
                )
            case Reasoning():
                return self._reasoning(part, where)
            case ToolCall():
                reference = part.reference
                if reference is not None:
                    reference = self._part(reference, f"{where}.reference")
                return changed(
                    part,
                    arguments=self._arguments(part.arguments, f"{where}.arguments"),
                    reference=reference,
                    native=self._native(part.native, where),
                )
            case ToolResult():
                content = tuple(
                    self._part(inner, f"{where}.content[{index}]")
                    for index, inner in enumerate(part.content)
                )
                return changed(
                    part,
                    content=content,
                    native=self._native(part.native, where),
                )
            case ArtifactPointer():
                return changed(
                    part,
                    head=self.text(part.head, f"{where}.head"),
                    filename=self.text(part.filename, f"{where}.filename"),
                    native=self._native(part.native, where),
                )
            case Media():
                return changed(
                    part,
                    url=self._data(part.url, f"{where}.url"),
                    filename=self.text(part.filename, f"{where}.filename"),
                    native=self._native(part.native, where),
                )
            case Unknown():
                return changed(part, data=self._data(part.data, f"{where}.data"))

    def _reasoning(self, part: Reasoning, where: str) -> Reasoning:
        text = self.text(part.text, f"{where}.text")
        summary = tuple(
            self.text(line, f"{where}.summary[{index}]") for index, line in enumerate(part.summary)
        )
        return changed(
            part,
            text=text,
            summary=summary,
            signature=part.signature if text is part.text else None,
            native=self._native(part.native, where),
        )

    def text(self, text: str, where: str, context: str = "") -> str:
        candidates = self._candidates
        for _ in range(_ROUNDS):
            masked = self._once(text, where, context, candidates)
            if masked is text:
                break
            text = masked
            candidates = self._finder.candidates(as_bytes(after(context, text)))
        return text

    def _once(self, text: str, where: str, context: str, candidates: list[Rule]) -> str:
        raw = as_bytes(text)
        shift = len(as_bytes(context))
        pieces: list[bytes] = []
        at = 0
        for place in self._finder.find(as_bytes(after(context, text)), candidates):
            start, end = max(place.start - shift, 0), min(place.end - shift, len(raw))
            if end <= start:
                continue  # in the context, which is masked by itself
            pieces += raw[at:start], self._mask(place, raw[start:end])
            at = end
            self._counts[place.rule.id, where] += 1
        if not pieces:
            return text
        return b"".join((*pieces, raw[at:])).decode("utf-8", "surrogatepass")

    def _mask(self, place: FoundSecret, secret: bytes) -> bytes:
        mask = f"[secret:{place.rule.id}"
        if place.rule.kind in ("block", "token", "loose", "vendor"):
            # A private key is the same whether its lines are broken or written as \\n.
            essence = secret.replace(rb"\n", b"").translate(None, b"\\ \t\r\n")
            mask += ":" + hashlib.blake2b(essence, key=self._key, digest_size=2).hexdigest()
        return (mask + "]").encode()

    def _native(self, native: Native, where: str) -> Any:
        return self._data(native, f"{where}.native") if native else native

    def _data(self, value: Any, where: str, context: str = "") -> Any:
        if isinstance(value, str):
            return value if is_media(value) else self.text(value, where, context)
        if isinstance(value, dict):
            masked: dict[Any, Any] = {}
            for key, item in value.items():
                name = self.text(key, where) if isinstance(key, str) else key
                while name in masked:  # two keys that were secrets
                    name += " "
                untouched = key in UNTOUCHED and isinstance(item, str)
                masked[name] = item if untouched else self._data(item, where, named(name))
            same = all(map(is_, masked, value)) and all(map(is_, masked.values(), value.values()))
            return value if same else masked
        if isinstance(value, list | tuple):
            items = [
                self._data(item, where, before)
                for item, before in zip(value, contexts(value, context), strict=True)
            ]
            return value if all(map(is_, items, value)) else type(value)(items)
        return value

    def _arguments(self, arguments: str, where: str) -> str:
        """JSON is masked literal by literal, so that all around them stays as it was written."""
        if decoded(arguments) is None:
            return self.text(arguments, where)
        pieces: list[str] = []
        at, key, context = 0, "", ""
        for literal in _LITERAL.finditer(arguments):
            value: str = json.loads(literal[0])
            if _COLON.match(arguments, literal.end()):
                masked = key = self.text(value, where)
                context = named(key)
            else:
                masked = self.text(value, where, context)
                context = in_command(value) or named(key)
            if masked is not value:
                quoted = json.dumps(masked, ensure_ascii=literal[0].isascii())
                pieces += arguments[at : literal.start()], quoted
                at = literal.end()
        return "".join((*pieces, arguments[at:])) if pieces else arguments
