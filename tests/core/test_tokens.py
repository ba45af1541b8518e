"""Token counts: exact, bounded in time, learned for models whose tokenizer nobody has."""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import Unsupported
from perdure.core.messages import (
    ArtifactPointer,
    Media,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    Usage,
    event,
    sound,
    user,
)
from perdure.core.tokens import (
    MESSAGE_OVERHEAD,
    TOOL_OVERHEAD,
    Calibration,
    EstimatedCounter,
    ExactCounter,
    TokenScale,
    count_message,
    count_messages,
    media_tokens,
    o200k,
    observe,
    slices,
    steps,
)
from tests.growth import assert_linear

TRANSCRIPTS = Path(__file__).parents[3] / "shared/data/claude_code"

# As OpenAI's cookbook prints them ("How to count tokens with tiktoken"), and its examples' readers.
PUBLISHED = {
    "antidisestablishmentarianism": [493, 129901, 376, 160388, 21203, 2367],
    "2 + 2 = 4": [17, 659, 220, 17, 314, 220, 19],
    "お誕生日おめでとう": [8930, 9697, 243, 128225, 8930, 17693, 4344, 48669],
    "hello world": [24912, 2375],
    "tiktoken is great!": [83, 8251, 2488, 382, 2212, 0],
    "The quick brown fox jumps over the lazy dog.": [
        *(976, 4853, 19705, 68347, 65613, 1072, 290, 29082, 6446, 13)
    ],
    "": [],
}
#: The SHA-256 that tiktoken demands of the vocabulary file it downloads.
VOCABULARY = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"

MEGABYTE = 1 << 20
RUNS = {
    "one letter": "a",
    "spaces": " ",
    "tabs": "\t",
    "line breaks": "\n",
    "dashes": "-",
    "equals signs": "=",
    "NUL": "\0",
    "emoji": "😀",
    "families": "👨‍👩‍👧‍👦",
    "accents": "e\u0301",
    "halves": "\ud83d",
    "wholes in halves": "\ud83d\ude00",
    "base64": "aGVsbG8gd29ybGQK",
    "words": "word ",
}


class Characters:
    """Counts characters: sums can be checked by eye."""

    name = "characters"

    def count(self, text: str) -> int:
        return len(text)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return importlib.import_module("rs_bpe.bpe").openai.o200k_base()


@pytest.mark.parametrize("text", PUBLISHED)
def test_counts_are_those_that_tiktoken_publishes(text: str, tokenizer: Any) -> None:
    assert tokenizer.encode(text) == PUBLISHED[text]
    assert ExactCounter().count(text) == len(PUBLISHED[text])


def test_the_vocabulary_is_the_published_one(tokenizer: Any) -> None:
    vocabulary = tokenizer.bpe()
    lines = (
        b"%s %d\n" % (base64.b64encode(vocabulary.decode_tokens([rank])), rank)
        for rank in range(199_998)
    )
    assert hashlib.sha256(b"".join(lines)).hexdigest() == VOCABULARY


@given(st.text(max_size=300))
def test_a_count_is_the_number_of_tokens(text: str) -> None:
    tokenizer = importlib.import_module("rs_bpe.bpe").openai.o200k_base()
    assert ExactCounter().count(text) == len(tokenizer.encode(sound(text)))


def test_text_that_looks_like_a_special_token_is_text() -> None:
    assert ExactCounter().count("<|endoftext|>") == 7


@pytest.mark.parametrize("run", RUNS)
def test_long_runs_of_anything_are_counted_in_linear_time(run: str, tokenizer: Any) -> None:
    size = MEGABYTE if run in ("one letter", "spaces", "emoji") else MEGABYTE // 8
    small = RUNS[run] * (size // 8 // len(RUNS[run]))
    text = small * 8
    pieces = list(slices(text))
    assert "".join(pieces) == sound(text)
    assert max(map(len, pieces)) <= 16_384

    assert_linear(lambda text: ExactCounter().count(text), small, text)
    counted = ExactCounter().count(text)
    whole = tokenizer.count(sound(text))
    assert whole <= counted <= whole + 2 * len(pieces)


# Everything that o200k's rules about where tokens end speak of; few, so that they meet.
_CRUMBS = [*" \n\t\r/aB1'=é中😀\u00a0\u3000\0\x1c\x85\u0301ǅ_", "\r\n", "  ", "word", "'s", "'LL"]


@given(st.lists(st.sampled_from(_CRUMBS), min_size=1, max_size=60).map("".join))
def test_cutting_between_tokens_changes_no_count(crumbs: str) -> None:
    # A space after every 60 crumbs: enough places to cut.
    text = f"{crumbs}x y" * (60_000 // (len(crumbs) + 3))
    tokenizer = importlib.import_module("rs_bpe.bpe").openai.o200k_base()
    pieces = list(slices(text))
    assert len(pieces) > 2
    assert "".join(pieces) == text
    assert ExactCounter().count(text) == tokenizer.count(text)
    assert [list(slices(piece)) for piece in pieces] == [[piece] for piece in pieces]


@given(st.text(st.characters(), max_size=400))
def test_any_string_can_be_counted(text: str) -> None:
    for counter in (
        ExactCounter(),
        EstimatedCounter(),
    ):
        assert counter.count(text) == counter.count(text) >= bool(text)
        assert counter.count(text) <= 4 * len(text)


def test_the_estimate_counts_bytes_and_says_so() -> None:
    assert EstimatedCounter().name == "bytes/4"
    assert EstimatedCounter().count("") == 0
    assert EstimatedCounter().count("hello") == 2
    assert EstimatedCounter().count("中文") == 2


def test_without_the_package_the_estimate_steps_in(monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure.core import tokens

    monkeypatch.setitem(sys.modules, "rs_bpe.bpe", None)
    for cached in (tokens.o200k, tokens._tokenizer):
        cached.cache_clear()
    try:
        assert o200k().name == "bytes/4"
        with pytest.raises(Unsupported, match="Install rs-bpe"):
            ExactCounter().count("text")
    finally:
        for cached in (tokens.o200k, tokens._tokenizer):
            cached.cache_clear()


def test_the_default_is_exact() -> None:
    assert o200k().name == "o200k"


def test_importing_and_asking_loads_no_tokenizer() -> None:
    program = (
        "import sys\n"
        "from perdure.core import tokens\n"
        "print('rs_bpe' in sys.modules)\n"
        "tokens.o200k()\n"
        "print(sys.modules['rs_bpe.bpe'].openai.is_cached_o200k())\n"
        "tokens.o200k().count('x')\n"
        "print(sys.modules['rs_bpe.bpe'].openai.is_cached_o200k())\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout.split() == ["False", "False", "True"]


# --- messages -----------------------------------------------------------------------------------

_ARTIFACT = "sha256:" + "0" * 64
_NATIVE = {"messages": {"cache_control": {"type": "ephemeral" * 100}}}

MESSAGES = [
    (user("hello"), 5),
    (Message("user", (Text("hello", _NATIVE),), id="msg_123", native=_NATIVE), 5),
    (Message("user", (Text("hello"),), name="anna"), 9),
    (Message("user"), 0),
    (Message("assistant", (Reasoning("because", signature="x" * 500), Text("yes"))), 10),
    (Message("assistant", (Reasoning(summary=("one", "two"), encrypted="x" * 500),)), 7),
    (Message("assistant", (ToolCall("call_1", "ls", '{"a": 1}'),)), 11 + TOOL_OVERHEAD),
    (
        Message(
            "assistant", (ToolCall("c", "ls", reference=ArtifactPointer(_ARTIFACT, 9, head="abc")),)
        ),
        6 + TOOL_OVERHEAD,
    ),
    (
        Message("tool", (ToolResult("c", (Text("out"), Text("put"))), ToolResult("d"))),
        6 + 2 * TOOL_OVERHEAD,
    ),
    (
        Message("tool", (ToolResult("c", (Media("image/png", data=b"x" * 100),)),)),
        255 + TOOL_OVERHEAD,
    ),
    (Message("user", (ArtifactPointer(_ARTIFACT, 1_000_000, head="the beginning"),)), 13),
    (
        Message(
            "user", (Unknown("messages", {"type": "x", "text": "ab", "n": ["c", {"d": "e"}]}),)
        ),
        4,
    ),
    (Message("user", (Unknown("x", {"id": "no", "encrypted_content": "no", "tool_id": "no"}),)), 0),
    (Message("assistant", (Text("a\ud800"),), usage=Usage(input=999)), 2),
]


@pytest.mark.parametrize(("message", "expected"), MESSAGES)
def test_what_counts_in_a_message(message: Message, expected: int) -> None:
    assert count_message(Characters(), message) == expected + MESSAGE_OVERHEAD


def test_events_cost_nothing() -> None:
    assert count_message(Characters(), event("compacted", "a long summary")) == 0


@pytest.mark.parametrize(
    ("media", "expected"),
    [
        (Media("image/png", data=b"x" * 20_000), 255),
        (Media("image/png", data=b"x" * 20_001), 765),
        (Media("image/jpeg", artifact=_ARTIFACT, size=200_001), 1_600),
        (Media("image/png", url="https://example.org/a.png"), 765),
        (Media("image/png", file_id="file-1"), 765),
        (Media("audio/mpeg", data=b"x" * 16_000), 10),
        (Media("application/pdf", artifact=_ARTIFACT, size=64_000), 2_000),
        (Media("text/csv", data=b"x" * 4_001), 1_001),
        (Media(file_id="file-2"), 2_000),
    ],
)
def test_media_have_a_flat_figure(media: Media, expected: int) -> None:
    assert media_tokens(media) == expected


def test_long_content_is_counted_in_steps() -> None:
    messages = [user("x" * 100), user("word " * 20_000), *(user("short") for _ in range(5_000))]
    counter = ExactCounter()
    counted = list(steps(counter, messages))
    assert len(counted) > 7
    assert max(counted) <= 17_000
    assert sum(counted) == count_messages(counter, messages)
    assert sum(counted) == sum(count_message(counter, message) for message in messages)
    assert list(steps(counter, [])) == [0]


def test_deep_unknown_parts_are_counted() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    assert count_message(Characters(), Message("user", (Unknown("ui", deep),))) == 5


# --- calibration --------------------------------------------------------------------------------


def _learned(samples: Iterator[tuple[int, int]] | list[tuple[int, int]]) -> Calibration:
    calibration = Calibration()
    for ours, theirs in samples:
        calibration = observe(calibration, ours, theirs)
    return calibration


def test_the_factor_is_learned() -> None:
    before = Calibration()
    assert before.factor == 1.0
    assert observe(before, 1_000, 1_200).factor == 1.2
    assert before == Calibration()


@pytest.mark.parametrize(
    ("ours", "theirs"), [(99, 110), (0, 0), (-5, 5), (1_000, 0), (1_000, 249), (1_000, 4_001)]
)
def test_implausible_samples_are_ignored(ours: int, theirs: int) -> None:
    calibration = observe(_learned([(1_000, 1_100)]), ours, theirs)
    assert (calibration.factor, calibration.samples, calibration.ignored) == (1.1, 1, 1)


def test_large_samples_weigh_more() -> None:
    assert _learned([(100, 200), (150, 300), (9_000, 9_900)]).factor == 1.1


def test_it_follows_a_model_that_counts_otherwise_from_now_on() -> None:
    calibration = _learned([(1_000, 1_100)] * 500 + [(1_000, 1_350)] * 16)
    assert calibration.factor == 1.35
    assert calibration.samples == 516
    assert len(calibration.recent) == 31


@given(
    st.lists(st.tuples(st.integers(5_000, 20_000), st.floats(1.1, 1.3)), min_size=16, max_size=31),
    st.lists(st.tuples(st.integers(-10, 5_000), st.integers(-10, 10**9)), max_size=15),
    st.randoms(use_true_random=False),
)
def test_a_minority_of_wrong_samples_does_not_move_it(
    right: list[tuple[int, float]], wrong: list[tuple[int, int]], dice: Any
) -> None:
    samples = [(ours, round(ours * factor)) for ours, factor in right] + wrong[: 31 - len(right)]
    dice.shuffle(samples)
    assert 1.099 <= _learned(samples).factor <= 1.301


def test_a_calibration_can_be_stored() -> None:
    calibration = _learned([(1_000, 1_100)] * 40 + [(1, 1)])
    stored = msgspec.msgpack.encode(calibration)
    assert msgspec.msgpack.decode(stored, type=Calibration) == calibration
    assert len(stored) < 400


def test_a_scale_waits_until_enough_is_known() -> None:
    assert _learned([(499, 700)]).scale == TokenScale()
    assert _learned([(499, 700), (100, 140)]).scale == TokenScale(29)


def test_a_scale_rises_when_it_must_and_falls_late() -> None:
    def after(*factors: float) -> int:
        samples = [(1_000, round(1_000 * factor)) for factor in factors for _ in range(31)]
        return _learned(samples).scale.twentieths

    assert after(1.2) == after(1.2, 1.22, 1.25, 1.19, 1.16) == 25
    assert after(1.2, 1.26) == after(1.2, 1.26, 1.19) == 26
    assert after(1.2, 1.1) == 23
    assert after(1.0) == after(0.97) == after(0.93) == 20
    assert after(0.89) == 18


@given(st.integers(0, 10**9), st.integers(5, 80), st.data())
def test_what_fits_into_ours_fits_into_theirs(budget: int, twentieths: int, data: Any) -> None:
    scale = TokenScale(twentieths)
    ours = data.draw(st.integers(0, scale.ours(budget)))
    assert ours * twentieths / 20 <= scale.theirs(ours) <= budget


@pytest.mark.skipif(not TRANSCRIPTS.exists(), reason="no transcripts beside the project")
def test_claude_is_calibrated_from_real_usage() -> None:
    """Learned from the first half of a session, it tells how the second half grows."""
    counted: list[tuple[int, int]] = []
    for file in sorted(TRANSCRIPTS.glob("*.jsonl")):
        counted += _growth(file)
    half = len(counted) // 2
    calibration = _learned(counted[:half])
    assert calibration.samples > 50
    assert 1.05 < calibration.factor < 1.4

    later = [(ours, theirs) for ours, theirs in counted[half:] if ours > 2_000 and theirs > 0]
    off = sum(ours * calibration.factor for ours, _ in later) / sum(theirs for _, theirs in later)
    assert 0.85 < off < 1.15


def _growth(file: Path) -> Iterator[tuple[int, int]]:
    """From one request to the next: what was added, by our count and by the provider's."""
    ours = before = 0
    newest = ""
    for line in file.read_text().splitlines():
        record = json.loads(line)
        if record.get("subtype") == "compact_boundary":
            before = 0
        if record["type"] not in ("user", "assistant"):
            continue
        message = record["message"]
        usage = message.get("usage")
        if usage and message["id"] != newest:
            newest = message["id"]
            fields = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
            now = sum(usage.get(field, 0) for field in fields)
            if before:
                yield ours, now - before
            before, ours = now, 0
        ours += count_message(ExactCounter(), _message(message))


def _message(message: dict[str, Any]) -> Message:
    content = message["content"]
    if isinstance(content, str):
        return user(content)
    parts: list[Text | ToolCall | ToolResult] = []
    for block in content:
        match block["type"]:
            case "text":
                parts.append(Text(block["text"]))
            case "tool_use":
                parts.append(ToolCall("", block["name"], json.dumps(block["input"])))
            case "tool_result":
                inner = block.get("content", "")
                texts = [inner] if isinstance(inner, str) else [b.get("text", "") for b in inner]
                parts.append(ToolResult("", tuple(map(Text, texts))))
    return Message(message["role"], tuple(parts))
