"""Names: nothing but a checked hash ever becomes a key or a path."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.artifacts import Artifact, ArtifactStore
from perdure.artifacts.artifact import (
    checked,
    hash_of_key,
    hash_of_path,
    object_path,
    row_key,
)
from perdure.core.errors import Corrupted, InvalidInput
from perdure.storage import codecs
from tests.artifacts.places import is_there

HEX = "ab" * 32
HOSTILE = [
    "",
    "sha256:",
    HEX,
    f"md5:{HEX}",
    f"SHA256:{HEX}",
    f"sha256:{HEX.upper()}",
    f"sha256:{HEX[:-1]}",
    f"sha256:{HEX}0",
    f"sha256:{HEX}\n",
    f" sha256:{HEX}",
    f"sha256:../{HEX[3:]}",
    f"sha256:{'../' * 20}etc/passwd",
    "sha256:/etc/passwd",
    "../../etc/passwd",
    "/etc/passwd",
    f"sha256/{HEX}",
    f"sha256:{HEX[:-1]}\0",
    f"sha256:\0{HEX[1:]}",
    f"sha256:{HEX[:-1]}/",
    f"sha256:{HEX[:-2]}#1",
    f"sha256:{HEX[:-1]}٣",  # a digit, to str.isdigit
    f"sha256:{HEX[:-1]}\uff11",  # so is this
    f"sha256:{HEX[:-1]}\ud800",
    "sha256:" + "." * 64,
]

hostile_text = st.one_of(
    st.text(max_size=80),
    st.sampled_from(HOSTILE),
    st.builds("sha256:{}".format, st.text(min_size=64, max_size=64)),
    st.builds("sha256:{}".format, st.text("abcdefABCDEF0123456789./\\\0\n%#~", max_size=70)),
    # A good hash with one character exchanged.
    st.builds(
        lambda at, odd: f"sha256:{HEX[:at]}{odd}{HEX[at + 1 :]}",
        st.integers(0, 63),
        st.characters(),
    ),
)


@given(hostile_text)
def test_text_is_refused_or_stays_under_the_root(text: str) -> None:
    try:
        path = object_path(text)
    except InvalidInput:
        with pytest.raises(InvalidInput):
            row_key(text)
        with pytest.raises(InvalidInput, match="64 lower-case"):
            Artifact(text, 0)
        return
    assert re.fullmatch(r"sha256/[0-9a-f]{2}/[0-9a-f]{64}", path)
    assert ".." not in PurePosixPath(path).parts
    assert hash_of_path(path) == text
    assert hash_of_key(row_key(text)) == text


@given(st.text(max_size=90))
def test_names_that_are_not_ours_are_nobodys(name: str) -> None:
    assert hash_of_key(name) is None
    assert hash_of_path(name) is None


def test_an_object_in_the_folder_of_another_is_not_an_artifact() -> None:
    assert hash_of_path(f"sha256/cd/{HEX}") is None
    assert hash_of_path(f"sha256/ab/{HEX}\n") is None


async def test_every_door_refuses_hostile_names(artifacts: ArtifactStore, root: Path) -> None:
    others: list[Any] = [None, 7, f"sha256:{HEX}".encode(), Path(HEX)]
    for name in [*HOSTILE, *others]:
        for door in (artifacts.read, artifacts.exists, artifacts.size, artifacts.delete):
            with pytest.raises(InvalidInput):
                await door(name)
        with pytest.raises(InvalidInput):
            artifacts.stream(name)
    assert not is_there(root)


def test_an_artifact_knows_its_hash() -> None:
    artifact = Artifact.of(b"perdure")
    assert artifact.hex == hashlib.sha256(b"perdure").hexdigest()
    assert str(artifact) == artifact.hash == f"sha256:{artifact.hex}"
    assert artifact.size == 7
    assert checked(artifact) == checked(artifact.hash) == artifact.hash


@pytest.mark.parametrize("size", [-1, 1.5, True, "7"])
def test_a_size_that_is_none_is_refused(size: int) -> None:
    with pytest.raises(InvalidInput):
        Artifact(f"sha256:{HEX}", size)


def test_inside_a_record_it_comes_back_and_damage_is_damage() -> None:
    codec = codecs.BY_NAME["msgpack"]
    artifact = Artifact.of(b"x")
    assert codec.decode(codec.encode(artifact), Artifact) == artifact
    for bad in ({"hash": f"sha256:{HEX}\n", "size": 1}, {"hash": f"sha256:{HEX}", "size": -1}):
        with pytest.raises(Corrupted):
            codec.decode(msgspec.msgpack.encode(bad), Artifact)
