"""What a policy is given, and what it answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

import msgspec

from perdure.core.errors import BudgetTooSmall
from perdure.simulation.caching import Block
from perdure.simulation.transcripts import Call


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What is replayed, and within which limits."""

    calls: Sequence[Call]
    #: For all messages of a request: history, injection and prompt.
    budget: int
    #: What is injected with each request.
    injection: int = 0

    def room(self, number: int) -> int:
        """What the prompt of this call, and what is injected with it, leave for the history.

        Raises `BudgetTooSmall` if they do not fit themselves.
        """
        needed = self.calls[number].prompt_tokens + self.injection
        if needed > self.budget:
            raise BudgetTooSmall(self.budget, needed)
        return self.budget - needed


class Request(msgspec.Struct, frozen=True):
    """What is sent for one call, without system text and injection."""

    blocks: list[Block]
    #: The policy says that this does not extend the request before.
    rewritten: bool = False
    #: Raw tokens of the calls that it stands for in any form, and what it shows for them.
    covered: int = 0
    history: int = 0


def cut(blocks: Iterable[Block], most: int) -> tuple[Block, ...]:
    """The blocks with their end cut off, so that they take at most so many tokens."""
    found, left = list[Block](), most
    for block in blocks:
        if block.tokens > left:
            if left:
                found.append(Block(digest(block.key, left), left))
            break
        found.append(block)
        left -= block.tokens
    return tuple(found)


def digest(key: bytes, number: int) -> bytes:
    """The key of what was made from this."""
    return blake2b(b"%b %d" % (key, number), digest_size=16).digest()
