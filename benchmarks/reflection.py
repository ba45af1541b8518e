"""Reflection: is what was said once remembered, once, and can it be taken back?

Facts are planted in a chat of each kind and in a coding transcript, half of them in the middle of a
long turn. Some resemble each other ("the testing port", "the demo port"), some change later, some
are said two in a sentence. A scripted oracle stands for the model: it reads the view that it is
sent, at the wire, and adds what it finds there, in other words each time, as people put it: with a
verb for a noun, a word more or less. It is gullible: an old turn that it reads again is news to
it. The first half of a history is read by one run, the second by another, everything by eight more.

`learnt` is the share of planted facts of which a memory is among the first five hits (`plain`,
`alike`, `long`, `pair` for those kinds); `superseded` the share of changed facts of which the new
value is recalled, and no memory has the old one, `stale` the share of memories that have it;
`duplicates` the share of memories that repeat another one, or say nothing that was planted, after
ten runs; `evidence_valid` the share of quotes that stand in the turn that they cite; `undone_exact`
whether all memories are as before once all runs are undone, newest first and, in another bank, in
any order that is allowed, where a refused undo changes nothing; `tokens_per_100k` what a run takes
for 100,000 tokens of history. `fix_precision` is the share of right ones among the fixes of failed
commands that the algorithm finds in transcripts, by labels that a person gave: what has none counts
as wrong. `KIND.r10` is the share of a question's evidence among 10 hits with up to 60 memories of
the chat (`KIND.memories`, on average), and `KIND.r10_off` without; `KIND.lost` is the difference in
points. A memory counts for the turn that it came from.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, NamedTuple

import perdure
from benchmarks import chats, transcripts
from benchmarks.chats import KINDS, Chat, Line
from benchmarks.harness import Report
from benchmarks.planted_facts import FACTS, Fact, planted
from perdure.bank import Bank
from perdure.config import Config, GatewayConfig, ModelsConfig, ReflectionConfig
from perdure.core.errors import Conflict
from perdure.core.messages import Message, Text
from perdure.core.turns import Position, Turn
from perdure.importers import import_files
from perdure.recall.memory_records import FormerMemory, Memory
from perdure.reflection.command_fixes import CommandFix, find_fixes, uses_of
from perdure.reflection.reflection_records import ReflectionRun
from perdure.sessions.session import Session
from perdure.testing import ReceivedRequest, ScriptedModel

RUNS, MEMORIES = 10, 60
#: Characters of a long turn that a fact stands in.
_LONG = 2_400
#: A shorter transcript has no room for the facts.
_LEAST_TURNS = 20
#: Chats of each kind that are read, and questions of each.
_CHATS, _QUESTIONS = 3, 1_000
_QUICK = 6
_PATIENCE = 60.0
METRICS = (
    *("learnt", "superseded", "duplicates", "evidence_valid", "undone_exact", "tokens_per_100k"),
    *("learnt_plain", "learnt_alike", "learnt_long", "learnt_pair", "stale"),
    *("fix_precision", "fix_labels"),
)
_turn = re.compile(r"^(s\d+#T-\d+) [SCT]:$", re.MULTILINE)
_memory = re.compile(r"^(M-\d+) \((.+)$", re.MULTILINE).findall
_pair = re.compile(r"\bthe [^,.]+ is \w+ and the [^,.]+ is \w+").search
_sentence = re.compile(r"[^.!?\n]{20,300}[.!?]").search


async def run(report: Report, *, quick: bool) -> None:
    report.figures |= dict.fromkeys(METRICS)
    report.figures |= {kind: dict.fromkeys(("r10", "r10_off", "lost")) for kind in KINDS}
    given = chats.by_kind()
    if missing := [kind for kind in KINDS if not given[kind]]:
        report.say(f"no chats of {', '.join(missing)}: name their folder with --data")
    else:
        some, few = (1, _QUICK) if quick else (_CHATS, _QUESTIONS)
        chosen = {
            kind: [chat._replace(questions=chat.questions[:few]) for chat in given[kind][:some]]
            for kind in KINDS
        }
        histories = [[_messages(line) for line in chosen[kind][0].lines] for kind in KINDS]
        if (worked := await _transcript(report)) is not None:
            histories.append(worked)
        await _learn(report, histories, quick=quick)
        for kind in KINDS:
            report.figures[kind] = await _on_and_off(report, kind, chosen[kind])
    await _fixes(report)


# Planted facts


#: What a turn of a history says.
_Said = list[Message]


class _Learnt(NamedTuple):
    #: Of each sort, how many facts there are, and how many are recalled.
    asked: Counter[str]
    found: Counter[str]
    memories: int
    extra: int
    stale: int
    quotes: int
    valid: int
    exact: bool
    tokens: int
    history: int


async def _learn(report: Report, given: Sequence[Sequence[_Said]], *, quick: bool) -> None:
    all_of_them = [
        await _learnt(said, quick=quick, newest_first=place % 2 == 0)
        for place, said in enumerate(given)
    ]

    def total(name: str) -> int:
        return sum(int(getattr(each, name)) for each in all_of_them)

    def share(*sorts: str) -> float:
        asked = sum(each.asked[sort] for each in all_of_them for sort in sorts)
        return round(sum(each.found[s] for each in all_of_them for s in sorts) / asked, 4)

    report.figures |= {
        "learnt": share("plain", "alike", "changing", "pair"),
        "superseded": share("superseded"),
        "duplicates": round(total("extra") / max(total("memories"), 1), 4),
        "evidence_valid": round(total("valid") / max(total("quotes"), 1), 4),
        "undone_exact": total("exact") / len(all_of_them),
        "tokens_per_100k": round(100_000 * total("tokens") / total("history")),
        "learnt_plain": share("plain"),
        "learnt_alike": share("alike"),
        "learnt_long": share("long"),
        "learnt_pair": share("pair"),
        "stale": round(total("stale") / max(total("memories"), 1), 4),
    }
    for name in METRICS[:11]:
        report.say(f"  {name:18} {report.figures[name]:,}")


async def _learnt(said: Sequence[_Said], *, quick: bool, newest_first: bool) -> _Learnt:
    facts, runs = planted(4 if quick else FACTS), 3 if quick else RUNS
    number, values = 0, [each for fact in facts for each in (fact.value, fact.former) if each]
    words = " ".join(message.text for messages in said for message in messages)
    assert not any(value in words for value in values), "a value is said by the chat itself"

    def answer(request: ReceivedRequest) -> str:
        found = [] if "Consolidate:" in request.prompt else _oracle(request.prompt, facts, number)
        return json.dumps({"operations": found})

    async with ScriptedModel(answer) as model, _bank(model) as bank:
        session = await bank.session("reader/chat")
        before = await _everything(bank)
        early, late = len(said) // 2, len(said)
        earlier = [fact.before if fact.former else fact for fact in facts[::2]]
        earlier += [fact.before for fact in facts[1::2] if fact.former]
        later = [fact for fact in facts[1::2] if not fact.former]
        later += [fact for fact in facts if fact.former]
        long = await _spoken(session, said[:early], earlier)
        await bank.settle()
        (first,) = await bank.reflect("reader")
        long |= await _spoken(session, said[early:late], later)
        await bank.settle()
        for number in range(1, runs):
            await bank.reflect("reader", again=number > 1)
        await bank.settle()
        asked, found = Counter[str](), Counter[str]()
        memories = await bank.memories.list("reader")
        for fact in facts:
            is_there = await _is_recalled(session, fact)
            is_old = any(fact.former in each.text for each in memories) if fact.former else False
            for sort in (fact.sort, *(["long"] if fact.value in long else [])):
                asked[sort] += 1
                found[sort] += is_there
            if fact.former:
                asked["superseded"] += 1
                found["superseded"] += is_there and not is_old
        told = Counter(
            next((value for value in values if value in each.text), "") for each in memories
        )
        quotes = [quote for each in memories for quote in each.quotes]
        valid = sum([await _stands(session, quote.turn, quote.text) for quote in quotes])
        # The first run reads the first half.
        half = sum([(await session.turn(n)).tokens or 0 for n in range(1, first.spans[0].last + 1)])
        exact = await _undone(bank, newest_first=newest_first)
        return _Learnt(
            asked=asked,
            found=found,
            memories=len(memories),
            extra=told.pop("", 0) + sum(count - 1 for count in told.values()),
            stale=sum(fact.former in told for fact in facts if fact.former),
            quotes=len(quotes),
            valid=valid,
            exact=exact and await _everything(bank) == before,
            tokens=first.tokens,
            history=half,
        )


async def _undone(bank: Bank, *, newest_first: bool) -> bool:
    """Undo all runs; whether those that were refused changed nothing."""
    left = await bank.reflection.list("reader")
    if not newest_first:
        random.Random(1).shuffle(left)
    exact = True
    while left:
        refused = list[ReflectionRun]()
        for done in left:
            before = await _everything(bank)
            try:
                await bank.reflection.undo(done.name)
            except Conflict:
                refused.append(done)
                exact = exact and await _everything(bank) == before
        if len(refused) == len(left):
            return False
        left = refused
    return exact


def _oracle(prompt: str, facts: Sequence[Fact], run: int) -> list[dict[str, Any]]:
    """What a good model finds of the facts in what it is shown; in other words each run."""
    known, _, records = prompt.partition("\nRecords:\n")
    found = list[dict[str, Any]]()
    for turn, text in _turns(records):
        for place, fact in enumerate(facts):
            if fact.former and fact.former in text:  # it believes that this is news
                quote = _quoted(text, fact.former, run)
                found.append(_added(fact.before.worded(run), turn, quote))
            if fact.value not in text:
                continue
            quote = _quoted(text, fact.value, run)
            keys = [key for key, line in _memory(known) if fact.former and fact.former in line]
            cited = {"evidence": [{"turn": turn, "quote": quote}]}
            if keys and place % 2:
                update = {"op": "update", "keys": keys[:1], "text": fact.worded(run), **cited}
                found.append(update)
                continue
            found += [{"op": "retire", "keys": [key], **cited} for key in keys]
            found.append(_added(fact.worded(run), turn, quote))
    return found


def _quoted(text: str, value: str, run: int) -> str:
    """Some words around a value; not always the same."""
    line = next(line for line in text.splitlines() if value in line)
    if (pair := _pair(line)) is not None and value in pair[0]:
        return pair[0]  # two facts, and both in the quote
    words = line.removeprefix("> ").split()
    at = next(place for place, word in enumerate(words) if value in word)
    return " ".join(words[max(at - 4 - run % 3, 0) : at + 1 + run % 2])


def _turns(prompt: str) -> Iterable[tuple[str, str]]:
    parts = _turn.split(prompt)
    return zip(parts[1::2], parts[2::2], strict=True)


def _added(text: str, turn: str, quote: str) -> dict[str, Any]:
    cited = [{"turn": turn, "quote": quote}]
    return {"op": "add", "kind": "fact", "text": text, "evidence": cited}


async def _is_recalled(session: Session, fact: Fact) -> bool:
    found = await session.recall(fact.asked, limit=5, deadline=_PATIENCE)
    return any(hit.kind == "memory" and fact.value in hit.text for hit in found.hits[:5])


async def _stands(session: Session, turn: str, quote: str) -> bool:
    """Whether a quote stands in its turn, looked up by another way than reflection's."""
    number = Position.parse(turn.rpartition("#")[2]).turn
    said = "\n".join(message.text for message in (await session.turn(number)).messages)
    return " ".join(quote.split()).casefold() in " ".join(said.split()).casefold()


async def _everything(bank: Bank) -> list[Any]:
    memories = [each async for each in bank.collection(Memory).walk()]
    return [memories, [each async for each in bank.collection(FormerMemory).walk()]]


# Recall with memories, and without


async def _on_and_off(report: Report, kind: str, given: Sequence[Chat]) -> dict[str, float]:
    sums, asked, memories = {True: 0.0, False: 0.0}, 0, 0
    for chat in given:
        asked += len(chat.questions)
        for on in (True, False):
            found, made = await _evidence_found(chat, on=on)
            sums[on] += found
            memories += made
    here, off = sums[True] / asked, sums[False] / asked
    report.say(f"  {kind:10} r10 {100 * here:5.1f}, without memories {100 * off:5.1f}")
    return {
        "r10": round(here, 4),
        "r10_off": round(off, 4),
        "lost": round(100 * (off - here), 2),
        "memories": round(memories / len(given)),
    }


async def _evidence_found(chat: Chat, *, on: bool) -> tuple[float, int]:
    """The sum, over the questions, of the shares of their evidence among ten hits; and how many
    memories there are.
    """
    step = max(len(chat.lines) // MEMORIES, 1)

    def answer(request: ReceivedRequest) -> str:
        if "Consolidate:" in request.prompt:
            return json.dumps({"operations": []})
        return json.dumps({"operations": _gist(request.prompt, step)})

    async with ScriptedModel(answer) as model, _bank(model) as bank:
        session = await bank.session("reader/chat")
        await _spoken(session, [_messages(line) for line in chat.lines])
        await bank.settle()
        if on:
            await bank.reflect("reader")
        await bank.settle()
        total = 0.0
        for asked in chat.questions:
            hits = (await session.recall(asked.text, limit=10, deadline=_PATIENCE)).hits[:10]
            keys = [hit.key for hit in hits if hit.kind == "memory"]
            found = {Position.parse(hit.turn).turn for hit in hits if hit.kind == "turn"}
            for memory in await bank.memories.get_many(keys, agent="reader"):
                sources = () if memory is None else memory.provenance
                found |= {Position.parse(each.rpartition("#")[2]).turn for each in sources}
            total += len(found.intersection(asked.evidence)) / len(asked.evidence)
        return total, len(await bank.memories.list("reader"))


def _gist(prompt: str, step: int) -> list[dict[str, Any]]:
    """A sentence of every so many turns, as a memory."""
    found = list[dict[str, Any]]()
    for place, (turn, text) in enumerate(_turns(prompt)):
        said = _sentence(text.replace("\n> ", "\n").partition(": ")[2])
        if place % step == 0 and said is not None:
            found.append(_added(said[0].strip(), turn, said[0].strip()))
    return found


# Fixes of failed commands

#: What a person found to be right, of the transcripts of development: all 40 commands that failed
#: there were read, with the eight calls behind each. Right is a fix if the file that was changed is
#: the one that the error comes from, or the other call is what the error asks for.
_RIGHT = frozenset(
    {
        "bb55329386464fc1",  # pytest could not import the package; with PYTHONPATH it can
        "1368034731952a32",  # a wrong escape in a schema; the schema was mended
        "173bfbdf167beed1",  # a comma was missing in a schema; the schema was mended
        "f06afbc34805f349",  # the same, later
        "22dd0bf1de54f4b8",  # an f-string with a backslash in two modules; both were mended
        "eae389376a42a84b",  # pytest failed on a text in a test; the test was mended
        "84deb4b41cfe81cf",  # pytest failed on a missing command; the module was mended
        "7cec7b1b299b77b1",  # git push without an upstream branch
        "7be310b843b87ea9",  # the same in another work tree
        "9d785bd46cd8f2c0",  # mix test failed on an assertion; the test was mended
    }
)


async def _fixes(report: Report) -> None:
    given = transcripts.found(report)
    if given is None:
        return
    found = list[CommandFix]()
    async with perdure.open("memory://") as bank:
        for name, paths in given.paths.items():
            await import_files(bank, name, paths)
        for info in await bank.sessions(archived=True):
            session = await bank.existing_session(info.name)
            turns = [turn async for turn in _all_turns(session)]
            found += find_fixes(use for turn in turns for use in uses_of(turn))
    right = sum(labelled(fix) in _RIGHT for fix in found)
    report.figures["fix_precision"] = round(right / len(found), 4) if found else None
    report.figures["fix_labels"] = len(_RIGHT)
    report.say(f"  fixes              {right} of {len(found)} are right")


def labelled(fix: CommandFix) -> str:
    """A fix by what a label is kept for: transcripts are never part of the repository."""
    return hashlib.blake2b(fix.text.encode(), digest_size=8).hexdigest()


async def _all_turns(session: Session) -> AsyncIterator[Turn]:
    head = await session.head()
    for number in range(1, head.turn + 1):
        yield await session.turn(number)


# Banks


def _bank(model: ScriptedModel) -> Bank:
    gateway = GatewayConfig(
        providers={"oracle": model.provider_config()}, models=ModelsConfig(reflect="oracle/any")
    )
    return perdure.open(
        "memory://",
        config=Config(gateway=gateway, reflection=ReflectionConfig(tokens=None)),
    )


async def _spoken(session: Session, said: Sequence[_Said], facts: Sequence[Fact] = ()) -> set[str]:
    """Hold a chat, with a fact after every so many turns; the values of those that stand in the
    middle of a long one.
    """
    every = max(len(said) // (len(facts) + 1), 1)
    waiting, long = [fact for fact in facts if fact.said], set[str]()
    for number, messages in enumerate(said, 1):
        await session.append(messages, fresh=True)
        if waiting and number % every == 0:
            fact = waiting.pop(0)
            text = fact.said
            if number // every % 2:
                long.add(fact.value)
                words = " ".join(each.text for some in said[number - 12 : number] for each in some)
                half = words[: _LONG // 2].rpartition(" ")[0], words[_LONG // 2 : _LONG]
                text = f"{half[0]}. {text} {half[1].partition(' ')[2]}"
            spoken = Line("", text, messages[0].time or 0, "Noted.")
            await session.append(_messages(spoken), fresh=True)
    return long


async def _transcript(report: Report) -> list[_Said] | None:
    """The turns of a coding agent, its tools included; None if no transcript is long enough."""
    given = transcripts.found(report)
    if given is None:
        return None
    async with perdure.open("memory://") as bank:
        for name, paths in given.paths.items():
            await import_files(bank, name, paths)
        infos = await bank.sessions(archived=True)
        longest = max(infos, key=lambda info: info.turns)
        session = await bank.existing_session(longest.name)
        said = [list(turn.messages) async for turn in _all_turns(session)]
        return said if len(said) >= _LEAST_TURNS else None


def _messages(line: Line) -> list[Message]:
    said = Message("user", (Text(line.text),), name=line.speaker, time=line.time)
    if not line.reply:
        return [said]
    return [said, Message("assistant", (Text(line.reply),), time=line.time)]
