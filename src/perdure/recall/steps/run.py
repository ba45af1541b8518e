"""One recall under way: what has arrived so far. At any moment it has an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Self

import msgspec

from perdure.config.settings import RecallConfig
from perdure.core.clock import SECOND
from perdure.core.errors import InvalidInput, PerdureError
from perdure.recall import hit_keys
from perdure.recall.memories.contradictions import in_reading_order
from perdure.recall.steps import key_lookup, swarm
from perdure.recall.steps.hit_texts import as_it_stands
from perdure.recall.steps.hops import Neighbour
from perdure.recall.steps.key_lookup import Named
from perdure.recall.steps.swarm import Case, Choice
from perdure.recall.values import (
    LATE,
    STAGES,
    Candidate,
    Hit,
    Question,
    Recalled,
    Shown,
    Stage,
    Step,
)

#: Kept of the deadline to put the answer together.
_MARGIN = 0.015
_UNREAD = Shown("T", "", 0)


class Under:
    """A step that is under way. Leaving it notes how it went; see `Run.step`."""

    def __init__(self, run: Run, name: str, *, answers: bool, asks: bool) -> None:
        self.name, self.failed = name, ""
        self._refused = InvalidInput if asks else ()
        self._run = run
        self._answers = answers
        self._began = asyncio.get_running_loop().time()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if isinstance(error, TimeoutError):
            self.failed = LATE
        elif isinstance(error, PerdureError) and not isinstance(error, self._refused):
            self.failed = error.message
        elif error is not None:
            return False  # a mistake, or the deadline: `Run.answer` tells of that
        if self._answers and not self.failed:
            self._run.reach(self.name)
        self._run.noted(self)
        return True

    def so_far(self, left: int, failed: str) -> Step:
        took = (asyncio.get_running_loop().time() - self._began) * 1_000
        return Step(name=self.name, took_ms=round(took, 3), left=left, failed=failed)


class Run:
    """What one question has found. For one event loop."""

    def __init__(
        self,
        question: Question,
        config: RecallConfig,
        seconds: float,
        *,
        prompt: str,
        shown: Collection[str] = (),
        judged: bool = True,
        beside: bool = False,
        models: bool = False,
    ) -> None:
        """If it is to stand `beside` the prompt, neighbours do not count to the limit. With
        `models`, these look at more candidates than are shown.
        """
        self.question, self.prompt = question, prompt
        self.judged, self._is_beside, self._has_models = judged, beside, models
        self._config = config
        self._shown = shown
        self._began = self._now()
        self.seconds = seconds
        self._ends = self._began + seconds
        self._steps = list[Step]()
        self._under_way: Under | None = None
        self._gone = set[int]()
        self.stage: Stage = "none"
        #: Ranked, best first; nothing that stands in the window, or is gone.
        self.candidates: tuple[Candidate, ...] = ()
        self.neighbours: tuple[Neighbour, ...] = ()
        #: What the question names by its key: it stands in front of every ranking.
        self.named = Named()
        self.full: dict[int, Shown] = {}
        self.tiny: dict[int, Shown] = {}
        #: What happened in the session, a line for each turn.
        self.lately: Sequence[str] = ()
        #: Layers that a word of the prompt calls for, and what a filter calls irrelevant.
        self.triggered: frozenset[int] = frozenset()
        self.doubted: frozenset[int] = frozenset()
        #: What a model chose.
        self.choice: Choice | None = None

    # Time --------------------------------------------------------------------------------------

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def left(self, kept: float = 0.0) -> float:
        """Seconds until the answer has to be put together, without `kept` for others."""
        return self._ends - _MARGIN - kept - self._now()

    def step(self, name: str, *, answers: bool = False, asks: bool = False) -> Under:
        """Keep time, and note what goes wrong, which is not raised.

        If all goes well, a step that `answers` is the stage that was reached. One that `asks` tells
        by `InvalidInput` that the question cannot be meant: that is raised.
        """
        self._under_way = Under(self, name, answers=answers, asks=asks)
        return self._under_way

    def noted(self, step: Under) -> None:
        """Take note of a step that has ended."""
        self._under_way = None
        self._steps.append(step.so_far(len(self.candidates), step.failed))

    def skip(self, name: str, why: str) -> None:
        """Take note of a step that is not done."""
        self._steps.append(Step(name=name, took_ms=0.0, left=len(self.candidates), failed=why))

    def reach(self, name: str) -> None:
        """Note the stage of this name, if it is further than the one before."""
        self.stage = max(self.stage, *(s for s in STAGES if s == name), key=STAGES.index)

    # What arrives ------------------------------------------------------------------------------

    @property
    def most(self) -> int:
        """Candidates that are looked at, at most."""
        limit = self.question.limit
        return max(limit, self._config.swarm) if self._has_models else limit

    @property
    def sought(self) -> Question:
        """The question with as many hits as are looked at."""
        if self.most == self.question.limit:
            return self.question
        return msgspec.structs.replace(self.question, limit=self.most)

    def rank(self, candidates: Sequence[Candidate]) -> None:
        """Take a ranking instead of the one before."""
        first = {each.place for each in self.named.candidates}
        others = [each for each in candidates if each.place not in first]
        ranked = (*self.named.candidates, *in_reading_order(others, self.full))
        there = [self._with_key(each) for each in ranked if each.place not in self._gone]
        self.candidates = tuple(each for each in there if not self._stands_there(each))[: self.most]

    def case(self) -> Case:
        """What models are asked to look at."""
        return Case(
            question=self.question,
            prompt=self.prompt,
            candidates=self.candidates,
            texts={place: shown.text for place, shown in self.full.items()},
            lately=self.lately,
        )

    def read(self, wanted: Sequence[Candidate], texts: dict[int, Shown]) -> None:
        """Take the words of these; what has none is gone: taken back, forgotten, retired."""
        self.full |= texts
        self._gone |= {each.place for each in wanted if each.place not in texts}
        self.rank(self.candidates)

    def _with_key(self, candidate: Candidate) -> Candidate:
        """With the key that it is fetched by: the index knows reference layers by number."""
        shown = self.full.get(candidate.place)
        if shown is None or shown.key in {"", candidate.key}:
            return candidate
        return msgspec.structs.replace(candidate, key=shown.key)

    def _stands_there(self, candidate: Candidate) -> bool:
        """Whether it stands in the window in full: the round itself, or all of its turn."""
        if not self._shown:
            return False
        key = candidate.key
        here = hit_keys.here(self.question.record, key)
        names = {key, here}
        if candidate.kind == "turn":
            names |= {name.rpartition(".")[0] for name in (key, here)}
        return not names.isdisjoint(self._shown)

    # The answer --------------------------------------------------------------------------------

    def answer(self) -> Recalled:
        """What is known by now. A step that is under way is told to have missed the deadline."""
        steps = list(self._steps)
        if self._under_way is not None:
            steps.append(self._under_way.so_far(len(self.candidates), LATE))
        return Recalled(
            stage=self.stage,
            took_ms=round((self._now() - self._began) * 1_000, 3),
            hits=tuple(self._chosen() if self.judged else self._found()),
            steps=tuple(steps),
            notes=self._notes(),
        )

    def _notes(self) -> tuple[str, ...]:
        """That the question is a key of nothing, if it is known to be."""
        if not self.named.alone or any(c.place not in self._gone for c in self.named.candidates):
            return ()
        return (key_lookup.absent(self.named.alone, self.question.record.agent),)

    def _fetchable(self) -> tuple[Candidate, ...]:
        """Those that are known to be there, and by which key.

        The key of a layer, and whether there is what a question names, is not known before it was
        read.
        """
        return tuple(
            each
            for each in self.candidates
            if each.place in self.full or not (each.named or each.kind == "reference")
        )

    def _found(self) -> list[Hit]:
        """The best, in full. Nothing, if nothing is likely."""
        best = swarm.met(self._fetchable())[: self.question.limit]
        return [self._hit(each, full=each.place in self.full) for each in best]

    def _chosen(self) -> list[Hit]:
        """What a model chose, or an algorithm, as far as there is room; neighbours behind each.

        What was found comes first: whoever asks for so many gets neighbours in the places left.
        """
        by_place = {each.place: each for each in self.candidates}
        choice = self.choice
        if choice is None:
            sifted = swarm.sift(self._fetchable(), self.triggered, self.question.likely)
            choice = swarm.by_algorithm(sifted, self.doubted, self.triggered)
        else:
            full = in_reading_order([by_place[place] for place in choice.full], self.full)
            choice = Choice(tuple(each.place for each in full), choice.ticklers)
        choice = swarm.capped(
            choice,
            by_place,
            self.full,
            self.tiny,
            config=self._config,
            limit=self.question.limit,
        )
        room = self._config.full_tokens - sum(
            self.full[place].tokens for place in choice.full if by_place[place].kind == "turn"
        )
        places = self.question.limit - len(choice.full) - len(choice.ticklers)
        hits = list[Hit]()
        for place in choice.full:
            hits.append(self._hit(by_place[place]))
            for beside in self.neighbours:
                if beside.of != place or (places <= 0 and not self._is_beside):
                    continue
                shown = self.full.get(beside.candidate.place)
                if shown is not None and shown.tokens <= room:
                    room, places = room - shown.tokens, places - 1
                    hits.append(self._hit(beside.candidate, neighbour=True))
        return hits + [self._hit(by_place[place], full=False) for place in choice.ticklers]

    def _hit(self, candidate: Candidate, *, full: bool = True, neighbour: bool = False) -> Hit:
        shown = (self.full if full else self.tiny).get(candidate.place, _UNREAD)
        key = hit_keys.here(self.question.record, candidate.key)
        return Hit(
            kind=candidate.kind,
            turn=key if candidate.kind == "turn" else "",
            key=key,
            level=shown.level,
            score=round(candidate.score, 4),
            why=as_it_stands(candidate.why, shown.text),
            text=shown.text,
            time=shown.time or candidate.note.time * SECOND,
            tokens=shown.tokens,
            full=full,
            neighbour=neighbour,
            tools=candidate.note.tools,
            tags=candidate.note.tags,
        )
