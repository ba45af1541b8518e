"""Questions and texts in other languages, where words have other endings here and there."""

# ruff: noqa: RUF001 - letters that look like others are meant

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.recall import languages
from perdure.recall.languages import ENGLISH, OTHERS
from perdure.recall.words import LONGEST, asked, plain, terms
from tests.recall.library import library, question, scope

#: What was said, and questions with the number of what they ask for, from 1.
_TALK = {
    "russian": (
        (
            "Мы решили перенести еженедельную встречу на четверг.",
            "Пароль от тестового сервера хранится в сейфе у Марины.",
            "Сборка падает, потому что кончилась память на машине.",
            "Я купил новый велосипед, красный, с корзиной.",
            "Тесты оплаты нестабильны из-за часовых поясов.",
        ),
        (
            ("на какой день перенесли встречи?", 1),
            ("где хранятся пароли", 2),
            ("почему падали сборки", 3),
            ("какого цвета мои новые велосипеды", 4),
            ("нестабильный тест оплат", 5),
        ),
    ),
    "german": (
        (
            "Die Rechnungsnummer der Müllabfuhr lautet 4711.",
            "Meine Schwester arbeitet als Ärztin in einem Krankenhaus.",
            "Das Zertifikat des Servers ist abgelaufen und muss erneuert werden.",
            "Die Übersetzungen liegen jetzt in einzelnen Dateien je Sprache.",
            "Wir haben die Kündigungsfristen im Mietvertrag geändert.",
        ),
        (
            ("Welche Nummer hat die Rechnung?", 1),
            ("Wo arbeiten meine Schwestern?", 2),
            ("Krankenhäuser", 2),
            ("abgelaufene Zertifikate", 3),
            ("In welcher Datei liegt die Übersetzung?", 4),
            ("Frist für die Kündigung", 5),
        ),
    ),
    "french": (
        (
            "La clé de la boîte aux lettres est chez la voisine.",
            "Les mots de passe sont hachés avec argon2 depuis la version trois.",
            "Les utilisateurs sont déconnectés, le jeton n'est pas renouvelé.",
            "Nous avons migré les journaux vers un stockage compressé.",
        ),
        (
            ("Qui sont les voisins ?", 1),
            ("hachage du mot de passe", 2),
            ("renouveler les jetons", 3),
            ("Pourquoi avons-nous compressé le journal ?", 4),
        ),
    ),
    "spanish": (
        (
            "La contraseña del servidor está guardada en la caja fuerte.",
            "Mi hija aprendió a nadar este verano en la piscina.",
            "Los respaldos se hacen cada noche y se conservan treinta días.",
            "La licencia del editor vence en diciembre.",
        ),
        (
            ("¿Dónde se guardan las contraseñas?", 1),
            ("nadando en piscinas", 2),
            ("¿cada cuánto se hace un respaldo?", 3),
            ("¿cuándo vencen las licencias de los editores?", 4),
        ),
    ),
    "swedish": (
        (
            "Vi bestämde att flytta mötet till torsdag.",
            "Testerna misslyckas eftersom ett index på datum saknas.",
            "Katten välte min fasters vas.",
        ),
        (
            ("när är mötena som flyttades", 1),
            ("vilket test misslyckades", 2),
            ("varför välter katterna vaser", 3),
        ),
    ),
    "greek": (
        (
            "Ο κωδικός του διακομιστή είναι στο χρηματοκιβώτιο.",
            "Η γιαγιά μου φτιάχνει νόστιμες πίτες.",
            "Η γάτα έσπασε το βάζο της θείας.",
        ),
        (
            ("πού είναι οι κωδικοί των διακομιστών", 1),
            ("νόστιμη πίτα", 2),
            ("τα βάζα και οι γάτες", 3),
        ),
    ),
}
_ASKED = [(language, *each) for language, (_, some) in _TALK.items() for each in some]


@pytest.mark.parametrize(("language", "text", "turn"), _ASKED)
async def test_words_are_found_with_other_endings(language: str, text: str, turn: int) -> None:
    async with library() as books:
        apart = 40  # nothing is said around it
        for other, (said, _) in _TALK.items():
            for number, each in enumerate(said, 1 if other == language else 10):
                await books.put(number * apart, each)
        found = await books.searcher.keyword(question(text), scope())
        assert [each.turn for each in found.candidates][:1] == [turn * apart]


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Die Rechnungsnummer der Müllabfuhr lautet 4711.", "german"),
        ("Où est la clé de la boîte aux lettres ?", "french"),
        ("¿Dónde está la llave del buzón?", "spanish"),
        ("Il gatto ha rotto il vaso della zia.", "italian"),
        ("A senha está guardada no cofre, não na gaveta.", "portuguese"),
        ("Het wachtwoord ligt in de kluis.", "dutch"),
        ("Waar ligt het?", "dutch"),
        ("The man was in a hat, so we die in the war.", ""),
        ("Los Angeles, San Francisco, Las Vegas", ""),
        ("de fr es en it", ""),
        ("grep -n aux /etc/ssl/certs", ""),
        ("She said “das ist gut” to all of them, and they were happy about it.", ""),
        ("Kündigungsfristen", ""),
        ("", ""),
    ],
)
def test_small_words_tell_a_language(text: str, language: str) -> None:
    assert languages.told(re.findall(r"\w+", plain(text))) == language


def test_forms_stand_behind_the_terms() -> None:
    alone = ["wir", "haben", "die", "dateien", "und", "token", "umbenannt"]
    assert terms("Wir haben die Dateien und Tokens umbenannt.") == [
        *alone,
        "=datei",
        "=tok",
        "=umbenannt",
    ]


def test_english_has_no_forms() -> None:
    assert terms("We renamed the files and the tokens.") == ["renam", "file", "token"]
    assert asked("Which files were renamed?").forms == {}


def test_a_german_word_is_made_of_two() -> None:
    assert {"=rechnung", "=numm"} < set(terms("Das ist die Rechnungsnummer."))
    assert {"rechnung", "numm"} < set(asked("Was ist die Rechnungsnummer und wo?").terms)
    assert terms("Their relationships, and what they are") == ["relationship"]


def test_small_words_are_not_asked_for() -> None:
    assert asked("Wo liegen die Dateien und wer hat sie?").terms == ["liegen", "dateien"]
    assert asked("где пароль?").terms == ["парол"]
    assert asked("Wie war das denn nun?").terms == []


def test_letters_that_only_look_accented_stay() -> None:
    assert terms("новый") == terms("новая") == ["нов"]
    assert terms("ёлка") == terms("елки")


async def test_words_that_stand_nowhere_are_looked_for_in_any_language() -> None:
    async with library() as books:
        await books.put(1, "Wir haben die Dateien mit den Rechnungen verschoben.")
        await books.put(40, "The dates of all files were moved, and the builds.")
        # It does not tell its language, and its words stand nowhere as they are.
        found = await books.searcher.keyword(question("verschobenen Rechnung"), scope())
        assert [each.turn for each in found.candidates] == [1]
        assert [each.why for each in found.candidates if "=" in each.why] == []
        # English is never looked for as if it were something else.
        found = await books.searcher.keyword(question("the verschobenen"), scope())
        assert found.candidates == ()


async def test_english_words_are_not_taken_for_others() -> None:
    async with library() as books:
        await books.put(1, "They strip the walls.")
        await books.put(40, "Wir haben die Wand gestrichen und sie ist nicht trocken.")
        # In German, what is left of both is the same.
        found = await books.searcher.keyword(question("stripe webhooks"), scope())
        assert found.candidates == ()


def test_no_small_word_tells_english() -> None:
    for own in OTHERS.values():
        assert languages.told(sorted(own & ENGLISH)) == ""


@given(st.text("aeßüñçйщ'-. dernichtundles", max_size=300))
def test_whatever_is_written_in_them(text: str) -> None:
    found = terms(f"das ist nicht {text} und der {text * 3}")
    assert all(0 < len(term.encode()) <= LONGEST for term in found)
    said = asked(text)
    assert all(said.forms.values())
