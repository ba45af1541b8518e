"""How the weights of topics move over time: by code, never by a model.

A weight is halved after every half-life in which nobody speaks of the topic; each turn that does
adds a little. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perdure.core.clock import SECOND
from perdure.recall.memory_records import Memory
from perdure.reflection.word_sets import word_set

#: What a turn that speaks of a topic adds.
EVIDENCE = 0.04
LEAST, MOST = 0.01, 1.0
_DAY = 86_400 * SECOND


def moved(weight: float, days: float, half_life: float, evidence: int) -> float:
    """A weight after so many days, with so many turns that speak of the topic."""
    decayed: float = weight * 2 ** (-max(days, 0.0) / half_life)
    return round(min(max(decayed + EVIDENCE * evidence, LEAST), MOST), 4)


def moved_topics(
    memories: Iterable[Memory],
    mentions: Mapping[str, int],
    *,
    since: int,
    now: int,
    half_life: float,
) -> dict[str, float]:
    """The weights of an agent's topics at `now`, by id. They were last moved at `since`, or, if
    that is earlier, when the topic was first spoken of; `mentions` are turns by the topic's text.
    """
    return {
        topic.id: moved(
            topic.weight,
            (now - max(since, min(topic.first, now))) / _DAY if since else 0.0,
            half_life,
            mentions.get(topic.text.casefold(), 0),
        )
        for topic in memories
        if topic.kind == "topic" and topic.is_active and not topic.by_person and not topic.pinned
    }


def mentions(topics: Iterable[str], texts: Iterable[str]) -> dict[str, int]:
    """How many texts speak of each topic: have all of its words."""
    wanted = {topic.casefold(): word_set(topic) for topic in topics}
    found = dict.fromkeys(wanted, 0)
    for text in texts:
        here = word_set(text)
        for topic, words in wanted.items():
            found[topic] += bool(words) and words <= here
    return found
