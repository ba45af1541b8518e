"""``perdure token``: made once, listed without itself, revoked."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Ask, Run


def test_make_list_and_revoke(run: Run, ask: Ask) -> None:
    run("bank", "init")
    assert run("token", "list").stdout == "There are no tokens.\n"
    made = run("token", "make", "laptop", "--agent", "ada", "--scope", "write", "--expires", "30d")
    assert made.exit_code == 0
    assert made.stdout.startswith("pd_")
    assert made.stdout.count("\n") == 1  # nothing else, so that it can be piped
    _, listed = ask("token", "list")
    (token,) = listed["tokens"]
    assert (token["name"], token["agent"], token["scopes"]) == ("laptop", "ada", ["write"])
    assert token["used"] is None
    assert made.stdout.strip() not in run("token", "list").stdout
    assert run("token", "revoke", token["id"]).stdout == f"Revoked laptop ({token['id']}).\n"
    assert ask("token", "list")[1] == {"tokens": []}
    assert run("token", "revoke", "laptop").exit_code == 1


@pytest.mark.parametrize(
    "wrong", [["--scope", "everything"], ["--expires", "soon"], ["--expires", "0s"]], ids=" ".join
)
def test_what_cannot_be_made(wrong: list[str], run: Run) -> None:
    run("bank", "init")
    done = run("token", "make", "laptop", *wrong)
    assert done.exit_code == 2
    assert wrong[0] in done.stderr
