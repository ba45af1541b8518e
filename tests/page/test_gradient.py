"""The gradient of a session as a picture, in a real browser on a real server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Locator, expect

from perdure.bank.bank import Bank
from perdure.core.messages import assistant, user
from perdure.server.operations import TokenScope
from tests.page.conftest import BrowserPage, OpenPage
from tests.page.test_access import violations
from tests.server.conftest import RunningServer

PLACE = "#/session/ada/notes/gradient"
TURNS = 16


async def fill(bank: Bank) -> None:
    """A session whose prompts were all composed, and whose window had to be planned."""
    session = await bank.session("ada/notes", budget=1_000)
    for number in range(1, TURNS + 1):
        context = await session.context(f"What did <b>step {number}</b> bring?", recall=False)
        words = " ".join(f"Result {number}.{part} is kept in the ledger." for part in range(16))
        await session.append(assistant(words), context=context)


def elements(at: BrowserPage) -> Locator:
    return at.page.locator(".window .hit")


async def middle(bar: Locator) -> tuple[float, float]:
    box = await bar.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


async def named(at: BrowserPage, pattern: str) -> Locator:
    """The bar of the last element whose name fits: of what is seen above the history."""
    found = at.page.get_by_role("button", name=re.compile(pattern)).last
    await expect(found).to_be_visible()
    return found.locator("rect").first


async def test_the_window_as_a_picture(server: RunningServer, open_page: OpenPage) -> None:
    await fill(server.bank)
    shown = await (await server.bank.session("ada/notes")).context("…", keep=False, recall=False)
    blocks = [block for block in shown.explain() if block.kind in {"block", "native"}]
    at = await open_page(server, PLACE)
    for block in blocks:
        label = f"{block.name} at {block.level}, {block.tokens} tokens for {block.raw}"
        await expect(at.page.get_by_role("button", name=label, exact=True)).to_have_count(1)
    widths: dict[str, float] = {}
    for block in blocks:
        bar = at.page.get_by_role("button", name=f"{block.name} at ").locator("rect").first
        widths[block.name] = float(await bar.get_attribute("width") or 0)
    per_token = {round(widths[block.name] / block.tokens, 2) for block in blocks}
    assert max(per_token) - min(per_token) <= 0.02  # as wide as its tokens
    newest = await named(at, rf"^T-{TURNS} at R")
    await newest.hover()
    readout = at.page.get_by_role("group", name="The chosen element")
    await expect(readout).to_contain_text(f"T-{TURNS}")
    await expect(readout).to_contain_text("Raw: as it was said")
    await newest.click()
    await expect(at.turn(TURNS)).to_be_visible()
    assert at.page.url.endswith(f"#/session/ada/notes/turns/T-{TURNS}")


async def test_a_drag_and_keys_change_a_fidelity(
    server: RunningServer, open_page: OpenPage
) -> None:
    await fill(server.bank)
    session = await server.bank.session("ada/notes")
    at = await open_page(server, PLACE)
    x, y = await middle(await named(at, rf"^T-{TURNS} at R"))
    box = await at.page.locator("svg.window").bounding_box()
    assert box is not None
    await at.page.mouse.move(x, y)
    await at.page.mouse.down()
    await at.page.mouse.move(x, box["y"] + 80, steps=4)
    await expect(at.page.locator(".ghost")).to_contain_text(f"T-{TURNS} → C")
    await at.page.mouse.up()
    status = at.page.locator(".wish").get_by_role("status")
    await expect(status).to_contain_text(f"T-{TURNS} stands at C from the next request on.")
    changed = at.page.get_by_role("button", name=re.compile(rf"^T-{TURNS} at C"))
    await expect(changed).to_have_count(1)
    assert await level_of(session, TURNS) == "C"
    assert "/gradient" in at.page.url  # a drag is no click
    await changed.focus()
    await at.page.keyboard.press("s")
    await expect(status).to_contain_text(f"T-{TURNS} stands at S from the next request on.")
    await expect(at.page.get_by_role("button", name=re.compile(rf"^T-{TURNS} at S"))).to_have_count(
        1
    )
    await at.page.get_by_label("Change levels at the next epoch").check()
    await at.page.get_by_role("button", name=re.compile(rf"^T-{TURNS} at S")).focus()
    await at.page.keyboard.press("ArrowUp")
    await expect(status).to_contain_text(f"T-{TURNS} stands at R from the next rewrite")


async def test_a_turn_of_a_range_is_raised(server: RunningServer, open_page: OpenPage) -> None:
    """The turn that is under the pointer; by its number, with the buttons above."""
    await fill(server.bank)
    at = await open_page(server, PLACE)
    bar = await named(at, r"^T-\d+-through-\d+ at T")
    x, y = await middle(bar)
    box = await at.page.locator("svg.window").bounding_box()
    assert box is not None
    await at.page.mouse.move(x, y)
    await at.page.mouse.down()
    await at.page.mouse.move(x, box["y"] + 50, steps=4)
    ghost = await at.page.locator(".ghost text").text_content() or ""
    await at.page.mouse.up()
    turn = int(re.findall(r"T-(\d+) → S", ghost)[0])
    status = at.page.locator(".wish").get_by_role("status")
    await expect(status).to_contain_text(f"T-{turn} stands at S from the next request on.")
    await expect(at.page.get_by_role("button", name=re.compile(rf"^T-{turn} at S"))).to_have_count(
        1
    )
    await (await named(at, r"^T-\d+-through-\d+ at T")).hover()
    await at.page.get_by_label("Turn of the range").fill("2")
    levels = at.page.get_by_role("group", name="Level of T-2")
    await levels.get_by_role("button", name="C").click()
    await expect(status).to_contain_text("T-2 stands at C from the next request on.")


async def level_of(session: Any, turn: int) -> str | None:
    context = await session.context("…", keep=False, recall=False)
    return next(block.level for block in context.explain() if block.name == f"T-{turn}")


async def test_who_may_only_read_changes_nothing(
    server: RunningServer, open_page: OpenPage
) -> None:
    await fill(server.bank)
    at = await open_page(server, PLACE, token=server.token(TokenScope.READ))
    await (await named(at, rf"^T-{TURNS} at R")).hover()
    readout = at.page.get_by_role("group", name="The chosen element")
    await expect(readout.get_by_role("link", name=f"Open T-{TURNS}")).to_be_visible()
    await expect(readout.get_by_role("button")).to_have_count(0)


async def test_epochs_and_past_prompts(server: RunningServer, open_page: OpenPage) -> None:
    await fill(server.bank)
    session = await server.bank.session("ada/notes")
    epoch = (await session.epochs())[-1]
    at = await open_page(server, PLACE)
    await at.page.locator(".epoch").last.hover()
    told = at.page.locator(".epochs .readout")
    await expect(told).to_contain_text(f"Epoch {epoch.number}")
    await expect(told).to_contain_text(f"{epoch.after:,} tokens of 1,000")
    await at.page.locator(".epoch").last.click()
    turn = epoch.at.turn
    sent = at.page.get_by_role("region", name=f"The prompt of T-{turn}, as it was sent")
    await expect(sent).to_contain_text(f"What did <b>step {turn}</b> bring?")
    past = await session.past_context(turn)
    for block in past.shown.blocks:
        await expect(sent).to_contain_text(" ".join(block.text.split()))
    assert at.page.url.endswith(f"gradient/T-{turn}")
    await at.page.get_by_label("compared with").fill(f"T-{turn - 1}")
    await at.page.keyboard.press("Enter")
    region = at.page.get_by_role(
        "region", name=f"From the prompt of T-{turn - 1} to that of T-{turn}"
    )
    await expect(region.locator("ins").last).to_contain_text(f"step {turn}</b> bring?")
    await expect(region.locator("del").first).to_be_visible()
    await at.go(f"{PLACE}/T-99")
    await expect(at.page.get_by_role("alert").first).to_contain_text("has no turn T-99")


async def test_the_picture_as_a_file(
    server: RunningServer, open_page: OpenPage, tmp_path: Path
) -> None:
    await fill(server.bank)
    at = await open_page(server, PLACE)
    await expect(elements(at).first).to_be_visible()
    async with at.page.expect_download() as caught:
        await at.page.get_by_role("button", name="Save as SVG").click()
    download = await caught.value
    assert download.suggested_filename == "ada-notes-window.svg"
    await download.save_as(tmp_path / "window.svg")
    text = (tmp_path / "window.svg").read_text(encoding="utf-8")
    assert "var(" not in text
    assert "rgb(11, 110, 105)" in text  # the accent, as it looks
    alone = await at.context.new_page()
    await alone.set_content(text.partition("?>")[2])
    assert await alone.locator("svg rect").count() > 2 * TURNS


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_and_a_phone(server: RunningServer, open_page: OpenPage, scheme: str) -> None:
    await fill(server.bank)
    at = await open_page(server, PLACE, color_scheme=scheme)
    await expect(elements(at).first).to_be_visible()
    await elements(at).last.focus()
    for key in ("ArrowLeft", "ArrowLeft"):
        await at.page.keyboard.press(key)
    await expect(at.page.get_by_role("group", name="The chosen element")).to_be_visible()
    assert await violations(at) == []
    await at.go(f"{PLACE}/T-{TURNS}/T-{TURNS - 1}")
    await expect(at.page.locator("ins").first).to_be_visible()
    assert await violations(at) == []
    await at.page.set_viewport_size({"width": 390, "height": 780})
    await at.go(PLACE)
    await expect(elements(at).last).to_be_visible()
    assert await violations(at) == []
    wide = "document.documentElement.scrollWidth <= innerWidth"
    assert await at.page.evaluate(wide)
    width = await at.page.locator("svg.window").bounding_box()
    assert width is not None
    assert width["width"] <= 390


async def test_a_session_without_turns(server: RunningServer, open_page: OpenPage) -> None:
    await server.bank.session("ada/empty")
    at = await open_page(server, "#/session/ada/empty/gradient")
    await expect(at.page.get_by_text("No turns yet.")).to_be_visible()
    session = await server.bank.session("ada/empty")
    await session.append([user("One"), assistant("Two")])
    await expect(elements(at).first).to_be_visible()
