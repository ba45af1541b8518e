"""Names that are too long, files, pictures that are none, turns that cannot be shown."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from playwright.async_api import Route, expect

from perdure.core.messages import Media, Message, Text, ToolCall, ToolResult, assistant, user
from perdure.testing import Script
from tests.page.conftest import OpenPage
from tests.page.test_access import violations
from tests.page.test_kept import kept
from tests.page.test_turns import say
from tests.server.conftest import RunningServer

#: Elements that stick out of the window, and cannot be scrolled to.
OUTSIDE = """[...document.querySelectorAll("#page *")].filter(each => {
    if (each.getBoundingClientRect().right <= innerWidth + 1) return false;
    for (let box = each.parentElement; box; box = box.parentElement) {
        const { overflowX } = getComputedStyle(box);
        if (/auto|scroll|hidden/.test(overflowX) && box !== document.body) return false;
    }
    return true;
}).map(each => each.outerHTML.slice(0, 100))"""
LONG = "a-very-long-name-" * 8
#: As long as names of agents and of sessions may be together.
NAME = LONG[:59]


@pytest.mark.parametrize("width", [1_200, 900, 360])
async def test_long_names_push_nothing_away(
    server: RunningServer, open_page: OpenPage, width: int
) -> None:
    session = await server.bank.session(f"{NAME}/{NAME}")
    call, result = ToolCall("c", LONG, json.dumps({"path": LONG})), ToolResult("c", (Text("x"),))
    table = "| " + " | ".join([LONG] * 9) + " |\n" + "|-" * 9 + "|\n" + "| b " * 9 + "|"
    await session.append(
        [
            user(LONG * 9),
            Message("assistant", (call,)),
            Message("tool", (result,)),
            assistant(f"{table}\n\n`{LONG * 3}`\n\n```\n{LONG * 9}\n```"),
        ]
    )
    await server.bank.memories.add(
        NAME, LONG, tags=[f"{number}-{LONG[:40]}" for number in range(9)]
    )
    at = await open_page(
        server, f"#/session/{NAME}/{NAME}", viewport={"width": width, "height": 700}
    )
    await expect(at.turn(1).locator("summary")).to_be_visible()
    size = at.turn(1).locator("summary .size")
    assert await size.evaluate("each => each.getBoundingClientRect().right < innerWidth")
    assert await at.page.evaluate(OUTSIDE) == []
    for name in ("Gradient", "Recall", "Memories", "Inbox"):
        link = at.page.get_by_role("navigation", name="Views").get_by_role("link", name=name)
        await expect(link).to_be_in_viewport()
        await link.click()
        await expect(link).to_have_attribute("aria-current", "page")
        assert await at.page.evaluate(OUTSIDE) == []
    await at.go("#/bank/costs")
    await expect(at.page.get_by_label("Agent", exact=True)).to_be_visible()
    assert await at.page.evaluate(OUTSIDE) == []


async def test_files_are_saved(server: RunningServer, open_page: OpenPage) -> None:
    """Small ones lie in the message, large ones in the artifact store."""
    session = await server.bank.session("ada/notes")
    contents = {"small.pdf": b"%PDF-1", "large.bin": bytes(range(256)) * 2_000}
    parts = [
        Media("application/octet-stream", data=data, filename=name)
        for name, data in contents.items()
    ]
    await session.append([Message("user", (Text("Look"), *parts)), assistant("Done.")])
    at = await open_page(server, "#/session/ada/notes")
    buttons = at.turn(1).get_by_role("button", name="Save")
    await expect(buttons).to_have_count(2)
    for number, (name, data) in enumerate(contents.items()):
        async with at.page.expect_download() as saving:
            await buttons.nth(number).click()
        found = await saving.value
        assert found.suggested_filename == name
        assert Path(await found.path()).read_bytes() == data


async def test_a_result_that_is_too_long_to_be_shown_is_saved(
    server: RunningServer, open_page: OpenPage
) -> None:
    session = await server.bank.session("ada/notes")
    calls = ToolCall("c1", "short", "{}"), ToolCall("c2", "long", "{}")
    texts = ("A line of it.\n" * 9_000, "A line of it.\n" * 200_000)
    results = tuple(
        ToolResult(call.id, (Text(text),)) for call, text in zip(calls, texts, strict=True)
    )
    await session.append(
        [user("Go"), Message("assistant", calls), Message("tool", results), assistant("Done.")]
    )
    at = await open_page(server, "#/session/ada/notes")
    for name, count in (("short", 1), ("long", 0)):
        fold = at.turn(1).locator("details").filter(has_text=name)
        await fold.locator("summary").click()
        await expect(fold.get_by_role("button", name="Save")).to_be_visible()
        await expect(fold.get_by_role("button", name="Fetch the rest")).to_have_count(count)
    async with at.page.expect_download() as saving:
        await at.turn(1).get_by_role("button", name="Save").last.click()
    found = await saving.value
    assert Path(await found.path()).read_text(encoding="utf-8") == texts[1]


async def test_a_turn_that_cannot_be_shown_hides_no_other(
    server: RunningServer, open_page: OpenPage
) -> None:
    """Neither does a picture that is none."""
    await say(server.bank, "ada/notes", ("one", "1"), ("two", "2"), ("three", "3"))
    at = await open_page(server, "#/bank/nothing")

    async def spoil(route: Route) -> None:
        answer = await route.fetch()
        page = await answer.json()
        broken = {"kind": "media", "media_type": "image/png", "data": "!", "filename": "dot.png"}
        for turn in page["turns"]:
            if turn["number"] == 1:
                turn["started"] = 1e30  # no date has that
            elif turn["number"] == 2:
                turn["rounds"][0]["messages"][0]["parts"].append(broken)
        await route.fulfill(response=answer, json=page)

    await at.page.route("**/notes/turns?*", spoil)
    await at.go("#/session/ada/notes")
    await expect(at.turn(3)).to_contain_text("three")
    await expect(at.turn(2)).to_contain_text("dot.png")
    await expect(at.turn(2).locator(".error")).to_be_visible()
    await expect(at.page.get_by_role("alert")).to_contain_text("This cannot be shown.")
    await expect(at.turn(1)).to_have_count(0)
    await at.page.unroute_all(behavior="ignoreErrors")


async def test_without_encryption(
    talking: Callable[[Script], Awaitable[RunningServer]], open_page: OpenPage
) -> None:
    """What browsers keep from pages of other machines that are not encrypted is not needed."""
    server = await talking(["At last."])
    at = await open_page(server)
    await at.context.add_init_script(
        "delete Crypto.prototype.randomUUID; delete Navigator.prototype.serviceWorker;"
        "delete Navigator.prototype.clipboard; delete window.caches;"
    )
    await at.go("#/session/ada/notes")
    await at.page.reload()
    await at.page.get_by_label("Message").fill("Hello?")
    await at.page.keyboard.press("Enter")
    await expect(at.turn(1)).to_contain_text("At last.")
    await at.page.locator(".scroller").focus()
    await at.page.keyboard.press("g")
    await at.page.keyboard.press("y")
    await expect(at.page.locator(".pending, .arriving")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_when_something_went_wrong(
    server: RunningServer, open_page: OpenPage, scheme: str
) -> None:
    """An answer that stopped, a message that was not sent, a server that is away."""
    session = await server.bank.session("ada/notes")
    await session.append("Tell me")
    try:
        async with session.answer() as answer:
            await answer.text("Once upon ")
            raise TimeoutError
    except TimeoutError:
        pass
    at = await open_page(server, "#/session/ada/notes", color_scheme=scheme)
    await expect(at.turn(1).locator(".stopped")).to_be_visible()
    await at.page.get_by_label("Message").fill("Hello?")
    await at.page.keyboard.press("Enter")
    await expect(at.page.get_by_role("alert")).to_contain_text("Not sent.")
    assert await violations(at) == []
    await kept(at, "turns", "Once upon")
    await at.page.route("**/api/**", lambda route: route.abort())
    await at.page.reload()
    await expect(at.turn(1)).to_contain_text("Once upon")
    await expect(at.turn(1).locator(".stopped")).to_be_visible()
    await expect(at.page.get_by_text("Offline")).to_be_visible()
    await at.page.get_by_label("Message").fill("And now?")
    await at.page.keyboard.press("Enter")
    await expect(at.page.get_by_text("Waits for the server")).to_be_visible()
    assert await violations(at) == []
    await at.page.unroute_all(behavior="ignoreErrors")
