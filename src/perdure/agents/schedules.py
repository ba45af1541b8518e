"""Schedules: messages that are sent at a time, or again and again. They survive restarts.

A schedule that is due is sent once, in the transaction that says when it is due next, by whichever
process looks first. If nobody looked for a while, what was missed is sent once, not once for each
time; the next time is counted from now.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from perdure.agents.agent_records import AgentMessage, AgentRecord, AgentSchedule
from perdure.agents.cron import parse_cron, zone_of
from perdure.agents.mailbox import Mailboxes, check_body
from perdure.core.clock import SECOND, duration, from_datetime, new_id, to_datetime
from perdure.core.errors import (
    Closed,
    Conflict,
    InvalidInput,
    NotFound,
    PerdureError,
    StorageFull,
    Unavailable,
)
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

_log = logging.getLogger("perdure.agents")


class Schedules:
    """The schedules of all agents of a bank."""

    def __init__(self, store: Store, mailboxes: Mailboxes) -> None:
        self._store = store
        self._mailboxes = mailboxes
        self._schedules = store.collection(AgentSchedule)
        self._agents = store.collection(AgentRecord)

    async def add(
        self,
        agent: str,
        when: str | float | timedelta | datetime | None,
        body: str,
        *,
        every: str | float | timedelta | None = None,
        timezone: str = "",
        task: str = "",
        context: Mapping[str, Any] | None = None,
        session: str = "",
    ) -> AgentSchedule:
        """See `Agent.schedule`."""
        if not body.strip():
            raise InvalidInput("The message is empty.", hint="Say what the agent is to do.")
        check_body(body)
        now = self._store.now()
        cron = ""
        span = 0 if every is None else duration(every)
        if when is None and not span:
            raise InvalidInput(
                "It is not said when.", hint='Give "10m", a datetime, a cron expression, or every=.'
            )
        if isinstance(when, str):
            with suppress(ValueError):
                when = datetime.fromisoformat(when.strip())
        if when is None:
            first = now + span
        elif isinstance(when, str) and (len(when.split()) > 1 or when.startswith("@")):
            cron = when.strip()
            first = from_datetime(parse_cron(cron).next(to_datetime(now), zone_of(timezone)))
        elif isinstance(when, datetime):
            first = _later_moment(when, now)
        else:
            first = now + duration(when)
        if cron and span:
            raise InvalidInput("Both a cron expression and every= are given.", hint="Give one.")
        made = AgentSchedule(
            id=f"{agent}/{new_id()}",
            agent=agent,
            next=first,
            every=span,
            cron=cron,
            timezone=timezone,
            body=body,
            context=dict(context or {}),
            task=task,
            session=session,
            made=now,
        )
        await self._schedules.put(made)
        return made

    async def list(self, agent: str | None = None) -> list[AgentSchedule]:
        """The next one first."""
        finder = self._schedules.query()
        if agent is not None:
            finder = finder.where("agent", "=", agent)
        return sorted(await finder.order_by("key").values(), key=lambda each: each.next)

    async def cancel(self, id: str) -> None:
        """Raises `NotFound`."""
        if await self._schedules.get(id) is None:
            raise NotFound(f"There is no schedule {id!r}.", hint="`perdure agent schedules`.")
        await self._schedules.delete(id)

    async def send_due(self, agents: Container[str] | None) -> int:
        """Send what is due for some agents, or for all; returns how many messages. One that cannot
        be sent keeps its error, and is not tried again; those of retired agents wait.
        """
        now, sent = self._store.now(), 0
        due = self._schedules.query().where("next", "<=", now)
        for row in await due.group_by("agent").aggregate(schedules="count"):
            if agents is not None and row["agent"] not in agents:
                continue
            agent = await self._agents.get(row["agent"])
            if agent is None or agent.status == "retired":
                continue
            for each in await due.where("agent", "=", row["agent"]).order_by("next").values():
                if not each.error:
                    sent += await self._try_send(each, now)
        return sent

    async def _try_send(self, schedule: AgentSchedule, now: int) -> bool:
        try:
            return await self._send(schedule.id, now)
        except Conflict:
            return False  # another process sent it
        except (Unavailable, StorageFull, Closed):
            raise  # it is not this one's fault
        except PerdureError as exc:
            _log.warning("the schedule %s cannot be sent: %s", schedule.id, exc)
            await self._store.transact(partial(self._give_up, schedule, str(exc)))
            return False

    async def _give_up(self, schedule: AgentSchedule, error: str, transaction: Transaction) -> None:
        schedules = transaction.collection(AgentSchedule)
        if await schedules.get(schedule.id) == schedule:  # nobody cancelled or sent it
            await schedules.put(msgspec.structs.replace(schedule, error=error))

    async def _send(self, id: str, now: int) -> bool:
        async def send(transaction: Transaction) -> bool:
            schedules = transaction.collection(AgentSchedule)
            found = await schedules.get(id)
            if found is None or found.next > now:
                return False
            message = AgentMessage(
                id="",
                agent=found.agent,
                seq=0,
                sender_key=f"schedule {found.id} {found.next}",
                body=found.body,
                context=found.context,
                task=found.task,
                session=found.session or f"{found.agent}/main",
            )
            await self._mailboxes.accept(message, transaction)
            if following := next_time(found, now):
                after = msgspec.structs.replace(found, next=following, sent=found.sent + 1)
                await schedules.put(after)
            else:
                await schedules.delete(id)
            return True

        return await self._store.transact(send)


def _later_moment(when: datetime, now: int) -> int:
    """Raises `InvalidInput` for one that has passed."""
    try:
        first = from_datetime(when if when.tzinfo is not None else when.astimezone())
    except (OverflowError, OSError, ValueError):  # years that the system's clock does not know
        first = 0
    if first <= now:
        raise InvalidInput(
            f"{when.isoformat()} is not later than now.", hint="Give a moment to come, or a delay."
        )
    return first


def next_time(schedule: AgentSchedule, now: int) -> int:
    """Behind now; 0 if it was the last one."""
    if schedule.every:
        missed = max(0, now - schedule.next) // schedule.every
        return schedule.next + (missed + 1) * schedule.every
    if schedule.cron:
        zone = zone_of(schedule.timezone)
        return from_datetime(parse_cron(schedule.cron).next(to_datetime(now), zone))
    return 0


def shown_rule(schedule: AgentSchedule) -> str:
    if schedule.every:
        return f"every {timedelta(seconds=schedule.every / SECOND)}"
    return schedule.cron or "once"


def moment_in(text: str) -> tuple[str, None] | tuple[None, str]:
    """What `Agent.schedule` takes, from a command line: when, or every how long."""
    first, _, rest = text.strip().partition(" ")
    return (None, rest.strip()) if first.lower() == "every" else (text.strip(), None)
