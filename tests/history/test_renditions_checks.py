"""What a model made is checked before it stands."""

from __future__ import annotations

import pytest
from hypothesis import given

from perdure.core.levels import Level
from perdure.core.messages import Message, assistant, user
from perdure.core.tokens import o200k
from perdure.history.renditions import model_checks
from perdure.history.renditions.model_checks import Source
from tests.history.talk import call, result
from tests.history.test_renditions_words import words

counter = o200k()


def faults(source: Source, text: str, level: Level, limit: int | None = None) -> list[str]:
    return model_checks.faults(source, text, level, counter, limit=limit)


def said(*messages: Message) -> Source:
    return Source([messages])


SOURCE = said(
    user("Why does login fail since Monday? I looked at src/auth.py and https://example.com/sso."),
    assistant(
        "The token refresh failed 17 times with invalid_grant, because the clock of the "
        "server was 90 seconds behind. I set it and restarted the service; now all 1,234 tests "
        "pass on the branch fix/login-clock. We decided to keep the implicit flow until the next "
        "release."
    ),
)
KEPT = (
    "User: login fails since Monday (src/auth.py, https://example.com/sso). Assistant: 17 refreshes"
    " failed with invalid_grant, the clock was 90s behind; now 1234 tests pass; implicit flow kept."
)


@pytest.mark.parametrize(
    "text",
    [
        KEPT,
        # The path by its last part, the number with its unit, other words.
        (
            "User: login broke on Monday, see auth.py and https://example.com/sso. Assistant: clock"
            " 90s behind, invalid_grant 17 times; 1234 tests green; implicit flow until release."
        ),
    ],
)
def test_a_good_rendition_has_no_faults(text: str) -> None:
    assert faults(SOURCE, text, "C") == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        (SOURCE.raw, "too long"),
        ("x", "too short"),
        ("Login failed.", "too short"),
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
        ("User: login fails since Monday, and the assistant did it.", "leaves out: src/auth.py"),
        (KEPT.replace("17 ", ""), "leaves out: 17"),
        (KEPT.replace("1234", "all").replace("90s", "far"), "leaves out: 90"),
    ],
)
def test_each_fault_is_named(text: str, fault: str) -> None:
    assert any(fault in found for found in faults(SOURCE, text, "C")), faults(SOURCE, text, "C")


ORDER = said(
    user("Hm, could you look at the login page again? And please delete nothing, ticket SHIP-0."),
    assistant("I looked at the login page. The form did not submit, because of the token. Done."),
)


@pytest.mark.parametrize(
    ("level", "text", "fault"),
    [
        ("S", "User: hm\nAssistant: done.", "too short"),
        ("C", "x", "too short"),
        ("C", "User: look at the login page. Assistant: looked, no submit.", "leaves out: SHIP-0"),
        ("C", "User: look at login, ticket SHIP-0. Assistant: token in the way.", "loses: "),
        ("C", "User: delete the login page, SHIP-0. Assistant: no submit.", "turns around: "),
        ("C", "User: delete nothing at login, SHIP-0. Assistant: form submitted.", "turns around"),
        ("T", "The user had a look at the login page.", "leaves out: SHIP-0"),
        ("T", "The login page of ticket SHIP-0 was looked at.", "loses: "),
    ],
)
def test_what_binds_has_to_be_there(level: Level, text: str, fault: str) -> None:
    found = faults(ORDER, text, level, 40 if level == "T" else None)
    assert any(fault in each for each in found), found


@pytest.mark.parametrize(
    ("level", "text"),
    [
        ("S", ORDER.raw.replace("Hm, could", "Could")),
        (
            "C",
            "User: check login again, SHIP-0, no deletions. Assistant: form didn't submit: token.",
        ),
        ("C", "User: see login page (SHIP-0), remove nothing. Assistant: submit failed, token."),
        ("T", "For SHIP-0 the login page was checked without deleting anything: the token fails."),
    ],
)
def test_a_paraphrase_that_keeps_it_is_good(level: Level, text: str) -> None:
    assert faults(ORDER, text, level, 40 if level == "T" else None) == []


FOREIGN = {
    "German": (
        "Bitte schau dir den Import noch einmal an und ändere nichts am Schema, Ticket HR-204.",
        "Ich habe mir den Import angesehen. Er bricht nach 4711 Zeilen ab, weil das Datum fehlt.",
        "User: Import ansehen, Schema nicht ändern (HR-204). Assistant: Abbruch nach 4711 Zeilen.",
        "User: Import ansehen, HR-204. Assistant: bricht nach 4711 Zeilen ab, Datum.",
    ),
    "French": (
        "Regarde encore l'import, mais ne touche pas au schéma s'il te plaît, ticket HR-204.",
        "J'ai regardé l'import. Il s'arrête après 4711 lignes parce que la date manque.",
        "User: revoir l'import sans toucher au schéma (HR-204). Assistant: arrêt à 4711 lignes.",
        "User: revoir l'import, HR-204. Assistant: arrêt après 4711 lignes, date.",
    ),
    "Russian": (
        "Посмотри ещё раз импорт, но не меняй схему, тикет HR-204.",
        "Я посмотрел импорт. Он обрывается после 4711 строк, потому что дата пустая.",
        "User: импорт, не менять схему (HR-204). Assistant: обрыв после 4711 строк.",
        "User: посмотреть импорт, HR-204. Assistant: обрыв после 4711 строк.",
    ),
    "Chinese": (
        "请再看一下导入功能，但不要修改数据库结构，工单 HR-204。",  # noqa: RUF001
        "我看了导入功能。它在 4711 行之后中断，因为日期是空的。",  # noqa: RUF001
        "User: 看导入功能，不要修改结构 (HR-204)。Assistant: 4711 行后中断，日期空。",  # noqa: RUF001
        "User: 看导入功能, HR-204。Assistant: 4711 行后中断，日期空。",  # noqa: RUF001
    ),
    "Swahili": (  # whose words are not known here
        "Tafadhali angalia tena uingizaji, lakini usibadilishe muundo, tiketi HR-204.",
        "Nimeangalia uingizaji. Unasimama baada ya mistari 4711 kwa sababu tarehe iko wazi.",
        "User: angalia uingizaji, usibadilishe muundo (HR-204). Assistant: husimama baada ya 4711.",
        "",
    ),
}


@pytest.mark.parametrize("language", FOREIGN)
def test_other_languages_are_held_to_the_same(language: str) -> None:
    asked, answered, good, bad = FOREIGN[language]
    source = said(user(asked), assistant(answered))
    assert faults(source, good, "C") == []
    assert faults(source, good.replace("HR-204", "").replace("4711", ""), "C") != []
    if bad:
        (fault,) = faults(source, bad, "C")
        assert fault.startswith("loses: ")


def test_only_words_count_not_what_tools_said() -> None:
    output = "\n".join(f"file_{n}.py: {n * 7} errors, not found" for n in range(200))
    source = said(user("List the errors."), call("c1"), result("c1", text=output))
    assert faults(source, "User: list the errors. The tool was called and listed them.", "C") == []


def test_who_is_called_by_name_need_not_be_told() -> None:
    source = said(user("Thanks, Ada! The report of Bohr is fine, you can send it on to the team."))
    assert faults(source, "User: Bohr's report is fine, send it on to the team.", "C") == []
    (fault,) = faults(source, "User: the report is fine, send it on to the team.", "C")
    assert fault == "leaves out: Bohr"


def test_a_long_list_need_not_be_whole() -> None:
    """As much of it as a third of the words has room for."""
    names = [f"src/part_{n}/module_{n}.py" for n in range(60)]
    source = said(user(f"Please look at {', '.join(names)}."), assistant("I looked at them all."))
    assert faults(source, f"User: look at {', '.join(names[:16])} and 44 more.", "S") != []
    assert faults(source, f"User: look at {', '.join(names[:16])} and others.", "C") == []


def test_a_least_length_can_be_given() -> None:
    source = Source([[user("List."), call("c1"), result("c1", text="a.py\nb.py\n" * 50)]], least=40)
    assert faults(source, "User: List.", "S") == ["too short: 4 tokens instead of at least 40"]


@pytest.mark.parametrize("written", ["25%", "25 percent", "25 %", "25pct"])
def test_a_number_may_have_its_unit_otherwise(written: str) -> None:
    source = said(user("Please set the discount to 25% for all customers of the shop in Bergen."))
    text = f"User: discount {written} for customers of the Bergen shop."
    assert faults(source, text, "C") == []
    assert faults(source, text.replace("25", "2.5"), "C") != []
    assert faults(source, text.replace("25", "125"), "C") != []


def test_a_limit_can_be_given() -> None:
    text = "Login fails since Monday, because the clock was behind; src/auth.py."
    assert faults(SOURCE, text, "T", 40) == []
    assert faults(SOURCE, text, "T", 5)[0].startswith("too long: ")


def test_what_an_algorithm_counted_is_not_invented() -> None:
    text = "tool cat(log) →\na\n[… 5,432 lines left out; the whole result: T-12.3]\nb (×77)"
    source = said(call("c1"), result("c1", text="a\nb" + " and more of it" * 99))
    assert faults(source, text, "S") == []


@given(words, words)
def test_checking_never_raises(source: str, text: str) -> None:
    for level in ("S", "C", "T"):
        assert all(faults(said(user(source), assistant(source)), text, level))
