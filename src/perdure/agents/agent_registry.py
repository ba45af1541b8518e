"""Who the agents of a bank are: their identity, their versions, and how they are found."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from perdure.agents.agent_file import AgentFile
from perdure.agents.agent_records import (
    AgentRecord,
    AgentStatus,
    AgentVersion,
    labels_of,
    new_agent_id,
    no_agent,
    version_key,
)
from perdure.agents.tier_settings import TierSettings
from perdure.core.actors import current_actor, system_user
from perdure.core.errors import Conflict, InvalidInput, NotFound
from perdure.history.log_records import checked_agent
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

#: What differs between two versions that say the same.
_UNSAID = {"id": "", "number": 0, "made": 0, "made_by": "", "reason": ""}


class AgentRegistry:
    """The agents of a bank, as rows."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._agents = store.collection(AgentRecord)
        self._versions = store.collection(AgentVersion)

    async def get(self, name: str) -> AgentRecord:
        """Raises `NotFound`."""
        found = await self._agents.get(checked_agent(name))
        if found is None:
            raise no_agent(name)
        return found

    async def find(
        self,
        *,
        skill: str = "",
        task: str = "",
        status: AgentStatus | None = None,
        id: str = "",
    ) -> list[AgentRecord]:
        """By name; those that have all of what is asked for."""
        finder = self._agents.query()
        if id:
            finder = finder.where("id", "=", id)
        if status is not None:
            finder = finder.where("status", "=", status)
        if wanted := labels_of((skill,) if skill else (), (task,) if task else ()):
            finder = finder.tagged(**wanted)
        return await finder.order_by("key").values()

    async def version(self, name: str, number: int | None = None) -> AgentVersion:
        """The current one, or that of a number. Raises `NotFound`."""
        wanted = (await self.get(name)).version if number is None else number
        found = await self._versions.get(version_key(name, wanted))
        if found is None:
            raise NotFound(
                f"The agent {name} has no version {wanted}.",
                hint=f"`perdure agent versions {name}` lists them.",
            )
        return found

    async def versions(self, name: str) -> list[AgentVersion]:
        """The newest first."""
        await self.get(name)
        return await self._versions.query().prefix(f"{name}/").order_by("-key").values()

    async def define(
        self,
        name: str,
        said: AgentVersion,
        *,
        project: str = "",
        reason: str = "",
        by: str = "",
        public_keys: Iterable[str] = (),
    ) -> tuple[AgentRecord, AgentVersion]:
        """Make the agent if it is not there, and a version unless the current one says the same.
        Raises `Conflict` if the agent belongs to another project.
        """
        checked_agent(name)
        TierSettings.of(said.tiers)
        actor = by or getattr(current_actor(), "name", "") or system_user()
        keys = tuple(public_keys)

        async def define(transaction: Transaction) -> tuple[AgentRecord, AgentVersion]:
            agents = transaction.collection(AgentRecord)
            versions = transaction.collection(AgentVersion)
            found = await agents.get(name)
            now = self._store.now()
            if found is not None and project and found.project not in {"", project}:
                raise Conflict(
                    agents.name,
                    name,
                    message=f"The agent {name} belongs to the project {found.project}.",
                    hint="Give this one another name, or forget that one first.",
                )
            record = found or AgentRecord(name=name, id=new_agent_id(), made=now)
            current = await versions.get(version_key(name, record.version)) if found else None
            if current is not None and _same(current, said):
                version = current
            else:
                version = msgspec.structs.replace(
                    said,
                    id=version_key(name, record.version + 1),
                    number=record.version + 1,
                    made=now,
                    made_by=actor,
                    reason=reason,
                )
                await versions.put(version)
            changed = msgspec.structs.replace(
                record,
                version=version.number,
                description=version.description,
                skills=version.skills,
                tasks=version.tasks,
                labels=labels_of(version.skills, version.tasks),
                project=project or record.project,
                public_keys=tuple(dict.fromkeys((*record.public_keys, *keys))),
            )
            if changed != found:
                await agents.put(changed)
            return changed, version

        return await self._store.transact(define)

    async def use_version(self, name: str, number: int, *, reason: str = "") -> AgentVersion:
        """Go back, or forward, to what a version says: as a new version, so that the list of them
        is the history.
        """
        wanted = await self.version(name, number)
        said = msgspec.structs.replace(wanted, **_UNSAID)
        _, made = await self.define(name, said, reason=reason or f"as version {number}")
        return made

    async def set_status(self, name: str, status: AgentStatus) -> AgentRecord:
        def changed(found: AgentRecord | None) -> AgentRecord:
            if found is None:
                raise no_agent(name)
            return msgspec.structs.replace(found, status=status)

        return await self._agents.change(checked_agent(name), changed)


def _same(one: AgentVersion, other: AgentVersion) -> bool:
    return msgspec.structs.replace(one, **_UNSAID) == msgspec.structs.replace(other, **_UNSAID)


def from_file(found: AgentFile, name: str) -> str:
    """The name that an agent of a file gets. Raises `InvalidInput` if the two contradict."""
    if name and name != found.name and found.version.front_matter.get("name"):
        raise InvalidInput(
            f"The file says that the agent is called {found.name}, not {name}.",
            hint="Change one of them.",
        )
    return name or found.name
