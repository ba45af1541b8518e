"""In which order requests are recorded that are recorded beside their forwarding.

A client that has an answer may send its next request before the answer is written. What is recorded
of a request depends on what is there, so its recording waits for the exchanges that the client may
know of; its forwarding does not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import takewhile
from typing import Any

from perdure.server.proxy.client_request import ClientRequest
from perdure.server.proxy.conversation import AnswerInProgress

_log = logging.getLogger("perdure.proxy")

#: Seconds that a recording waits for earlier ones; then it goes on without. Less than a proxy that
#: is closed waits for a recording (`recording_backlog.PATIENCE`).
LONGEST_ORDER = 8.0


class UnrecordedExchange:
    """A request that has arrived, and its answer, until both are written."""

    def __init__(
        self,
        request: ClientRequest,
        answer: AnswerInProgress,
        recorded: asyncio.Future[Any],
        start: Callable[[], None],
    ) -> None:
        who = request.id
        #: Equal for requests that may be of the same conversation as far as their ids tell.
        self.kin = (
            (who.agent, who.session)
            if who.session
            else (who.agent, who.client, who.conversation, who.sub_agent)
        )
        #: When its end has come, the client may have seen all of it.
        self.answer = answer
        #: Done when the request is written; `start` begins that, once.
        self.recorded = recorded
        self.start = start


class RecordingOrder:
    """The exchanges that are not recorded, in the order in which their requests arrived."""

    def __init__(self) -> None:
        self._exchanges: dict[UnrecordedExchange, None] = {}

    def arrived(self, exchange: UnrecordedExchange) -> None:
        self._exchanges[exchange] = None

    def written(self, exchange: UnrecordedExchange) -> None:
        self._exchanges.pop(exchange, None)

    async def wait(self, own: UnrecordedExchange | None = None, *, known: bool = False) -> None:
        """Until what came before `own`, or everything, is written as far as its client may know of
        it: the requests of its kin, and all that has ended; if its conversation is `known` by its
        id, only of its kin. Not for longer than `LONGEST_ORDER`; what took longer is not waited for
        again.
        """
        earlier = list(takewhile(lambda each: each is not own, self._exchanges))
        if known and own is not None:
            earlier = [each for each in earlier if each.kin == own.kin]
        try:
            async with asyncio.timeout(LONGEST_ORDER):
                for each in earlier:
                    if own is not None and each.kin == own.kin:
                        each.start()
                        await asyncio.wait({each.recorded})
                    if each.answer.ended.is_set():
                        each.start()
                        await each.answer.done.wait()
        except TimeoutError:
            late = [each for each in earlier if each.answer.ended.is_set()]
            _log.warning("%d recordings take too long; later ones go on without.", len(late))
            for each in late:
                self.written(each)
