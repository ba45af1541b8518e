"""Which artifacts turns refer to: for deciding whether one is still needed, and for reading one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import msgspec

from perdure.artifacts import Referrer
from perdure.core.messages import ArtifactPointer, Media, Message, ToolCall, leaves
from perdure.core.turns import Position
from perdure.history.log_records import Head, SessionRecord, Use, agent_of, owners
from perdure.history.turn_log import KEPT
from perdure.history.turn_reader import TurnReader
from perdure.storage.options import STRONG
from perdure.storage.store import Store


class Uses:
    """The references of turns, for `ArtifactStore`, which deletes nothing that a turn uses.

    An artifact that existed before a turn used it counts as used for good (its owner may need it),
    but it is no error if it is gone.
    """

    def __init__(self, store: Store) -> None:
        self._uses = store.collection(Use)

    async def count(self, artifact: str, /) -> int:
        """How many turns use it; one more if it existed before any turn used it."""
        return len(await self._of(artifact))

    async def of(self, artifact: str, /) -> AsyncIterator[Referrer]:
        for use in await self._of(artifact):
            yield Referrer(artifact, _name(use))

    async def all(self) -> AsyncIterator[Referrer]:
        async for use in self._uses.walk(options=STRONG):
            if not use.id.startswith(KEPT):
                yield Referrer(use.artifact, _name(use))

    async def _of(self, artifact: str) -> list[Use]:
        return await self._uses.query().where("artifact", "=", artifact).values(STRONG)


class ArtifactUse(msgspec.Struct, frozen=True):
    """A turn that refers to an artifact, and what it says of it."""

    session: str
    turn: int
    media_type: str = ""
    filename: str = ""


async def find_use(store: Store, artifact: str, agent: str | None = None) -> ArtifactUse | None:
    """A turn that refers to an artifact; one that this agent has in its sessions, if named. None if
    there is none.
    """
    uses = await store.collection(Use).query().where("artifact", "=", artifact).values(STRONG)
    for use in uses:
        if use.id.startswith(KEPT):
            continue
        session, turn = _place(use)
        if agent not in (None, agent_of(session)) and not await _forked(
            store, str(agent), session, turn
        ):
            continue
        record = await store.collection(SessionRecord).get(session)
        head = await store.collection(Head).get(session)
        if record is not None and head is not None:
            found = await TurnReader(store).turns(record, head, turn, turn, counted=False)
            said = [message for each in found for message in each.messages]
            return _described(ArtifactUse(session, turn), said, artifact)
    return None


def _described(use: ArtifactUse, said: Iterable[Message], artifact: str) -> ArtifactUse:
    for part in leaves(said):
        pointer = part.reference if isinstance(part, ToolCall) else part
        if isinstance(pointer, ArtifactPointer | Media) and pointer.artifact == artifact:
            is_part = isinstance(pointer, ArtifactPointer) and pointer.of == "part"
            kind = "" if is_part else pointer.media_type
            return msgspec.structs.replace(use, media_type=kind, filename=pointer.filename)
    return use


async def _forked(store: Store, agent: str, session: str, turn: int) -> bool:
    """Whether a fork of this agent's shares a turn of another agent's session."""
    records = store.collection(SessionRecord).query().where("agent", "=", agent)
    forks = await records.where("parent", "!=", None).values()
    return any(owned.session == session for record in forks for owned in owners(record, turn, turn))


def _place(use: Use) -> tuple[str, int]:
    session, _, rest = use.id.rpartition("/")
    return session, int(rest.partition(".")[0])


def _name(use: Use) -> str:
    if use.id.startswith(KEPT):
        return "whoever put it before a turn used it"
    session, turn = _place(use)
    return f"{session}#{Position(turn)}"
