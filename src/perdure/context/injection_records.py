"""The records of what was injected with a prompt, and of what was sent around the messages.

The injection (board, recall, reminder) is built once for a turn and stays where it was sent until
an epoch removes it: anything else would rewrite all that followed it. Before its turn is written it
may be built again: for another prompt, or with recall instead of without. It is a view, not part of
the log. With `Frame`, any past request can be rebuilt, byte for byte.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b
from typing import Annotated

import msgspec

from perdure.core import messages as canonical
from perdure.core.messages import Message
from perdure.core.tokens import TokenScale
from perdure.core.turns import Position
from perdure.gateway.calls import Tool
from perdure.history.log_records import turn_key
from perdure.history.manifest import Injected
from perdure.history.turn_tags import escape
from perdure.recall.hit_keys import split
from perdure.storage.records import Compressed, Key, Tags, system_record

_DIGEST = 16


@system_record("injections")
class Injection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was injected with the prompt of a turn."""

    id: Annotated[str, Key()]  # session/turn
    turn: int
    text: Annotated[str, Compressed()] = ""
    tokens: int = 0
    #: Of the prompt that it was built for: another prompt gets another injection.
    prompt: bytes = b""
    board: tuple[str, ...] = ()  # The entries of the board that stand in it in full.
    #: What was recalled and stands in it in full, and what it has a reminder of: `recall.hit_keys`.
    full: tuple[str, ...] = ()
    ticklers: tuple[str, ...] = ()
    asked: bool = True  # Whether anything was to be recalled for it.
    quotes: Annotated[dict[str, str], Tags()] = {}  # What it quotes: so forgetting finds it.
    #: The digest of the frame that was sent with it.
    frame: str = ""
    budget: int = 0  # In o200k tokens.
    scale: TokenScale = TokenScale()  # By which the caller's budget became that.
    model: str = ""
    strategy: str = ""  # How the history was shown.

    def quotes_any(self, session: str, turns: Collection[int] = ()) -> bool:
        for key in (*self.full, *self.ticklers):
            owner, rest = split(key)
            if owner == session and (not turns or Position.parse(rest).turn in turns):
                return True
        return False

    @property
    def recalls(self) -> bool:
        return bool(self.full or self.ticklers)

    @property
    def shown(self) -> Injected:
        return Injected(self.turn, self.text, self.tokens, self.strategy)


@system_record("frames")
class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """What was sent beside the messages. The same frame is stored once for a session."""

    id: Annotated[str, Key()]  # session/digest
    system: Annotated[str, Compressed()] = ""  # The system text with all that was added to it.
    tools: bytes = b"[]"  # The tools, as JSON: read by `tools_of`.

    @property
    def digest(self) -> str:
        return self.id.rpartition("/")[2]

    @classmethod
    def of(cls, session: str, system: str, tools: Sequence[Tool]) -> Frame:
        written = msgspec.json.encode(tools)  # in their own order: properties are read in it
        digest = blake2b(written, digest_size=_DIGEST)
        digest.update(system.encode("utf-8", "replace"))
        return cls(id=f"{session}/{digest.hexdigest()}", system=system, tools=written)

    def tools_of(self) -> tuple[Tool, ...]:
        return msgspec.json.decode(self.tools, type=tuple[Tool, ...])


def injection_of(
    session: str,
    turn: int,
    text: str,
    tokens: int,
    *,
    prompt: Sequence[Message],
    board: Sequence[str] = (),
    full: Sequence[str] = (),
    ticklers: Sequence[str] = (),
    asked: bool = True,
    frame: str = "",
    budget: int = 0,
    scale: TokenScale = TokenScale(),  # noqa: B008 (frozen)
    model: str = "",
    strategy: str = "",
) -> Injection:
    return Injection(
        id=turn_key(session, turn),
        turn=turn,
        text=text,
        tokens=tokens,
        prompt=prompt_digest(prompt),
        board=tuple(board),
        full=tuple(full),
        ticklers=tuple(ticklers),
        asked=asked,
        quotes={split(key)[0] or key: "" for key in (*full, *ticklers)},
        frame=frame,
        budget=budget,
        scale=scale,
        model=model,
        strategy=strategy,
    )


def prompt_digest(prompt: Sequence[Message]) -> bytes:
    """By who says what, not by when."""
    said = [Message(message.role, message.parts, name=message.name) for message in prompt]
    return blake2b(canonical.encode(said), digest_size=_DIGEST).digest()


def standing(injections: Iterable[Injection]) -> frozenset[str]:
    return frozenset(id for injection in injections for id in injection.board)


def build(board: str = "", memory: str = "", note: str = "") -> str:
    """Each part in its element, escaped; empty if there is none."""
    parts = (("perdure-board", board), ("perdure-memory", memory), ("perdure-note", note))
    return "\n".join(
        f"<{name}>\n{escape(text).strip()}\n</{name}>" for name, text in parts if text.strip()
    )
