"""What of a long question is looked at: somebody pasted a log, a file, a page."""

from __future__ import annotations

import re

from perdure.recall.indexing import tool_text

#: Characters from its beginning, and as many from its end.
_HALF = 4_000
#: Characters that are read: as many as `recall.recall` passes on.
_READ = 100_000

# Somebody may have pasted one number of 100,000 digits: no character is looked at again and again.

#: Numbers, and what is written with the same digits: ids, addresses, hashes.
_numbers = re.compile(r"\b(?=[a-f]*+[0-9])[0-9a-f]++\b|[0-9]++", re.IGNORECASE).sub
# Half a word would be a word that stands nowhere.
_last_word, _first_word = re.compile(r"(?<!\S)\S++$").sub, re.compile(r"^\S+").sub


def looked_at(text: str) -> str:
    """All of it; of a long one the beginning, the end, and between them lines that tell of errors.

    Lines that differ in their numbers only count once.
    """
    if len(text) <= 2 * _HALF:
        return text
    lines = dict[str, str]()
    for line in text[:_READ].splitlines():
        lines.setdefault(_numbers("0", line), line)
    text = "\n".join(lines.values())
    if len(text) <= 2 * _HALF:
        return text
    faults = tool_text.answered(text[_HALF:-_HALF]).faults
    return "\n".join([_last_word("", text[:_HALF]), *faults, _first_word("", text[-_HALF:])])
