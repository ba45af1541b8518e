"""Generated turns: a prompt, a tool call, its 4 KB result, and the answer.

They are Chat Completions messages, as plain dicts, which is what Perdure is given; each peer turns
them into its own form before its clock starts. Everything follows from the seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.texts import Texts

#: A message in the form of Chat Completions; reasoning stands in `reasoning_content`.
Chat = dict[str, Any]

PROMPT, RESULT, ANSWER = 200, 4_096, 300
#: Messages in a turn.
MESSAGES = 4

_TOOLS = {"shell": "command", "read_file": "path", "search": "query"}
_POOL = 4_000_000


def turns(count: int, seed: int) -> list[list[Chat]]:
    """New turns, every text made for it alone."""
    return _turns(count, random.Random(seed), Texts(seed).message)


def bulk(count: int, seed: int, *, talk: bool = False) -> list[list[Chat]]:
    """Turns for filling a session: their texts are cut from one long one, thirty times as fast.

    No two are the same, but some overlap. Of talk, only the prompt and the answer.
    """
    rng, pool = random.Random(seed), _pool()

    def cut(size: int) -> str:
        start = rng.randrange(len(pool) - size)
        return pool[start : start + size]

    made = _turns(count, rng, cut)
    return [[turn[0], turn[-1]] for turn in made] if talk else made


def messages(count: int, seed: int, size: int) -> list[list[Chat]]:
    """Single messages, each in a list of its own."""
    return [[{"role": "user", "content": text}] for text in Texts(seed).messages(count, size)]


def stored(path: str) -> list[list[Chat]]:
    """Turns from a file, one a line."""
    with Path(path).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def arguments(text: str) -> dict[str, Any]:
    """Tool arguments as an object, which some peers insist on."""
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    return given if isinstance(given, dict) else {"input": text}


def _turns(count: int, rng: random.Random, text: Callable[[int], str]) -> list[list[Chat]]:
    return [_turn(rng, text) for _ in range(count)]


def _turn(rng: random.Random, text: Callable[[int], str]) -> list[Chat]:
    call = f"call_{rng.getrandbits(96):024x}"
    tool, argument = rng.choice([*_TOOLS.items()])
    function = {"name": tool, "arguments": json.dumps({argument: text(60)})}
    return [
        {"role": "user", "content": text(PROMPT)},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": call, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call, "content": text(RESULT)},
        {"role": "assistant", "content": text(ANSWER)},
    ]


@cache
def _pool() -> str:
    return Texts(0).message(_POOL)
