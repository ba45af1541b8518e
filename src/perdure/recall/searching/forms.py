"""Other forms of the words that are asked for: see `recall.languages`.

A word of a question may stand in a text with another ending. Where the language is known, its form
is looked for together with it, and counts as the word itself. Where it is not, the forms that it
would have in any language are looked for, but only of words that stand nowhere as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from perdure.recall import languages
from perdure.recall.searching.cues import MOST_TERMS, Cues, weight
from perdure.search.engine import Postings, TextFound

#: By term, what else stands for the same word.
Forms: TypeAlias = Mapping[str, Sequence[str]]


def known(cues: Cues) -> Forms:
    """Forms in the language of a question; none if that is English, or was not told.

    Without their mark, too: short texts of that language may not tell it, and have words as such.
    """
    return {term: (form, form.removeprefix(languages.MARK)) for term, form in cues.forms.items()}


def possible(cues: Cues, found: TextFound) -> Forms:
    """Forms in any language, of those words that were not found anywhere.

    None if the question told its language.
    """
    if cues.told:
        return {}
    words = {term: word for word, term in cues.names.items()}
    missing = (
        term
        for term, postings in zip(cues.terms, found.terms, strict=True)
        if postings.complete and not len(postings.found)
    )
    forms = {term: languages.any_form(words.get(term, "")) for term in missing}
    return {term: some for term, some in forms.items() if some}


def with_forms(terms: Sequence[str], forms: Forms) -> tuple[str, ...]:
    """What is looked for: the terms, then their forms."""
    return tuple(dict.fromkeys([*terms, *(form for some in forms.values() for form in some)]))


def together(terms: Sequence[str], forms: Forms, found: TextFound) -> TextFound:
    """What was found by `with_forms`, as if the terms alone had been looked for."""
    if not forms:
        return found
    by_term = dict(zip(with_forms(terms, forms), found.terms, strict=True))
    every = ({term: None, **dict.fromkeys(forms.get(term, ()))} for term in terms)
    merged = (_merged([by_term[each] for each in some]) for some in every)
    return TextFound(found.documents, tuple(merged))


def _merged(postings: Sequence[Postings]) -> Postings:
    """As one term's. How many documents have any of them is not known: as many as the most have."""
    if len(postings) == 1:
        return postings[0]
    rows = np.concatenate([each.found.reshape(-1, 3) for each in postings])
    return Postings(
        max(each.documents for each in postings),
        rows[np.argsort(rows[:, 0], kind="stable")],
        all(each.complete for each in postings),
    )


def chosen(cues: Cues, found: TextFound) -> tuple[Cues, TextFound]:
    """The question with as many of its terms as count, and what was found of them.

    Of many, those that stand nowhere do not: a log that somebody pasted is full of them, and what
    was found would be a small share of it, however well it fits.
    """
    if len(cues.terms) <= MOST_TERMS:
        return cues, found
    weights = [
        _weight(*each, found.documents)
        for each in zip(cues.terms, cues.counts, found.terms, strict=True)
    ]
    there = [at for at, each in enumerate(weights) if each > 0]
    there.sort(key=weights.__getitem__, reverse=True)
    kept = sorted(there[:MOST_TERMS])
    terms = tuple(cues.terms[at] for at in kept)
    less = msgspec.structs.replace(
        cues,
        terms=terms,
        counts=tuple(cues.counts[at] for at in kept),
        pairs=tuple(pair for pair in cues.pairs if set(pair).issubset(terms)),
    )
    return less, TextFound(found.documents, tuple(found.terms[at] for at in kept))


def _weight(term: str, count: int, postings: Postings, documents: int) -> float:
    if not len(postings.found):
        return 0.0
    return weight(term, count) * math.log1p(documents / max(postings.documents, 1))
