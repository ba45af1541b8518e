"""Search indexes, an extension (`Capability.EXTENSIONS`): documents are found by their words."""

from __future__ import annotations

import random

from perdure.core.errors import Closed, Conflict, InvalidInput
from perdure.search.engine import MAX_PLACE, SearchIndex, SearchState
from perdure.storage.adapter import Capability
from perdure.storage.options import DEFAULT
from perdure.storage.rows import Batch
from perdure.testing.conformance.bench import Bench
from perdure.testing.conformance.kit_index import KitIndex, Occurrence, occurrences
from perdure.testing.conformance.trials import check, check_each, holds, refused, same

WORDS = Capability.EXTENSIONS
TERMS = {
    "letter": "a",
    "digits": "4711",
    "underscore": "read_file",
    "dots_and_slashes": "src/app.py",
    "tag": "day=2023-05-07",
    "colons": "std::vector",
    "only_signs": "_=:./-",
    "leading_sign": "-v",
    "accents": "žluťoučký",
    "decomposed": "cafe\u0301",
    "sharp_s": "straße",
    "greek": "λόγος",
    "cyrillic": "ёлка",
    "arabic": "مرحبا",
    "hebrew": "שלום",
    "devanagari": "हिन्दी",
    "thai": "ภาษาไทย",
    "chinese": "记忆",
    "japanese": "カタカナ",
    "korean": "한국어",
    "astral": "𠀋𝒳",
    "operator": "and",
    "another_operator": "near",
    "wordlike_of_sql": "select",
    "long": "x" * 200,
    "long_in_bytes": "語" * 100,
}


@check(WORDS)
async def preparing_makes_it_once(bench: Bench) -> None:
    """An index is made by the first `prepare`; the second finds it, and what it holds."""
    index = await bench.index()
    same(index.made, True, "that it was made")
    await index.change(index.document(1, "one"))
    same(await index.engine.prepare(index.declared), False, "that it was made again")
    same(await index.find("one"), [(1, 0, 0)])


@check(WORDS)
async def another_declaration_is_another_index(bench: Bench) -> None:
    """An index that is declared with other fields is made anew, empty."""
    index = await bench.index()
    await index.change(index.document(1, "one", note=b"old"))
    other = await bench.index(index.adapter, ("a", "b", "c"))
    same(other.made, True, "that it was made")
    same((await other.find("one"), await other.notes(1), await other.places()), ([], [None], []))
    await other.change(other.document(1, "", "", "one"))
    same(await other.find("one"), [(1, 2, 0)])


@check(WORDS)
async def an_empty_index_answers(bench: Bench) -> None:
    """An index that holds nothing finds nothing, and says so."""
    index = await bench.index()
    found = await index.search("one", "two")
    same(found.documents, 0, "the number of documents")
    same([(each.documents, each.complete) for each in found.terms], [(0, True)] * 2)
    same([each.found.shape for each in found.terms], [(0, 3)] * 2, "the shape of nothing")
    same(await index.search(), await index.search(), "the answer to no terms")
    same((await index.places(), await index.notes(3), await index.notes()), ([], [None], []))
    same(await index.engine.state(index.name), SearchState(), "its state")
    await index.tend()


@check_each(WORDS, cases=TERMS)
async def terms_are_found_as_they_are(bench: Bench, term: str) -> None:
    """A term of any allowed characters is found as it was written, and no part of it is."""
    index = await bench.index()
    await index.change(
        index.document(1, f"before {term} after", f"{term} {term}"),
        index.document(2, f"{term}x x{term}", "other"),
    )
    wanted = [(1, 0, 1), (1, 1, 0), (1, 1, 1)]
    same(await index.find(term), wanted, "where it stands")
    await index.tend()
    same(await index.find(term), wanted, "where it stands later")
    same(await index.find(term[:-1] or "b"), [], "where a part of it stands")


@check(WORDS)
async def looks_do_not_deceive(bench: Bench) -> None:
    """Terms that look alike, but are other characters, are other terms."""
    index = await bench.index()
    alike = ["café", "cafe\u0301", "cafe", "\u017f", "s", "ß", "ss", "É", "é", "ﬁ", "fi", "①", "1"]
    await index.change(*(index.document(place, term) for place, term in enumerate(alike)))
    for _ in range(2):
        found = occurrences(await index.search(*alike))
        same(found, [[(place, 0, 0)] for place in range(len(alike))], "where they stand")
        await index.tend()


@check(WORDS)
async def occurrences_are_complete_and_in_order(bench: Bench) -> None:
    """Each occurrence comes with place, field and offset, in that order, for each term asked for,
    in the order of the terms.
    """
    index = await bench.index(fields=("a", "b", "c"))
    dice = random.Random(7)  # noqa: S311  # the same each time
    texts = {
        place: tuple(" ".join(dice.choices("abcdefgh", k=dice.randrange(12))) for _ in range(3))
        for place in dice.sample(range(10**12), 60)
    }
    await index.change(*(index.document(place, *text) for place, text in texts.items()))
    terms = ["h", "zz", *"abcdefg"]
    for _ in range(2):
        found = await index.search(*terms)
        same(occurrences(found), [_standing(texts, term) for term in terms], "the occurrences")
        counts = [len({row[0] for row in _standing(texts, term)}) for term in terms]
        same([each.documents for each in found.terms], counts, "the counts")
        same(found.documents, 60, "the number of documents")
        same([each.complete for each in found.terms], [True] * len(terms), "that all were read")
        await index.tend()


@check(WORDS)
async def ranges_limit_a_search(bench: Bench) -> None:
    """Only occurrences within the ranges come back, both ends included; counts stay those of the
    whole index.
    """
    index = await bench.index()
    await index.change(*(index.document(place, "x") for place in range(0, 100, 10)))
    ranges = [(0, 0), (11, 29), (30, 30), (45, 60), (95, 10**15)]
    for _ in range(2):
        found = await index.search("x", within=ranges)
        same(occurrences(found), [[(place, 0, 0) for place in (0, 20, 30, 50, 60)]])
        same(found.terms[0].documents, 10, "the count")
        same(occurrences(await index.search("x", within=[])), [[]], "what is within nothing")
        await index.tend()


@check(WORDS)
async def many_ranges(bench: Bench) -> None:
    """A search may be limited to thousands of ranges."""
    index = await bench.index()
    await index.change(*(index.document(place, "x") for place in range(100)))
    await index.tend()
    ranges = [(place, place) for place in range(1, 10_000, 2)]
    same(await index.find("x", ranges), [(place, 0, 0) for place in range(1, 100, 2)])


@check(WORDS)
async def the_rarest_terms_come_first(bench: Bench) -> None:
    """With a limit, the rarest terms are read whole, and one that would exceed it is left out."""
    index = await bench.index()
    await index.change(
        *(
            index.document(place, "all " * 3, "half" if place % 2 else "", note=b"n")
            for place in range(40)
        ),
        index.document(50, "rare half"),
    )
    for _ in range(2):
        found = await index.search("all", "rare", "half", most=30)
        lengths = [len(rows) for rows in occurrences(found)]
        same(lengths, [0, 1, 21], "the number of occurrences")
        same([each.complete for each in found.terms], [False, True, True], "what is complete")
        same([each.documents for each in found.terms], [40, 1, 21], "the counts")
        within = [(3, 5), (50, 60)]
        found = await index.search("all", "rare", "half", within=within, most=13)
        same([len(rows) for rows in occurrences(found)], [9, 1, 3], "what fits, within ranges")
        found = await index.search("all", "half", "absent", most=10)
        same([len(rows) for rows in occurrences(found)], [0, 0, 0], "what fits into 10")
        await index.tend()


@check(WORDS)
async def the_rarest_of_all_is_cut_off(bench: Bench) -> None:
    """If even the rarest term exceeds the limit, its first occurrences come."""
    index = await bench.index()
    await index.change(*(index.document(place, "a a", "a b b") for place in range(20)))
    for _ in range(2):
        found = await index.search("a", most=7)
        wanted = [(place, *rest) for place in range(3) for rest in ((0, 0), (0, 1), (1, 0))][:7]
        same(occurrences(found), [wanted])
        same([(each.complete, each.documents) for each in found.terms], [(False, 20)])
        await index.tend()


@check(WORDS)
async def a_document_is_replaced(bench: Bench) -> None:
    """A document that is put where one stands replaces it, its words and its note."""
    index = await bench.index()
    for filed in (False, True):
        await index.change(index.document(1, "old same", note=b"1"), index.document(2, "same"))
        if filed:
            await index.tend()
        await index.change(index.document(1, "new same", note=b"2"))
        for _ in range(2):
            same([await index.find(term) for term in ("old", "new")], [[], [(1, 0, 0)]])
            same(await index.find("same"), [(1, 0, 1), (2, 0, 0)])
            found = await index.search("same", "old")
            same([each.documents for each in found.terms], [2, 0], "the counts")
            same((await index.notes(1), found.documents), ([b"2"], 2))
            await index.tend()


@check(WORDS)
async def documents_are_withdrawn(bench: Bench) -> None:
    """Documents are withdrawn by range, both ends included; others stay, none is no error."""
    index = await bench.index()
    for filed in (False, True):
        await index.change(*(index.document(place, "x", note=b"n") for place in range(10)))
        if filed:
            await index.tend()
        await index.change(index.withdrawal(3, 5), index.withdrawal(9, 2**40))
        await index.change(index.withdrawal(100, 200))
        for _ in range(2):
            left = [0, 1, 2, 6, 7, 8]
            same(await index.find("x"), [(place, 0, 0) for place in left])
            same(await index.places(), left, "the places")
            same(await index.notes(2, 3), [b"n", None], "the notes")
            found = await index.search("x")
            same((found.documents, found.terms[0].documents), (6, 6), "the counts")
            await index.tend()


@check(WORDS)
async def changes_are_made_in_order(bench: Bench) -> None:
    """The changes of a commit are made one after another."""
    index = await bench.index()
    await index.change(
        index.document(1, "a"),
        index.withdrawal(0, 10),
        index.document(1, "b"),
        index.document(1, "c"),
        index.document(2, "d"),
        index.withdrawal(2, 2),
    )
    same([await index.find(term) for term in "abcd"], [[], [], [(1, 0, 0)], []])


@check(WORDS)
async def rows_and_documents_commit_together(bench: Bench) -> None:
    """A commit that conflicts indexes nothing, and one that does not indexes all."""
    table = await bench.table()
    index = await bench.index(table.adapter)
    await table.commit(table.put("one"))
    document = (index.document(1, "word"),)
    with refused(Conflict):
        batch = Batch((table.put("two"),), (table.check("one", 7),), changes=document)
        await table.adapter.commit(batch, DEFAULT)
    with refused(Conflict):
        batch = Batch((table.put("one", expected=9),), changes=document)
        await table.adapter.commit(batch, DEFAULT)
    same((await index.find("word"), await index.places()), ([], []), "what a conflict left")
    batch = Batch((table.put("two"),), (table.check("none", 0),), changes=document)
    same(await table.adapter.commit(batch, DEFAULT), [1], "the versions")
    same((await index.find("word"), await table.value("two")), ([(1, 0, 0)], b"value"))


@check(WORDS)
async def a_document_must_fit(bench: Bench) -> None:
    """A document with too many texts, without a place, or of an index that is not there is
    refused, and nothing of its commit is done.
    """
    table = await bench.table()
    index = await bench.index(table.adapter)
    good = index.document(1, "word")
    stranger = KitIndex(table.adapter, SearchIndex("perdure_kit_nowhere", ("a",)))
    for bad in (
        index.document(2, "a", "b", "c"),
        index.document(-1, "a"),
        index.document(MAX_PLACE, "a"),
        stranger.document(1, "a"),
    ):
        with refused(InvalidInput):
            await table.adapter.commit(Batch((table.put("one"),), changes=(good, bad)), DEFAULT)
    same((await index.find("word"), await table.get("one")), ([], None), "what was done")
    with refused(InvalidInput):
        await stranger.find("a")


@check(WORDS)
async def notes_come_back(bench: Bench) -> None:
    """Notes come back byte by byte, in the order asked, None where there is no document."""
    index = await bench.index()
    notes = {0: b"", 1: bytes(range(256)), MAX_PLACE - 1: b"\xff" * 5_000}
    await index.change(*(index.document(place, "x", note=note) for place, note in notes.items()))
    wanted = [notes[MAX_PLACE - 1], None, b"", notes[1], b""]
    same(await index.notes(MAX_PLACE - 1, 2, 0, 1, 0), wanted)
    same(await index.find("x"), [(place, 0, 0) for place in notes])
    many = await index.notes(*range(3_000))
    same((many[:3], len(many)), ([b"", notes[1], None], 3_000))


@check(WORDS)
async def places_are_paged(bench: Bench) -> None:
    """The places that hold a document come in order, page by page."""
    index = await bench.index()
    dice = random.Random(3)  # noqa: S311  # the same each time
    wanted = sorted(dice.sample(range(10**15), 25))
    await index.change(*(index.document(place, "x") for place in reversed(wanted)))
    await index.change(index.document(MAX_PLACE - 1), index.document(0))
    found: list[int] = []
    while page := await index.places(found[-1] if found else -1, 10):
        holds(len(page) <= 10, "a page is too long")
        found += page
    same(found, [0, *wanted, MAX_PLACE - 1])


@check(WORDS)
async def erased_and_made_again(bench: Bench) -> None:
    """An index that was erased, once or twice, is made by the next `prepare`, empty."""
    index = await bench.index()
    await index.change(index.document(1, "word", note=b"n"))
    for _ in range(2):
        await index.engine.erase(index.name)
    await index.change(index.document(2, "word"))  # no error: rows that come with it matter more
    same(await index.engine.prepare(index.declared), True, "that it was made")
    same((await index.find("word"), await index.notes(1), await index.places()), ([], [None], []))
    await index.change(index.document(1, "word"))
    same(await index.find("word"), [(1, 0, 0)])


@check(WORDS)
async def long_documents(bench: Bench) -> None:
    """A document of thousands of terms, one of them two hundred times, is found by each."""
    index = await bench.index()
    terms = [f"w{number}" if number % 25 else "again" for number in range(5_000)]
    await index.change(index.document(1, "", " ".join(terms)))
    for _ in range(2):
        same(await index.find("w4999"), [(1, 1, 4_999)])
        same(await index.find("again"), [(1, 1, offset) for offset in range(0, 5_000, 25)])
        await index.tend()


@check(WORDS)
async def ten_thousand_documents(bench: Bench) -> None:
    """Of ten thousand documents each is found, whatever was put off is done or not."""
    index = await bench.index()
    for start in range(0, 10_000, 1_000):
        await index.change(
            *(
                index.document(place, f"common t{place} mod{place % 100}", note=b"%d" % place)
                for place in range(start, start + 1_000)
            )
        )
    for _ in range(2):
        same(await index.find("t7777"), [(7_777, 0, 1)])
        same(await index.find("mod13"), [(place, 0, 2) for place in range(13, 10_000, 100)])
        found = await index.search("common", "t5", most=2_000)
        same([len(rows) for rows in occurrences(found)], [0, 1], "the number of occurrences")
        same(await index.find("common", [(9_998, 20_000)]), [(9_998, 0, 0), (9_999, 0, 0)])
        state = await index.engine.state(index.name)
        same((state.documents, state.faults), (10_000, ()), "the state")
        await index.tend()
    state = await index.engine.state(index.name)
    same(state.unfiled, 0, "what is still to be done")


@check(WORDS)
async def closing_ends_searching(bench: Bench) -> None:
    """After `close`, searching raises `Closed`."""
    index = await bench.index()
    await index.adapter.close()
    with refused(Closed):
        await index.find("word")
    with refused(Closed):
        await index.notes(1)


@check(WORDS, Capability.SNAPSHOTS)
async def indexes_are_not_copied(bench: Bench) -> None:
    """A snapshot has no search index in it, and loading one leaves none: it is made again."""
    if Capability.SHARED in bench.capabilities:
        return  # a store in use cannot be loaded into: backends show this in tests of their own
    index = await bench.index()
    await index.change(index.document(1, "word"))
    async with index.adapter.snapshot() as snapshot:
        names = [layout.name for layout in await snapshot.layouts()]
        same([name for name in names if name.startswith(index.name)], [], "collections of it")
        await index.adapter.load(snapshot, replace=True)
    same(await index.engine.prepare(index.declared), True, "that it was made")
    same(await index.find("word"), [])


@check(WORDS, Capability.ERASURE)
async def scrubbing_keeps_the_index(bench: Bench) -> None:
    """Scrubbing takes nothing from an index that was not withdrawn."""
    index = await bench.index()
    await index.change(*(index.document(place, f"x t{place}") for place in range(20)))
    await index.tend()
    await index.change(index.withdrawal(0, 9), index.document(30, "x t30"))
    await index.adapter.scrub()
    same(await index.find("x"), [(place, 0, 0) for place in (*range(10, 20), 30)])
    same((await index.find("t3"), await index.find("t30")), ([], [(30, 0, 1)]))


@check(WORDS, Capability.SHARED)
async def others_find_it_at_once(bench: Bench) -> None:
    """What one commits, another finds from then on; what one withdraws, nobody does."""
    one = await bench.index()
    other = await bench.index(await bench.open())
    same(other.made, False, "that the second made it")
    for number in range(5):
        await one.change(one.document(number, f"t{number} all", note=b"n"))
        same(await other.find(f"t{number}"), [(number, 0, 0)])
        same(await other.notes(number), [b"n"])
        await other.change(other.document(number, "changed all"))
        same((await one.find(f"t{number}"), await one.notes(number)), ([], [b""]))
        if number % 2:
            await one.tend()
        same(len(await other.find("all")), number + 1, "the number found")
    await other.change(other.withdrawal(0, 10))
    same((await one.find("all"), await one.places()), ([], []))


@check(WORDS, Capability.SHARED)
async def another_makes_it_anew(bench: Bench) -> None:
    """When one erases the index and makes it again, another goes on writing and finding."""
    table = await bench.table()
    one = await bench.index(table.adapter)
    other = await bench.index(await bench.open())
    await one.change(one.document(1, "old"))
    await other.engine.erase(other.name)
    batch = Batch((table.put("row"),), changes=(one.document(2, "lost"),))
    same(await table.adapter.commit(batch, DEFAULT), [1], "a commit without an index")
    same(await table.value("row"), b"value", "the row")
    same(await other.engine.prepare(other.declared), True, "that it was made")
    await one.change(one.document(3, "new"))
    for each in (one, other):
        same([await each.find(term) for term in ("old", "lost", "new")], [[], [], [(3, 0, 0)]])
    same((await one.engine.state(one.name)).faults, (), "what is wrong")


@check(WORDS, Capability.DURABLE)
async def documents_survive_kill(bench: Bench) -> None:
    """After kill -9, exactly the documents whose rows are there are found."""
    table = await bench.table()
    index = await bench.index(table.adapter)
    names = [f"{number:04d}" for number in range(400)]
    keys = [table.key(name) for name in names]
    if Capability.SHARED not in bench.capabilities:
        await table.adapter.close()
    process = await bench.spawn("write", [table], keys=keys, index=index.declared)
    acknowledged = [*await process.lines(150), *await process.kill()]
    adapter = await bench.open()
    table, index = await bench.table(adapter), await bench.index(adapter)
    there = [name for name, value in zip(names, await table.values(names), strict=True) if value]
    holds(len(there) >= len(acknowledged), "acknowledged rows are lost")
    same(index.made, False, "that the index was made again")
    same(await index.find("common"), [(place, 0, 0) for place in range(len(there))])
    same(await index.find(f"t{len(there) - 1}"), [(len(there) - 1, 1, 0)])
    same(await index.places(), list(range(len(there))), "the places")


def _standing(texts: dict[int, tuple[str, ...]], term: str) -> list[Occurrence]:
    return [
        (place, field, offset)
        for place in sorted(texts)
        for field, text in enumerate(texts[place])
        for offset, word in enumerate(text.split())
        if word == term
    ]
