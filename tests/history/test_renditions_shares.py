"""C is 30 to 40 % of what was said and T 1 to 5 %, whatever it is; short texts stay short."""

from __future__ import annotations

import inspect

import pytest

from examples.made_up_project import project_turn
from perdure.core.messages import Message, Text, assistant, user
from perdure.core.tokens import o200k
from perdure.core.turns import rounds
from perdure.history.renditions import facts as some_code
from perdure.history.renditions.algorithm import compact, tiny

counter = o200k()
count = counter.count

GERMAN = """Wir haben gestern lange über den Umzug gesprochen. Die neue Wohnung liegt in der Nähe
des Parks und kostet 1.240 Euro im Monat. Herr Öztürk meldet sich bis Freitag, ob der Vermieter
einverstanden ist. Wir sollten den Vertrag nicht vor dem 3. Mai unterschreiben, weil die
Kündigungsfrist sonst zu kurz ist. Der Keller ist feucht und muss noch saniert werden. """
CHINESE = "我们决定使用 PostgreSQL 16。SQLite 不够快。测试在 tests/test_db.py 里，昨天有 3 个失败。"  # noqa: RUF001 (Chinese)
TALK = [
    ("Ann", "I moved to Lisbon in May, and the flat on Rua Augusta costs 900 euros a month."),
    ("Ben", "That sounds great! How is the new job at the museum going?"),
    ("Ann", "It is fine, but I work until eight on Fridays, so I cannot join the choir any more."),
    ("Ben", "Pity. My sister Carla will visit Porto in June, she would love to meet you there."),
    ("Ann", "Tell her to take the early train, the one at 7:30, and to bring warm clothes."),
]


def _chat(times: int) -> tuple[Message, ...]:
    said = [(who, text.replace("May", f"May {at}")) for at in range(times) for who, text in TALK]
    return tuple(Message("user", (Text(text),), name=who) for who, text in said)


def _listed() -> str:
    steps = "auth billing catalog checkout core delivery docs events export identity jobs".split()  # noqa: SIM905
    lines = [
        f"- Step {at}: move `{name}` to the new package, test it" for at, name in enumerate(steps)
    ]
    return "\n".join(("# Plan For The Release", "Here is the plan:", *lines * 3))


def _rows() -> str:
    return "\n".join(f"| vendor{at} | ${at * 100}/month | 99.{at}% |" for at in range(60))


CODE = inspect.getsource(some_code)
ROUNDS = {
    "German": (user(GERMAN * 6),),
    "Chinese": (user(CHINESE * 30),),
    "one sentence": (user("and then we met Anna and bought bread and milk at the shop " * 40),),
    "a list": (user("Plan it."), assistant(_listed())),
    "a table": (user("Compare them."), assistant(_rows())),
    "code": (user("Show it."), assistant(f"Here it is:\n```py\n{CODE}\n```\nIt works.")),
    "nothing but code": (assistant(f"```py\n{CODE}\n```"),),
    "a log": (
        user("\n".join(f"12:00:{at:02} INFO worker {at} did {at * 37}" for at in range(60))),
    ),
    "one word": (user("loremipsum" * 300),),
    "a chat of two": _chat(8),
}


def _words(round: tuple[Message, ...]) -> int:
    return count("\n".join(message.text for message in round))


@pytest.mark.parametrize("kind", ROUNDS)
def test_compact_is_30_to_40_percent_of_any_words(kind: str) -> None:
    many = _words(ROUNDS[kind])
    assert many > 200
    assert 0.30 <= count(compact(ROUNDS[kind], "T-1.1")) / many <= 0.40


@pytest.mark.parametrize("kind", ROUNDS)
def test_tiny_is_1_to_5_percent_of_any_words(kind: str) -> None:
    many = 0
    turn: list[tuple[Message, ...]] = []
    while many <= 1_000:
        turn.append(ROUNDS[kind])
        many += _words(ROUNDS[kind])
    assert 0.01 <= count(tiny(turn, counter)) / many <= 0.05


def test_tiny_of_many_words_is_not_less_because_they_are_many() -> None:
    turn = [ROUNDS["German"]] * 80
    many = sum(map(_words, turn))
    assert many > 30_000
    assert 0.01 <= count(tiny(turn, counter)) / many <= 0.05


@pytest.mark.parametrize("number", range(1, 40))
def test_work_with_tools_keeps_the_share_of_its_words(number: int) -> None:
    turn = [tuple(said) for _, _, said in rounds(project_turn(number, tokens_per_turn=12_000))]
    for round in turn:
        words = sum(count(message.text) for message in round if message.role != "tool")
        lines = compact(round, "T-1.1").split("\n")
        spoken = [line for line in lines if line.startswith(("User: ", "Assistant: "))]
        if words > 200:
            assert 0.30 <= count("\n".join(spoken)) / words <= 0.40
    words = sum(count(each.text) for round in turn for each in round if each.role != "tool")
    if words > 1_000:
        assert 0.01 <= count(tiny(turn, counter)) / words <= 0.05


def test_what_is_too_short_keeps_its_shortest_sensible_form() -> None:
    short = (user("We must ship on Friday."), assistant("Agreed. I tagged v2.4 and told Ines."))
    assert compact(short, "T-1.1") == (
        "User: We must ship on Friday.\nAssistant: Agreed. I tagged v2.4 and told Ines."
    )
    longer = (user(" ".join(text for _, text in TALK)),)
    assert count(compact(longer, "T-1.1")) <= 80
    assert count(tiny([longer], counter)) <= 40


def test_who_said_it_is_told_by_name() -> None:
    for text in (compact(_chat(6), "T-1.1"), tiny([_chat(6)], counter)):
        for line in text.partition(" (Also: ")[0].split("\n"):
            who, _, said = line.partition(": ")
            own = " ".join(text for name, text in TALK if name == who)
            assert said.split(" ")[-2] in own


def test_words_with_capitals_in_a_heading_are_no_names() -> None:
    said = "\n\n".join(
        f"## Understanding Bias And Its Impact {at}\nThe audit of {name} found {at} faults in it."
        for at, name in enumerate(("Lisbon", "Porto", "Faro", "Braga", "Aveiro", "Evora"), 11)
    )
    text = compact((user("What did the audits find?"), assistant(f"{said}\n\n{said}")), "T-1.1")
    assert "Understanding Bias" not in text
    assert text.count("The audit of") > 3
