"""Whatever was said, the document stays whole, and no word is lost."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from perdure.bank import Bank
from perdure.config import Config
from perdure.core.errors import ArtifactMissing, PerdureError
from perdure.core.messages import (
    Media,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    assistant,
    event,
    references,
    user,
)
from perdure.core.turns import Round, Turn
from perdure.history.session_export import jsonl
from perdure.history.session_markdown import fenced, flowing, markdown, section
from perdure.sessions.session import Session
from perdure.testing.manual_clock import ManualClock


@pytest.fixture
async def bank(clock: ManualClock) -> AsyncIterator[Bank]:
    clock.set(1_770_912_120_000_000)  # 2026-02-12 16:02 UTC
    async with Bank("memory://", config=Config(), clock=clock) as opened:
        yield opened


async def written(session: Session) -> str:
    return "".join([piece async for piece in markdown(session)])


async def test_a_conversation(bank: Bank) -> None:
    session = await bank.session("planner/auth_v2")
    call = ToolCall("c1", "Bash", '{"command": "ls -la", "script": "a\\nb"}')
    await session.append(
        [
            user("List the *files*.\n\nAll of them."),
            Message("assistant", (Reasoning("I should look."), Text("Let me look."), call)),
            Message("tool", (ToolResult("c1", (Text("```\na.py\n```"),)),)),
            assistant("# Found\n\nOne: `a.py`"),
        ],
        tags={"topic": "files"},
        count=True,
    )
    await session.append([user("thanks"), assistant("<b>welcome</b>")], count=True)
    await session.undo()
    await session.append([event("compacted", "what was said"), user("go on")], count=True)
    assert re.sub(r"\d+ tokens", "N tokens", await written(session)) == EXPECTED


async def test_tags_that_leaked_into_an_answer(bank: Bank) -> None:
    session = await bank.session("planner/auth")
    answer = "<T-1-R>\nYes.\n</T-1-R>"
    await session.append([user("What of <T-3-R>?"), assistant(answer)])
    await session.append([user("Thanks."), assistant("<T-2-R>" + "Welcome. " * 4_000)])
    document = await written(session)
    assert "*2 leaked tags hidden*\n\n" in document
    assert "> What of <T-3-R>?\n" in document
    assert "\n\nYes.\n" in document
    assert "*1 leaked tag hidden*" in document
    assert "<T-2-R>" not in document
    exported = b"".join([line async for line in jsonl(session)]).decode()
    assert json.dumps(answer)[1:-1] in exported


EXPECTED = """# planner/auth\\_v2

## T-1 · 2026-02-12 16:02 · N tokens

*topic: files*

> List the *files*.
>
> All of them.

<details>
<summary>reasoning</summary>

I should look.

</details>

Let me look.

<details>
<summary>Bash: ls -la → 3 lines, 12 B</summary>

```json
{
  "command": "ls -la"
}
```

*script*

```text
a
b
```

**Result**

````text
```
a.py
```
````

</details>

### Found

One: `a.py`

## T-2 · 2026-02-12 16:02 · N tokens

*undone*

> thanks

```markdown
<b>welcome</b>
```

## T-3 · 2026-02-12 16:02 · N tokens

*open*

<details>
<summary>compacted</summary>

what was said

</details>

> go on
"""


async def test_large_content_is_in_it_and_what_is_gone_is_told(bank: Bank) -> None:
    session = await bank.session("planner/auth")
    large = "all of these words\n" * 3_000
    turn = await session.append([user("Look."), assistant(large)])
    assert large in await written(session) + "\n"
    assert isinstance(turn, Turn)
    (gone,) = references(turn.messages)
    await bank.artifacts.delete(gone)
    with pytest.raises(ArtifactMissing):
        await written(session)
    told = list[PerdureError]()
    pieces = [piece async for piece in markdown(session, on_missing=told.append)]
    assert len(told) == 1
    assert "all of these words" in pieces[-1]
    assert gone.partition(":")[2] in pieces[-1]


async def test_forks_and_forgotten_turns(bank: Bank) -> None:
    session = await bank.session("planner/auth")
    await session.append([user("a secret"), assistant("yes")])
    await session.append([user("more"), assistant("no")])
    fork = await session.fork("coder/auth", at="T-1")
    await bank.forget("planner/auth", turns=["T-1"])
    assert "a secret" not in await written(session)
    assert "*forgotten*" in await written(session)
    assert "Forked from planner/auth behind T-1." in await written(fork)


def turn_of(*messages: Message) -> Turn:
    return Turn(
        session="a/b",
        number=1,
        rounds=(Round(1, messages),),
        status="closed",
        started=1_770_912_120_000_000,
        ended=1_770_912_120_000_000,
    )


def test_every_kind_of_part_is_shown() -> None:
    picture = Media("image/png", data=b"12345", filename="a_chart.png")
    link = Media("image/png", url="https://example.org/a_b.png")
    text = section(
        turn_of(
            Message("system", (Text("Be brief."),)),
            Message("user", (Text("reminder"),), injected=True),
            Message("user", (Text("Look at this:"), picture, link)),
            Message("assistant", (ToolCall("c1", "odd", "no { json"), ToolCall("c2", "late"))),
            Message("tool", (ToolResult("c1", (picture, Unknown("chat", {"a": [1]})), True),)),
            Message("tool", (ToolResult("c9", (Text("whose?"),)),)),
            Message("assistant", (Unknown("chat", {"refusal": "never"}),), partial=True),
        )
    )
    for words in (
        *(
            "Be brief.",
            "reminder",
            "Look at this:",
            "no { json",
            "late:  → no result",
            "**Failed**",
        ),
        *('"refusal": "never"', "result of c9", "whose?", "cut off", "note in the user"),
        *(r"image/png, 5 B, a\_chart.png", r"https://example.org/a\_b.png"),
    ):
        assert words.replace(":  ", ": ") in text
    assert structure(text) == (["T-1 · 2026-02-12 16:02"], 5)


def test_results_with_the_same_id_are_all_there() -> None:
    results = tuple(ToolResult("", (Text(f"answer {n}"),)) for n in range(3))
    text = section(
        turn_of(user("go"), Message("assistant", (ToolCall("", "f"),)), Message("tool", results))
    )
    assert all(f"answer {n}" in text for n in range(3))


NASTY = [
    "```",
    "~~~~\nleft open",
    "<details>",
    "</details>\n</details>",
    "<!-- left open",
    "<script>alert(1)</script>",
    "[link]: https://example.org 'title'",
    "## T-99 · a heading that is none of ours",
    "Underlined\n===",
    "Underlined\n===\t",
    "Underlined\r\n---\t\r\n",
    "-\t# heading in a list",
    "Two lines\nunderlined\n---",
    "> quoted\n> ## in a quote",
    "- item\n\n      code in it\n\n  ```\n<b>after</b>",
    "1. a\n   # heading in a list",
    "    indented <b>code</b>",
    "`" * 40,
    "\r\n```\rmixed\r\n",
    "\x00\x1b[2J\u2028\u202e",
    "]]>",
    "&lt;entity&gt; &amp;",
    "<T-1-C>tags</T-1-C>",
    "a\n\n\n\n\nb",
    "***\n---\n___",
    "|a|b|\n|-|-|\n|1|2|",
    "# closed #\n#\n#######",
    "\\",
]


@pytest.mark.parametrize("text", NASTY, ids=repr)
def test_nothing_breaks_the_document(text: str) -> None:
    check(text)


pieces = st.sampled_from(
    [*NASTY, "\n", "\n\n", " ", "    ", "\t", "word", "`", "*", "_", "<", ">", "#", "-", "=", "|"]
) | st.text(max_size=8)


@pytest.mark.repeated
@given(st.lists(pieces, max_size=12).map("".join))
@example("- ```\n")
@example("<a\n\nb>")
def test_nothing_at_all_breaks_the_document(text: str) -> None:
    check(text)


def check(text: str) -> None:
    call = ToolCall("c1", text[:50], text)
    document = section(
        turn_of(
            user(text),
            Message("assistant", (Reasoning(text), Text(text), call)),
            Message("tool", (ToolResult("c1", (Text(text),)),)),
            Message("user", (Text(text),), injected=True),
            event(text[:20], text),
            assistant("the end"),
        )
    )
    asides = 1 + bool(text.strip()) + 2
    assert structure(document) == (["T-1 · 2026-02-12 16:02"], asides)
    assert document.rstrip().endswith("\n\nthe end")
    last = MarkdownIt("commonmark").parse(document)[-3:]
    assert [token.type for token in last] == ["paragraph_open", "inline", "paragraph_close"]
    assert last[0].level == 0
    assert len(re.findall("the end", document)) == 1 + 5 * text.count("the end")
    words = re.findall(r"\w+", text)
    assert re.findall(r"\w+", fenced(text)) == ["text", *words]
    assert re.findall(r"\w+", flowing(text).removeprefix("```markdown\n")) in (
        words,
        ["markdown", *words],  # behind a longer fence
    )


def structure(document: str) -> tuple[list[str], int]:
    """The document's headings of turns, and how much of it is folded; all HTML must be ours."""
    tokens = MarkdownIt("commonmark").parse(document)
    headings = [
        following.content
        for token, following in pairwise(tokens)
        if token.type == "heading_open" and token.tag in {"h1", "h2"}
    ]
    html = [token.content for token in tokens if token.type == "html_block"]
    opened = [each for each in html if each.startswith("<details>\n<summary>")]
    closed = [each for each in html if each == "</details>\n"]
    assert len(html) == len(opened) + len(closed)
    assert len(opened) == len(closed)
    assert all(each.count("<") == 3 and each.endswith("</summary>\n") for each in opened), opened
    assert not [
        child for token in tokens for child in token.children or () if child.type == "html_inline"
    ]
    return headings, len(opened)
