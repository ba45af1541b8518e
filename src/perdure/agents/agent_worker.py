"""The worker that does the messages of agents.

A process works for the agents that it opened with `Bank.agent`, if it has all their tools. It looks
for messages when it sends one itself, and every `agents.poll` seconds for those of others, of
schedules, and of processes that died.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from perdure.agents import questions
from perdure.agents.agent_lease import AgentLeases, HeldLease, beat
from perdure.agents.agent_loop import MessageRun
from perdure.agents.agent_memory import AgentMemory
from perdure.agents.agent_records import (
    AgentMessage,
    AgentQuestion,
    AgentRecord,
    AgentVersion,
)
from perdure.agents.agent_registry import AgentRegistry
from perdure.agents.agent_tools import AgentTool, current_run
from perdure.agents.interactions import Interactions
from perdure.agents.mailbox import Mailboxes, changed_in, tell, waiting_for
from perdure.agents.message_progress import AgentSeams, AgentVariant, interaction_of
from perdure.agents.schedules import Schedules
from perdure.core.clock import SECOND
from perdure.core.errors import (
    AllFailed,
    BudgetReached,
    Closed,
    DeadlineExceeded,
    InvalidInput,
    LeaseLost,
    PerdureError,
    ProviderDown,
    RateLimited,
    StorageError,
    StorageFull,
    Unavailable,
)
from perdure.history.log_records import Head
from perdure.sessions.session import Session
from perdure.sessions.sessions import Sessions
from perdure.storage.transaction import Transaction

_log = logging.getLogger("perdure.agents")

_LINGER = 1.0  # Seconds that a lease is kept when there is nothing to do.
_LOOK = 0.5  # Seconds between two looks at a message that another process may be doing.
_LONGEST_WAIT = 60.0  # Seconds between two attempts while a provider is away.
#: Attempts in a row, about a day of them, until a message at which a provider fails is parked: it
#: may be the message that the provider fails at, and those behind it wait.
_MOST_OUTAGES = 1_440
_MOST_DEATHS = 20  # Processes that may die of a message, without progress, until it is parked.
_SESSIONS = 64  # Session objects that are kept: they know their windows.
_VERSIONS = 1_000

Heard = Callable[[object], None]


class ServedAgent:
    """An agent that this process works for."""

    def __init__(
        self, name: str, tools: Mapping[str, AgentTool[..., Any]], *, opened: bool = True
    ) -> None:
        self.name = name
        self.tools = dict(tools)
        #: Not for an agent that only `AgentWorker.serve_all` works for.
        self.opened = opened
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class AgentWorker:
    """Accepts messages of agents, and does those of the agents that this process works for."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.services = services = sessions.services
        self.registry = AgentRegistry(services.store)
        self.mailboxes = Mailboxes(services.store)
        self.schedules = Schedules(services.store, self.mailboxes)
        #: What learning and the memory tiers put into the loop.
        self.seams = AgentSeams()
        self.seams.record.append(Interactions(services).record)
        #: Whether answers are drafts while they arrive, also if nobody here hears them.
        self.streams = False
        self._serves_all = False
        self.seams.variant = self._variant
        self._config = services.config.agents
        self._leases = AgentLeases(services.store, seconds=self._config.lease)
        self._leases.on_lost = self._lost
        self._served: dict[str, ServedAgent] = {}
        self._heard: dict[str, list[Heard]] = {}
        self._waiting: dict[str, set[asyncio.Event]] = {}
        #: And when each was made, in microseconds.
        self._open_sessions: dict[str, tuple[Session, int]] = {}
        self._versions: dict[tuple[str, int], AgentVersion] = {}
        self._beating: asyncio.Task[None] | None = None
        self._looks = False
        self._stopping = False

    # Messages ---------------------------------------------------------------------------------

    async def send(
        self,
        agent: str,
        body: str,
        *,
        task: str = "",
        context: Mapping[str, Any] | None = None,
        session: str = "",
        key: str | None = None,
    ) -> AgentMessage:
        """Accept a message. Raises `InvalidInput` if the agent is retired, or if it waits, through
        others, for this message's sender.
        """
        record = await self.registry.get(agent)
        if record.status == "retired":
            raise InvalidInput(
                f"The agent {agent} is retired.", hint=f"`perdure agent resume {agent}`."
            )
        if not body.strip() and not context:
            raise InvalidInput("The message is empty.", hint="Say what the agent is to do.")
        chain, parent = tuple[str, ...](), ""
        run = current_run()
        if run is not None:
            if agent in run.chain:
                route = " → ".join((*run.chain, agent))
                raise InvalidInput(
                    f"{agent} waits for this itself: {route}.",
                    hint="Answer with what you know, or ask another agent.",
                )
            chain, parent = run.chain, run.context.message
        plain = self.services.mask_data({"body": body, "context": dict(context or {})})
        name = session_of(agent, session)
        if run is not None and key is None:
            key = run.next_key(agent, name, task, plain["body"], plain["context"])
        message = AgentMessage(
            id="",
            agent=agent,
            seq=0,
            sender_key=key,
            body=plain["body"],
            context=plain["context"],
            task=task,
            session=name,
            chain=chain,
            parent=parent,
        )

        async def accept(transaction: Transaction) -> AgentMessage:
            accepted = await self.mailboxes.accept(message, transaction)
            if not chain or accepted.is_over:
                return accepted
            if agent in await waiting_for(transaction, chain[-1]):
                raise InvalidInput(
                    f"{agent} waits for {chain[-1]} itself.",
                    hint="Answer with what you know, or ask another agent.",
                )
            return accepted

        message = await self.services.store.transact(accept)
        self.wake(agent)
        return message

    async def wait(self, id: str, *, deadline: float | None = None) -> AgentMessage:
        """Until a message is over, or waits for a person. Raises `NotFound`, and
        `DeadlineExceeded` after `deadline` seconds; the message is done all the same.
        """
        changed = asyncio.Event()
        self._waiting.setdefault(id, set()).add(changed)
        try:
            async with asyncio.timeout(deadline):
                while True:
                    found = await self.mailboxes.get(id)
                    if found.is_over or found.state == "asking":
                        return found
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK):
                            await changed.wait()
                    changed.clear()
        except TimeoutError:
            raise DeadlineExceeded(
                f"The message {id} was not done in {deadline} seconds.",
                hint="It goes on: ask for its result later.",
            ) from None
        finally:
            waiting = self._waiting[id]
            waiting.discard(changed)
            if not waiting:
                del self._waiting[id]

    async def answer_question(
        self, question: str, text: str, *, approve: bool, by: str
    ) -> AgentQuestion:
        """See `Agents.answer`."""
        plain = self.services.mask_data({"text": text})["text"]
        found = await questions.answer(self.services.store, question, plain, approve=approve, by=by)
        self.wake(found.agent)
        return found

    def hear(self, id: str, heard: Heard) -> Callable[[], None]:
        """Tell a function what arrives for a message, if this process does it. Returns what ends
        it.
        """
        self._heard.setdefault(id, []).append(heard)

        def leave() -> None:
            left = self._heard.get(id, [])
            if heard in left:
                left.remove(heard)
            if not left:
                self._heard.pop(id, None)

        return leave

    # The worker -------------------------------------------------------------------------------

    def serve(self, name: str, tools: Mapping[str, AgentTool[..., Any]]) -> None:
        """Work for an agent from now on."""
        served = self._served.setdefault(name, ServedAgent(name, tools))
        served.opened = True
        served.tools.update(tools)
        self._start_looking()
        self.wake(name)

    def serve_all(self) -> None:
        """Work for every agent that has no tools of Python, now and later: what a server does."""
        self._serves_all = True
        self._start_looking()

    def wake(self, name: str) -> None:
        """Look for messages of an agent now, if this process works for it."""
        served = self._served.get(name)
        if served is None and self._serves_all:
            served = self._served[name] = ServedAgent(name, {}, opened=False)
        if served is None or self._stopping:
            return
        served.wake.set()
        if served.task is None or served.task.done():
            served.task = asyncio.create_task(self._serve(served), name=f"perdure-agent-{name}")

    async def stop(self, grace: float) -> None:
        """Begin no more messages; after `grace` seconds cancel those under way. They go on where
        they were when somebody works for their agents again.
        """
        self._stopping = True
        running = {each.task for each in self._served.values() if each.task is not None}
        for served in self._served.values():
            served.wake.set()
        if running:
            await asyncio.wait(running, timeout=grace)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait({self._beating})

    async def _look(self) -> None:
        """For work that nobody told this process of."""
        try:
            await self.schedules.send_due(None if self._serves_all else self._served)
        except PerdureError as exc:  # messages do not wait for it
            _log.warning("schedules were not looked at: %s", exc)
        for name in await self.mailboxes.agents_with_work():
            self.wake(name)

    def _start_looking(self) -> None:
        if not self._looks:
            self._looks = True
            self.services.jobs.every("agents", self._config.poll, self._look)

    async def _serve(self, served: ServedAgent) -> None:
        failures = 0
        while not self._stopping:
            served.wake.clear()
            try:
                await self._drain(served)
                if not served.wake.is_set():
                    return
            except LeaseLost:
                return  # its messages are somebody else's now
            except Exception as exc:  # noqa: BLE001  # the outermost loop: the agent must go on
                if isinstance(exc, Closed) or self._stopping:
                    return
                _log.warning("the work of %s broke off: %s", served.name, exc, exc_info=exc)
                failures += 1
                await asyncio.sleep(min(0.1 * 2**failures, _LONGEST_WAIT))

    async def _drain(self, served: ServedAgent) -> None:
        lease: HeldLease | None = None
        try:
            while not self._stopping:
                served.wake.clear()
                message = await self._next(served)
                if message is not None and lease is None:
                    lease = await self._take(served.name)
                    if lease is None:
                        return  # somebody else does it
                    # Read again: it may have been done before the lease was ours.
                    message = await self._next(served)
                if message is not None and lease is not None:
                    await self._do(served, lease, message)
                elif lease is None or not await self._rests(served):
                    return
        finally:
            if lease is not None and not lease.lost:
                with suppress(StorageError):  # it runs out by itself
                    await self._leases.release(lease)

    async def _rests(self, served: ServedAgent) -> bool:
        """Whether something came within a moment."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER):
                await served.wake.wait()
        return served.wake.is_set() and not self._stopping

    async def _take(self, name: str) -> HeldLease | None:
        if self._beating is None:
            self._beating = asyncio.create_task(beat(self._leases), name="perdure-agent-leases")
        return await self._leases.take(name)

    async def _next(self, served: ServedAgent) -> AgentMessage | None:
        message = await self.mailboxes.next(served.name)
        if message is None:
            return None
        record = await self.registry.get(served.name)
        if record.status != "active":
            return None
        # One that was opened here has the tools of now; a server goes by what the turn began with.
        number = record.version if served.opened else message.agent_version or record.version
        version = await self._version(record, number)
        # Without them it is another's: one that has them.
        return message if all(each.name in served.tools for each in version.tools) else None

    def _lost(self, name: str) -> None:
        """Another process took over while this one stood still: what runs here is void."""
        served = self._served.get(name)
        if served is not None and served.task is not None:
            served.task.cancel()

    async def _do(self, served: ServedAgent, lease: HeldLease, message: AgentMessage) -> None:
        if message.state == "working":
            # Whoever did it is gone: it holds no lease.
            message = await self._adopted(lease, message)
        if message.is_over:
            self._tell(message.id)
            return
        try:
            run = await self._run_of(served, lease, message)
            memory = AgentMemory(self.services, served.name, tiers=run.version.tiers)
            # Beside the first context: nothing in the turn waits for it.
            beginning = asyncio.create_task(
                memory.begin(message.session, message.task, message.context)
            )
            try:
                done = await run.run()
            finally:
                await beginning
            self._tell(message.id)
            if done.state == "done":
                await memory.note(interaction_of(done), ends_task=True)
        except (LeaseLost, Closed, Unavailable, StorageFull):
            raise  # nothing that the message could do for
        except Exception as exc:  # noqa: BLE001  # a bad message must not stop the others
            self._open_sessions.pop(message.session, None)  # it may have been forgotten
            await self._failed(lease, message, exc)
        finally:
            self._tell(message.id)

    async def _variant(self, agent: str, session: str) -> AgentVariant | None:
        found: AgentVariant = await self.services.learning.experiments.variant(agent, session)
        return found

    async def _run_of(
        self, served: ServedAgent, lease: HeldLease, message: AgentMessage
    ) -> MessageRun:
        record = await self.registry.get(served.name)
        version = await self._version(record, message.agent_version or record.version)
        variant: AgentVariant | None = None
        if self.seams.variant is not None:
            variant = await self.seams.variant(served.name, message.session)
            if variant is not None and variant.prompt_version:
                prompt = await self._version(record, variant.prompt_version)
                version = msgspec.structs.replace(version, prompt=prompt.prompt)
        heard = self._heard.get(message.id)
        return MessageRun(
            self.services,
            await self._session(message.session, version),
            lease,
            message,
            version,
            served.tools,
            seams=self.seams,
            heard=(lambda what: self._pass_on(message.id, what)) if heard or self.streams else None,
            variant=variant,
        )

    async def _version(self, agent: AgentRecord, number: int) -> AgentVersion:
        """They never change; another agent of the name has others."""
        found = self._versions.get((agent.id, number))
        if found is None:
            found = await self.registry.version(agent.name, number)
            self._versions[agent.id, number] = found
            while len(self._versions) > _VERSIONS:
                self._versions.pop(next(iter(self._versions)))
        return found

    async def _session(self, name: str, version: AgentVersion) -> Session:
        """One that was forgotten is opened again: what its object knows is not the session's."""
        heads = self.services.store.collection(Head)
        found, made = self._open_sessions.pop(name, (None, 0))
        head = await heads.fetch(name)
        if found is None or head is None or head.created_us != made:
            found = await self.sessions.open(name, strategy=version.strategy or None)
            head = await heads.fetch(name)
        # The most recent is the last.
        self._open_sessions[name] = found, head.created_us if head is not None else 0
        while len(self._open_sessions) > _SESSIONS:
            self._open_sessions.pop(next(iter(self._open_sessions)))
        return found

    def _pass_on(self, id: str, what: object) -> None:
        for heard in self._heard.get(id, ()):
            heard(what)

    def _tell(self, id: str) -> None:
        for event in self._waiting.get(id, ()):
            event.set()

    async def _adopted(self, lease: HeldLease, message: AgentMessage) -> AgentMessage:
        def died(found: AgentMessage) -> AgentMessage:
            deaths = found.deaths + 1
            if deaths < _MOST_DEATHS:
                return msgspec.structs.replace(found, deaths=deaths)
            error = f"{deaths} processes ended while they worked on it, without any progress."
            return self._parked(found, error, deaths=deaths)

        return await self._end_or_keep(lease, message.id, died)

    async def _failed(self, lease: HeldLease, message: AgentMessage, exc: Exception) -> None:
        away, most = is_outage(exc), math.inf if is_refused(exc) else _MOST_OUTAGES
        text = str(exc) if isinstance(exc, PerdureError) else f"{type(exc).__name__}: {exc}"
        if not isinstance(exc, PerdureError):
            _log.warning("%s failed: %s", message.id, text, exc_info=exc)

        def failed(found: AgentMessage) -> AgentMessage:
            if found.is_over or found.state == "asking":
                return found
            if away and found.outages + 1 < most:
                wait = min(2.0**found.outages, _LONGEST_WAIT)
                return self._later(found, wait, text, outages=found.outages + 1)
            attempts = found.attempts + 1
            if not away and attempts < self._config.attempts:
                return self._later(found, 2.0 ** (attempts - 1), text, attempts=attempts)
            return self._parked(found, text, attempts=attempts)

        await self._end_or_keep(lease, message.id, failed)

    async def _end_or_keep(
        self, lease: HeldLease, id: str, change: Callable[[AgentMessage], AgentMessage]
    ) -> AgentMessage:
        async def body(transaction: Transaction) -> AgentMessage:
            await lease.check(transaction)
            changed = await changed_in(transaction, id, change)
            if changed.state == "parked":
                tell(transaction, "agent.parked", changed)
                for record in self.seams.record:
                    await record(transaction, interaction_of(changed))
            return changed

        return await self.services.store.transact(body)

    def _later(self, found: AgentMessage, wait: float, error: str, **fields: Any) -> AgentMessage:
        due = self.services.store.now() + int(wait * SECOND)
        asyncio.get_running_loop().call_later(wait + 0.01, self.wake, found.agent)
        return msgspec.structs.replace(found, state="accepted", due=due, error=error, **fields)

    def _parked(self, found: AgentMessage, error: str, **fields: Any) -> AgentMessage:
        now = self.services.store.now()
        return msgspec.structs.replace(found, state="parked", error=error, ended=now, **fields)


def session_of(agent: str, session: str) -> str:
    """``main`` by default. Raises `InvalidInput` for a session of another agent."""
    if not session:
        return f"{agent}/main"
    if "/" not in session:
        return f"{agent}/{session}"
    if not session.startswith(f"{agent}/"):
        raise InvalidInput(
            f"{session} is no session of {agent}.", hint=f"Use a name, or {agent}/name."
        )
    return session


def is_outage(exc: BaseException) -> bool:
    """Whether it will pass by itself, and says nothing about the message, as far as one knows."""
    if isinstance(exc, AllFailed):
        return any(map(is_outage, exc.errors))
    return isinstance(exc, RateLimited | ProviderDown | BudgetReached)


def is_refused(exc: BaseException) -> bool:
    """Whether a limit is the reason: however long it lasts, the message is not."""
    if isinstance(exc, AllFailed):
        return any(map(is_refused, exc.errors))
    return isinstance(exc, RateLimited | BudgetReached)
