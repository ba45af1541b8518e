"""Names of clients' agents and sessions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.core.client_agents import agent_of_client, session_of_client
from perdure.history.log_records import agent_of

_texts = st.text(max_size=200)


def test_a_project_has_one_agent_for_each_client() -> None:
    one = agent_of_client("claude-code", "/home/ada/demo", "c1")
    assert one == agent_of_client("claude-code", "/home/ada/demo/", "c2")
    assert one.startswith("claude-code@demo-")
    assert one != agent_of_client("claude-code", "/home/bob/demo", "c1")
    assert one != agent_of_client("codex", "/home/ada/demo", "c1")


def test_without_a_folder_nothing_is_shared() -> None:
    assert agent_of_client("codex", "", "c1") == "codex@c1"
    assert agent_of_client("codex", "", "c1") != agent_of_client("codex", "", "c2")


def test_a_sub_agent_stands_behind_its_conversation() -> None:
    whole = session_of_client("claude-code", "/w/demo", "8ffd", "a1")
    assert whole == f"{session_of_client('claude-code', '/w/demo', '8ffd')}.a1"


@given(_texts, _texts, _texts, _texts)
def test_every_name_can_be_a_session(client: str, folder: str, talk: str, sub: str) -> None:
    name = session_of_client(client, folder, talk, sub)
    assert agent_of(name) == agent_of_client(client, folder, talk)


@given(st.text("ab/", min_size=1, max_size=90), st.text("ab/", min_size=1, max_size=90))
def test_long_names_stay_different(one: str, other: str) -> None:
    names = [
        session_of_client("codex", "/w", f"x{talk}".replace("/", "z")) for talk in (one, other)
    ]
    assert (names[0] == names[1]) == (one.replace("/", "z") == other.replace("/", "z"))
