"""Prepares messages to be written: masks secrets, moves large content to the artifact store.

Text above a limit, bytes of images and files, and what tools write or make (see `call_content`) are
replaced by an `ArtifactPointer`, with the session, the agent and the file's name where the call
tells. Small artifacts are rows, and commit with the turn; large ones are on disk before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

import msgspec

from perdure.artifacts import INLINE_BELOW, Artifact, ArtifactStore
from perdure.config import HistoryConfig
from perdure.core import messages as canonical
from perdure.core.errors import ArtifactMissing, Corrupted
from perdure.core.messages import (
    ArtifactPointer,
    Media,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    changed,
)
from perdure.history.call_content import (
    CallContent,
    content_in,
    filename_in,
    put_back,
    rules_for,
    stands_in,
    taken_out,
)

if TYPE_CHECKING:
    from perdure.history.secrets import Masker

#: Work on more text than this is done in a thread, so that the event loop goes on.
_HEAVY = 512 * 1024
_SMALL_MEDIA = 512  # Bytes of an image or file that are not worth a row of their own.
_HEAD = 200  # What a reference shows of its text.
#: What pruning leaves of files and output: all up to so many characters, of more so many lines.
_PRUNED_OVER, _MOST_LINES = 2_000, 1_000
_CALLS_KEPT = 256  # Calls whose results may still come.

_part = msgspec.msgpack.Decoder(Part)


class IntakeResult(msgspec.Struct, frozen=True):
    """Messages as they can be written."""

    messages: tuple[Message, ...]
    masked: dict[str, int]  # How many secrets of which kind were masked.
    #: Every content that moved out. The log writes the small ones, and mends what others delete.
    moved: tuple[bytes, ...]
    there: tuple[str, ...] = ()  # The artifacts among them that were there before.


class _Call(NamedTuple):
    name: str
    arguments: str = ""
    filename: str = ""
    has_content: bool = False


class Intake:
    """Prepares the messages of one session."""

    def __init__(
        self,
        session: str,
        artifacts: ArtifactStore,
        masker: Callable[[], Masker | None],
        settings: HistoryConfig,
    ) -> None:
        self._session = session
        self._artifacts = artifacts
        self._masker = masker
        self._settings = settings
        self._limit = settings.offload_over
        # Of a file or an output that pruning cuts, the artifact store has the whole. Few languages
        # have tokens that are shorter than a character.
        self._result_limit = min(self._limit, max(_PRUNED_OVER, settings.prune_tokens))
        self._rule_for = rules_for(settings.artifacts)
        self._calls: dict[str, _Call] = {}
        #: Gives what was said last, when a result comes whose call was written by somebody else.
        self.recent_messages: Callable[[], Awaitable[Iterable[Message]]] | None = None

    def of(self, session: str) -> Intake:
        return Intake(session, self._artifacts, self._masker, self._settings)

    async def take(self, messages: tuple[Message, ...]) -> IntakeResult:
        """Mask and move out. Only large artifacts are stored when this returns. Raises what the
        artifact store raises; then nothing was written.
        """
        size = weight(messages)
        messages, masked = await self.masked(messages, size)
        if masked:
            size = weight(messages)
        results = self._remember(messages)
        await self._find_calls(results)
        if size <= self._result_limit and not self._must_move(messages, results):
            return IntakeResult(messages, masked, ())
        moved: list[bytes] = []
        messages = tuple(self._lightened(message, moved.append) for message in messages)
        # What is there already may be somebody's own, and must outlast this turn.
        artifacts = [Artifact.of(content) for content in moved]
        there = [each.hash for each in artifacts if await self._artifacts.exists(each)]
        for content in moved:
            if len(content) >= INLINE_BELOW:
                await self._artifacts.put(content)
        return IntakeResult(messages, masked, tuple(moved), tuple(there))

    async def masked(
        self, messages: tuple[Message, ...], size: int | None = None
    ) -> tuple[tuple[Message, ...], dict[str, int]]:
        """The messages without secrets; how many of which kind there were."""
        masker = self._masker()
        counts: dict[str, int] = {}
        if masker is not None:
            if (weight(messages) if size is None else size) > _HEAVY:
                messages, found = await asyncio.to_thread(masker.messages, messages)
            else:
                messages, found = masker.messages(messages)
            for item in found:
                counts[item.rule] = counts.get(item.rule, 0) + item.count
        return messages, counts

    def plain(self, data: Mapping[str, Any]) -> dict[str, Any]:
        masker = self._masker()
        return dict(data) if masker is None else cast("dict[str, Any]", _masked(data, masker))

    async def confirm(self, taken: IntakeResult) -> None:
        """Store again content that was deleted meanwhile. Only `ArtifactStore.delete` can do that:
        it does not check for references. See `TurnLog`.
        """
        for content in taken.moved:
            if not await self._artifacts.exists(Artifact.of(content)):
                await self._artifacts.put(content)

    def _remember(self, messages: Iterable[Message]) -> list[ToolResult]:
        """Note the calls, and return the results."""
        results: list[ToolResult] = []
        for message in messages:
            for part in message.parts:
                if isinstance(part, ToolCall):
                    self._keep(part.id, self._noted(part))
                elif isinstance(part, ToolResult):
                    results.append(part)
        return results

    def _noted(self, call: ToolCall) -> _Call:
        if call.reference is not None:
            has_content = bool(call.arguments)
            return _Call(call.name, "", call.reference.filename, has_content)
        rule = self._rule_for(call.name)
        has_content = rule is not None and rule.result and self._content(call) is not None
        if len(call.arguments) > self._limit:
            return _Call(call.name, "", filename_in(call.arguments), has_content)
        return _Call(call.name, call.arguments, "", has_content)

    def _content(self, call: ToolCall) -> CallContent | None:
        """What of its arguments moves out by itself."""
        rule = self._rule_for(call.name) if call.reference is None else None
        least = 0 if rule is None else self._limit if rule.over is None else rule.over
        if rule is None or len(call.arguments) <= least:
            return None
        found = content_in(call.arguments, rule)
        return found if found is not None and len(found.text) > least else None

    def _keep(self, id: str, call: _Call) -> None:
        self._calls[id] = call
        if len(self._calls) > _CALLS_KEPT:
            self._calls.pop(next(iter(self._calls)))

    async def _find_calls(self, results: Iterable[ToolResult]) -> None:
        unknown = [result.call for result in results if result.call not in self._calls]
        if unknown and self.recent_messages is not None:
            self._remember(await self.recent_messages())
            for id in unknown:
                if id not in self._calls:
                    self._keep(id, _Call(""))

    def _must_move(self, messages: Iterable[Message], results: Iterable[ToolResult]) -> bool:
        for leaf in canonical.leaves(messages):
            if isinstance(leaf, Media) and leaf.data is not None:
                return True
            if isinstance(leaf, ToolCall) and self._content(leaf) is not None:
                return True
        return any(
            self._makes_artifacts(result) or any(map(_has_many_lines, result.content))
            for result in results
        )

    def _makes_artifacts(self, result: ToolResult) -> bool:
        call = self._calls.get(result.call, _Call(""))
        rule = self._rule_for(result.name or call.name)
        return rule is not None and rule.result and not call.has_content and not result.is_error

    def _lightened(self, message: Message, move: Callable[[bytes], None]) -> Message:
        return changed(message, parts=tuple(self._light(part, move) for part in message.parts))

    def _light(self, part: Part, move: Callable[[bytes], None]) -> Part:
        if isinstance(part, ToolResult):
            limit = 0 if self._makes_artifacts(part) else self._result_limit
            call = self._calls.get(part.call, _Call(""))
            filename = call.filename or filename_in(call.arguments)
            content = tuple(
                self._light_content(inner, move, 0 if _has_many_lines(inner) else limit, filename)
                for inner in part.content
            )
            return changed(part, content=content)
        if isinstance(part, ToolCall):
            return self._light_call(part, move)
        if isinstance(part, Reasoning):
            size = len(part.text) + len(part.encrypted or "") + sum(map(len, part.summary))
            return self._whole(part, move) if size > self._limit else part
        return self._light_content(part, move, self._limit, "")

    def _light_call(self, call: ToolCall, move: Callable[[bytes], None]) -> ToolCall:
        content = self._content(call)
        if content is not None:
            artifact = Artifact.of(canonical.sound(content.text).encode()).hash
            # If it could not be put back as it was, the arguments keep it, too.
            arguments = taken_out(call.arguments, content, artifact) or call.arguments
            if len(arguments) <= self._limit and not stands_in(call.arguments, artifact):
                reference = self._text(content.text, move, filename_in(arguments), {})
                return msgspec.structs.replace(call, arguments=arguments, reference=reference)
        if len(call.arguments) <= self._limit:
            return call
        reference = self._text(call.arguments, move, filename_in(call.arguments), {})
        reference = msgspec.structs.replace(reference, media_type="application/json")
        return msgspec.structs.replace(call, arguments="", reference=reference)

    def _light_content(
        self,
        part: Text | Media | ArtifactPointer | Unknown,
        move: Callable[[bytes], None],
        limit: int,
        filename: str,
    ) -> Text | Media | ArtifactPointer | Unknown:
        if isinstance(part, Text):
            if len(part.text) <= limit:
                return part
            return self._text(part.text, move, filename, part.native)
        if isinstance(part, Media):
            if part.data is None or len(part.data) <= _SMALL_MEDIA:
                return part
            move(part.data)
            artifact = Artifact.of(part.data)
            return msgspec.structs.replace(
                part, data=None, artifact=artifact.hash, size=artifact.size
            )
        if isinstance(part, Unknown) and _size(part.data) > self._limit:
            return self._whole(part, move)
        return part

    def _text(
        self, text: str, move: Callable[[bytes], None], filename: str, native: canonical.Native
    ) -> ArtifactPointer:
        pointer = self._moved(canonical.sound(text).encode(), move, text)
        return msgspec.structs.replace(pointer, filename=filename, native=native)

    def _whole(self, part: Part, move: Callable[[bytes], None]) -> ArtifactPointer:
        pointer = self._moved(_packed(part), move, canonical.words_of(part))
        return msgspec.structs.replace(pointer, of="part", media_type="application/msgpack")

    def _moved(self, content: bytes, move: Callable[[bytes], None], text: str) -> ArtifactPointer:
        move(content)
        artifact, agent = Artifact.of(content), self._session.partition("/")[0]
        return ArtifactPointer(
            artifact.hash,
            artifact.size,
            session=self._session,
            agent=agent,
            head=text[:_HEAD],
        )


def _has_many_lines(part: Part) -> bool:
    return (
        isinstance(part, Text)
        and len(part.text) > _PRUNED_OVER
        and part.text.count("\n") >= _MOST_LINES
    )


def _masked(data: Any, masker: Masker) -> Any:
    if isinstance(data, str):
        return masker.text(data)[0]
    if isinstance(data, Mapping):
        return {key: _masked(value, masker) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_masked(value, masker) for value in data]
    return data


class ReferencedContents(Protocol):
    """Reads the contents of references."""

    async def read(self, artifact: str, /) -> bytes: ...


class PendingContents:
    """The contents of an append that is not committed yet, and of those before it."""

    def __init__(self, contents: Iterable[bytes], artifacts: ReferencedContents) -> None:
        self._contents = {Artifact.of(content).hash: content for content in contents}
        self._artifacts = artifacts

    async def read(self, artifact: str, /) -> bytes:
        found = self._contents.get(artifact)
        return await self._artifacts.read(artifact) if found is None else found


async def resolved(
    messages: Iterable[Message], artifacts: ReferencedContents
) -> tuple[Message, ...]:
    """The messages with references replaced by content. Raises `ArtifactMissing` or `Corrupted`."""
    return tuple([await _each_part(message, _resolved, artifacts) for message in messages])


async def with_words(
    messages: Iterable[Message], artifacts: ReferencedContents
) -> tuple[Message, ...]:
    """The messages with references to text replaced by it. What is missing, and media, stay
    references.
    """
    return tuple([await _each_part(message, _with_words, artifacts) for message in messages])


_Resolve: TypeAlias = Callable[[Part, ReferencedContents], Awaitable[Any]]


async def _each_part(message: Message, resolve: _Resolve, artifacts: ReferencedContents) -> Message:
    if not canonical.references((message,)):
        return message
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, ToolResult):
            content = [await resolve(inner, artifacts) for inner in part.content]
            parts.append(changed(part, content=tuple(content)))
        else:
            parts.append(await resolve(part, artifacts))
    return changed(message, parts=tuple(parts))


async def _with_words(part: Part, artifacts: ReferencedContents) -> Part:
    try:
        return part if isinstance(part, Media) else await _resolved(part, artifacts)
    except (ArtifactMissing, Corrupted):
        return part


async def _resolved(part: Part, artifacts: ReferencedContents) -> Part:
    if isinstance(part, ArtifactPointer):
        content = await artifacts.read(part.artifact)
        if part.of == "part":
            return cast("Part", _part.decode(content))
        return Text(content.decode(), part.native)
    if isinstance(part, Media) and part.artifact is not None:
        data = await artifacts.read(part.artifact)
        return msgspec.structs.replace(part, data=data, artifact=None, size=0)
    if isinstance(part, ToolCall) and part.reference is not None:
        key = part.reference.artifact
        text = (await artifacts.read(key)).decode()
        arguments = put_back(part.arguments, text, key) if part.arguments else text
        return msgspec.structs.replace(part, arguments=arguments, reference=None)
    return part


def weight(messages: Iterable[Message]) -> int:
    """About how many characters and bytes they hold."""
    return sum(map(_weight_of, canonical.leaves(messages)))


def _weight_of(part: Part) -> int:
    if isinstance(part, Text):
        return len(part.text)
    if isinstance(part, ToolCall):
        return len(part.arguments)
    if isinstance(part, Reasoning):
        return len(part.text) + len(part.encrypted or "") + sum(map(len, part.summary))
    if isinstance(part, Media):
        return len(part.data or b"")
    if isinstance(part, Unknown):
        return _size(part.data)
    return 0


def _size(data: Any) -> int:
    """About how much plain data takes; 0 if it cannot be stored, which the log will tell."""
    try:
        return len(_packed(data))
    except (TypeError, OverflowError, RecursionError):
        return 0


def _packed(data: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(data)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(data, builtin_types=(bytes,))
        return msgspec.msgpack.encode(canonical.sound(plain))
