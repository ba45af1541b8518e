"""Generated messages that compress like real ones.

Words come from a vocabulary of three thousand, with the frequencies of natural language (Zipf),
mixed with what fills the messages of coding agents: identifiers, paths, numbers, hashes, commands,
code. No message repeats another. What matters is how they pack: by zstd, 700 bytes alone shrink
to 0.68 of their size, and with a dictionary trained on such messages to 0.42. Real transcripts
reach 0.67 and 0.32, so this is the harder material. Everything follows from the seed.
"""

from __future__ import annotations

import itertools
import random


def _words(text: str) -> list[str]:
    return text.split()


_SMALL = _words("""
the to of a and is in that it for on with this be as was not we are by from you or at
have if an can but will has which so when there all should i do one then into only its after
what they would no more also before been how any because does now other each both here still
than same where just their once without first up out about between every while over these
""")

_VERBS = _words("""
add allow apply ask assert await break build cache call cancel change check clean close
commit compare compile compute connect convert copy count create decide decode delete deploy
depend detect drop emit enable encode expect explain export extend fail fetch filter find finish
fix flush follow format generate guard handle import improve include index insert inspect install
join keep list load lock log look map match measure merge migrate miss move need open order parse
pass patch plan print profile push query raise read rebuild record refactor refresh reject release
remove rename repeat replace report request require reset resolve restart retry return review
revert rotate run save scan schedule search select send serve show skip sort split start stop store
stream support switch test trace trigger update upgrade use validate verify wait warn watch wrap
write
""")

_NOUNS = _words("""
account address agent answer archive argument array batch bill block branch browser
budget buffer bug byte callback card case certificate channel character check client cluster code
collection column command comment component config connection container context contract cookie
cursor customer dashboard database date deadline decision default dependency detail device diff
directory document domain draft driver edge editor element endpoint entry error event example
exception feature field figure file flag folder form frame function gateway graph group handler
hash header host hour image invoice issue item job key label lambda latency layer lease level
library limit line link list loader lock loop machine mail manager margin market member memory
message method metric middleware minute mock model module monitor month name network node note
number object offer option order output owner package page panel parameter parser part password
path pattern payment permission person pipeline plan platform plugin point policy pool port prefix
price problem process product profile project promise prompt protocol provider proxy queue range
rate reader reason receipt record region registry release reply repository request resource
response result review role room route row rule runner sample schedule schema scope script season
secret section segment server service session shape sheet shell signal site snapshot socket source
spec stage state status step stock store stream string style summary symbol system table tag target
task team template tenant term test text thread ticket time token tool topic trace transaction tree
trigger trip turn type unit user value variable vendor version view warning week widget window
word worker workflow year zone
""")

_QUALITIES = _words("""
actual async atomic bad bare big blank broken busy clear cold common complete correct
corrupt current dead deep different direct dirty double durable early empty equal exact expensive
explicit external fast final flat free fresh full generic global good green happy hard hidden high
honest idle implicit inner internal invalid large last late lazy local long loose loud low main
minor missing modern naive native new nested noisy normal old optional outer pale partial past
plain possible previous private proper public quick quiet random rare raw ready real recent red
remote rough safe secure separate serial shallow short silent simple single slow small smooth
stable stale static strange strict strong subtle sudden sure thin tight tiny total trivial true
typical unique unknown useful valid vague verbose visible warm weak whole wide wrong
""")

_SUFFIXES = ("py", "ts", "rs", "go", "md", "toml", "json", "sql")
_ROOTS = ("src", "tests", "lib", "app", "docs", "internal", "packages", "cmd", "web")
_TROUBLES = ("Error", "Exception", "Warning", "Failure", "Timeout")


def _verb_forms(verb: str) -> list[str]:
    stem = verb.removesuffix("e")
    return [verb, f"{verb}s", f"{stem}ed", f"{stem}ing", f"{stem}er", f"re{verb}", f"{stem}able"]


def _vocabulary() -> list[str]:
    """Words by falling frequency: small words first, the rest in an order that never changes."""
    rng = random.Random(183)
    content = [form for verb in _VERBS for form in _verb_forms(verb)]
    content += [form for noun in _NOUNS for form in (noun, f"{noun}s")]
    content += [form for word in _QUALITIES for form in (word, f"{word}ly", f"un{word}")]
    pairs = [(rng.choice(_VERBS), rng.choice(_NOUNS)) for _ in range(500)]
    content += [f"{verb}_{noun}" for verb, noun in pairs]
    content += [f"{rng.choice(_NOUNS)}.{verb}()" for verb, _ in pairs[:300]]
    content += [f"{noun.title()}{rng.choice(_NOUNS).title()}" for _, noun in pairs[:400]]
    content = list(dict.fromkeys(content))
    rng.shuffle(content)
    return list(dict.fromkeys([*_SMALL, *content]))


_WORDS = _vocabulary()
_WEIGHTS = list(itertools.accumulate(1 / (rank + 2.7) for rank in range(len(_WORDS))))


class Texts:
    """An endless source of messages, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def message(self, size: int) -> str:
        """A message of exactly `size` ASCII characters."""
        pieces: list[str] = []
        length = 0
        while length < size:
            piece = self._piece()
            pieces.append(piece)
            length += len(piece) + 1
        return " ".join(pieces)[:size]

    def messages(self, count: int, size: int) -> list[str]:
        return [self.message(size) for _ in range(count)]

    def _piece(self) -> str:
        dice = self._rng.random()
        if dice < 0.72:
            return self._sentence()
        if dice < 0.82:
            return self._code()
        if dice < 0.92:
            return self._log_line()
        return self._path_remark()

    def _some(self, count: int) -> list[str]:
        return self._rng.choices(_WORDS, cum_weights=_WEIGHTS, k=count)

    def _sentence(self) -> str:
        rng = self._rng
        words = self._some(rng.randrange(5, 19))
        if rng.random() < 0.3:
            words.insert(rng.randrange(len(words)), str(rng.randrange(2, 5_000)))
        if len(words) > 10:
            words[rng.randrange(3, 8)] += ","
        text = " ".join(words)
        return text[0].upper() + text[1:] + rng.choice((".", ".", ".", "?", ":\n", ".\n"))

    def _path(self) -> str:
        rng = self._rng
        folder = f"{rng.choice(_ROOTS)}/{rng.choice(_NOUNS)}/{rng.choice(_NOUNS)}"
        return f"{folder}_{rng.choice(_NOUNS)}.{rng.choice(_SUFFIXES)}"

    def _path_remark(self) -> str:
        start, middle, *rest = self._some(6)
        return f"{start} {self._path()}:{self._rng.randrange(1, 900)} {middle} {' '.join(rest)}."

    def _log_line(self) -> str:
        rng = self._rng
        noun, other = rng.choice(_NOUNS), rng.choice(_NOUNS)
        clock = f"{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.random() * 60:06.3f}"
        if rng.random() < 0.5:
            trouble = f"{noun.title()}{rng.choice(_TROUBLES)}"
            said = " ".join(self._some(5))
            return f"\n{clock} {trouble}: {said} (id {rng.getrandbits(48):012x})\n"
        return f"\n{clock} {noun}={rng.randrange(10**6)} {other}={rng.random() * 1e3:.2f}ms ok\n"

    def _code(self) -> str:
        rng = self._rng
        verb, noun, other = rng.choice(_VERBS), rng.choice(_NOUNS), rng.choice(_NOUNS)
        number = rng.randrange(10_000)
        match rng.randrange(4):
            case 0:
                head = f"def {verb}_{noun}(self, {noun}: {other.title()}) -> None:"
                body = f"return self.{other}.{rng.choice(_VERBS)}({noun}, limit={number})"
                return f"\n    {head}\n        {body}\n"
            case 1:
                return f"\n    if {noun}.{other} >= {number}:\n        {verb}({noun})\n"
            case 2:
                return f"`{verb}_{noun}({other}={number})`"
            case _:
                command = rng.choice(("diff", "log", "show"))
                return f"\n$ git {command} {rng.getrandbits(40):010x} {self._path()}\n"
