from __future__ import annotations

import pytest

from perdure.core.errors import InvalidURL
from perdure.storage import registry


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            "postgresql://ada:s3cret@localhost:5432/bank?application_name=x",
            "postgresql://ada:…@localhost:5432/bank?application_name=x",
        ),
        ("postgresql://ada:s3:cr:et@host/bank", "postgresql://ada:…@host/bank"),
        (
            "postgresql://host/bank?user=ada&password=s3cret",
            "postgresql://host/bank?user=ada&password=…",
        ),
        ("postgresql://ada:s3cret@[bad/x", "postgresql://ada:…@[bad/x"),
        ("postgresql://host:5432/bank", "postgresql://host:5432/bank"),
        ("sqlite:///x@y.db", "sqlite:///x@y.db"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    assert registry.shown(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "",
        "memory.db",
        "://x",
        "postgresql://ada:s3cret@[bad/x",
        "sqlite:///a%00b",
        "sqlite:///a\x00b",
        "sqlite:///a\ud800b",
        "sqlite:///x.db?inline",
    ],
)
def test_what_is_no_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidURL) as caught:
        registry.parse(url)
    assert caught.value.hint
    assert "s3cret" not in str(caught.value)


def test_the_parts_of_an_address() -> None:
    assert registry.parse("sqlite:///rel/a%20b.db").path == "rel/a b.db"
    assert registry.parse("sqlite:////abs/b.db").path == "/abs/b.db"
    assert not registry.parse("sqlite:///b.db?inline=no").flag("inline", default=True)
    with pytest.raises(InvalidURL, match="neither yes nor no"):
        registry.parse("sqlite:///b.db?inline=perhaps").flag("inline", default=True)
