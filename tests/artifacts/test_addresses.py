"""Addresses: what they mean, what is refused, and that no secret comes out again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.artifacts import S3Address, place_of
from perdure.core.errors import InvalidURL


def test_a_whole_address() -> None:
    address = place_of(
        "s3://bucket/a/b/?region=eu-west-1&endpoint=https://s3.example.com:9000/&virtual_host=yes"
        "&timeout=5&retry=2.5"
    )
    assert address == S3Address(
        bucket="bucket",
        prefix="a/b",
        region="eu-west-1",
        endpoint="https://s3.example.com:9000",
        virtual_host=True,
        timeout=5,
        retry=2.5,
    )


def test_the_least_that_is_needed() -> None:
    assert place_of("s3://bucket") == S3Address(bucket="bucket")
    assert str(place_of("s3://bucket/")) == "s3://bucket"


def test_anything_else_is_a_folder() -> None:
    assert place_of("some/where") == Path("some/where").absolute()
    assert place_of("~/x") == Path("~/x").expanduser()


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///prefix",
        "s3://Bucket",
        "s3://b",
        "s3://bucket/a//b",
        "s3://bucket/../b",
        "s3://bucket/a b",
        "s3://bucket/a%00b",
        "s3://bucket#x",
        "s3://bucket?region=EU west",
        "s3://bucket?colour=red",
        "s3://bucket?region",
        "s3://bucket?timeout=never",
        "s3://bucket?retry=0",
        "s3://bucket?retry=nan",
        "s3://bucket?allow_http=perhaps",
        "s3://bucket?endpoint=ftp://x",
        "s3://bucket?endpoint=https://",
        "s3://bucket?endpoint=https://[x",
        "s3://[x",
        "gs://bucket",
        "",
        "a\0b",
    ],
)
def test_what_cannot_be_an_address(url: str) -> None:
    with pytest.raises(InvalidURL) as caught:
        place_of(url)
    assert caught.value.hint


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIAKEY:hunter2@bucket/prefix",
        "s3://bucket?access_key_id=AKIAKEY&secret_access_key=hunter2",
        "s3://bucket?aws_session_token=hunter2",
        "s3://bucket?endpoint=https://AKIAKEY:hunter2@host",
    ],
)
def test_a_key_in_an_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidURL, match="AWS_ACCESS_KEY_ID") as caught:
        place_of(url)
    assert "hunter2" not in str(caught.value)
    assert "AKIAKEY" not in str(caught.value)


@pytest.mark.parametrize("host", ["localhost:9000", "127.0.0.1:9000", "[::1]:9000"])
def test_without_tls_only_on_this_machine(host: str) -> None:
    place_of(f"s3://bucket?endpoint=http://{host}")


def test_without_tls_elsewhere_it_has_to_be_said() -> None:
    with pytest.raises(InvalidURL, match="without TLS"):
        place_of("s3://bucket?endpoint=http://minio.lan:9000")
    address = place_of("s3://bucket?endpoint=http://minio.lan:9000&allow_http=yes")
    assert place_of(str(address)) == address


@given(st.text(max_size=60).map("s3://bucket".__add__))
def test_any_text_is_an_address_or_a_clear_error(url: str) -> None:
    try:
        address = place_of(url)
    except InvalidURL:
        return
    assert isinstance(address, S3Address)
    again = place_of(str(address))
    assert isinstance(again, S3Address)
    assert (again.bucket, again.prefix) == (address.bucket, address.prefix)
