"""Recalling: what the past of a session, and of its agent, has to say to a question."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import get_args

from perdure.core.clock import When
from perdure.core.errors import InvalidInput, Unsupported
from perdure.recall.values import Filters, Kind, Question, Recalled
from perdure.session.conversation import Conversation
from perdure.session.given import flag_in, moment, number_in, seconds_in, tags_of, text_in, texts_in

#: Hits at most.
MOST_HITS = 1_000
_KINDS: tuple[Kind, ...] = get_args(Kind)
_ROLES = ("user", "assistant", "tool")


class Recalling(Conversation):
    """The role of a session that looks for what was said before."""

    async def recall(
        self,
        query: str,
        *,
        limit: int = 10,
        kinds: str | Iterable[str] | None = None,
        agents: str | Iterable[str] | None = None,
        sessions: str | Iterable[str] | None = None,
        line: bool = False,
        roles: str | Iterable[str] | None = None,
        tools: str | Iterable[str] | None = None,
        branch: str = "",
        task: str = "",
        outcome: str = "",
        tags: Mapping[str, str] | None = None,
        since: When | None = None,
        until: When | None = None,
        deadline: float | None = None,
        wide: bool = False,
        judged: bool = False,
    ) -> Recalled:
        """What answers a query: turns, memories, reference layers, best first, at most 1,000.

        Of a query of more than 100,000 characters, the first and the last 50,000 are looked at.

        Looked at are this session's line of turns, the agent's other sessions, and what is shared
        with the agent. Not the sessions that were forked from this line and left it, unless
        `wide`; never what is another agent's own. The rest narrows it, if it is given:

        * `kinds`: ``turn``, ``memory``, ``reference``;
        * `agents`, `sessions`: what is of one of these, by name; `line`: turns of this session's
          line;
        * `roles`: where the words of the query stand: in what the ``user`` or the ``assistant``
          said, in calls and results of a ``tool``. The hit is the whole round, all the same; what
          is only near in meaning passes if there is anything of that role in it;
        * `tools`: rounds in which one of these was called;
        * `branch`, `task`, `outcome`, `tags`: turns that were tagged so, exactly;
        * `since`, `until`: datetimes, dates, or texts such as ``"2026-02-12"``, ``"yesterday"`` and
          ``"3d"``, in the local time zone if they name none (see `perdure.core.clock.moment`). Both
          are included: a date, from its first moment to its last.

        It ends after `deadline` seconds, or the configured ones, with what has arrived until then:
        `Recalled.stage` tells how far that is. If `judged`, filters and judge decide as they do for
        what stands beside a prompt, and what explains a hit (the answer to a question, say) comes
        along where the limit leaves room; otherwise no model is asked. `Recalled.notes` says why
        filters left nothing, as far as that can be told.

        Raises `InvalidInput` for what cannot be meant and for sessions and agents that are not
        there, `Unsupported` if the bank has no recall.
        """
        text, now = text_in(query, "query"), self._rooms.store.now()
        if not text.strip():
            raise InvalidInput("The query is empty.", hint="Say what to look for.")
        filters = Filters(
            kinds=texts_in(kinds, "kinds", _KINDS),
            agents=texts_in(agents, "agents"),
            sessions=texts_in(sessions, "sessions"),
            line=flag_in(line, "line"),
            roles=texts_in(roles, "roles", _ROLES),
            tools=texts_in(tools, "tools"),
            branch=text_in(branch, "branch"),
            task=text_in(task, "task"),
            outcome=text_in(outcome, "outcome"),
            tags=tags_of(tags),
            since=moment(since, now),
            until=moment(until, now, last=True),
        )
        first, last = filters.since, filters.until
        if first is not None and last is not None and first > last:
            raise InvalidInput(
                "Nothing is both since then and until then.", hint="Swap since and until."
            )
        limit, deadline = number_in(limit, "limit", MOST_HITS), seconds_in(deadline, "deadline")
        recall = self._rooms.contexts.recall
        if recall is None:
            raise Unsupported("This bank recalls nothing.", hint="Switch it on: recall.on = true.")
        record, head = await self._standing()
        question = Question(
            text=text,
            record=record,
            head=head,
            filters=filters,
            limit=limit,
            moment=now,
            wide=flag_in(wide, "wide"),
        )
        return await recall.recall(question, judged=flag_in(judged, "judged"), deadline=deadline)
