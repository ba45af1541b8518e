"""Renders the elements of a manifest, or reads their texts again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from perdure.core.levels import Level
from perdure.history import turn_tags
from perdure.history.epochs import Epochs, RangeText, digest_of, new_digest
from perdure.history.log_records import Head, SessionRecord
from perdure.history.manifest import Element, EpochManifest, RoundId
from perdure.history.renditions.rendition_service import RenditionService, RoundAtLevel, RoundRun
from perdure.history.sized_rounds import RANGE_TAGS
from perdure.history.strategies.raw_rounds import FORGOTTEN
from perdure.history.token_counts import TokenCounts

_NAME = 6  # Tokens of a turn's name in a range.


class RenderedManifest(msgspec.Struct, frozen=True):
    """A manifest whose elements have their text."""

    manifest: EpochManifest
    texts: dict[bytes, str]  # By digest.


class ElementRenderer:
    """Renders elements of one session's line of turns."""

    def __init__(
        self, renditions: RenditionService, epochs: Epochs, token_counts: TokenCounts
    ) -> None:
        self._renditions = renditions
        self._epochs = epochs
        self._token_counts = token_counts

    async def render(
        self,
        record: SessionRecord,
        head: Head,
        manifest: EpochManifest,
        *,
        before: EpochManifest,
        texts: Mapping[bytes, str],
        variants: Mapping[RoundId, int],
        together: Mapping[RoundId, int] = MappingProxyType({}),
    ) -> RenderedManifest:
        """`texts` has those of the window `before`, by digest; `variants` the newest rendition of
        each round that stands by itself. Rounds `together`, with what they take raw, share what
        room they have.
        """
        new = [e for e in (*manifest.elements, *manifest.pins) if e.digest not in texts]
        single = [_with_variants(e, variants) for e in new if not e.generation and e.level != "T"]
        merged = [e for e in new if e.generation]
        alone = [e for e in new if not e.generation and e.level == "T"]
        left = {e: _left_over(e, before, texts, variants) for e in merged}
        turns = {e.first.turn for e in alone}
        turns |= {turn for e in merged if e.level == "T" for turn in left[e].turns}
        turns -= {turn for turn in turns if head.is_undone(turn)}
        tiny = await self._tiny(record, head, sorted(turns))
        bodies = await self._bodies(record, head, single)
        runs = [e for e in merged if e.level == "C" and left[e].is_run(together)]
        smooth = [
            texts[e.digest] for e in manifest.elements if e.level == "S" and e.digest in texts
        ]
        smooth += [body for e, body in bodies.items() if e.level == "S"]
        bodies |= await self._runs(record, head, runs, left, smooth)
        wide = {e: left[e].turns for e in merged if e.level == "T"}
        tiny |= await self._long_turns(record, head, wide, together, tiny)
        loose = [p for e in merged if e.level == "C" and e not in bodies for p in left[e].rounds]
        rounds = await self._compact(record, head, loose, variants)

        found = dict(texts)
        done = dict[tuple[Level, RoundId, RoundId, bool], Element]()
        for element in (*single, *alone, *merged):
            if element in bodies:
                body = bodies[element]
            elif element.generation:
                body = await self._range(element, left[element], tiny, rounds)
            else:
                variant, body = tiny.get(element.first.turn, (0, FORGOTTEN))
                element = msgspec.structs.replace(element, variants=bytes([variant]))  # noqa: PLW2901
            text = text_of(element, body)
            rendered = msgspec.structs.replace(
                element,
                digest=new_digest() if element.generation else digest_of(text),
                tokens=self._token_counts.counter.count(text),
            )
            done[_key(element)] = rendered
            found[rendered.digest] = text
        manifest = msgspec.structs.replace(
            manifest,
            elements=tuple(done.get(_key(e), e) for e in manifest.elements),
            pins=tuple(e if e.digest in texts else done[_key(e)] for e in manifest.pins),
        )
        return RenderedManifest(manifest, found)

    async def found(
        self, record: SessionRecord, head: Head, manifest: EpochManifest, owner: str
    ) -> RenderedManifest:
        """A manifest that an epoch of `owner` kept, with the texts that it had. What was forgotten
        since is a tombstone; so is a range that held it.
        """
        elements = [*manifest.elements, *manifest.pins]
        ranges = [element.digest for element in elements if element.generation]
        texts = await self._epochs.range_texts(owner, ranges)
        single = [e for e in elements if not e.generation and e.level != "T"]
        bodies = await self._bodies(record, head, single)
        tiny = [e for e in elements if not e.generation and e.level == "T"]
        wanted = [(e.first.turn, e.variants[0]) for e in tiny]
        said = await self._renditions.tiny_texts(record, head, wanted)
        bodies |= {e: text or FORGOTTEN for e, text in zip(tiny, said, strict=True)}
        done = dict[Element, Element]()
        for element in elements:
            text = texts.get(element.digest) or text_of(element, bodies.get(element, FORGOTTEN))
            digest = element.digest or digest_of(text)
            done[element] = msgspec.structs.replace(element, digest=digest)
            texts[digest] = text
        found = msgspec.structs.replace(
            manifest,
            elements=tuple(done[e] for e in manifest.elements),
            pins=tuple(done[e] for e in manifest.pins),
        )
        return RenderedManifest(found, texts)

    async def _bodies(
        self, record: SessionRecord, head: Head, elements: Sequence[Element]
    ) -> dict[Element, str]:
        wanted = [
            RoundAtLevel(place, element.level, variant)
            for element in elements
            for place, variant in zip(_places(element), element.variants, strict=True)
        ]
        texts = iter(await self._renditions.texts(record, head, wanted))
        found = dict[Element, str]()
        for element in elements:
            said = [self._cut(next(texts), element.cap) for _ in element.variants]
            found[element] = "\n".join(filter(None, said)) or FORGOTTEN
        return found

    async def _runs(
        self,
        record: SessionRecord,
        head: Head,
        elements: Sequence[Element],
        left: Mapping[Element, _Left],
        smooth: Sequence[str],
    ) -> dict[Element, str]:
        wanted = [RoundRun(left[e].rounds, e.tokens - RANGE_TAGS) for e in elements]
        said = await self._renditions.run_texts(record, head, wanted, smooth) if wanted else []
        return {e: text or FORGOTTEN for e, text in zip(elements, said, strict=True)}

    def _cut(self, text: str, cap: int) -> str:
        """A text of at most about `cap` tokens: most of its beginning, some of its end."""
        counter = self._token_counts.counter
        if not cap or (tokens := counter.count(text)) <= cap:
            return text
        from perdure.history.renditions.sentences import truncate  # not for those who only show

        tail = text[-int(len(text) * (cap / 4) / tokens) :]
        return truncate(text, cap - counter.count(tail) - 2, counter) + "\n" + tail.lstrip()

    async def _tiny(
        self, record: SessionRecord, head: Head, turns: Sequence[int]
    ) -> dict[int, tuple[int, str]]:
        made = await self._renditions.tinies(record, head, turns)
        wanted = [(turn, made[turn].variant) for turn in turns if turn in made]
        texts = await self._renditions.tiny_texts(record, head, wanted)
        return {
            turn: (variant, text)
            for (turn, variant), text in zip(wanted, texts, strict=True)
            if text
        }

    async def _long_turns(
        self,
        record: SessionRecord,
        head: Head,
        ranges: Mapping[Element, Sequence[int]],
        together: Mapping[RoundId, int],
        tiny: Mapping[int, tuple[int, str]],
    ) -> dict[int, tuple[int, str]]:
        """Turns of many rounds in ranges at T that have more room for them than their words take:
        each has the share of its range that it has of what the range stands for.
        """
        rounds = dict[int, list[RoundId]]()
        for place in together:
            rounds.setdefault(place.turn, []).append(place)
        wanted = dict[int, RoundRun]()
        for element, turns in ranges.items():
            for turn in turns:
                places = rounds.get(turn)
                if turn not in tiny or not places:
                    continue
                raw = sum(together[place] for place in places)
                cap = (element.tokens - RANGE_TAGS) * raw // max(element.raw, 1) - _NAME
                if cap > self._token_counts.counter.count(tiny[turn][1]):
                    wanted[turn] = RoundRun(sorted(places), cap)
        said = await self._renditions.run_texts(record, head, list(wanted.values()), ())
        return {turn: (0, text) for turn, text in zip(wanted, said, strict=True) if text}

    async def _compact(
        self,
        record: SessionRecord,
        head: Head,
        places: Sequence[RoundId],
        variants: Mapping[RoundId, int],
    ) -> dict[RoundId, str]:
        wanted = [RoundAtLevel(place, "C", variants.get(place, 0)) for place in places]
        texts = await self._renditions.texts(record, head, wanted)
        return dict(zip(places, texts, strict=True))

    async def _range(
        self,
        element: Element,
        left: _Left,
        tiny: Mapping[int, tuple[int, str]],
        rounds: Mapping[RoundId, str],
    ) -> str:
        parts = dict(left.parts)
        alone = element.whole and element.first.turn == element.last.turn
        for turn in left.turns:
            if turn in tiny:
                text = tiny[turn][1]
                parts[RoundId(turn)] = text if alone else f"T-{turn}: {text}"
        for place in left.rounds:
            if said := rounds.get(place):
                # A whole turn is one part of the range: its rounds stand behind its name.
                begins = not element.whole or RoundId(place.turn) not in parts
                name = f"T-{place.turn}" if element.whole else str(place)
                at = RoundId(place.turn) if element.whole else place
                parts[at] = f"{name}: {said}" if begins else f"{parts[at]}\n{said}"
        ordered = [parts[place] for place in sorted(parts)]
        cap = element.tokens - RANGE_TAGS
        return await self._renditions.merged(ordered, cap) if ordered else FORGOTTEN


class _Left(msgspec.Struct):
    parts: dict[RoundId, str]
    turns: list[int]
    rounds: list[RoundId]

    def is_run(self, together: Collection[RoundId]) -> bool:
        return not self.parts and all(place in together for place in self.rounds)


def _left_over(
    element: Element,
    before: EpochManifest,
    texts: Mapping[bytes, str],
    known: Iterable[RoundId],
) -> _Left:
    """What a range is made of: texts that stood in the window, and turns or rounds to be read."""
    inside = [
        e
        for e in before.elements
        if e.level == element.level
        and element.first <= e.first
        and e.last <= element.last
        and e.digest in texts
        and (e.generation or e.level == "T")
    ]
    parts = dict[RoundId, str]()
    for each in inside:
        body = _body_of(texts[each.digest])
        named = each.generation and names_its_parts(body)
        parts[each.first] = body if named else f"{each.name}: {body}"
    if element.level == "T":
        covered = {turn for e in inside for turn in range(e.first.turn, e.last.turn + 1)}
        turns = range(element.first.turn, element.last.turn + 1)
        return _Left(parts, [turn for turn in turns if turn not in covered], [])
    rounds = [
        place
        for place in sorted(known)
        if element.first <= place <= element.last
        and not any(e.first <= place <= e.last for e in inside)
    ]
    return _Left(parts, [], rounds)


def names_its_parts(body: str) -> bool:
    return body.startswith("T-")


def text_of(element: Element, body: str) -> str:
    """As it is sent: what follows it begins on a line of its own."""
    return turn_tags.element(element.name, element.level, body) + "\n"


def _body_of(text: str) -> str:
    return turn_tags.unescape(text.strip("\n").partition("\n")[2].rpartition("\n")[0])


def _with_variants(element: Element, variants: Mapping[RoundId, int]) -> Element:
    chosen = bytes(variants.get(place, 0) for place in _places(element))
    return msgspec.structs.replace(element, variants=chosen)


def _places(element: Element) -> list[RoundId]:
    turn = element.first.turn
    return [RoundId(turn, number) for number in range(element.first.round, element.last.round + 1)]


def _key(element: Element) -> tuple[Level, RoundId, RoundId, bool]:
    return element.level, element.first, element.last, bool(element.generation)


def range_text(session: str, element: Element, text: str) -> RangeText:
    return RangeText(
        id=f"{session}/{element.digest.hex()}",
        first=element.first.turn,
        last=element.last.turn,
        text=text,
    )
