"""Search indexes, an extension (`Capability.EXTENSIONS`): documents are found by what they mean."""

from __future__ import annotations

import math
import random

from perdure.core.errors import InvalidInput
from perdure.storage.adapter import Capability
from perdure.testing.conformance.bench import Bench
from perdure.testing.conformance.kit_index import KitIndex
from perdure.testing.conformance.trials import check, holds, refused, same

NEEDS = (Capability.EXTENSIONS,)
#: As long as those of the model that is used by default.
LENGTH = 256


def signed(*numbers: int) -> bytes:
    return bytes(number & 255 for number in numbers)


EAST, NORTH, WEST, BETWEEN = signed(127, 0), signed(0, 127), signed(-127, 0), signed(100, 100)


@check(*NEEDS)
async def the_nearest_come_first(bench: Bench) -> None:
    """Documents come in the order of the angle to the vector, with its cosine."""
    index = await _filled(bench, 4)
    same(await index.embed({0: WEST, 1: EAST, 2: NORTH, 3: BETWEEN}), 4, "the number kept")
    found = await index.near(EAST)
    same([near.place for near in found], [1, 3, 2, 0], "the order")
    for near, wanted in zip(found, [1, math.sqrt(0.5), 0, -1], strict=True):
        holds(abs(near.score - wanted) < 0.01, f"the cosine is {near.score}, and not {wanted}")
    same(await index.nearest(EAST, limit=2), [1, 3], "the first two")


@check(*NEEDS)
async def length_does_not_matter(bench: Bench) -> None:
    """Only the direction of a vector counts."""
    index = await _filled(bench, 3)
    await index.embed({0: signed(3, 3), 1: signed(127, 1), 2: signed(-1, 1)})
    same(await index.nearest(signed(1, 1)), [0, 1, 2])
    found = await index.near(signed(127, 127))
    holds(abs(found[0].score - 1) < 0.01, f"the cosine is {found[0].score}, and not 1")


@check(*NEEDS)
async def an_index_without_vectors(bench: Bench) -> None:
    """Without vectors, or without documents, nothing is near."""
    index = await bench.index()
    same((await index.near(EAST), await index.unembedded()), ([], []), "of an empty index")
    await index.change(index.document(1, "a"))
    same((await index.near(EAST), await index.unembedded()), ([], [1]), "without vectors")
    same((await index.vectors(1, 2), await index.embed({})), ([None, None], 0))


@check(*NEEDS)
async def vectors_need_a_document(bench: Bench) -> None:
    """Where there is no document, no vector is kept; and it goes with the document."""
    index = await _filled(bench, 3)
    same(await index.embed({0: EAST, 1: EAST, 7: EAST, 2: NORTH}), 3, "the number kept")
    same(await index.vectors(0, 7, 2, 0), [EAST, None, NORTH, EAST], "the vectors")
    await index.change(index.withdrawal(0, 0))
    same((await index.nearest(EAST), await index.vectors(0)), ([1, 2], [None]))
    await index.change(index.document(0, "again"), index.document(1, "replaced"))
    same((await index.nearest(EAST), await index.unembedded()), ([2], [0, 1]))
    same((await index.engine.state(index.name)).vectors, {"m": 1}, "the state")


@check(*NEEDS)
async def a_vector_is_replaced(bench: Bench) -> None:
    """A later vector of a document takes the place of the one before."""
    index = await _filled(bench, 3)
    await index.embed({0: EAST, 1: NORTH, 2: BETWEEN})
    same(await index.nearest(EAST), [0, 2, 1])
    same(await index.embed({0: WEST}), 1, "the number kept")
    same((await index.nearest(EAST), await index.vectors(0)), ([2, 1, 0], [WEST]))
    same((await index.engine.state(index.name)).vectors, {"m": 3}, "the state")


@check(*NEEDS)
async def models_are_never_mixed(bench: Bench) -> None:
    """Vectors of one model are found by that model's, and by no other's."""
    index = await _filled(bench, 4)
    await index.embed({0: EAST, 1: NORTH, 2: WEST})
    await index.embed({1: signed(1, 2, 3), 3: signed(3, 2, 1)}, "other/model")
    same(await index.nearest(EAST), [0, 2], "of the first")
    same(await index.nearest(signed(1, 2, 3), "other/model"), [1, 3], "of the second")
    same(await index.nearest(EAST, "nobody's"), [], "of a third")
    same((await index.vectors(1), await index.vectors(0)), ([None], [EAST]))
    same(await index.vectors(1, 0, model="other/model"), [signed(1, 2, 3), None])
    same(await index.unembedded(), [1, 3], "those without the first")
    same(await index.unembedded("other/model"), [0, 2], "those without the second")
    same(await index.unembedded("nobody's"), [0, 1, 2, 3], "those without a third")
    state = await index.engine.state(index.name)
    same(state.vectors, {"m": 2, "other/model": 2}, "the state")


@check(*NEEDS)
async def lengths_must_agree(bench: Bench) -> None:
    """Vectors of one model have one length; others are refused, and nothing is kept of them."""
    index = await _filled(bench, 3)
    await index.embed({0: EAST})
    with refused(InvalidInput):
        await index.embed({1: NORTH, 2: signed(1, 2, 3)})
    with refused(InvalidInput):
        await index.near(signed(1, 2, 3))
    same((await index.nearest(EAST), await index.unembedded()), ([0], [1, 2]))


@check(*NEEDS)
async def ranges_limit_what_is_near(bench: Bench) -> None:
    """Only documents within the ranges are near, both ends included."""
    index = await _filled(bench, 20)
    await index.embed({place: signed(100, place) for place in range(20)})
    near = await index.near(EAST, within=[(3, 4), (10, 10), (19, 2**60)])
    same([each.place for each in near], [3, 4, 10, 19])
    near = await index.near(EAST, within=[(3, 4), (10, 10), (19, 2**60)], limit=2)
    same([each.place for each in near], [3, 4])
    same(await index.near(EAST, within=[]), [], "what is within nothing")
    same(await index.near(EAST, within=[(50, 60)]), [], "what is within an empty range")


@check(*NEEDS)
async def the_unembedded_are_paged(bench: Bench) -> None:
    """Documents without a vector come in order, page by page, until there are none."""
    index = await _filled(bench, 25)
    await index.embed(dict.fromkeys(range(0, 25, 2), EAST))
    same(await index.unembedded(limit=5), [1, 3, 5, 7, 9], "the first")
    same(await index.unembedded(after=9, limit=5), [11, 13, 15, 17, 19], "the next")
    same(await index.unembedded(after=23), [], "the last")
    await index.embed(dict.fromkeys(range(1, 25, 2), EAST))
    same(await index.unembedded(), [], "what is left")


@check(*NEEDS)
async def small_sets_are_exact(bench: Bench) -> None:
    """Among two thousand vectors the nearest twenty are found, as vectors come and go."""
    index = await _filled(bench, 2_000)
    dice = random.Random(5)  # noqa: S311  # the same each time
    vectors = {
        place: signed(*(dice.randrange(-127, 128) for _ in range(LENGTH))) for place in range(2_000)
    }
    for start in range(0, 2_000, 500):
        await index.embed({place: vectors[place] for place in range(start, start + 500)})
        known = {place: vectors[place] for place in range(start + 500)}
        same(await index.nearest(vectors[3], limit=20), _nearest(known, vectors[3], 20))
    await index.change(index.withdrawal(0, 999))
    await index.tend()
    left = {place: vectors[place] for place in range(1_000, 2_000)}
    same(await index.nearest(vectors[3], limit=20), _nearest(left, vectors[3], 20))


@check(*NEEDS)
async def erasing_takes_vectors_along(bench: Bench) -> None:
    """An index that was erased and made again has no vectors."""
    index = await _filled(bench, 3)
    await index.embed({0: EAST})
    same(await index.nearest(EAST), [0])
    await index.engine.erase(index.name)
    await index.engine.prepare(index.declared)
    same((await index.near(EAST), await index.embed({0: EAST})), ([], 0), "what is left")
    await index.change(index.document(0, "a"))
    await index.embed({0: signed(1, 2, 3)})
    same(await index.nearest(signed(1, 2, 3)), [0], "what is near")


@check(*NEEDS, Capability.SHARED)
async def others_vectors_are_found(bench: Bench) -> None:
    """What one embeds, another finds from then on; what one withdraws, nobody does."""
    one = await _filled(bench, 6)
    other = await bench.index(await bench.open())
    for place in range(6):
        await one.embed({place: signed(100, 20 * place)})
        same(await other.nearest(EAST), list(range(place + 1)), "what another finds")
    await other.embed({0: WEST})
    same(await one.nearest(EAST), [1, 2, 3, 4, 5, 0], "what is found after a change")
    await other.change(other.withdrawal(2, 3))
    same(await one.nearest(EAST), [1, 4, 5, 0], "what is found after a withdrawal")
    await other.engine.erase(other.name)
    await other.engine.prepare(other.declared)
    await other.change(other.document(9, "a"))
    await other.embed({9: NORTH})
    same(await one.nearest(EAST), [9], "what is found in another index of that name")


@check(*NEEDS, Capability.DURABLE)
async def vectors_are_kept(bench: Bench) -> None:
    """Vectors are there when the store is opened again."""
    index = await _filled(bench, 3)
    await index.embed({0: EAST, 1: NORTH})
    await index.tend()
    index = await bench.index(await bench.reopen(index.adapter))
    same((index.made, await index.nearest(NORTH)), (False, [1, 0]))
    same((await index.vectors(1, 2), await index.unembedded()), ([NORTH, None], [2]))


async def _filled(bench: Bench, documents: int) -> KitIndex:
    index = await bench.index()
    await index.change(*(index.document(place, f"t{place}") for place in range(documents)))
    return index


def _nearest(vectors: dict[int, bytes], query: bytes, limit: int) -> list[int]:
    def numbers(vector: bytes) -> list[int]:
        return [byte - 256 if byte > 127 else byte for byte in vector]

    asked = numbers(query)

    def cosine(place: int) -> float:
        values = numbers(vectors[place])
        product = sum(a * b for a, b in zip(asked, values, strict=True))
        return product / math.sqrt(sum(value * value for value in values))

    return sorted(vectors, key=cosine, reverse=True)[:limit]
