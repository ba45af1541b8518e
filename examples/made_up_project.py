"""The history of a made-up software project, of any length.

It reads like the work of a person with a coding agent: tickets of twelve turns, files read, tests
run, decisions that later turns go back to, long turns and mere thanks, typos, other languages. Some
turns hold a fact that is said nowhere else (`planted`), to be asked for later.

    for messages in project_history(100_000):  # 50 million tokens
        ...
    project_turn(4711)                         # the same as the 4711th of them

Depends on the seed and the turn's number only, on every machine, for one version of Perdure.
Nothing in it looks like a secret, so a bank stores it as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

import msgspec

from examples.project_words import NO_PAST, NOTHING, Teller, Tool
from perdure.core.clock import from_datetime, to_datetime
from perdure.core.errors import InvalidInput
from perdure.core.messages import Message, Part, Reasoning, Text, ToolCall, ToolResult, encode
from perdure.sessions.session import Session

#: A ticket takes so many turns: it is opened, looked into, decided, built and closed.
_PHASES = ("start", *["look"] * 3, "decide", *["build"] * 5, *["finish"] * 2)
_TASK, _DECIDE = len(_PHASES), _PHASES.index("decide")
#: One turn in so many holds a fact.
_FACT = 20
#: Shares of turns: with many rounds; with hardly a word.
_LONG, _CHAT = 0.005, 0.2
#: Tokens that even a short turn takes, and characters for each above that: found by counting.
_SHORT, _CHARACTERS = 60, 3.25
_LEAST = 100
#: Characters of a tool's result, more or less; turns with less to say than the minimum call none.
_RESULT, _LEAST_RESULT = 1_400, 350
_SECOND = 1_000_000
_APART = 11 * 60 * _SECOND  # from turn to turn
_FIRST = from_datetime(datetime(2024, 1, 8, 9, tzinfo=UTC))
#: One append takes about so many bytes.
_APPEND_BYTES = 1024 * 1024

_json = msgspec.json.encode


def project_history(
    turns: int, *, seed: int = 0, tokens_per_turn: int = 500
) -> Iterator[list[Message]]:
    """See `project_turn`."""
    for number in range(1, turns + 1):
        yield project_turn(number, seed, tokens_per_turn)


def project_turn(number: int, seed: int = 0, tokens_per_turn: int = 500) -> list[Message]:
    """The messages of one turn, from its prompt to its last reply. The first is number 1.

    Each call has its result right behind it. `tokens_per_turn` is the average in o200k tokens; one
    turn in 200 takes ten to forty times that, one in six less than a fifth. Facts and decisions do
    not depend on it. Raises `InvalidInput` for a number below 1 or fewer than 100 tokens.
    """
    if number < 1 or tokens_per_turn < _LEAST:
        raise InvalidInput(
            f"There is no turn {number} with {tokens_per_turn} tokens on average.",
            hint=f"Turns are numbered from 1 and take {_LEAST} tokens or more.",
        )
    return _Turn(number, seed).told((tokens_per_turn - _SHORT) * _CHARACTERS)


def planted(number: int, seed: int = 0) -> str | None:
    """The fact in this turn, if any: a sentence with a ticket of its own.

    Verbatim in the prompt, a tool's result or the last reply, and in no other turn.
    """
    if (number + seed) % _FACT:
        return None
    teller = Teller(f"{seed}/fact/{number}", NOTHING)
    return f"{teller.say('fact')}, ticket {teller.word('desk')}-{number}."


async def fill_project(
    session: Session,
    turns: int,
    *,
    seed: int = 0,
    tokens_per_turn: int = 500,
    progress: Callable[[int], object] | None = None,
) -> None:
    """Append turns of the project until the session has `turns`; their numbers are the same.

    A partly filled session is filled up, so give the same seed. `progress` is called with the
    number of turns after each append. When this returns, tokens have been counted.
    """
    number, size, waiting = (await session.head()).turn, 0, list[Message]()
    while number < turns:
        number += 1
        messages = project_turn(number, seed, tokens_per_turn)
        waiting += messages
        size += len(encode(messages))
        if size > _APPEND_BYTES or number == turns:
            await session.append(waiting, count=True)
            size, waiting = 0, []
            if progress is not None:
                progress(number)


class _Shape(NamedTuple):
    prompt: str
    reply: str
    rounds: int = 0
    result: float = 0
    words: float = 0


class _Turn:
    def __init__(self, number: int, seed: int) -> None:
        self._number = number
        index, self._phase = divmod(number - 1, _TASK)
        self._task = _task(seed, index)
        self._teller = Teller(f"{seed}/{number}", NO_PAST + self._task.own)
        self._roll = self._teller.random
        self._fact = planted(number, seed)
        self._past = ""
        if index and self._roll() < 0.12:
            # Most go back to what is recent.
            past = _task(seed, index - 1 - int(self._roll() ** 3 * index))
            self._teller.remember(past.decision)
            self._past = self._teller.say("reference")
        self._time = _moment(number) + int(self._roll() * 200) * _SECOND
        self._calls = 0

    def told(self, size: float) -> list[Message]:
        shape = self._shape(size)
        # Where the fact stands: in the prompt, in the first result, or in the reply.
        place = int(self._roll() * 3) if self._fact else 3
        if place == 1 and not shape.rounds:
            place = 2
        messages = [self._prompt(shape.prompt, self._fact if place == 0 else None)]
        for round in range(shape.rounds):
            messages += self._round(shape.result, self._fact if place == 1 and round == 0 else None)
        messages.append(self._reply(shape, self._fact if place == 2 else None))
        return messages

    def _shape(self, size: float) -> _Shape:
        roll, phase = self._roll, _PHASES[self._phase]
        dice, reply = roll(), "found" if self._phase <= _DECIDE else "done"
        if dice < _LONG:
            return _Shape(phase, reply, 10 + int(roll() * 31), size, _RESULT / 2)
        if dice < _LONG + _CHAT and phase not in {"start", "decide"}:
            return _Shape("chat", "answer")
        if dice > 0.97:
            phase = "foreign"
        size *= 0.25 + 2.7 * roll() ** 2
        if size < _LEAST_RESULT:
            return _Shape(phase, reply, 0, 0, size / 2)
        rounds = 1 + int(size / _RESULT * (0.5 + roll()))
        return _Shape(phase, reply, rounds, size * 0.75 / rounds, size * 0.1)

    def _prompt(self, kind: str, fact: str | None) -> Message:
        text = self._teller.say(kind)
        if self._roll() < 0.07:
            text = _misspelt(text, self._roll())
        if self._past and self._number % 2:
            text = f"{text} {self._past}"
        if fact:
            text = f"{text}\n\n{self._teller.say('aside')} {fact}"
        return Message("user", (Text(text),), time=self._time)

    def _round(self, size: float, fact: str | None) -> list[Message]:
        roll = self._roll
        parts: list[Part] = []
        results: list[Message] = []
        dice = roll()
        if dice < 0.1:
            parts.append(Reasoning(self._teller.say("think")))
        elif dice < 0.6:
            parts.append(Text(self._teller.say("step")))
        said = self._later(4 + roll() * 20)
        calls = 2 if roll() < 0.1 else 1
        for _ in range(calls):
            self._calls += 1
            call = f"call_{self._number:06d}{self._calls:03d}"
            tool = self._tool(fact)
            arguments = _json(
                {tool.argument: self._teller.fill(tool.asked.form, tool.asked.gaps)}
            ).decode()
            parts.append(ToolCall(call, tool.name, arguments))
            # Sizes differ, but not on average.
            text = self._teller.output(tool, size / calls * (0.4 + 1.2 * roll()), fact)
            result = ToolResult(call, (Text(text),), is_error=tool.fails)
            results.append(Message("tool", (result,), time=self._later(roll() * 9)))
            fact = None
        return [Message("assistant", tuple(parts), time=said), *results]

    def _tool(self, fact: str | None) -> Tool:
        """Suits the phase: tests fail before the work is done, files change late."""
        known, dice = self._teller.words.tools, self._roll()
        if fact:
            return known["notes"][0]
        if dice < 0.03:
            return known["broken"][0]
        if dice < 0.25:
            return known["passing" if self._phase > _DECIDE + 3 else "failing"][0]
        if dice < 0.45 and self._phase > _DECIDE:
            return known["edit"][0]
        return self._teller.pick(known["any"])

    def _reply(self, shape: _Shape, fact: str | None) -> Message:
        teller = self._teller
        texts = [teller.say(shape.reply)]
        if self._phase == _DECIDE:
            made = self._task.decision
            texts.append(f"Decision for {made.ticket}: we {made.remedy}, {made.reason}.")
        if self._past and not self._number % 2:
            texts.append(self._past)
        left = shape.words - len(texts[0])
        while left > 0:
            texts.append(teller.say("more"))
            left -= len(texts[-1])
        if fact:
            texts.append(f"{teller.say('aside')} {fact}")
        text = ("\n" if len(texts) > 3 else " ").join(texts)
        return Message("assistant", (Text(text),), time=self._later(5 + self._roll() * 30))

    def _later(self, seconds: float) -> int:
        self._time += int(seconds * _SECOND)
        return self._time


class _Decision(NamedTuple):
    ticket: str
    turn: str
    who: str
    remedy: str
    reason: str
    day: str


class _Task(NamedTuple):
    own: tuple[tuple[str, ...], ...]
    decision: _Decision


@lru_cache(maxsize=64)
def _task(seed: int, index: int) -> _Task:
    teller = Teller(f"{seed}/task/{index}", NOTHING)
    first = index * _TASK + 1
    day = f"{to_datetime(_moment(first)):%Y-%m-%d}"
    package, noun = teller.word("package"), teller.word("noun")
    functions = tuple(f"{teller.word('verb')}_{noun}" for _ in range(4))
    classes = tuple(noun.title() + teller.word("noun").title() for _ in range(2))
    paths = tuple(f"src/{package}/{name}.py" for name in (noun, functions[0], teller.word("verb")))
    ticket = f"{teller.word('area')}-{101 + index}"
    people = (teller.word("person"), teller.word("person"))
    title = f"{teller.word('symptom')} {teller.word('condition')}"
    branch = f"{teller.word('kind')}/{ticket}-{noun}"
    version = f"{index // 900}.{index // 30 % 30}.{index // 3 % 10}"
    single = tuple((each,) for each in (title, branch, version, day))
    own = ((package,), paths, functions, classes, (ticket,), people, *single)
    remedy, reason = teller.word("remedy"), teller.word("reason")
    turn = f"T-{first + _DECIDE}"
    return _Task(own, _Decision(ticket, turn, people[0], remedy, reason, day))


def _moment(number: int) -> int:
    """In microseconds."""
    return _FIRST + number * _APART


def _misspelt(text: str, where: float) -> str:
    found = [match.start() for match in re.finditer(r"(?<=[a-z])[a-z]{2}(?=[a-z])", text)]
    if not found:
        return text
    at = found[int(where * len(found))]
    return text[:at] + text[at + 1] + text[at] + text[at + 2 :]
