"""Whether C is 30 to 40 % of what was said, and T 1 to 5 %, text by text, on five kinds of history.

Words only: what users and assistants said, against those lines of C that tell it; tools have rules
of their own. `c_in_range` is the share of rounds above 200 tokens of words whose C is in its range,
`t_in_range` that of turns above 1,000 whose T is; the worst kind counts. Below that a text is too
short for its share, and the shortest sensible form stands for it.

`project` is made up, `transcripts` are of coding agents, `beam` is of a user and an assistant.
Lines of `locomo` and `realtalk`, two people who chat, are too short by themselves: what they say in
one sitting is appended at once, which makes it one turn of several speakers. Of fewer than ten
texts that are long enough, nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from benchmarks import chats, transcripts
from benchmarks.harness import Report
from benchmarks.keeps import keeps, words_said
from benchmarks.turns_said import Told, told
from examples.made_up_project import project_history
from perdure.core.messages import Message, Text
from perdure.core.tokens import o200k
from perdure.core.turns import rounds
from perdure.history.renditions import algorithm

KINDS = ("project", "transcripts", "locomo", "beam", "realtalk")
C_RANGE, C_FROM = (0.30, 0.40), 200
T_RANGE, T_FROM = (0.01, 0.05), 1_000
#: Of so few texts nothing is said.
_FEW = 10
#: Turns of the made-up project, and their tokens on average: of short turns, few say enough.
_PROJECT, _QUICK = ((150, 500), (100, 5_000), (60, 20_000)), ((24, 20_000),)
#: Who is silent for so long is gone: microseconds.
_SITTING = 3 * 3_600 * 1_000_000


class _InRange:
    """How many texts are in their range, and what they keep of what was named."""

    def __init__(self, least: float, most: float) -> None:
        self._least, self._most = least, most
        self._shares: list[float] = []
        self._kept: list[float] = []

    def add(self, said: str, rendition: str, share: float) -> None:
        self._shares.append(share)
        kept = keeps(said, rendition)
        self._kept += [] if kept is None else [kept]

    def figures(self, level: str) -> dict[str, float | None]:
        many = len(self._shares)
        figures: dict[str, float | None] = {f"{level}_texts": many}
        if many < _FEW:
            return figures | {f"{level}_in_range": None}
        inside = sum(self._least <= share <= self._most for share in self._shares)
        return figures | {
            f"{level}_in_range": round(inside / many, 3),
            f"{level}_median": round(sorted(self._shares)[many // 2], 3),
            f"{level}_keeps": round(sum(self._kept) / len(self._kept), 3) if self._kept else None,
        }


async def run(report: Report, *, quick: bool) -> None:
    figures = report.figures
    for kind, turns in (await _kinds(report, quick=quick)).items():
        figures[kind] = _measured(turns)
        report.say(f"  {kind}: {figures[kind]}")
        for level, least in (("c", C_FROM), ("t", T_FROM)):
            if (many := figures[kind][f"{level}_texts"]) < _FEW:
                report.say(f"    {many} texts above {least:,} tokens: too few to count for {level}")
    for level in ("c_in_range", "t_in_range"):
        shares = [figures[kind][level] for kind in KINDS]
        figures[level] = min((share for share in shares if share is not None), default=None)


def spoken(compact: str, speakers: Iterable[str]) -> str:
    """Those lines of C that tell what was said: no tools, no pictures."""
    begins = tuple(f"{speaker}: " for speaker in speakers)
    return "\n".join(line for line in compact.split("\n") if line.startswith(begins))


async def _kinds(report: Report, *, quick: bool) -> dict[str, list[Told]]:
    given = transcripts.found(report)
    chatted = chats.by_kind()
    talks: dict[str, list[list[Message]]] = {
        "project": [
            messages
            for turns, tokens in (_QUICK if quick else _PROJECT)
            for messages in project_history(turns, tokens_per_turn=tokens)
        ],
        "beam": [list(_exchanges(chat)) for chat in chatted["beam"]],
        **{
            kind: [said for chat in chatted[kind] for said in _sittings(chat)]
            for kind in ("locomo", "realtalk")
        },
    }
    found = {kind: [turn for said in talk for turn in _turns(said)] for kind, talk in talks.items()}
    return found | {"transcripts": await told(given) if given is not None else []}


def _turns(messages: Iterable[Message]) -> list[Told]:
    found: dict[int, list[tuple[Message, ...]]] = {}
    for turn, _, said in rounds(messages):
        found.setdefault(turn, []).append(tuple(said))
    return [Told(number, said) for number, said in found.items()]


def _sittings(chat: chats.Chat) -> Iterator[list[Message]]:
    last = 0
    said: list[Message] = []
    for line in chat.lines:
        if line.time - last > _SITTING and said:
            yield said
            said = []
        said.append(Message("user", (Text(line.text),), name=line.speaker))
        last = line.time
    yield said


def _exchanges(chat: chats.Chat) -> Iterator[Message]:
    for line in chat.lines:
        yield Message("user", (Text(line.text),))
        if line.reply:
            yield Message("assistant", (Text(line.reply),))


def _measured(turns: Sequence[Told]) -> dict[str, float | None]:
    counter, in_c, in_t = o200k(), _InRange(*C_RANGE), _InRange(*T_RANGE)
    for turn in turns:
        for number, messages in enumerate(turn.rounds, 1):
            said = words_said(messages)
            if (many := counter.count(said)) > C_FROM:
                compact = algorithm.compact(messages, f"T-{turn.number}.{number}")
                words = spoken(compact, _speakers(messages))
                in_c.add(said, words, counter.count(words) / many)
        said = words_said(turn.messages)
        if (many := counter.count(said)) > T_FROM:
            tiny = algorithm.tiny(turn.rounds, counter)
            in_t.add(said, tiny, counter.count(tiny) / many)
    return in_c.figures("c") | in_t.figures("t")


def _speakers(messages: Iterable[Message]) -> set[str]:
    return {message.name or algorithm.speaker_of(message) for message in messages}
