"""What reflection finds without a model.

Rightly, so it is kept: what fixed a failed command, which files are worked on most, what is asked
again and again. The rest is noise more often than not, so it is only left in the inbox, marked as a
candidate: sentences that sound like a preference or a decision, and words that could be topics.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from perdure.core.display import one_line
from perdure.core.turns import Turn
from perdure.recall.memories.similar_memories import normalised
from perdure.recall.memory_records import Memory
from perdure.reflection import view
from perdure.reflection.cited_turns import Citation, EvidenceFinder
from perdure.reflection.command_fixes import ToolUse, find_fixes, uses_of
from perdure.reflection.inbox import InboxMessage
from perdure.reflection.operation_checks import CheckedOperation, MemoryOperation
from perdure.reflection.reflection_records import ReflectionRun
from perdure.reflection.run_messages import message
from perdure.reflection.run_scope import RunScope
from perdure.reflection.word_sets import prefix_size, word_set
from perdure.services import Services
from perdure.storage.concurrency import in_thread

#: The tag of the memory that names the files that are worked on most.
HOT_FILES = "hot files"
#: Edits of a file, at least; files that are named; turns of an agent that are looked at.
_EDITS, _FILES, _TURNS = 3, 5, 2_000
#: How often a question must be asked, and characters of it.
_ASKED, _QUESTION = 3, 300
#: Words that count: of one that is asked in nearly the same words, and in the very same.
_WORDS, _WORDS_VERBATIM = 4, 2
#: Share of words that two questions have in common, if they are one.
_SAME = 0.8
#: Candidates of each kind in a run.
_CANDIDATES = 8
#: Turns that speak of a word, at least, if it could be a topic.
_SPOKEN = 5
_BATCH = 64

#: Nobody's topics, beside those that the search leaves out.
_FUNCTION_WORDS = frozenset(
    """
    across against almost along already although always among another anyone anything around
    because behind beside besides beyond during either enough every everyone everything except
    first however inside instead later least maybe might neither never nothing often otherwise
    outside perhaps quite rather really second since someone something sometimes somewhere still
    therefore thing things third though through throughout today together tomorrow toward towards
    under unless until upon usually wherever whether while within without yesterday
    """.split()  # noqa: SIM905 - as a list it would take a page
)
_sentences = re.compile(r"(?<=[.!?])\s+|\n+").split
_wish = re.compile(
    r"\b(?:always|never|from now on|i (?:really )?prefer|please don't|do not ever|make sure to"
    r"|we use|we decided|let's go with|remember (?:that|to))\b",
    re.IGNORECASE,
).search
_decided = re.compile(r"\b(?:we decided|let's go with|we use)\b", re.IGNORECASE).search


class AlgorithmFindings(msgspec.Struct, frozen=True):
    """What is right, and what may be."""

    operations: tuple[CheckedOperation, ...] = ()
    messages: tuple[InboxMessage, ...] = ()


async def find_by_algorithm(
    services: Services,
    scope: RunScope,
    run: ReflectionRun,
    finder: EvidenceFinder,
    memories: Sequence[Memory],
) -> AlgorithmFindings:
    """What can be found without a model, with evidence that code finds, too."""
    recent = [turn async for turn in _recent_turns(services, scope)]

    def look() -> tuple[list[MemoryOperation], list[MemoryOperation]]:
        new = [turn for turn in recent if _is_new(turn, scope)]
        uses = {_key(turn): list(uses_of(turn)) for turn in recent}
        right = [*_fixes(new, uses), *_hot_files(uses, memories), *_repeated_questions(recent)]
        return right, [*_wishes(new), *_topics(recent, memories)]

    asked, perhaps = await in_thread(look)  # thousands of turns take a while
    versions = {memory.key: memory.version for memory in memories}
    operations = [
        replace(each, versions=versions)
        for each in [await _checked(op, finder) for op in asked]
        if each is not None
    ]
    messages = list[InboxMessage]()
    for op in perhaps:
        if (checked := await _checked(op, finder)) is not None:
            messages.append(_candidate(run, checked))
    return AlgorithmFindings(tuple(operations), tuple(messages))


async def _recent_turns(services: Services, scope: RunScope) -> AsyncIterator[Turn]:
    """The newest turns of an agent, session by session, oldest first in each."""
    left = _TURNS
    for record, head in sorted(
        scope.sessions.values(), key=lambda each: (-each[1].said, each[0].id)
    ):
        first = max(record.forked_at + 1, head.turn - left + 1)
        for start in range(first, head.turn + 1, _BATCH):
            last = min(start + _BATCH - 1, head.turn)
            for turn in await services.reader.turns(
                record, head, start, last, counted=False, arriving=False
            ):
                if view.is_read(turn):
                    left -= 1
                    yield turn
        if left <= 0:
            return


def _is_new(turn: Turn, scope: RunScope) -> bool:
    return any(
        span.session == turn.session and span.first <= turn.number <= span.last
        for span in scope.spans
    )


def _key(turn: Turn) -> str:
    return f"{turn.session}#T-{turn.number}"


def _fixes(
    turns: Sequence[Turn], uses: Mapping[str, Sequence[ToolUse]]
) -> Iterator[MemoryOperation]:
    by_session = defaultdict[str, list[ToolUse]](list)
    for turn in turns:
        by_session[turn.session] += uses[_key(turn)]
    for session, some in by_session.items():
        for fix in find_fixes(some):
            at = f"{session}#T-{fix.turn}"
            yield MemoryOperation(
                op="add",
                kind="lesson",
                text=fix.text,
                tags=("command",),
                evidence=(Citation(at, fix.error), Citation(at, fix.failed)),
            )


def _hot_files(
    uses: Mapping[str, Sequence[ToolUse]], memories: Sequence[Memory]
) -> Iterator[MemoryOperation]:
    edits, newest = Counter[str](), dict[str, str]()
    for turn, some in uses.items():
        for path in (path for use in some for path in use.edited):
            edits[path] += 1
            newest[path] = turn
    hot = [path for path, count in edits.most_common(_FILES) if count >= _EDITS]
    if not hot:
        return
    text = f"Most worked on: {', '.join(sorted(hot))}."
    known = [memory for memory in memories if HOT_FILES in memory.tags and memory.is_active]
    if any(memory.text == text for memory in known):
        return
    evidence = tuple(Citation(newest[path], path) for path in hot)
    if known:
        yield MemoryOperation(op="update", keys=(known[0].key,), text=text, evidence=evidence)
    else:
        yield MemoryOperation(
            op="add", kind="fact", text=text, tags=(HOT_FILES,), evidence=evidence
        )


def _repeated_questions(turns: Sequence[Turn]) -> Iterator[MemoryOperation]:
    asked = [(turn, word_set(turn.prompt)) for turn in turns if _is_question(turn.prompt)]
    counts = Counter(word for _, words in asked for word in words)
    groups = list[tuple[frozenset[str], list[Turn]]]()
    #: Groups by the words that questions must have one of, to belong there.
    having = defaultdict[str, list[int]](list)
    for turn, words in asked:
        if len(words) < _WORDS_VERBATIM:
            continue
        ordered = sorted(words, key=lambda word: (counts[word], word))
        first = ordered[: prefix_size(len(words), _SAME)]
        for place in sorted({place for word in first for place in having[word]}):
            known, some = groups[place]
            if len(words) < _WORDS:
                same = normalised(some[0].prompt) == normalised(turn.prompt)
            else:
                same = len(known & words) >= _SAME * max(len(known), len(words))
            if same:
                some.append(turn)
                break
        else:
            for word in first:
                having[word].append(len(groups))
            groups.append((words, [turn]))
    for _, some in groups:
        if len(some) >= _ASKED:
            question = one_line(some[-1].prompt, _QUESTION)
            yield MemoryOperation(
                op="add",
                kind="pattern",
                text=f"Is asked again and again: “{question}”",
                evidence=tuple(Citation(_key(turn), turn.prompt) for turn in some[-_ASKED:]),
            )


def _is_question(prompt: str) -> bool:
    return "?" in prompt and len(prompt.strip()) <= _QUESTION


def _wishes(turns: Sequence[Turn]) -> Iterator[MemoryOperation]:
    found = 0
    for turn in turns:
        for sentence in _sentences(turn.prompt):
            said = " ".join(sentence.split())
            if found < _CANDIDATES and 20 <= len(said) <= _QUESTION and _wish(said):
                found += 1
                yield MemoryOperation(
                    op="add",
                    kind="decision" if _decided(said) else "preference",
                    text=said,
                    evidence=(Citation(_key(turn), said),),
                )


def _topics(turns: Sequence[Turn], memories: Sequence[Memory]) -> Iterator[MemoryOperation]:
    """Words that several prompts have; the rarer elsewhere in the language, nobody knows."""
    known = {normalised(memory.text) for memory in memories if memory.kind == "topic"}
    spoken, where = Counter[str](), dict[str, tuple[Turn, str]]()
    for turn in turns:
        for word in {word for word in re.findall(r"[^\W\d_]{5,}", turn.prompt) if word.islower()}:
            spoken[word] += 1
            where[word] = turn, word
    few = len(turns) // 4
    fitting = [word for word, count in spoken.most_common() if _SPOKEN <= count <= few]
    able = [word for word in fitting if word not in known and not _is_function_word(word)]
    for word in able[: _CANDIDATES // 2]:
        turn, _ = where[word]
        yield MemoryOperation(
            op="topic", text=word, evidence=(Citation(_key(turn), _around(turn.prompt, word)),)
        )


def _is_function_word(word: str) -> bool:
    return word in _FUNCTION_WORDS or not word_set(word)


def _around(text: str, word: str) -> str:
    """Some words around one of a text."""
    flat = " ".join(text.split())
    place = flat.find(word)
    start = flat.rfind(" ", 0, max(place - 20, 0)) + 1
    end = flat.find(" ", place + len(word) + 20)
    return flat[start : end if end > 0 else len(flat)]


async def _checked(asked: MemoryOperation, finder: EvidenceFinder) -> CheckedOperation | None:
    found = [await finder.find(citation, {}, short=True) for citation in asked.evidence]
    there = [each for each in found if each is not None]
    if not there:
        return None
    quotes = tuple(dict.fromkeys(quote for quote, _ in there))
    return CheckedOperation(asked, quotes, max(turn.time for _, turn in there))


def _candidate(run: ReflectionRun, checked: CheckedOperation) -> InboxMessage:
    asked = checked.asked
    title = f"Perhaps a {asked.kind or 'topic'}: {asked.text}"
    made = message(run, "candidate", title, "\n".join(_told(checked)))
    return replace(made, operation=asked, quotes=checked.quotes)


def _told(checked: CheckedOperation) -> Iterable[str]:
    yield "Found by its form, without a model. Accept it to remember it."
    for quote in checked.quotes:
        yield f"{quote.turn}: “{quote.text}”"
