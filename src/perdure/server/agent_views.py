"""Messages, questions and schedules of agents as they are answered: times are ISO 8601 texts."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.agents.agent import Agent
from perdure.agents.agent_records import (
    AgentMessage,
    AgentQuestion,
    AgentSchedule,
    MessageState,
    QuestionKind,
)
from perdure.core.clock import SECOND, to_datetime


class QuestionView(msgspec.Struct, frozen=True, kw_only=True):
    """What a person is asked before a turn goes on."""

    id: str
    agent: str
    #: The id of the message whose turn waits.
    message: str
    kind: QuestionKind
    text: str
    tool: str
    arguments: str
    asked: str
    #: Null until it is answered.
    answered: str | None
    approved: bool
    answer: str
    answered_by: str

    @classmethod
    def of(cls, question: AgentQuestion) -> QuestionView:
        return cls(
            id=question.id,
            agent=question.agent,
            message=question.message,
            kind=question.kind,
            text=question.text,
            tool=question.tool,
            arguments=question.arguments,
            asked=_moment(question.asked),
            answered=_past(question.answered),
            approved=question.approved,
            answer=question.answer,
            answered_by=question.answered_by,
        )


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is sent at a time, or again and again."""

    id: str
    agent: str
    message: str
    next: str
    #: Seconds between two of them; null if it is sent once, or by a cron expression.
    every: float | None
    cron: str
    timezone: str
    task: str
    context: dict[str, Any]
    session: str
    #: How often it was sent.
    sent: int
    made: str

    @classmethod
    def of(cls, schedule: AgentSchedule) -> ScheduleView:
        return cls(
            id=schedule.id,
            agent=schedule.agent,
            message=schedule.body,
            next=_moment(schedule.next),
            every=schedule.every / SECOND if schedule.every else None,
            cron=schedule.cron,
            timezone=schedule.timezone,
            task=schedule.task,
            context=schedule.context,
            session=schedule.session,
            sent=schedule.sent,
            made=_moment(schedule.made),
        )


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    """A message, and what became of it."""

    id: str
    number: int
    state: MessageState
    message: str
    #: The answer; empty until it is done.
    reply: str
    error: str
    session: str
    #: 0 until it has begun.
    turn: int
    task: str
    #: ``provider/model`` of the answer.
    model: str
    #: Picodollars; null if unknown.
    cost: int | None
    input: int
    output: int
    #: The limit that ended the turn; empty if the model did.
    stopped: str
    #: Tools that had begun when their process ended: nobody knows what they did.
    interrupted: tuple[str, ...]
    accepted: str
    ended: str | None
    #: What a person is asked before it goes on.
    questions: tuple[QuestionView, ...] = ()


async def message_view(agent: Agent, message: AgentMessage) -> MessageView:
    """A message as it is answered, with what a person is asked."""
    questions: tuple[QuestionView, ...] = ()
    if message.state == "asking":
        asked = [each for each in await agent.questions() if each.message == message.id]
        questions = tuple(map(QuestionView.of, asked))
    return MessageView(
        id=message.id,
        number=message.seq,
        state=message.state,
        message=message.body,
        reply=message.reply,
        error=message.error,
        session=message.session,
        turn=message.turn,
        task=message.task,
        model=f"{message.provider}/{message.model}" if message.model else "",
        cost=message.cost,
        input=message.input,
        output=message.output,
        stopped=message.stopped,
        interrupted=message.interrupted,
        accepted=_moment(message.accepted),
        ended=_past(message.ended),
        questions=questions,
    )


def _moment(at: int) -> str:
    return to_datetime(at).isoformat()


def _past(at: int) -> str | None:
    return _moment(at) if at else None
