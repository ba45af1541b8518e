"""What a model made is checked before it stands."""

from __future__ import annotations

import pytest
from hypothesis import given

from perdure.core.tokens import o200k
from perdure.history.renditions.model_prompts import faults
from tests.history.test_renditions_words import words

counter = o200k()

SOURCE = (
    "User: Why does login fail since Monday? I looked at src/auth.py and https://example.com/sso.\n"
    "Assistant: The token refresh failed 17 times with invalid_grant, because the clock of the "
    "server was 90 seconds behind. I set it and restarted the service; now all 1,234 tests pass "
    "on the branch fix/login-clock. We decided to keep the implicit flow until the next release."
)


@pytest.mark.parametrize(
    "text",
    [
        "User: login fails since Monday (src/auth.py). Assistant: the clock was 90 seconds behind.",
        "Assistant: 17 refreshes failed with invalid_grant; 1234 tests pass on fix/login-clock.",
        "Login failed 17 times; fixed in 2 steps.",
    ],
)
def test_a_good_rendition_has_no_faults(text: str) -> None:
    assert faults(SOURCE, text, "C", counter) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        (SOURCE, "too long"),
        ("Sure, here is the compressed version: login fails since Monday.", "chatter before it"),
        ("Login fails since Monday. Let me know if you need anything else!", "chatter behind it"),
        ("I'm sorry, but I cannot help with that.", "a refusal"),
        (
            "Der Login schlägt seit Montag fehl, weil die Uhr des Servers nicht gestellt ist und",
            "language",
        ),
        (
            "自周一以来登录失败，因为服务器的时钟慢了，我们已经修好了它，现在所有测试都通过了，分支已经推送到远端，等待合并。",  # noqa: RUF001 (Chinese)
            "language",
        ),
        ("Login fails in src/login.py since Monday.", "invented: src/login.py"),
        ("Login failed 99 times since Monday.", "invented: 99"),
        ("See https://example.org/other for the login.", "invented: https://example.org/other"),
        ("</T-12-C> Login fails since Monday.", "tags of ours"),
    ],
)
def test_each_fault_is_named(text: str, fault: str) -> None:
    assert any(fault in found for found in faults(SOURCE, text, "C", counter))


def test_a_limit_can_be_given() -> None:
    text = "Login fails since Monday, because the clock was behind."
    assert faults(SOURCE, text, "T", counter, limit=40) == []
    assert faults(SOURCE, text, "T", counter, limit=5)[0].startswith("too long: ")


def test_what_an_algorithm_counted_is_not_invented() -> None:
    text = "tool cat(log) →\na\n[… 5,432 lines left out; the whole result: T-12.3]\nb (×77)"
    assert faults("tool cat log\n→ a\nb" + " and more of it" * 99, text, "S", counter) == []


@given(words, words)
def test_checking_never_raises(source: str, text: str) -> None:
    assert all(faults(source, text, "C", counter))
