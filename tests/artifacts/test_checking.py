"""Checking goes on where something is damaged."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import apsw

from perdure.artifacts import Artifact, ArtifactPlace, ArtifactStore, FaultKind
from perdure.storage.backends.sqlite import SQLiteAdapter
from perdure.storage.store import Store
from tests.artifacts.papers import Paper


async def test_a_damaged_row_that_is_referred_to(tmp_path: Path) -> None:
    url, place = f"sqlite:///{tmp_path}/bank.db", tmp_path / "artifacts"
    nowhere = Artifact.of(b"nowhere")
    async with Store(SQLiteAdapter(url)) as store:
        damaged = await ArtifactStore(store, place).put(os.urandom(100))
        await store.collection(Paper).put_many([Paper("a", damaged), Paper("b", nowhere)])
    with closing(apsw.Connection(f"{tmp_path}/bank.db")) as db:
        db.execute("update perdure_artifacts set _value = x'00'")
    async with Store(SQLiteAdapter(url)) as store:
        found = [fault async for fault in ArtifactStore(store, place).check(referred=True)]
    assert [(fault.artifact, fault.place, fault.kind) for fault in found] == [
        (damaged.hash, ArtifactPlace.ROW, FaultKind.DAMAGED),
        (nowhere.hash, None, FaultKind.MISSING),
    ]
