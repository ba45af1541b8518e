"""Facts, sentences, spelling, tidiness: what renditions are made with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.keeps import keeps
from perdure.history.renditions.facts import facts, holds, names_in
from perdure.history.renditions.sentences import units
from perdure.history.renditions.tidy_text import (
    _misspellings,
    corrected,
    language_of,
    script_of,
    tidied,
)
from perdure.history.renditions.typing_slips import mended

words = st.text(st.characters(), max_size=200) | st.lists(
    st.sampled_from(
        [
            "`",
            "```\n",
            "~~~",
            "\n",
            "\n\n",
            "- ",
            "# ",
            "| a | b |\n",
            "e.g. ",
            "v1.2.3 ",
            "Abc ",
            "a/b.py ",
            "。",
            "你好",
            "\ud800",
            "\0",
            "\x1b[0m",
            '"',
            "teh ",
            "i ",
            "!!!",
            "....",
            "https://x.y/z?q ",
            "12 ",
            "T-1: ",
            "(",
            ")",
            "**",
            "  ",
            "\t",
            "\r\n",
            "> quoted\n",
            "$ ls\n",
            "User: ",
            "Straße ",
            "é",
        ]
    ),
    max_size=40,
).map("".join)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("I fixed `login()` in src/auth.py today.", ("login()", "src/auth.py")),
        ("See https://example.com/a?b=1, please.", ("https://example.com/a?b=1",)),
        ("3 of 12 tests fail since v1.2.3 (commit 2fdb537).", ("3", "12", "v1.2.3", "2fdb537")),
        (
            "It raised a KeyError in parse_args with --dry-run.",
            ("keyerror", "parse_args", "--dry-run"),
        ),
        ("Yesterday I met Caroline in New York.", ("caroline", "new", "york")),
        ("The cat sat. The dog ran.", ()),
        ("We play CS:GO with Bob/Alice.", ("cs:go", "bob", "alice")),
        ("1. First\n2. Second", ()),
        ("价格是 42 元，见 README.md。", ("42", "readme.md")),  # noqa: RUF001 (Chinese)
        ("", ()),
    ],
)
def test_facts_are_what_a_reader_cannot_guess(text: str, found: tuple[str, ...]) -> None:
    assert facts(text) == found


def test_a_fact_is_held_as_a_word_not_as_a_part_of_one() -> None:
    assert holds("it took 12 s", "12")
    assert not holds("it took 120 s", "12")
    assert holds("(src/a.py)", "src/a.py")


def test_keeps_is_the_share_of_facts_that_are_still_named() -> None:
    assert keeps("Ask Alice about a.py and b.py.", "We asked Alice (a.py).") == pytest.approx(2 / 3)
    assert keeps("nothing to name here", "") is None


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("See v1.2.3 of a.b.c(). It works.", ["See v1.2.3 of a.b.c().", "It works."]),
        ("Use e.g. Redis. Or not!", ["Use e.g. Redis.", "Or not!"]),
        ("Open https://a.b/c.d?e=f. Then stop.", ["Open https://a.b/c.d?e=f.", "Then stop."]),
        ("Call `a. B. c` now. Done.", ["Call `a. B. c` now.", "Done."]),
        (
            "Dr. Smith met J. Doe at 5 p.m. yesterday.",
            ["Dr. Smith met J. Doe at 5 p.m. yesterday."],
        ),
        ("今天很好。明天呢？再见！", ["今天很好。", "明天呢？", "再见！"]),  # noqa: RUF001 (Chinese)
        ("नमस्ते। आप कैसे हैं?", ["नमस्ते।", "आप कैसे हैं?"]),
        ("- one. Two\n- three", ["- one.", "Two", "- three"]),
        ("", []),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(text: str, cut: list[str]) -> None:
    assert [unit.text for unit in units(text)] == cut


def test_code_is_one_unit_whatever_stands_in_it() -> None:
    text = "Look.\n```py\na = 1. \n\n# B. C.\n```\nDone."
    assert [(unit.kind, unit.text) for unit in units(text)] == [
        ("sentence", "Look."),
        ("code", "```py\na = 1. \n\n# B. C.\n```"),
        ("sentence", "Done."),
    ]


def test_a_sentence_that_a_margin_broke_is_one() -> None:
    text = "This sentence was written in an editor that breaks its lines\nat a margin. Next one."
    assert len(units(text)) == 2


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("I recieve teh mesage.", "I receive the message."),
        ("Recieve it.\nTeh end is here.", "Receive it.\nThe end is here."),
        ("i think i'm right, and it is seperate", "I think I'm right, and it is separate"),
    ],
)
def test_what_is_surely_misspelt_is_put_right(typed: str, meant: str) -> None:
    assert corrected(typed) == meant


@pytest.mark.parametrize(
    "text",
    [
        "the variable `recieve` and the file src/recieve.py",
        "call teh_function() or tehThing with --seperate",
        'it printed "teh end" to the log',
        "```\nteh code\n```",
        "> teh quoted line",
        "    teh indented line is code",
        "we met Mr. Teh and Adress Ltd in the city",
        "for i in range(3): print(i)",
        "Das ist nicht die adress, die wir mit der Bahn erreichen.",
        "la recieve de la casa no es para los que van",
        "https://example.com/teh/recieve is the address",
    ],
)
def test_code_names_quotes_and_other_languages_are_left_alone(text: str) -> None:
    assert corrected(text) == text


def test_no_correction_needs_another() -> None:
    pairs = _misspellings()
    assert len(pairs) > 300
    assert not {word for right in pairs.values() for word in right.split()} & pairs.keys()
    assert all(wrong.isascii() and wrong.isalpha() and wrong.islower() for wrong in pairs)


@pytest.mark.parametrize(
    ("noisy", "tidy"),
    [
        ("Hello!!!!  \n\n\n\nWorld", "Hello!\n\nWorld"),
        ("really????", "really?"),
        ("wait.......", "wait..."),
        ("a line\na line\na line\nb", "a line (×3)\nb"),
        ("Title\n==========\ntext", "Title\ntext"),
        ("one two three four  five six seven", "one two three four five six seven"),
        ("NAME   READY   STATUS", "NAME   READY   STATUS"),
        ("`a!!!!` stays, b!!!! does not", "`a!!!!` stays, b! does not"),
        ("```\nx  !!!!  \n\n\n\n====\n```", "```\nx  !!!!  \n\n\n\n====\n```"),
    ],
)
def test_noise_goes_and_code_stays(noisy: str, tidy: str) -> None:
    assert tidied(noisy) == tidy


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("hey   ,  can you look at the login ?", "hey, can you look at the login?"),
        ("hey   ,  can", "hey, can"),
        ("so we   was   here  with  the cat", "so we were here with the cat"),
        ("hey,can you see foo,bar and name,size", "hey, can you see foo,bar and name,size"),
        ("what?Can you do it for me !", "what? Can you do it for me!"),
        ("we was told the the API is down", "we were told the API is down"),
        ("They wasn’t there. he don't know", "They weren’t there. he doesn't know"),
        ("now she have it; did she have it?", "now she has it; did she have it?"),
        ("I could of done it, and of course", "I could have done it, and of course"),
        ("we didn't went there", "we didn't go there"),
        ("WHY IS THE API NOT WORKING?", "Why is the API not working?"),
        ("PLEASE FIX THE LOGIN BUG. It is late.", "Please fix the login bug. It is late."),
        ("I SAID DO NOT PUSH TO MAIN, but you did", "I said do not push to main, but you did"),
        ("I'M TIRED OF THIS, ASK DANA ON MONDAY", "I'm tired of this, ask DANA on Monday"),
        ("DO NOT DROP users_v2 OR SET MAX_AGE NOW", "Do not drop users_v2 or set MAX_AGE now"),
    ],
)
def test_what_was_typed_in_haste_is_mended(typed: str, meant: str) -> None:
    assert mended(typed) == meant
    assert mended(meant) == meant


@pytest.mark.parametrize(
    "text",
    [
        "he said \"we was there\" and ‘they was too’ and 'we is here'",  # noqa: RUF001 (quotes)
        "it printed «WE ARE NOT READY» and “they was gone”",
        "`we was` and we_was() and src/we was.py/the the",
        "```\nwe was  ,  here\nWHY IS THIS NOT DONE\n```",
        "> we was quoted  , here",
        "NAME   READY   STATUS",
        "-v, --verbose   say what is done to the files and why",
        "open       none passes, and all of it is refused",
        "it is     in the box   of mine\nand not   in the box   of you",
        "class Lost(Exception):  # never seen by who has it",
        "a TEXT NOT NULL UNIQUE, b IS AN INTEGER KEY",
        "SELECT NAME FROM USERS WHERE ID IS NULL AND IT IS NOT DONE",
        "ERROR: COULD NOT CONNECT TO THE SERVER",
        "You must NOT use Redis. NASA, ESA and the FBI agree.",
        "set NODE_ENV and PATH, then look for ENOENT or HTTP GET",
        "run git add . and x ? y : z here, for (i = 0 ; i < n ; i++)",
        "what I told you was wrong, and those who have it don't care",
        "C'est noté : le café n'est pas prêt , et je ne sais pas !",
        "die die das sagen, und der Mann ist nicht da",
    ],
)
def test_what_may_be_meant_so_is_not_mended(text: str) -> None:
    assert mended(text) == text


@given(words)
def test_mending_twice_is_mending_once(text: str) -> None:
    once = mended(text)
    assert mended(once) == once


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("This is the file that we have to change, and it is not here.", "en"),
        ("Das ist die Datei, die wir ändern, und sie ist nicht hier.", "de"),
        ("C'est le fichier que nous avons dans la base, et il ne marche pas.", "fr"),
        ("Это файл, который мы должны изменить.", "CYRILLIC"),
        ("これは変更するファイルです。", "CJK"),
        ("", ""),
    ],
)
def test_languages_are_told_apart(text: str, language: str) -> None:
    assert language_of(text) == language


@given(words)
def test_nothing_raises_whatever_is_said(text: str) -> None:
    assert facts(text) == facts(text)
    assert set(names_in(text)) <= set(facts(text))
    assert all(unit.text.strip() for unit in units(text))
    corrected(tidied(text))
    script_of(text)


@given(words)
def test_cutting_into_units_loses_no_letter(text: str) -> None:
    kept = [letter for unit in units(text) for letter in unit.text if letter.isalpha()]
    assert kept == [letter for letter in text if letter.isalpha()]


@given(words)
def test_tidying_touches_no_letter_but_of_repeated_lines(text: str) -> None:
    before = {letter for letter in text if letter.isalnum()}
    assert {letter for letter in tidied(text) if letter.isalpha()} <= before | {"×"}
