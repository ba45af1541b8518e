"""A shortened text must not say something else than the whole: judged by what must be in it."""

# ruff: noqa: E501, RUF001 (texts are easier to read; Chinese)

from __future__ import annotations

import json
import re
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.messages import Message, Text, ToolCall, ToolResult, assistant, user
from perdure.core.tokens import o200k
from perdure.history.renditions.algorithm import compact, merge, smooth, tiny
from perdure.history.renditions.sentences import binds, clauses, cut, turns

counter = o200k()
count = counter.count


class Case(NamedTuple):
    """What was said, and what its C must hold and must not hold."""

    said: tuple[str, ...]  # user and assistant in turn
    holds: tuple[str, ...]
    lacks: tuple[str, ...] = ()

    @property
    def round(self) -> tuple[Message, ...]:
        return tuple((assistant if at % 2 else user)(text) for at, text in enumerate(self.said))


CASES = {
    "a test that fails": Case(
        (
            (
                "Run the tests please, I changed the refund code yesterday and want to know if it's "
                "okay."
            ),
            (
                "I ran the whole suite. One of 113 fails: test_refund_rounding in "
                "tests/test_refunds.py. It expects 10.01 and gets 10.00. I looked at the code and at "
                "the specification of the finance team, which says that refunds are rounded half up. "
                "So the code is wrong, not the test. The fix would be ROUND_HALF_UP in refunds/amounts.py."
            ),
        ),
        ("Run the tests", "One of 113 fails: test_refund_rounding", "not the test"),
        ("Also: 113",),
    ),
    "a recommendation that was retracted": Case(
        (
            (
                "Compare the three vendors for me. Budget is $1,500/month at most and we need 99.9% "
                "uptime."
            ),
            (
                "Here is the comparison:\n\n| Vendor | Price | Uptime |\n|---|---|---|\n"
                "| Acme | $1,200/month | 99.9% |\n| Borealis | $900/month | 99.5% |\n"
                "| Cumulus | $1,450/month | 99.95% |\n\n"
                "I recommend Borealis because it is the cheapest of them."
            ),
            "But Borealis does not reach 99.9%!",
            (
                "You're right, I retract that. Borealis is out; only Acme and Cumulus are left, and I "
                "recommend Acme, because it is cheaper and meets the uptime."
            ),
        ),
        ("$1,500/month at most", "I retract that", "I recommend Acme"),
        ("99.9%; I recommend", "99.9%, I recommend", "About: Cumulus", "Vendor | Price"),
    ),
    "a prohibition and what to do instead": Case(
        (
            (
                "Hi! Quick note on the architecture for the cache. We must NOT use Redis for sessions, "
                "legal forbids it because of the licence change. Use Postgres 15 instead, with an "
                "unlogged table. Thanks a lot for taking care of this, I know that it's a bit of "
                "extra work for everybody involved."
            ),
            "Understood. I'll use an unlogged table in Postgres 15 and leave Redis out.",
        ),
        ("must NOT use Redis", "Use Postgres 15 instead"),
        ("Also: Redis", "About: Redis"),
    ),
    "three orders in one sentence": Case(
        (
            (
                "Please do these: 1. rename Foo to Bar everywhere, 2. never touch migrations/, 3. ask "
                "me before pushing. I'll be away until 3 pm so take your time with it and be careful."
            ),
            (
                "Sure! I renamed Foo to Bar in 14 files, left migrations/ untouched and did not push. "
                "Shall I push now?"
            ),
        ),
        ("rename Foo to Bar", "never touch migrations/", "ask me before pushing"),
        ("About: these",),
    ),
    "an appointment in German": Case(
        (
            (
                "Guten Tag, bitte notieren Sie einen Termin für Frau Özdemir, Tel. 030 1234567, am 14. "
                "März um 15:30 Uhr in Raum 2.07. Sie kommt wegen der Beratung zur Rente und bringt "
                "alle Unterlagen mit. Bitte nicht vor 15 Uhr anrufen."
            ),
            "Der Termin für Frau Özdemir ist eingetragen: 14. März, 15:30 Uhr, Raum 2.07.",
        ),
        ("Frau Özdemir", "030 1234567", "14. März", "15:30 Uhr", "2.07", "nicht vor 15 Uhr"),
        ("About:",),
    ),
    "where data may be": Case(
        (
            (
                "Before I forget: the customer data must never leave the EU region. We agreed with "
                "Ines to use eu-west-1 only, no replicas in us-east-1. Apart from that you are free to "
                "choose whatever instance size you think is reasonable for the load we have."
            ),
            (
                "Noted. I set up the bucket acme-exports in eu-west-1 with versioning, 3 nodes of type "
                "m5.large, and no replica elsewhere."
            ),
        ),
        ("must never leave the EU", "eu-west-1 only", "acme-exports"),
        ("Also: us-east-1",),
    ),
    "it does not work yet": Case(
        (
            (
                "Can you check whether the nightly import works again? It broke on Tuesday and the "
                "people from accounting have been asking about it since then."
            ),
            (
                "I looked into the import. It does not work yet: 4 of 960 rows are rejected because "
                "the column iban is empty. The parser is fine; the export of the bank is wrong. I did "
                "not change anything. Ask the bank for a new file before Thursday."
            ),
        ),
        ("nightly import", "does not work yet", "before Thursday"),
        ("Also: 960",),
    ),
    "not with this library": Case(
        (
            (
                "Don't use pandas here, the image is too small for it. Write it with the csv module "
                "instead. The file is data/orders.csv and the result goes to out/totals.json, one "
                "object for each customer with the sum of all of their orders in cents."
            ),
            (
                "Done: scripts/totals.py reads data/orders.csv with the csv module and writes "
                "out/totals.json. No dependency was added."
            ),
        ),
        ("Don't use pandas", "csv module instead", "scripts/totals.py"),
        ("Also: pandas",),
    ),
    "an appointment in French": Case(
        (
            (
                "Bonjour, notez s'il vous plaît que Mme Lefèvre arrive le 3 juin à 9h15, salle B12. "
                "Elle ne parle pas anglais. Il faut prévoir une interprète, et le café ne doit pas "
                "être servi avant dix heures."
            ),
            "C'est noté : Mme Lefèvre, le 3 juin à 9h15, salle B12. Une interprète est réservée.",
        ),
        ("Mme Lefèvre", "3 juin", "9h15", "B12"),
        ("About:",),
    ),
    "a recommendation with a condition": Case(
        (
            (
                "Which of the two libraries should we take for the charts? I had a look at both of "
                "them, but could not really decide, and Tom says that he does not care."
            ),
            (
                "I compared Plotline and Chartist. Plotline is faster, but its licence is GPL, so we "
                "cannot ship it. I recommend Chartist 2.4, unless you need 3D charts."
            ),
        ),
        ("Which of the two libraries", "recommend Chartist 2.4, unless"),
        ("Plotline is faster;", "Plotline is faster."),
    ),
    "dates that bind": Case(
        (
            (
                "The deadline for the audit report is May 12, and it can't be moved. Send a draft to "
                "Marta by May 5. Use the template in docs/audit/template.md and only include findings "
                "that are confirmed, because the board reads it. Everything else is up to you, I trust "
                "your judgement in these things."
            ),
            "I created docs/audit/2024.md from the template and included the 7 confirmed findings.",
        ),
        ("May 12", "can't be moved", "by May 5", "only include findings"),
    ),
    "an appointment in Chinese": Case(
        (
            (
                "请帮我预订会议室。张伟先生5月20日下午3点到达，电话是13800138000，房间号是A305。"
                "会议大约需要两个小时，请准备投影仪和一些茶水，另外请提前通知前台的同事。"
            ),
            "好的，已预订A305会议室，5月20日下午3点。",
        ),
        ("请帮我预订会议室", "13800138000", "A305"),
        ("About:",),
    ),
    "all but one": Case(
        (
            (
                "Upgrade the SDK to 4.2 except in the billing service, which stays on 3.9 until the "
                "contract ends. Run make check afterwards, and tell me what broke. I don't mind if it "
                "takes the whole afternoon as long as it is done properly."
            ),
            (
                "I upgraded 11 services to SDK 4.2 and left billing on 3.9. make check fails in "
                "reports: ImportError: cannot import name 'Legacy' from 'sdk.compat'. I have not fixed "
                "it yet."
            ),
        ),
        ("except in the billing service", "make check fails"),
    ),
    "monday instead": Case(
        (
            (
                "Should we deploy on Friday? The release branch is green, all of the checks have "
                "passed, and marketing would like to have the announcement out before the weekend."
            ),
            (
                "No. The rollback script is broken since v2.3.1, and nobody is on call on Saturday. "
                "Deploy on Monday instead, unless Priya fixes rollback.sh before Friday noon."
            ),
        ),
        ("Should we deploy on Friday?", "Deploy on Monday instead, unless Priya fixes"),
    ),
}

#: A bare name, a path, an identifier, or a number with a unit: no small words beside it.
_listed = re.compile(r"\((?:Also|About): ([^()\n]*)\)").findall


@pytest.mark.parametrize("name", CASES)
def test_what_binds_is_kept_and_nothing_false_is_said(name: str) -> None:
    case = CASES[name]
    text = compact(case.round, "T-1.1")
    for piece in case.holds:
        assert piece in text
    for piece in case.lacks:
        assert piece not in text
    assert count(text) < count("\n".join(case.said))
    for listed in _listed(text):
        for each in listed.split(", "):
            assert not re.search(r"\d [a-z]{4,} |^\d+ (?:fails|passed|of)\b", each)


@pytest.mark.parametrize("name", CASES)
def test_tiny_says_who_wanted_what_and_what_came_of_it_and_is_not_compact(name: str) -> None:
    case = CASES[name]
    text = tiny([case.round], counter)
    lines = text.split("\n")
    assert lines[0].startswith("User: ")
    assert lines[-1].startswith("Assistant: ")
    assert count(text) <= 40
    if count("\n".join(case.said)) > 80:
        assert text != compact(case.round, "T-1.1")


def test_tiny_tells_the_last_word_not_the_one_that_was_taken_back() -> None:
    text = tiny([CASES["a recommendation that was retracted"].round], counter)
    assert "recommend Acme" in text
    assert "recommend Borealis" not in text


@pytest.mark.parametrize(
    ("sentence", "keeps"),
    [
        ("Deploy it to every region tonight, unless the smoke tests on staging fail.", "unless"),
        ("You can drop all of the old tables in the archive except the one for invoices.", "excep"),
        ("We thought about using Kafka for the events of the shop, but it is too heavy.", "but"),
        ("Send the newsletter to all of our customers in Europe only if Ana has agreed.", "only"),
        ("Restart the workers one after the other and do not restart the scheduler.", "not"),
    ],
)
def test_a_sentence_is_not_cut_so_that_it_says_the_opposite(sentence: str, keeps: str) -> None:
    assert clauses(sentence, fine=True) == [sentence]
    for room in range(16, 24):
        short = cut(sentence, room, counter)
        assert keeps in short
        assert count(short) <= room


@given(st.text(max_size=200), st.integers(0, 60))
def test_cutting_keeps_its_room_whatever_is_said(text: str, room: int) -> None:
    assert count(cut(text, room, counter)) <= room
    assert "".join("".join(clauses(text, fine=False)).split()) == "".join(text.split())
    assert binds(text) >= 0
    turns(text)


def pytest_output(rows: int) -> str:
    """What pytest prints when one of many tests fails."""
    dots = "".join(f"tests/test_{row}.py {'.' * 60} [{row:3}%]\n" for row in range(rows))
    return (
        f"{dots}=================== FAILURES ===================\n"
        "_____________ test_refund_rounding _____________\n\n"
        "    def test_refund_rounding():\n"
        ">       assert refund('10.005') == Decimal('10.01')\n"
        "E       AssertionError: assert Decimal('10.00') == Decimal('10.01')\n\n"
        "tests/test_refunds.py:17: AssertionError\n"
        "=========== short test summary info ============\n"
        "FAILED tests/test_refunds.py::test_refund_rounding - AssertionError: assert Dec...\n"
        "1 failed, 112 passed in 3.21s"
    )


def printed(output: str, *, error: bool = False) -> tuple[Message, Message]:
    """A program was run, and printed this."""
    call = ToolCall("c1", "shell", json.dumps({"command": "run"}))
    result = ToolResult("c1", (Text(output),), is_error=error)
    return Message("assistant", (call,)), Message("tool", (result,))


@pytest.mark.parametrize("rows", [12, 60, 300])
def test_failing_tests_are_worth_more_than_rows_of_dots(rows: int) -> None:
    round = printed(pytest_output(rows))
    text = smooth(round, "T-1.1")
    assert "FAILED tests/test_refunds.py::test_refund_rounding" in text
    assert "E       AssertionError: assert Decimal('10.00') == Decimal('10.01')" in text
    assert "......" not in text
    assert f"{rows} lines of dots" in text
    line = compact(round, "T-1.1")
    assert "1 failed, 112 passed" in line
    assert "test_refund_rounding" in line


def test_output_is_not_cut_inside_a_word() -> None:
    words = [f"word{number}" for number in range(2_000)]
    text = smooth(printed(" ".join(words)), "T-1.1")
    left = re.findall(r"word\d+", text)
    assert len(left) > 300
    assert set(left) <= set(words)
    assert [word for word in re.findall(r"\w*ord\w*", text) if not word.startswith("word")] == []
    begin, _, _ = text.partition("\n[… ")
    assert begin.endswith("…")
    assert begin[:-1].split(" ")[-1] == words[len(re.findall(r"word\d+", begin)) - 1]


CHAT = [
    (
        "T-1: User: Which cache should we take?\nAssistant: We use Redis 7 for the sessions in "
        "src/cache.py, with a TTL of 30 minutes and two replicas."
    ),
    "T-2: User: ok\nAssistant: Let me check the files.",
    "T-3: Assistant: Done.",
    "T-4: User: Legal says no.\nAssistant: I retract Redis; sessions go to Postgres instead.",
    "T-5: User: thanks\nAssistant: You're welcome!",
]


def test_merging_prefers_what_was_decided_last_to_chatter() -> None:
    small = merge(CHAT, 30, counter)
    assert "T-4" in small
    assert "Postgres instead" in small
    assert "We use Redis" not in small
    more = merge(CHAT, 60, counter)
    assert "T-4" in more
    assert "You're welcome" not in more
    assert "Done." not in more


def test_what_was_asked_in_a_list_is_not_told_as_done() -> None:
    said = (
        "I have no context of the session before this one, so I looked at the repository. "
        "Should I proceed to:\n- Add `opk rules` and `opk init` to the parser\n"
        "- Update the usage in README.md accordingly\n- Delete the old commands in opk/legacy.py"
    )
    text = compact((user("Can we continue from where we left off?"), assistant(said)), "T-1.1")
    if "Add `opk rules`" in text or "README" in text or "Delete" in text:
        assert "Should I proceed to" in text


def test_merging_prefers_requests_and_outcomes() -> None:
    parts = [
        "T-7: Assistant: Let me look at the tests of the module first.",
        "T-8: User: Never deploy on Fridays.\nAssistant: Agreed, deploy.yml now blocks Fridays.",
        "T-9: Assistant: I'll run it again now to see what it prints.",
        "T-10: User: great, thanks!",
    ]
    text = merge(parts, 30, counter)
    assert "Never deploy on Fridays" in text
    assert "T-7" not in text
