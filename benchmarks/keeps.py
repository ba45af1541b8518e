"""What the algorithm's C and T keep of the names, numbers and paths in transcripts, and their size.

`c` and `t` are averages of shares: of rounds that name anything, and of turns above 200 tokens of
words. Beside them stands the share of all that is named: there, who says more counts for more.

Sizes are tokens at a level for each raw token, of whole rounds and turns, and apart: words are
those of rounds without tools, tools are rounds of which they are more than nine tenths.
"""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks import transcripts
from benchmarks.harness import Report
from benchmarks.turns_said import Told, told
from perdure.core.messages import ArtifactPointer, Message, Text, words_of
from perdure.core.tokens import Counter, count_messages, o200k
from perdure.history.renditions import algorithm
from perdure.history.renditions.facts import facts, holds

#: T is held to its promise from so many tokens of words on.
_WORDS = 200
#: Of a round's tokens, from where on it is one of tools.
_TOOLS = 0.9


def keeps(source_words: str, rendition: str) -> float | None:
    """The share of the facts in some words that a rendition names, each counted once; None if there
    are none.
    """
    named = facts(source_words)
    if not named:
        return None
    lowered = rendition.casefold()
    return sum(holds(lowered, fact) for fact in named) / len(named)


def words_said(messages: Iterable[Message]) -> str:
    """What users and assistants said: no tools, reasoning, harness notes or events."""
    return "\n".join(
        words_of(part)
        for message in messages
        if message.role in {"user", "assistant"} and not message.injected
        for part in message.parts
        if isinstance(part, Text | ArtifactPointer)
    )


class _Kept:
    """Shares of what was named, each with how much that was."""

    def __init__(self) -> None:
        self._shares: list[tuple[float, int]] = []

    def add(self, words: str, rendition: str) -> None:
        share = keeps(words, rendition)
        if share is not None:
            self._shares.append((share, len(facts(words))))

    def __len__(self) -> int:
        return len(self._shares)

    @property
    def average(self) -> float | None:
        if not self._shares:
            return None
        return round(sum(share for share, _ in self._shares) / len(self._shares), 3)

    @property
    def weighted(self) -> float | None:
        named = sum(count for _, count in self._shares)
        if not named:
            return None
        return round(sum(share * count for share, count in self._shares) / named, 3)


class _Sizes:
    """Tokens at S, C and T, and of the same raw, by what they are of."""

    def __init__(self) -> None:
        self._tokens: dict[str, list[int]] = {}

    def add(self, metric: str, tokens: int, raw: int) -> None:
        pair = self._tokens.setdefault(metric, [0, 0])
        pair[0] += tokens
        pair[1] += raw

    def ratios(self) -> dict[str, float]:
        return {
            metric: round(tokens / raw, 4)
            for metric, (tokens, raw) in sorted(self._tokens.items())
            if raw
        }


async def run(report: Report, *, quick: bool) -> None:
    del quick  # the transcripts are what they are
    figures = report.figures
    figures["c"] = figures["t"] = None
    given = transcripts.found(report)
    if given is None:
        return
    counter, in_c, in_t, sizes = o200k(), _Kept(), _Kept(), _Sizes()
    turns = await told(given)
    for turn in turns:
        _measure(turn, counter, in_c, in_t, sizes)
    for level, kept in (("c", in_c), ("t", in_t)):
        figures[level] = kept.average
        figures[f"{level}_weighted"] = kept.weighted
    figures |= sizes.ratios()
    report.say(
        f"  {len(turns):,} turns; {len(in_c):,} rounds that name something, "
        f"{len(in_t):,} turns above {_WORDS} tokens of words"
    )
    for metric, figure in figures.items():
        report.say(f"    {metric}: {figure}")


def _measure(turn: Told, counter: Counter, in_c: _Kept, in_t: _Kept, sizes: _Sizes) -> None:
    for number, messages in enumerate(turn.rounds, 1):
        smooth, compact = algorithm.both(messages, f"T-{turn.number}.{number}")
        words = words_said(messages)
        in_c.add(words, compact)
        raw, kind = _raw(messages, counter), _kind(messages, words, counter)
        for level, text in (("s", smooth), ("c", compact)):
            tokens = counter.count(text)
            sizes.add(f"tokens_{level}", tokens, raw)
            if kind is not None:
                sizes.add(f"tokens_{level}_{kind}", tokens, raw)
    said, tiny = words_said(turn.messages), algorithm.tiny(turn.rounds, counter)
    sizes.add("tokens_t", counter.count(tiny), _raw(turn.messages, counter))
    sizes.add("tokens_t_of_words", counter.count(tiny), counter.count(said))
    if counter.count(said) > _WORDS:
        in_t.add(said, tiny)


def _raw(messages: Iterable[Message], counter: Counter) -> int:
    return count_messages(counter, [each for each in messages if each.role != "event"])


def _kind(messages: tuple[Message, ...], words: str, counter: Counter) -> str | None:
    """Whether a round is one of words alone, or as good as all tools."""
    tools = any(message.calls or message.results for message in messages)
    if not tools:
        return "words" if words.strip() else None
    spoken = counter.count(words)
    return "tools" if spoken < (1 - _TOOLS) * _raw(messages, counter) else None
