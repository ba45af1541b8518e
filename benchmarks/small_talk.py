"""Generated conversations of two people, line by line, and questions about what they said.

Lines are as long as those of people who chat (some twenty words), and their words as frequent as in
such chats: almost half are the few that everybody uses all the time, the others follow Zipf and
Mandelbrot, so that the most common of them stands in every sixth line and half of all words in one
or two. Each conversation has matters of its own, which it comes back to. Real words come first; the
tail is made of syllables. A question asks for some of the rarer words of one line, which it should
find. Everything follows from the seed.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import NamedTuple

#: Lines of a conversation, and between two pauses.
LINES, _SITTING = 500, 25
_WORDS, _MATTERS = 30_000, 60
#: Of the words of a line: the small ones, and those of the conversation's own matters.
_SMALL_SHARE, _OWN_SHARE = 0.44, 0.18
#: The frequency of a word of rank r is as 1 / (r + this).
_OFFSET = 8.0
#: Syllables that end in a consonant.
_CLOSED = 0.6
#: Seconds: when it began, the pause between two sittings, that between two lines.
_BEGAN, _PAUSE, _BETWEEN = 1_600_000_000, 3 * 86_400, 40


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(text.split()))


_SMALL = _words("""
the to of a and is in that it for on with this be as was not we are by from you or at have if an can
but will has so when there all should i do then into only after what they would no also been how any
because my your me he she had were them did just about
""")
_COMMON = _words("""
really great time good think thank feel love look new day make year know help way friend week family
work life people last start kid happy keep amazing long home support sound fun old place nice idea
world night plan try art book morning dog show school picture music story hard dance game trip share
walk stuff garden paint read wonderful team dream moment summer movie nature learn beautiful event
group call city job visit cook hike photo beach house animal weekend mother father sister brother
song food run dinner class car park adopt train guitar river mountain camp concert birthday wedding
recipe hospital doctor project travel airport museum piano violin pottery charity marathon library
puppy kitten turtle tattoo garage bakery studio gallery festival volunteer mentor interview novel
scholarship counsel therapy basketball yoga meditation sunrise sunset waterfall canyon desert island
harbour bridge castle necklace bracelet ring jacket camera laptop phone drone bicycle motorcycle
truck boat kayak tent lantern campfire telescope comet eclipse storm flood snow lightning rainbow
orchard vine lavender tulip rose oak maple pine chestnut walnut honey cinnamon ginger basil lasagna
""")
_NAMES = _words("""
Ann Bob Cleo Dan Eve Finn Gina Hugo Iris Jack Kim Liam Maya Noah Olga Paul Quinn Rosa Sam Tara Uma
Vic Wendy Xenia Yann Zoe Amir Bela Chen Dara Emil Fay Gus Hana Ivan Joan Kai Lena Milo Nora
""")
_STARTS = _words("b c d f g h j k l m n p r s t v w br cl dr fl gr pl sp st tr")
_MIDDLES = _words("a e i o u ai ea ie oa ou")
_ENDS = _words("b d g k l m n p r s t x ck ld mp nd nt rk rt sh st th")
_FRAMES = (
    "What did {name} say about {words}?",
    "When did {name} {words}?",
    "Who told us about {words}?",
    "{words}: what was that, {name}?",
    "Do you remember {words}?",
)


class Line(NamedTuple):
    """What somebody said in a conversation, as its turn of this number. Seconds since 1970."""

    session: str
    turn: int
    text: str
    time: int


class Asked(NamedTuple):
    """A question, and where its answer stands."""

    text: str
    session: str
    turn: int


class SmallTalk:
    """As many conversations as wanted. The first ones are the same however many follow."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        dice = random.Random(f"words {seed}")
        tail = dict.fromkeys(_pronounceable(dice) for _ in range(2 * _WORDS))
        self._words = list(dict.fromkeys([*_COMMON, *tail]))[:_WORDS]
        weights = (1 / (rank + _OFFSET) for rank in range(1, len(self._words) + 1))
        self._frequencies = list(itertools.accumulate(weights))

    def lines(self, count: int) -> Iterator[Line]:
        """So many lines, conversation by conversation; every fifth is another agent's."""
        for number in range(-(-count // LINES)):
            agent = "bob" if number % 5 == 4 else "ann"
            left = min(LINES, count - number * LINES)
            yield from self._conversation(f"{agent}/chat{number}", number, left)

    def questions(self, lines: list[Line], count: int) -> list[Asked]:
        """Questions about lines of the first agent's, each about another one."""
        dice = random.Random(f"questions {self._seed}")
        rank = {word: number for number, word in enumerate(self._words)}
        own = [line for line in lines if line.session.startswith("ann/")]
        found = list[Asked]()
        for line in dice.sample(own, min(len(own), count)):
            name, _, said = line.text.partition(": ")
            words = [word for word in said.rstrip(".!?").split() if word in rank]
            rare = sorted(dict.fromkeys(words), key=lambda word: -rank[word])
            chosen = rare[:2] + dice.sample(rare[2:], min(len(rare[2:]), 2))
            asked = " ".join(sorted(chosen, key=words.index))
            text = dice.choice(_FRAMES).format(name=name, words=asked)
            found.append(Asked(text, line.session, line.turn))
        return found

    def _conversation(self, session: str, number: int, lines: int) -> Iterator[Line]:
        dice = random.Random(f"{self._seed} {number}")
        names = dice.sample(_NAMES, 2)
        own = dice.choices(self._words, cum_weights=self._frequencies, k=_MATTERS)
        own += dice.sample(self._words[500:], _MATTERS)
        time = _BEGAN + number * 86_400
        for turn in range(1, lines + 1):
            time += _PAUSE if turn % _SITTING == 0 else _BETWEEN
            yield Line(session, turn, f"{names[turn % 2]}: {self._said(dice, own)}", time)

    def _said(self, dice: random.Random, own: list[str]) -> str:
        length = max(4, int(dice.lognormvariate(3.0, 0.45)))
        small = sum(dice.random() < _SMALL_SHARE for _ in range(length))
        matters = sum(dice.random() < _OWN_SHARE for _ in range(length - small))
        rest = length - small - matters
        words = [
            *dice.choices(_SMALL, k=small),
            *dice.choices(own, k=matters),
            *dice.choices(self._words, cum_weights=self._frequencies, k=rest),
        ]
        dice.shuffle(words)
        return " ".join(words) + dice.choice(".!?..")


def _pronounceable(dice: random.Random) -> str:
    return "".join(
        dice.choice(_STARTS)
        + dice.choice(_MIDDLES)
        + (dice.choice(_ENDS) if dice.random() < _CLOSED else "")
        for _ in range(dice.choice((1, 2, 2, 3)))
    )
