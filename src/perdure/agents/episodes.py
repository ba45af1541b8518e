"""Episodes: complete records of interactions, in an archive beside the turn log.

An episode is a JSON document, compressed with zstd, in the artifact store: the request, the
response and all messages between them, what the caller gave, how it went, what was learnt from it.
It is listed as ``episodes/<agent>/<date>/<session>/<interaction>`` and kept for
`agents.episode_days`. The turn log is not touched by it, and does not need it.

The row is written in the transaction that records the interaction, with the words in it. A job
moves them to the artifact store; until it has, they are read from the row. So a killed process
loses no episode.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
import zstandard

from perdure.agents.interaction import Interaction
from perdure.agents.interaction_records import InteractionRecord
from perdure.artifacts import Artifact
from perdure.core import clock
from perdure.core.errors import Corrupted, InvalidInput, NotFound
from perdure.core.input_types import require_text
from perdure.core.messages import Message
from perdure.history.log_records import Head, SessionRecord, checked_agent
from perdure.jobs import Job
from perdure.services import Services
from perdure.storage.records import Compressed, Indexed, Key, system_record
from perdure.storage.rows import Index
from perdure.storage.transaction import Transaction

#: The kind of jobs that archive episodes.
EPISODE_JOB = "agent_episode"
FORMAT = "perdure-episode-1"
_FOLDER = "episodes/"
_DAY = 86_400 * clock.SECOND
_PAGE = 200


@system_record("episodes", indexes=[Index(("agent", "ended")), Index(("session", "turn"))])
class Episode(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where an episode is."""

    id: Annotated[str, Key()]  # agent/date/session/interaction
    agent: str
    session: str = ""
    turn: int = 0
    interaction: Annotated[str, Indexed()]
    task: str = ""
    success: bool = True
    ended: Annotated[int, Indexed()]  # Microseconds.
    #: Zstd JSON; None until a job has put it there. `waiting` has its words until then.
    artifact: Artifact | None = None
    waiting: Annotated[Interaction | None, Compressed()] = None
    #: What it said before its message was tried again; goes when the new one is archived.
    former: Artifact | None = None

    @property
    def path(self) -> str:
        return _FOLDER + self.id


class Episodes:
    """The archive of a bank's episodes."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._rows = services.store.collection(Episode)

    # Writing ----------------------------------------------------------------------------------

    async def begin(
        self,
        transaction: Transaction,
        interaction: Interaction,
        row: InteractionRecord,
        before: InteractionRecord | None = None,
    ) -> None:
        """Keep an episode, in the caller's transaction; the archive follows. Secrets are masked.
        It takes the place of the one of `before`, an earlier end of the same message.
        """
        rows = transaction.collection(Episode)
        old = None if before is None else await rows.get(_key(before))
        masked = self._services.mask_data(
            {
                "request": interaction.request,
                "response": interaction.response,
                "context": interaction.context,
                "error": interaction.error,
            }
        )
        episode = Episode(
            id=_key(row) if old is None else old.id,
            agent=row.agent,
            session=row.session,
            turn=row.turn,
            interaction=row.id,
            task=row.task,
            success=row.success,
            ended=row.ended,
            waiting=msgspec.structs.replace(interaction, **masked),
            former=None if old is None else old.artifact or old.former,
        )
        await rows.put(episode)
        self._take_jobs()
        await self._services.jobs.enqueue(
            transaction, EPISODE_JOB, {"episode": episode.id}, key=episode.id
        )

    async def archive(self, job: Job) -> None:
        """Move an episode's words to the artifact store. Safe to repeat."""
        key = str(job.payload["episode"])
        found = await self._rows.fetch(key)
        if found is None or found.value.waiting is None:
            return  # forgotten, or done
        episode = found.value
        content = msgspec.json.encode(await self._document(episode))
        packed = zstandard.ZstdCompressor(level=9).compress(content)
        if episode.former is not None:
            await self._services.artifacts.release(episode.former, own=1)

        async def body(transaction: Transaction) -> bool:
            rows = transaction.collection(Episode)
            if await rows.get(key) != episode:
                return False  # forgotten meanwhile
            artifact = await self._services.artifacts.put(packed, transaction=transaction)
            await rows.put(
                msgspec.structs.replace(episode, artifact=artifact, waiting=None, former=None)
            )
            return True

        if not await self._services.store.transact(body):
            await self._services.artifacts.release(Artifact.of(packed))

    # Reading ----------------------------------------------------------------------------------

    async def list(
        self,
        agent: str,
        *,
        session: str = "",
        task: str = "",
        success: bool | None = None,
        since: clock.When | None = None,
        limit: int = 50,
    ) -> builtins.list[Episode]:
        """An agent's episodes, the newest first."""
        session, task = require_text(session, "session"), require_text(task, "task")
        now = self._services.store.now()
        oldest = self._oldest()
        if since is not None:
            oldest = max(oldest, clock.moment(since, now))
        query = self._rows.query().where("agent", "=", checked_agent(agent))
        query = query.where("ended", ">=", oldest).order_by("-ended")
        found = builtins.list[Episode]()
        after = None
        while len(found) < limit:
            page = await query.limit(_PAGE).page(after=after)
            found += [
                each
                for each in page.values
                if session in ("", each.session)
                and task in ("", each.task)
                and success in (None, each.success)
            ]
            after = page.next
            if after is None:
                break
        return found[:limit]

    async def read(self, path: str, *, agent: str = "") -> dict[str, Any]:
        """An episode by its path, or by its interaction's id. With `agent`, only of that agent.

        Raises `NotFound` if there is none any more, and `Corrupted`.
        """
        return await self.content(await self.find(path, agent=agent))

    async def find(self, path: str, *, agent: str = "") -> Episode:
        """The same without its content."""
        key, agent = require_text(path, "path").removeprefix(_FOLDER), require_text(agent, "agent")
        found = await self._rows.get(key) if key else None
        if found is None:
            wanted = self._rows.query().where("interaction", "=", key).limit(1)
            found = next(iter(await wanted.values()), None)
        if found is None or agent not in ("", found.agent) or found.ended < self._oldest():
            raise NotFound(
                f"There is no episode {path!r}.",
                hint="`perdure agent episodes AGENT` lists those that are kept.",
            )
        return found

    async def content(self, episode: Episode) -> dict[str, Any]:
        if episode.artifact is None:
            made = msgspec.json.encode(await self._document(episode))
            return msgspec.json.decode(made, type=dict[str, Any])
        packed = await self._services.artifacts.read(episode.artifact)
        try:
            content = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
            return msgspec.json.decode(content, type=dict[str, Any])
        except (zstandard.ZstdError, msgspec.MsgspecError) as exc:
            raise Corrupted(
                f"The episode {episode.path} cannot be read: {exc}.",
                hint="Run `perdure verify`; restore the bank from a backup.",
                record=f"perdure_episodes/{episode.id}",
            ) from exc

    # Care -------------------------------------------------------------------------------------

    async def tend(self) -> None:
        """Archive what a process left behind that died, and remove what is too old."""
        if await self._rows.is_there():
            self._take_jobs()
            await self.expire()

    async def expire(self) -> int:
        """Remove episodes that are older than they are kept, with their artifacts; how many."""
        gone = 0
        query = self._rows.query().where("ended", "<", self._oldest()).limit(_PAGE)
        while found := await query.values():
            for episode in found:
                await self.remove(episode)
            gone += len(found)
        return gone

    async def remove(self, episode: Episode) -> None:
        """Remove one for good; its artifact too, unless somebody else refers to it."""
        for artifact in (episode.artifact, episode.former):
            if artifact is not None:
                await self._services.artifacts.release(artifact, own=1)
        await self._rows.delete(episode.id)
        await self._services.store.collection(Job).delete(f"{EPISODE_JOB}/{episode.id}")

    async def of_sessions(
        self, session: str, turns: tuple[int, ...] = ()
    ) -> AsyncIterator[Episode]:
        """The episodes of a session, or of some of its turns."""
        query = self._rows.query().where("session", "=", require_text(session, "session"))
        for episode in await query.values():
            if not turns or episode.turn in turns:
                yield episode

    async def of_agent(self, agent: str) -> AsyncIterator[Episode]:
        async for episode in self._rows.walk(f"{checked_agent(agent)}/"):
            yield episode

    # ------------------------------------------------------------------------------------------

    def _take_jobs(self) -> None:
        # Not when a bank is opened: a runner without jobs to look for does not ask for any.
        if not self._services.jobs.handles(EPISODE_JOB):
            self._services.jobs.register(EPISODE_JOB, self.archive)

    def _oldest(self) -> int:
        return self._services.store.now() - self._services.config.agents.episode_days * _DAY

    async def _document(self, episode: Episode) -> dict[str, Any]:
        made = episode.waiting
        if made is None:
            raise InvalidInput(f"{episode.path} is archived.", hint="Read it.")
        store = self._services.store
        row = await store.collection(InteractionRecord).get(episode.interaction)
        return {
            "format": FORMAT,
            "episode": episode.path,
            "interaction": episode.interaction,
            "agent": made.agent,
            "agent_version": made.agent_version,
            "session": made.session,
            "turn": made.turn,
            "task": made.task,
            "started": _iso(made.started or made.ended),
            "ended": _iso(episode.ended),
            "request": made.request,
            "response": made.response,
            "messages": await self._messages(made),
            "context": {"given": made.context, "recalled": made.recalled},
            "performance": {
                "success": made.success,
                "error": made.error,
                "provider": made.provider,
                "model": made.model,
                "cost_dollars": None if made.cost is None else made.cost / 1e12,
                "latency_seconds": made.latency,
                "tokens": made.tokens,
                "steps": made.steps,
                "tool_calls": made.tool_calls,
                "outcomes": made.outcomes,
                "quality": None if row is None else row.quality,
            },
            "learnings": {
                "variant": made.variant,
                "memories": () if row is None else row.memories,
                "counts_for": {
                    "task": made.task,
                    "model": f"{made.provider}/{made.model}".strip("/"),
                    "agent_version": made.agent_version,
                },
            },
        }

    async def _messages(self, made: Interaction) -> builtins.list[Message]:
        """All messages of its turn, as the log has them."""
        if not made.session or not made.turn:
            return []
        store = self._services.store
        record = await store.collection(SessionRecord).get(made.session)
        head = await store.collection(Head).get(made.session)
        if record is None or head is None or not 0 < made.turn <= head.turn:
            return []
        (turn,) = await self._services.reader.turns(record, head, made.turn, made.turn)
        return [*turn.messages]


def _key(row: InteractionRecord) -> str:
    date = f"{clock.to_datetime(row.ended):%Y-%m-%d}"
    session = row.session.removeprefix(f"{row.agent}/") or "-"
    return f"{row.agent}/{date}/{session}/{row.id.removeprefix(f'{row.agent}/')}"


def _iso(microseconds: int) -> str:
    return clock.to_datetime(microseconds).isoformat()
