"""What worker processes do with sessions; see `zygote`. Each tells what was acknowledged.

Everything that is said follows from a label, so that a test knows what a process that is dead meant
to write.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

import perdure.core.tokens
from perdure.bank import Bank
from perdure.config import ArtifactsConfig, Config, HistoryConfig
from perdure.core.messages import Message, Reasoning, Text, ToolCall, ToolResult, assistant, user
from perdure.sessions.session import Session
from perdure.storage.options import STRONG

Tell: TypeAlias = Callable[[str], None]

BEAT = 0.03
#: What is streamed: some reasoning, then text.
THOUGHTS = [f"thought {number}, " for number in range(20)]
WORDS = [f"word {number} " for number in range(200)]


def bank_at(url: str, folder: str | Path) -> Bank:
    """A bank whose large artifacts lie in the test's folder, whatever the backend."""
    config = Config(
        artifacts=ArtifactsConfig(folder=str(folder)), history=HistoryConfig(heartbeat=BEAT)
    )
    return Bank(url, config=config)


# What is said -------------------------------------------------------------------------------------


def turn_of(label: str, size: int = 40) -> list[Message]:
    """A turn of two rounds; its prompt is the label."""
    output = random.Random(label).randbytes(size // 2).hex()
    return [
        user(label),
        Message("assistant", (ToolCall(f"call {label}", "shell", '{"command": "ls"}'),)),
        Message("tool", (ToolResult(f"call {label}", (Text(output),)),)),
        assistant(f"reply to {label}"),
    ]


def kind_of(label: str) -> str:
    """What is done with a label."""
    return random.Random(label).choice(list(_KINDS))


def turns_of(label: str) -> list[list[Message]]:
    """The turns that a label comes to."""
    match kind_of(label):
        case "several":
            return [turn_of(f"{label}.{part}") for part in range(3)]
        case "large":
            return [turn_of(label, 20_000 if len(label) % 2 else 150_000)]
        case "answer":
            return [[user(label), assistant(f"answer to {label}")]]
        case _:
            return [turn_of(label)]


# How it is said -----------------------------------------------------------------------------------


async def _whole(session: Session, label: str, tell: Tell) -> None:
    await session.append(turns_of(label)[0])


async def _strong(session: Session, label: str, tell: Tell) -> None:
    await session.append(turns_of(label)[0], options=STRONG)


async def _several(session: Session, label: str, tell: Tell) -> None:
    await session.append([message for turn in turns_of(label) for message in turn])


async def _keyed(session: Session, label: str, tell: Tell) -> None:
    await session.append(turns_of(label)[0], key=label)


async def _messages(session: Session, label: str, tell: Tell) -> None:
    for number, message in enumerate(turns_of(label)[0]):
        await session.append(message)
        tell(f"{label} {number}")


async def _answer(session: Session, label: str, tell: Tell) -> None:
    prompt, reply = turns_of(label)[0]
    await session.append(prompt)
    tell(f"{label} prompt")
    async with session.answer() as answer:
        for word in reply.text.split(" "):
            await answer.text(word if word == "answer" else f" {word}")
        await answer.end_part()


_KINDS: dict[str, Callable[[Session, str, Tell], Coroutine[Any, Any, None]]] = {
    "whole": _whole,
    "strong": _strong,
    "several": _several,
    "keyed": _keyed,
    "large": _whole,
    "messages": _messages,
    "answer": _answer,
}


async def talk(tell: Tell, url: str, folder: str, run: int, lanes: int) -> None:
    """Append in several lanes until it is killed; tells each label that is done.

    All lanes but the last write to one session, which other runs write to, too.
    """

    async def drive(bank: Bank, lane: int) -> None:
        session = await bank.session(session_of(run, lane, lanes))
        number = 0
        while True:
            label = label_of(run, lane, number)
            await _KINDS[kind_of(label)](session, label, tell)
            tell(label)
            number += 1

    async with bank_at(url, folder) as bank:
        await asyncio.gather(*(drive(bank, lane) for lane in range(lanes)))


def label_of(run: int, lane: int, number: int) -> str:
    return f"{run:04d}/{lane}/{number:04d}"


def session_of(run: int, lane: int, lanes: int) -> str:
    return f"fire/alone-{run}" if lane == lanes - 1 else f"fire/together-{run // 9}"


# Beside others ------------------------------------------------------------------------------------


async def join_in(
    tell: Tell, url: str, *, folder: str, name: str, session: str, turns: int
) -> None:
    """Append turns, whoever else does the same: whole ones, and message by message."""
    async with bank_at(url, folder) as bank:
        ours = await bank.session(session)
        tell("ready")
        for number in range(turns):
            label = f"{name}/{number}"
            if number % 2:
                await ours.append(turn_of(label))
            else:
                for message in turn_of(label):
                    await ours.append(message)
            tell(label)


async def compete(tell: Tell, url: str, folder: str, session: str, times: int) -> None:
    """Append only behind the turn that was the newest; tells the numbers of turns that it won."""
    async with bank_at(url, folder) as bank:
        ours = await bank.session(session)
        won = 0
        while won < times:
            newest = (await ours.head()).turn
            try:
                turn = await ours.append([user("mine"), assistant("yes")], expected=newest)
            except perdure.Conflict:
                continue
            assert not isinstance(turn, list)
            assert turn.number == newest + 1
            won += 1
            tell(turn.id)


async def share_a_round(tell: Tell, url: str, folder: str, session: str, calls: list[str]) -> None:
    """Write results of an open round, and count."""
    async with bank_at(url, folder) as bank:
        ours = await bank.session(session)
        for call in calls:
            await ours.append(Message("tool", (ToolResult(call, (Text(f"result {call} " * 9),)),)))
        await bank.settle()
    tell("done")


async def follow(tell: Tell, url: str, folder: str, session: str, expected: int) -> None:
    """Follow a session from its beginning, and tell what is heard."""
    async with bank_at(url, folder) as bank:
        ours = await bank.session(session)
        heard = 0
        async for said in ours.tail(after=0):
            tell(f"{said.id} {said.message.text}")
            heard += 1
            if heard == expected:
                return


# An answer that is never completed ----------------------------------------------------------------


async def stream(tell: Tell, url: str, folder: str, session: str) -> None:
    """Answer a prompt, slowly; tells each chunk that was given to the answer."""
    async with bank_at(url, folder) as bank:
        ours = await bank.session(session)
        await ours.append(user("go on"))
        async with ours.answer(model="slow") as answer:
            for thought in THOUGHTS:
                await answer.reasoning(thought)
                tell(thought)
                await asyncio.sleep(0.002)
            await answer.part(Reasoning("signed", signature="s"))
            tell("signed")
            for word in WORDS:
                await answer.text(word)
                tell(word)
                await asyncio.sleep(0.002)
    tell("done")


TASKS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    task.__name__: task for task in (compete, follow, join_in, share_a_round, stream, talk)
}
