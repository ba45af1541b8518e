"""Questions to people: whether a tool may be called, and what a model asks with `ask_person`.

A turn that needs a person is parked, and the agent goes on with other messages. The answer brings
the message back into the mailbox, and the turn goes on where it was. A question is answered once.
"""

from __future__ import annotations

import json

import msgspec

from perdure.agents.agent_records import AgentMessage, AgentQuestion
from perdure.agents.mailbox import changed_in
from perdure.core.actors import current_actor, system_user
from perdure.core.errors import Conflict, InvalidInput, NotFound
from perdure.core.messages import ToolCall
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction


async def put(
    transaction: Transaction, id: str, message: AgentMessage, call: ToolCall, *, approval: bool
) -> None:
    """Unless it was put before."""
    asked = transaction.collection(AgentQuestion)
    if await asked.get(id) is not None:
        return
    text = f"May {message.agent} call {call.name}?" if approval else _question(call.arguments)
    await asked.put(
        AgentQuestion(
            id=id,
            agent=message.agent,
            message=message.id,
            kind="approval" if approval else "question",
            text=text,
            tool=call.name,
            arguments=call.arguments,
            asked=transaction.now(),
        )
    )


async def open_questions(store: Store, agent: str | None = None) -> list[AgentQuestion]:
    """Those that wait for an answer, the oldest first."""
    finder = store.collection(AgentQuestion).query()
    if agent is not None:
        finder = finder.where("agent", "=", agent).where("answered", "=", 0)
    found = [each for each in await finder.order_by("key").values() if not each.answered]
    return sorted(found, key=lambda each: each.asked)


async def answer(
    store: Store, id: str, text: str = "", *, approve: bool = True, by: str = ""
) -> AgentQuestion:
    """Raises `NotFound`; `Conflict` if it was answered before; `InvalidInput` if a question gets no
    text.
    """
    person = by or getattr(current_actor(), "name", "") or system_user()

    async def body(transaction: Transaction) -> tuple[AgentQuestion, bool]:
        asked = transaction.collection(AgentQuestion)
        found = await asked.get(id)
        if found is None:
            raise NotFound(
                f"There is no question {id!r}.", hint="`perdure agent questions` lists them."
            )
        if found.answered:
            return found, False
        if found.kind == "question" and not text.strip():
            raise InvalidInput(
                f"The answer to {found.text!r} is empty.",
                hint="Give a text: the model waits for it.",
            )
        now = transaction.now()
        answered = msgspec.structs.replace(
            found, answered=now, approved=approve, answer=text, answered_by=person
        )
        await asked.put(answered)
        others = asked.query().where("message", "=", found.message)
        is_last = all(each.answered for each in await others.values())
        if is_last:
            await changed_in(transaction, found.message, lambda message: _back(message, now))
        transaction.emit("agent.answered", {"question": id}, key=found.agent)
        return answered, True

    found, is_new = await store.transact(body)
    if not is_new:  # raised out here: inside, a conflict would be tried again
        raise Conflict(
            store.collection(AgentQuestion).name,
            id,
            message=f"{found.answered_by} has answered this question.",
            hint="`perdure agent questions` lists those that are open.",
        )
    return found


def _back(message: AgentMessage, now: int) -> AgentMessage:
    if message.state != "asking":
        return message
    return msgspec.structs.replace(message, state="accepted", due=now)


def _question(arguments: str) -> str:
    try:
        return str(json.loads(arguments)["question"])
    except (ValueError, KeyError, TypeError):
        return arguments
