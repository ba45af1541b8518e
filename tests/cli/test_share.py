from __future__ import annotations

from tests.cli.conftest import Ask, Run


def test_sharing_and_no_longer(run: Run, ask: Ask, chat: str) -> None:
    assert run("share", "planner/auth").stdout == "planner/auth is not shared.\n"
    result = run("share", "planner/auth", "coder", "tester")
    assert (result.exit_code, result.stdout) == (
        0,
        "planner/auth is shared with coder, tester.\n",
    )
    assert ask("share", "planner/auth") == (
        0,
        {"session": "planner/auth", "shared_with": ["coder", "tester"]},
    )
    assert ask("share", "planner/auth", "tester", "--stop")[1]["shared_with"] == ["coder"]
    nobody = run("share", "planner/auth", "--stop")  # of a variable that is empty, say
    assert (nobody.exit_code, "nothing was changed" in nobody.stderr) == (1, True)
    assert "--stop-all" in nobody.stderr
    assert ask("share", "planner/auth", "tester")[1]["shared_with"] == ["coder", "tester"]
    assert ask("share", "planner/auth", "--stop-all")[1]["shared_with"] == []


def test_agents_that_are_not_there_yet_are_named(run: Run, chat: str) -> None:
    """They may come later; or somebody mistyped."""
    result = run("share", "planner/auth", "codr", "tester", "coder")
    assert (result.exit_code, result.stdout) == (
        0,
        "planner/auth is shared with coder, codr, tester.\n",
    )
    assert "There is no agent 'codr' yet. Did you mean coder?" in result.stderr
    assert "There is no agent 'tester' yet." in result.stderr
    assert "'coder'" not in result.stderr


def test_with_all(run: Run, ask: Ask, chat: str) -> None:
    result = run("share", "planner/auth", "--with-all")
    assert result.stdout == "planner/auth is shared with everybody.\n"
    refused = run("share", "planner/auth", "coder", "--stop")
    assert refused.exit_code == 1
    assert "shared with everybody, and so with coder" in refused.stderr
    assert ask("share", "planner/auth")[1]["shared_with"] == ["*"]
    assert ask("share", "planner/auth", "--with-all", "--stop")[1]["shared_with"] == []


def test_what_cannot_be_meant(run: Run, chat: str) -> None:
    both = run("share", "planner/auth", "coder", "--with-all")
    assert (both.exit_code, "With all, or with some?" in both.stderr) == (1, True)
    for more in (["coder"], ["--with-all"], ["--stop"]):
        both = run("share", "planner/auth", *more, "--stop-all")
        assert (both.exit_code, "All, or some?" in both.stderr) == (1, True)
    own = run("share", "planner/auth", "planner")
    assert (own.exit_code, "is planner's own" in own.stderr) == (1, True)
    nobody = run("share", "planner/auth", "coder/auth")
    assert (nobody.exit_code, "cannot be an agent" in nobody.stderr) == (1, True)
    for flags in ([], ["--stop"]):
        unnamed = run("share", "planner/auth", "", *flags)
        assert (unnamed.exit_code, "'' cannot be an agent" in unnamed.stderr) == (1, True)
