"""Which bank the files of a work tree were written from last.

What a file lacks was taken out of it, and what the bank lacks is written away, only if both had it:
if the same bank wrote the files. Another bank, a new one or an older copy of it takes in what they
say first, as that of a fresh clone does. So the bank notes for each work tree what it wrote.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from perdure.project.projections import Projections
from perdure.services import Services
from perdure.storage.records import Key, system_record


@system_record("written_bases")
class WrittenBase(msgspec.Struct, frozen=True, kw_only=True):
    """What the state file of a work tree said when this bank and the file were the same."""

    key: Annotated[str, Key()]  # project/place
    digest: str


async def forget_foreign_bases(services: Services, project: str, files: Projections) -> bool:
    """Forget what was written last if it was not from this bank; returns whether it was so. To be
    called while `files` are locked. Raises `Unavailable`.
    """
    place = files.place()
    if place is None:
        return False
    known = await services.store.collection(WrittenBase).get(f"{project}/{place}")
    if known is not None and known.digest == files.digest():
        return False
    files.forget()
    return True


async def note_bases(services: Services, project: str, files: Projections) -> None:
    """What was written last is from this bank. Raises `Unavailable`."""
    key, digest = f"{project}/{files.place() or files.new_place()}", files.digest()
    bases = services.store.collection(WrittenBase)
    known = await bases.get(key)
    if known is None or known.digest != digest:
        await bases.put(WrittenBase(key=key, digest=digest))
