"""The canon: knowledge that a bank's agents share, each entry with its versions.

A person writes an entry, or a memory is promoted to one. Machines write none of their own words:
they may promote what an agent remembers, unless a person wrote the entry that it would replace.
Each entry has its readers: agents by name, or everybody. To them it is a reference layer: recall
finds it by its words, its triggers and its tags. For others it is not there.

An entry that a machine promoted goes with its memory when that is forgotten.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from perdure.core.errors import Conflict, Denied, NotFound
from perdure.core.input_types import require_text
from perdure.history.forget_sessions import ForgetScope, remove
from perdure.recall.memory_records import Author, Memory, acting, checked_shared, parse_key
from perdure.recall.references.layers import WEIGHT, LayerRecord, LayerText, checked_name
from perdure.recall.sharing import EVERYBODY
from perdure.services import Services
from perdure.storage.record_keys import numbered
from perdure.storage.records import Compressed, Indexed, Key, system_record
from perdure.storage.transaction import Transaction


@system_record("canon")
class CanonEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the canon as it is now. Its text is a reference layer."""

    name: Annotated[str, Key()]
    version: int
    title: str = ""
    #: Agents, or ``*``.
    readers: tuple[str, ...] = ()
    author: Author = Author()
    #: The memory that it was promoted from: ``planner/M-7``.
    source: Annotated[str | None, Indexed()] = None
    reason: str = ""
    updated: int = 0  # Microseconds.

    def is_visible_to(self, agent: str) -> bool:
        return EVERYBODY in self.readers or agent in self.readers


@system_record("canon_versions")
class CanonVersion(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What an entry said from one change to the next."""

    id: Annotated[str, Key()]  # name/number
    entry: CanonEntry
    text: Annotated[str, Compressed()]


class CanonText(msgspec.Struct, frozen=True):
    """An entry with its words."""

    entry: CanonEntry
    text: str


class _Refusal(Exception):
    """Ends a transaction for good: one that raises `Conflict` itself would be repeated."""

    def __init__(self, conflict: Conflict) -> None:
        super().__init__(str(conflict))
        self.conflict = conflict


class Canon:
    """The canon of a bank. With `agent`, only what that agent may read is there."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._entries = services.store.collection(CanonEntry)
        self._versions = services.store.collection(CanonVersion)

    # Reading ----------------------------------------------------------------------------------

    async def get(
        self, name: str, *, agent: str | None = None, version: int | None = None
    ) -> CanonText:
        """An entry, or a former version of it. Raises `NotFound`, also if the agent may not read
        it as it is now, or might not read that version.
        """
        if agent is not None:
            require_text(agent, "agent")
        entry = await self._entries.get(checked_name(require_text(name, "name")))
        if entry is None or not (agent is None or entry.is_visible_to(agent)):
            raise _missing(name)
        number = entry.version if version is None else version
        found = await self._versions.get(_version_key(name, number))
        if found is None or not (agent is None or found.entry.is_visible_to(agent)):
            raise NotFound(
                f"The canon's entry {name} has no version {number}.",
                hint=f"It has versions up to {entry.version}.",
            )
        return CanonText(found.entry, found.text)

    async def list(self, *, agent: str | None = None) -> builtins.list[CanonEntry]:
        """By name."""
        if agent is not None:
            require_text(agent, "agent")
        found = await self._entries.query().order_by("key").values()
        return [each for each in found if agent is None or each.is_visible_to(agent)]

    async def history(self, name: str, *, agent: str | None = None) -> builtins.list[CanonVersion]:
        """The versions of an entry that the agent may read, the newest first. Raises `NotFound`."""
        await self.get(name, agent=agent)
        found = await self._versions.query().prefix(f"{name}/").order_by("-key").values()
        return [each for each in found if agent is None or each.entry.is_visible_to(agent)]

    # Writing ----------------------------------------------------------------------------------

    async def write(
        self,
        name: str,
        text: str,
        *,
        readers: Iterable[str] | None = None,
        reason: str = "",
        by: Author | None = None,
        expected: int | None = None,
    ) -> CanonEntry:
        """Write an entry, or its next version: Markdown, which may have front matter (title, tags,
        triggers, weight). Without `readers` it keeps those that it has; a new one is everybody's.

        A person does that: `by`, or whom `perdure.acting_as` names. Raises `Denied` if nobody says
        who acts, `Conflict` if it is not at the version `expected` (0: it must be new), and what
        `References.add` raises.
        """
        name, text = require_text(name, "name"), require_text(text, "text")
        reason, author = require_text(reason, "reason"), acting() if by is None else by
        if not author.person:
            raise Denied(
                "The canon is written by people.",
                hint="Say who acts: `with perdure.acting_as(name)`; or promote a memory.",
            )
        return await self._put(
            name,
            text,
            readers=readers,
            author=author,
            reason=reason,
            source=None,
            expected=expected,
        )

    async def promote(
        self,
        memory: str,
        *,
        name: str,
        readers: Iterable[str] | None = None,
        reason: str = "",
        by: Author | None = None,
    ) -> CanonEntry:
        """Make an entry of what an agent remembers: ``planner/M-7``. The memory stays.

        Raises `Conflict` if a machine would replace what a person wrote, and `NotFound` if there
        is no such memory in use.
        """
        id = parse_key(require_text(memory, "memory"))
        found = await self._services.store.collection(Memory).get(id)
        if found is None or not found.is_active:
            raise NotFound(f"There is no memory {memory} in use.", hint="List them, and check it.")
        text = _with_front_matter({"tags": [*found.tags]}, f"{found.text}\n")
        author = acting() if by is None else by
        return await self._put(
            name,
            text,
            readers=readers,
            author=author,
            reason=reason,
            source=found.name,
            expected=None,
        )

    async def restore(
        self, name: str, version: int, *, by: Author | None = None, reason: str = ""
    ) -> CanonEntry:
        """Go back to what a version said, as a new version. Raises as `write` does."""
        former = await self.get(name, version=version)
        return await self.write(
            name,
            former.text,
            readers=former.entry.readers,
            reason=reason or f"as version {version}",
            by=by,
        )

    async def remove(self, name: str, *, by: Author | None = None) -> bool:
        """Remove an entry for good, with its versions; whether nothing of it can be read in the
        bank's files any more. Raises `NotFound`, and `Conflict` if a machine would remove what a
        person wrote.
        """
        entry = (await self.get(name)).entry
        author = acting() if by is None else by
        if entry.author.person and not author.person:
            raise _refused(name)
        return await self._delete(name)

    # ------------------------------------------------------------------------------------------

    async def _put(
        self,
        name: str,
        text: str,
        *,
        readers: Iterable[str] | None,
        author: Author,
        reason: str,
        source: str | None,
        expected: int | None,
    ) -> CanonEntry:
        text, reason = require_text(text, "text"), require_text(reason, "reason")
        key = checked_name(require_text(name, "name"))
        known = await self._entries.get(key)
        given = None if readers is None else checked_shared(readers)
        if given is None:
            given = (EVERYBODY,) if known is None else known.readers
        made = builtins.list[CanonEntry]()

        async def within(transaction: Transaction, layer: LayerRecord) -> None:
            entries = transaction.collection(CanonEntry)
            former = await entries.get(key)
            version = 0 if former is None else former.version
            if expected not in (None, version):
                raise _Refusal(_other_version(key, version, expected))
            if former is not None and former.author.person and not author.person:
                raise _Refusal(_refused(key))
            words = await transaction.collection(LayerText).get(key)
            entry = CanonEntry(
                name=key,
                version=version + 1,
                title=layer.title,
                readers=given or (),
                author=author,
                source=source,
                reason=reason,
                updated=layer.updated,
            )
            await entries.put(entry)
            await transaction.collection(CanonVersion).put(
                CanonVersion(
                    id=_version_key(key, entry.version),
                    entry=entry,
                    text=_with_front_matter(_front(layer), "" if words is None else words.text),
                )
            )
            made[:] = [entry]

        recall = await self._services.loaded_recall()
        try:
            await recall.references.put_canon(key, text, given, within)
        except _Refusal as exc:
            raise exc.conflict from None
        return made[0]

    async def _delete(self, name: str) -> bool:
        async def within(transaction: Transaction, _: LayerRecord) -> None:
            await transaction.collection(CanonEntry).delete(name)

        await remove(self._versions, f"{name}/")
        recall = await self._services.loaded_recall()
        return await recall.references.remove_canon(name, within)

    # Forgetting -------------------------------------------------------------------------------

    @property
    def collections(self) -> frozenset[str]:
        return frozenset({"perdure_canon", "perdure_canon_versions"})

    async def forget(self, scope: ForgetScope) -> None:
        """What a machine promoted goes with its memory; an agent that is forgotten reads nothing
        any more.
        """
        memories = self._services.store.collection(Memory)
        for entry in await self.list():
            promoted = None if entry.author.person else entry.source
            if promoted is not None and await memories.get(parse_key(promoted)) is None:
                await self._delete(entry.name)
            elif scope.agent is not None and scope.agent in entry.readers:
                await self._without_reader(entry, scope.agent)

    async def _without_reader(self, entry: CanonEntry, agent: str) -> None:
        async def body(transaction: Transaction) -> None:
            entries, layers = (
                transaction.collection(CanonEntry),
                transaction.collection(LayerRecord),
            )
            found, layer = await entries.get(entry.name), await layers.get(entry.name)
            if found is None or layer is None:
                return
            left = tuple(name for name in found.readers if name != agent)
            await entries.put(replace(found, readers=left))
            await layers.put(replace(layer, canon=left))
            for version in await self.history(entry.name):
                kept = tuple(name for name in version.entry.readers if name != agent)
                former = replace(version.entry, readers=kept)
                await transaction.collection(CanonVersion).put(replace(version, entry=former))

        await self._services.store.transact(body)


def _front(layer: LayerRecord) -> dict[str, Any]:
    return {
        "title": layer.title,
        "tags": [*layer.tags],
        "triggers": [*layer.triggers],
        "weight": "" if layer.weight == WEIGHT else str(layer.weight),
    }


def _with_front_matter(fields: dict[str, Any], text: str) -> str:
    """The text as it could be written again."""
    import yaml

    told = {name: value for name, value in fields.items() if value}
    if not told:
        return text
    return f"---\n{yaml.safe_dump(told, sort_keys=False, allow_unicode=True)}---\n{text}"


def _version_key(name: str, number: int) -> str:
    return f"{name}/{numbered(number)}"


def _missing(name: str) -> NotFound:
    return NotFound(f"The canon has no entry {name!r}.", hint="`perdure canon list` has all.")


def _other_version(name: str, version: int, expected: int | None) -> Conflict:
    return Conflict(
        "perdure_canon",
        name,
        message=f"{name} is at version {version}, not {expected}.",
        hint="Read it again, then write.",
    )


def _refused(name: str) -> Conflict:
    return Conflict(
        "perdure_canon",
        name,
        message=f"A person wrote the canon's entry {name}; no machine changes it.",
        hint="Promote under another name, or let a person write it.",
    )
