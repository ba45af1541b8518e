"""What of a turn is indexed."""

from __future__ import annotations

import json

import pytest

from perdure.core.clock import SECOND
from perdure.core.messages import (
    ArtifactPointer,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    assistant,
    event,
    user,
)
from perdure.history.log_records import TurnPiece, piece_key
from perdure.history.piece_packing import RoundWritten
from perdure.recall.indexing.passages import (
    Passage,
    Thread,
    about,
    moments,
    of_text,
    passage,
    speaker_of,
)
from perdure.recall.values import Note
from tests.growth import assert_linear

_TIME = 1_700_000_000 * SECOND


def _passage(*messages: Message, fetching: frozenset[str] = frozenset()) -> Passage:
    return passage(RoundWritten(1, 1, messages, 0), {}, _TIME, fetching)


def _call(name: str, arguments: str = "{}", id: str = "c1") -> Message:
    return Message("assistant", (ToolCall(id, name, arguments),))


def _result(text: str, call: str = "c1", *, error: bool = False) -> Message:
    return Message("tool", (ToolResult(call, (Text(text),), is_error=error),))


def test_each_voice_has_a_field_of_its_own() -> None:
    made = _passage(
        user("Where is the parser?"),
        Message("assistant", (Reasoning("Hmm, secretly"), Text("In the cellar."))),
        _call("grep", '{"pattern": "hook"}'),
        _result("haystack 12"),
    )
    said, answered, tools = (text.split() for text in made.texts)
    assert "parser" in said
    assert "cellar" in answered
    assert {"grep", "hook", "haystack"} <= set(tools)
    assert not any("secret" in text for text in made.texts)
    assert made.note.lengths == (len(said), len(answered), len(tools))
    assert made.note.tools == ("grep",)
    assert made.note.time == _TIME // SECOND
    assert made.plain == "Where is the parser?\nIn the cellar."


def test_events_and_notes_of_a_harness_are_nobodys_words() -> None:
    made = _passage(event("compaction", "summary"), Message("user", (Text("cwd"),), injected=True))
    assert made == Passage(("", "", ""), Note(time=_TIME // SECOND), "")


def test_of_a_long_result_head_and_tail_are_taken_and_errors_first() -> None:
    long = f"alpha {'filler ' * 2_000} omega"
    made = _passage(_call("run"), _result(long), _result("Traceback boom", "c1", error=True))
    tools = made.texts[2].split()
    assert {"alpha", "omega"} <= set(tools)
    assert len(tools) < 100
    assert tools.index("boom") < tools.index("alpha")


def test_a_user_who_pastes_a_book_is_cut_off() -> None:
    made = _passage(user("first " + "word " * 50_000 + "last"))
    assert "first" in made.texts[0].split()
    assert "last" not in made.texts[0].split()
    assert len(made.plain) <= 1_500


def test_what_lies_in_an_artifact_is_found_by_its_beginning() -> None:
    made = _passage(Message("user", (ArtifactPointer("sha256:0", 9, head="Chapter zebra"),)))
    assert "zebra" in made.texts[0].split()


@pytest.mark.parametrize("name", ["recall", "history_get_turn", "mcp__perdure__history_search"])
def test_what_was_fetched_from_the_past_is_not_indexed_again(name: str) -> None:
    made = _passage(user("And?"), _call(name, '{"query": "zebra"}'), _result("T-3 zebra"))
    assert "zebra" not in " ".join(made.texts)
    assert made.note.tools == ()


def test_a_result_that_comes_later_is_known_by_its_call() -> None:
    later = _passage(_result("T-3 zebra", "c9"), fetching=frozenset({"c9"}))
    assert later.plain == ""
    assert "zebra" in _passage(_result("zebra", "c9")).texts[2]


@pytest.mark.parametrize(
    ("text", "speaker"),
    [
        ("Caroline: Hi!", "caroline"),
        ("Dr. Anna Meyer: Good morning", "dr. anna meyer"),
        ("Jean-Luc O’Neill: engage", "jean-luc o’neill"),
        ("Łukasz: cześć", "łukasz"),
        ("Note: this is important", ""),
        ("TODO: write tests", ""),
        ("Error: it broke", ""),
        ("error handling: how?", ""),
        ("http://example.org is down", ""),
        ("Please fix the following four things: a", ""),
        ("Caroline:", ""),
        ("12:30 works for me", ""),
        ("", ""),
    ],
)
def test_a_speaker_is_a_name_before_a_colon(text: str, speaker: str) -> None:
    assert speaker_of([user(text)]) == speaker


def test_a_message_that_says_who_speaks_is_believed() -> None:
    assert speaker_of([Message("user", (Text("Ben: hi"),), name="Ada ")]) == "ada"
    assert speaker_of([assistant("Caroline: Hi!")]) == ""


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("Why?", True),
        ("Why (really?) not", False),
        ("What now? I would wait.", False),
        ("See http://x.org/?q=1 now", False),
        ('He said "why?"', True),
        ("Do it.", False),
    ],
)
def test_questions_are_noted(text: str, asks: bool) -> None:
    assert _passage(user(text)).note.asks is asks


def test_tags_of_a_turn_come_before_those_of_its_session() -> None:
    session = {"cwd": "/home", "branch": "main", "task_type": "debug"}
    assert about(session, {}) == {"branch": "main", "task": "debug"}
    assert about(session, {"branch": "fix", "who": "ada", "task_type": "review"}) == {
        "branch": "fix",
        "task": "review",
        "who": "ada",
        "task_type": "review",
    }


def test_long_tags_do_not_stand_beside_every_passage() -> None:
    tags = {"path": "x" * 500, "who": "ada"}
    assert passage(RoundWritten(1, 1, (user("Hi"),), 0), tags, 0).note.tags == {"who": "ada"}


def test_pieces_are_cut_as_appends_wrote_them() -> None:
    from perdure.core import messages as canonical

    def piece(turn: int, number: int, round: int, *said: Message, **more: object) -> TurnPiece:
        return TurnPiece(
            id=piece_key("a/b", turn, number),
            content=canonical.encode(said),
            link=b"",
            round=round,
            time=_TIME,
            ended=_TIME,
            **more,  # type: ignore[arg-type]
        )

    pieces = [
        piece(1, 1, 1, user("One"), tags={"who": "ada"}),
        piece(1, 2, 1, _call("recall", id="c5")),
        piece(1, 3, 1, _result("zebra", "c5"), assistant("Done"), breaks=(1,)),
        piece(2, 4, 1, user("Two")),
    ]
    whole = list(moments(pieces, Thread(), {}))
    assert [(m.round.turn, m.round.round, m.round.before) for m in whole] == [
        (1, 1, 0),
        (1, 1, 1),
        (1, 1, 2),
        (1, 2, 0),
        (2, 1, 0),
    ]
    assert [bool(moment.plain()) for moment in whole] == [True, False, False, True, True]
    assert [moment.tags for moment in whole] == [{"who": "ada"}] * 4 + [{}]
    thread = Thread()
    halves = [*moments(pieces[:2], thread, {}), *moments(pieces[2:], thread, {})]
    assert halves == whole


def test_a_memory_is_indexed_as_if_it_was_said() -> None:
    made = of_text("  The port is 8123.  ", Note(time=5, tags={"kind": "fact"}))
    assert "8123" in made.texts[0].split()
    assert made.texts[1:] == ("", "")
    assert made.note == Note(time=5, lengths=(2, 0, 0), tags={"kind": "fact"})
    assert made.plain == "The port is 8123."


def test_what_a_long_call_defines_and_touches_is_found() -> None:
    filler = "+    pass  # more of the same\n" * 40
    patch = (
        f"*** Begin Patch\n*** Update File: app/first.py\n{filler}"
        f"*** Update File: app/billing/rates.py\n+def vat_of(country):\n{filler}"
        f"+class InvoiceTotals:\n{filler}*** End Patch\n"
    )
    tools = _passage(_call("apply_patch", json.dumps({"patch": patch}))).texts[2].split()
    assert {"vat_of", "invoicetotals", "rates.py", "invoic", "rate"} <= set(tools)
    assert len(tools) < 60, "and not all of it"


def test_no_more_than_some_names_of_one_call() -> None:
    code = "\n".join(f"def function_{number}(): ..." for number in range(500))
    tools = _passage(_call("write", json.dumps({"text": code}))).texts[2].split()
    assert 60 < len([term for term in tools if term.startswith("function_")]) < 110


def test_names_in_a_long_result_are_found_once_each() -> None:
    listing = "\n".join(["-rw-r--r-- 1 me me 10 src/app/rate_table.py  version 2.31.4"] * 50)
    tools = _passage(_call("run", "{}"), _result(f"total\n{listing}\nretryLimit\n{listing}"))
    found = tools.texts[2].split()
    assert {"rate_table.py", "rate", "2.31.4", "retrylimit", "retri"} <= set(found)
    assert found.count("retrylimit") == 1


def test_the_line_that_went_wrong_is_found_in_the_middle_of_a_result() -> None:
    dots = "tests/test_a.py ........ [ 10%]\n" * 60
    text = f"{dots}E   KeyError: 'giraffe was not fed'\n{dots}"
    tools = _passage(_call("run", "{}"), _result(text)).texts[2].split()
    assert {"keyerror", "giraff", "feed"} <= set(tools)
    assert len(tools) < 90


def test_what_json_escapes_is_no_part_of_a_word() -> None:
    tools = _passage(_call("write", json.dumps({"text": 'one\nzebra\t"quagga"'}))).texts[2].split()
    assert {"zebra", "quagga"} <= set(tools)
    assert not {"n", "nzebra", "tquagga"} & set(tools)


@pytest.mark.parametrize("run", ["a", "A", "7", "beef01", "aA", "\\"])
def test_one_word_without_end_is_indexed_in_linear_time(run: str) -> None:
    def index(blob: str) -> None:
        _passage(_call("write", json.dumps({"text": blob})), _result(blob))

    small = run * (16_000 // len(run))
    assert_linear(index, small, small * 8)
