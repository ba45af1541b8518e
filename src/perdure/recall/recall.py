"""What a session, its prompts and its model's tools ask of the past. `services` makes it."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from perdure.config.settings import RecallConfig
from perdure.core.errors import PerdureError
from perdure.core.messages import Message
from perdure.core.tokens import Counter
from perdure.core.turns import Position
from perdure.history.forget_sessions import Forgetting
from perdure.history.log_records import Head, SessionRecord
from perdure.history.turn_log import Written
from perdure.recall import memory_layer
from perdure.recall.hit_keys import everywhere
from perdure.recall.indexing.index import index_notes
from perdure.recall.indexing.index_forgetting import IndexPlace
from perdure.recall.memories.memory_forgetting import MemoryTraces
from perdure.recall.memory_layer import Item, LayerLimits, MemoryLayer, Window
from perdure.recall.memory_records import WEIGHTS, Memory
from perdure.recall.memory_records import shown as shown_key
from perdure.recall.scoping.explain_filters import Names, loosened, missed
from perdure.recall.scoping.lines import UndoneTurns
from perdure.recall.searching.cues import cues
from perdure.recall.sharing import Sharing
from perdure.recall.ticklers import Ticklers
from perdure.recall.values import LATE, NO_MODEL, Filters, Hit, Question, Recalled, Step
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

if TYPE_CHECKING:
    from perdure.recall.background_tasks import Ahead
    from perdure.recall.indexing.index import RecallIndex
    from perdure.recall.memories.memories import Memories
    from perdure.recall.references.references import References
    from perdure.recall.scoping.scope import Scopes
    from perdure.recall.steps.pipeline import Pipeline

#: Hits that are asked for, for each pointer that may stand beside a prompt: some stand there
#: already, some have no room. Tokens that a passage takes at least; passages beside a prompt.
_SPARE, _PASSAGE, _MOST_PASSAGES = 2, 25, 100
#: Beside a prompt, a round with a longer reply is shown in part, in about so many tokens.
_IN_PART = 100
#: In a large budget, what stands beside a prompt must be likely, as it stays in the window and is
#: read many times; in a small one there is no other way to see much of the past. From so many
#: tokens on, up to so many, the share of the best score that is asked for grows to the last.
_EASY, _CHOOSY, _LIKELY = 8_000, 100_000, 0.03
#: Characters of a question that are looked at: of a longer one, its beginning and its end. Whoever
#: pastes a log asks before it or behind it; all of it would take longer than the deadline.
_MOST_TEXT = 100_000
#: Hits without a filter that a note about the filter is made of.
_AGAIN = 50
#: How much the weight of a topic moves the score of what belongs to it: from 0.93 to 1.18 of it.
_TOPIC = 0.25
#: Words of prompts that go on with what stands in the window anyway: “OK, continue.”, “Yes to all”.
#: By them one finds other prompts that say as little, and what happened to follow those.
_GO_ON = (
    "a again ahead all and both continue do done fine further go going good great it keep more next"
    " no now ok okay on pause perfect please proceed resume same start sure thank thanks that the"
    " them then this to try yeah yep yes you weiter ja bitte danke nein oui non continuez merci si"
    " sí continúa sigue gracias да нет дальше продолжай 继续 好 好的 是 是的 続けて はい"
)
_NOTHING = frozenset(_GO_ON.split())
#: What is so if a step's models fail.
_INSTEAD = {
    "filters": "Not all of it was filtered by a model.",
    "judge": "An algorithm judged, as no model did.",
}
_NO_WORDS = (
    "The question has no word that something could be found by."
    " Name a thing, a person, a file or a day."
)
#: What is so if a step was late that no model does.
_LATE = {
    "vector": "Found by words only: what is similar in meaning was late. Ask again.",
    "texts": "Not all of it could be read before the deadline. Ask again.",
}
_words = re.compile(r"\w+").findall

_log = logging.getLogger(__name__)


class Recall:
    """Answers what the past has to say; one for all sessions of a bank."""

    def __init__(
        self,
        store: Store,
        config: RecallConfig,
        *,
        index: RecallIndex,
        scopes: Scopes,
        pipeline: Pipeline,
        memories: Memories,
        references: References,
        embedder: Ahead,
        counter: Callable[[], Counter],
    ) -> None:
        self.config = config
        self.index, self.memories, self.references = index, memories, references
        self.ticklers = Ticklers(store)
        self._store = store
        self._scopes, self._pipeline, self._embedder = scopes, pipeline, embedder
        self._names = Names(store, scopes)
        # Read when it is first needed: it takes a while.
        self._counter = counter
        self._is_started = False
        self._starting = asyncio.Lock()
        self._syncing: asyncio.Task[None] | None = None

    # Its life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin the work in the background. Safe to call again; a damaged index does not raise."""
        if self._is_started:
            return
        async with self._starting:
            if not self._is_started:
                await self._start()

    async def _start(self) -> None:
        try:
            await self.index.start()
            self._is_started = True
        except PerdureError as exc:  # nobody's append fails for it; the next tries again
            _log.warning("The index of recall cannot be used: %s", exc)
        self._pipeline.warm()
        if self._syncing is None:
            self._syncing = asyncio.create_task(self._sync(), name="perdure-references")

    async def _sync(self) -> None:
        try:
            await self.references.sync()
        except PerdureError as exc:
            _log.warning("The reference layers could not be read: %s", exc)

    async def stop(self) -> None:
        """End what is under way in the background; what is left is done later."""
        if self._syncing is not None:
            self._syncing.cancel()
            await asyncio.wait({self._syncing})
        await self._pipeline.close()
        await self._embedder.close()
        await self.index.stop()

    async def settle(self) -> None:
        """Wait until everything is indexed and has its vector."""
        if self._syncing is not None:
            await asyncio.wait({self._syncing})
        await self.index.settle()

    async def hook(self, transaction: Transaction, written: Written) -> None:
        """Index what an importer appends, in its transaction: see `AppendHook`."""
        await self.start()
        await self.index.hook(transaction, written)

    def join(self, forgetting: Forgetting) -> None:
        """Have everything of recall's forgotten that is forgotten."""
        index, traces = IndexPlace(self.index), MemoryTraces(self._store, self.memories)
        undone = UndoneTurns(self._store)
        for place in (index, traces, Sharing(self._store), undone, self.ticklers):
            forgetting.join(place)
        forgetting.rerooting += [index.inherit, traces.inherit, undone.inherit]
        forgetting.rerooted.append(index.rerooted)

    # Questions --------------------------------------------------------------------------------

    async def recall(
        self,
        question: Question,
        *,
        judged: bool = False,
        deadline: float | None = None,
        explains: bool = True,
    ) -> Recalled:
        """What answers a question, best first. Without `judged`, no model is asked.

        `deadline` is in seconds; without it, the configured one holds. `Recalled.notes` says so if
        something is wrong with the index, if the search or a model failed, if the question is a key
        of nothing, or has small words only; and, if it `explains` that, why filters left nothing.

        Raises `InvalidInput` if the filters name a session or an agent that is not there.
        """
        question = msgspec.structs.replace(question, text=_looked_at(question.text))
        await self._prepared()
        if question.filters.sessions or question.filters.agents:
            await self._caught_up(question.record)
        await self._names.check(question)
        seconds = self.config.deadline if deadline is None else deadline
        found = await self._pipeline.recall(question, judged=judged, deadline=seconds)
        left = seconds - found.took_ms / 1_000
        notes = await self._notes(question, found, left if explains else None)
        return msgspec.structs.replace(found, notes=notes) if notes else found

    async def sees(self, record: SessionRecord, head: Head, session: str) -> bool:
        """Whether a session may see anything of another; not, if that is not there."""
        question = Question(text="", record=record, head=head, moment=self._store.now())
        await self._caught_up(record)
        return await self._names.sees(question, session)

    async def memory_layer(
        self, window: Window, prompt: Sequence[Message], budget: int, whole: int | None = None
    ) -> MemoryLayer:
        """The memory layer of a prompt, in at most `budget` tokens; in `whole`, with reference
        layers.

        Never raises for what goes wrong in recall: a prompt without memories is better than none.
        """
        record, shown = window.record, window.shown
        if not self.config.on or budget <= 0:
            return MemoryLayer()
        question = Question(
            text=_looked_at("\n".join(filter(None, (message.text for message in prompt)))),
            record=record,
            head=window.head,
            limit=min(max(_SPARE * self.config.pointers, budget // _PASSAGE), _MOST_PASSAGES),
            moment=self._store.now(),
            passage=_IN_PART,
            likely=_LIKELY * min(max(window.budget - _EASY, 0) / (_CHOOSY - _EASY), 1.0),
        )
        if _says_nothing(question.text) or not question.limit:
            return MemoryLayer()
        try:
            await self._prepared()
            own = {key.removeprefix(f"{record.agent}/") for key in shown if "#" not in key}
            found = await self._pipeline.recall(
                question,
                prompt=prompt,
                shown=shown | own,
                room=min(budget, self.config.full_tokens),
            )
            for note in await index_notes(self.index, found):
                _log.info("Recall for %s: %s", record.id, note)
            items = await self._items(window, found.hits)
        except PerdureError as exc:
            _log.warning("Nothing is recalled for %s: %s", record.id, exc)
            return MemoryLayer()
        except Exception:  # noqa: BLE001 (the border of what a prompt can do without; it is told)
            _log.exception("Nothing is recalled for %s", record.id)
            return MemoryLayer()
        if not items:
            return MemoryLayer()
        return memory_layer.memory_layer(
            items,
            LayerLimits.of(self.config, budget, whole),
            moment=question.moment,
            counter=self._counter(),
            shown=shown,
            reminded=window.reminded,
            tools=window.tools,
        )

    async def reminded(
        self, transaction: Transaction, record: SessionRecord, keys: Collection[str]
    ) -> None:
        """Note, in this transaction, what a prompt of this session was sent with reminders of."""
        await self.ticklers.shown(transaction, record.agent, keys)

    async def followed(self, record: SessionRecord, key: str, reminders: Collection[str]) -> None:
        """Note that its model fetched something, if that was what it had been reminded of."""
        wanted = everywhere(record, key)
        for reminder in reminders:
            if reminder == wanted or reminder.startswith(f"{wanted}."):  # a round of that turn
                await self.ticklers.followed(record.agent, reminder)

    async def allows(
        self, record: SessionRecord, head: Head, session: str, position: Position
    ) -> bool:
        """Whether a session may see what stands at a place of another one's own log."""
        question = Question(text="", record=record, head=head, moment=self._store.now())
        await self._caught_up(record)
        scope = await self._scopes.of(question)
        return scope.shows(session, position.turn, position.round or 1)

    async def _caught_up(self, record: SessionRecord) -> None:
        """Have the index know who said what by now, in any process. Damage is told by a search."""
        with suppress(PerdureError):
            await self.index.catch_up(record)

    async def _prepared(self) -> None:
        """Have the index ready. A bank that is only looked at has not started it."""
        if self.index.is_on:
            await self.index.prepared()

    async def _notes(
        self, question: Question, found: Recalled, seconds: float | None
    ) -> tuple[str, ...]:
        """Why something may be missing, or all is; takes at most about so many seconds.

        Without any, nothing is said about filters.
        """
        notes = (*await index_notes(self.index, found), *_unanswered(found), *found.notes)
        if found.hits or found.notes:
            return notes
        if not cues(question.text, question.moment).terms:
            return (*notes, _NO_WORDS)
        if failed := [s for s in found.steps if s.name == "keyword" and s.failed]:
            return notes or tuple(_reason(step) for step in failed)
        if question.filters == Filters() or seconds is None:
            return notes
        return (*notes, *await self._left_out(question, seconds))

    async def _left_out(self, question: Question, seconds: float) -> list[str]:
        """Why filters left nothing, in at most so many seconds; perhaps for no reason of theirs."""
        if notes := await self._names.unseen(question):
            return notes
        filters, most = question.filters, max(question.limit, _AGAIN)
        for loose in loosened(filters):
            if seconds <= 0:
                break
            again = msgspec.structs.replace(question, filters=loose, limit=most)
            found = await self._pipeline.recall(again, judged=False, deadline=seconds)
            if found.hits:
                return missed(filters, loose, found.hits, question.record)
            seconds -= found.took_ms / 1_000
        return []

    async def _items(self, window: Window, hits: Sequence[Hit]) -> list[Item]:
        """Hits with what is known beside of them."""
        agent = window.record.agent
        keys = [hit.key for hit in hits if hit.kind == "memory"]
        got = await self.memories.get_many(keys, agent=agent) if keys else []
        memories = dict(zip(keys, got, strict=True))
        tags = dict[str, tuple[str, ...]]()
        if any(hit.kind == "reference" for hit in hits):
            tags = {layer.name: layer.tags for layer in await self.references.list()}
        items = [_item(window, hit, memories.get(hit.key), tags.get(hit.key, ())) for hit in hits]
        weights = await self.ticklers.weights(agent, [item.key for item in items])
        tags |= {key: memory.tags for key, memory in memories.items() if memory is not None}
        factors = await self._topic_factors(agent, {key: tags[key] for key in tags if tags[key]})
        return [
            msgspec.structs.replace(item, weight=weights[item.key], topic=factors.get(hit.key, 1.0))
            for item, hit in zip(items, hits, strict=True)
        ]

    async def _topic_factors(
        self, agent: str, tags: Mapping[str, Sequence[str]]
    ) -> dict[str, float]:
        """What scores are multiplied by, by key: what belongs to a heavy topic comes first."""
        topics = await self.memories.topic_weights(agent) if tags else {}
        found = dict[str, float]()
        for key, some in tags.items():
            if weights := [topics[tag] for tag in some if tag in topics]:
                found[key] = 1 + _TOPIC * (max(weights) - WEIGHTS["topic"])
        return found


def _item(window: Window, hit: Hit, memory: Memory | None, tags: Sequence[str]) -> Item:
    record = window.record
    if hit.kind == "memory" and memory is not None:
        short = msgspec.structs.replace(hit, key=shown_key(memory.id, record.agent))
        return Item(short, memory.name, memory.kind)
    if hit.kind == "reference":
        return Item(hit, hit.key, f"tags: {', '.join(tags)}" if tags else "")
    return Item(hit, everywhere(record, hit.turn), stands=window.level(hit.turn))


def _looked_at(text: str) -> str:
    if len(text) <= _MOST_TEXT:
        return text
    half = _MOST_TEXT // 2
    return f"{text[:half]}\n{text[-half:]}"


def _says_nothing(prompt: str) -> bool:
    """Whether a prompt has no word that something could be found by."""
    return all(word in _NOTHING for word in _words(prompt.casefold()))


def _unanswered(found: Recalled) -> list[str]:
    """Which models did not do what they are configured for, and why; what else was late."""
    notes = list[str]()
    for step in found.steps:
        if step.failed == LATE and step.name in _LATE:
            notes.append(_LATE[step.name])
        elif step.name in _INSTEAD and step.failed not in {"", NO_MODEL}:
            why = "It was late." if step.failed == LATE else step.failed
            notes.append(f"{_INSTEAD[step.name]} {why}")
    return notes


def _reason(step: Step) -> str:
    return "Nothing had arrived at the deadline." if step.failed == LATE else step.failed
