"""Agents, sessions and turns, in a real browser on a real server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from playwright.async_api import Route, expect

from perdure.bank.bank import Bank
from perdure.core.messages import Message, Reasoning, Text, ToolCall, ToolResult, assistant, user
from perdure.history import turn_search
from perdure.server.operations import TokenScope
from perdure.testing import Script, ScriptedAnswer, ScriptedFault
from tests.page.browser import PATIENCE
from tests.page.conftest import BrowserPage, OpenPage
from tests.server.conftest import RunningServer
from tests.server.test_live import writer
from tests.waiting import until

#: The browser has the turns of both sessions.
KEPT = """await indexedDB.databases().then(([{ name }]) => new Promise(done => {
    indexedDB.open(name).onsuccess = ({ target: { result: db } }) => {
        db.transaction("turns").objectStore("turns").count().onsuccess = ({ target }) => {
            db.close();
            done(target.result === 2);
        };
    };
}))"""


async def say(bank: Bank, session: str, *pairs: tuple[str, str]) -> None:
    opened = await bank.session(session)
    for asked, answered in pairs:
        await opened.append([user(asked), assistant(answered)])


async def shown(page: BrowserPage) -> list[str]:
    """The texts of the turns that are elements, in order."""
    found: list[str] = await page.page.locator(".slot .turn").all_inner_texts()
    return found


async def test_from_the_link_to_a_turn(server: RunningServer, browser: Any) -> None:
    await say(server.bank, "ada/notes", ("Which port?", "Port **8123**."))
    await say(server.bank, "bob/work", ("Hi", "Hello"))
    page = await browser.new_page()
    code = server.app.run_tokens.login_code("ada")
    await page.goto(f"{server.url}/#code={code}")
    await expect(page.get_by_role("link", name="bob")).to_be_visible()
    assert code not in page.url
    await page.get_by_role("link", name="ada").click()
    await expect(page.locator('[data-turn="1"] strong')).to_have_text("8123")
    assert page.url.endswith("#/session/ada/notes")
    await page.reload()  # still logged in
    await expect(page.locator('[data-turn="1"] strong')).to_have_text("8123")
    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_label("Token")).to_be_visible()
    assert await page.evaluate("indexedDB.databases().then(all => all.length)") == 0


async def test_what_was_seen_is_there_while_the_server_says_nothing(
    server: RunningServer, open_page: OpenPage
) -> None:
    """Every answer is held back until the turns are shown: they can only be the browser's."""
    await say(server.bank, "ada/notes", ("Which port?", "8123."))
    await say(server.bank, "ada/plans", ("And then?", "We ship."))
    at = await open_page(server, "#/session/ada/notes")
    await expect(at.turn(1)).to_contain_text("8123.")
    await at.go("#/session/ada/plans")
    await expect(at.turn(1)).to_contain_text("We ship.")
    release, asked = asyncio.Event(), list[str]()

    async def hold(route: Route) -> None:
        asked.append(route.request.url)
        await release.wait()
        await route.continue_()

    await at.page.route("**/api/**", hold)
    await at.go("#/session/ada/notes")
    await expect(at.turn(1)).to_contain_text("8123.")
    assert await at.page.locator("[role=progressbar], .spinner").count() == 0
    await until(lambda: any("/notes/turns" in url for url in asked))  # it asks behind that
    await at.until(KEPT)
    await at.page.reload()
    await expect(at.turn(1)).to_contain_text("8123.")
    await expect(at.page.get_by_role("link", name="plans")).to_be_visible()
    await at.go("#/session/ada/plans")
    await expect(at.turn(1)).to_contain_text("We ship.")
    release.set()
    await say(server.bank, "ada/plans", ("When?", "On Tuesday."))
    await expect(at.turn(2)).to_contain_text("On Tuesday.")
    await at.page.unroute_all(behavior="ignoreErrors")


async def test_what_is_new_is_merged_behind_what_was_there(
    server: RunningServer, open_page: OpenPage
) -> None:
    await say(server.bank, "ada/notes", ("one", "1"), ("two", "2"))
    at = await open_page(server, "#/session/ada/notes")
    await expect(at.turn(2)).to_be_visible()
    await at.go("#/bank/nothing")
    await say(server.bank, "ada/notes", ("three", "3"))
    await at.go("#/session/ada/notes")
    await expect(at.turn(3)).to_contain_text("three")
    await say(server.bank, "ada/notes", ("four", "4"))  # and live
    await expect(at.turn(4)).to_contain_text("four")
    assert len(await shown(at)) == 4


async def test_live_events_that_overtake_the_history(
    server: RunningServer, open_page: OpenPage
) -> None:
    """The answer with the history is held back while turns are written, and told live."""
    await say(server.bank, "ada/notes", *[(f"ask {n}", f"answer {n}") for n in range(1, 6)])
    at = await open_page(server, "#/bank/nothing")
    await expect(at.page.get_by_role("link", name="ada")).to_be_visible()
    held, release = asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        answer = await route.fetch()  # as of now
        held.set()
        await release.wait()
        await route.fulfill(response=answer)

    await at.page.route(re.compile(r"/notes/turns\?"), hold, times=1)
    await at.go("#/session/ada/notes")
    await held.wait()
    await say(server.bank, "ada/notes", *[(f"ask {n}", f"answer {n}") for n in range(6, 9)])
    await expect(at.turn(8)).to_have_count(1)  # heard
    release.set()
    for number in range(1, 9):
        await expect(at.turn(number)).to_contain_text(f"answer {number}")
    texts = await shown(at)
    assert [sum(f"answer {n}" in text for text in texts) for n in range(1, 9)] == [1] * 8
    await at.page.reload()
    for number in range(1, 9):
        await expect(at.turn(number)).to_contain_text(f"answer {number}")


async def test_a_message_is_shown_at_once_and_answered_word_by_word(
    talking: Callable[[Script], Awaitable[RunningServer]], open_page: OpenPage
) -> None:
    server = await talking(
        [ScriptedAnswer("Port 8123, as ever. " * 8, reasoning="Hm.", chunk=8, chunk_delay=0.03)]
    )
    at = await open_page(server, "#/session/ada/notes")
    await expect(at.page.get_by_text("No turns yet.")).to_be_visible()
    await at.page.get_by_label("Message").fill("Which port?")
    await at.page.keyboard.press("Enter")
    await expect(at.page.locator(".prompt")).to_have_text("Which port?")
    await expect(at.page.locator(".arriving .typing")).to_be_visible()
    await expect(at.turn(1)).to_contain_text("Port 8123")
    await expect(at.page.locator(".arriving")).to_have_count(0)
    await expect(at.page.locator(".pending")).to_have_count(0)
    text = await at.turn(1).inner_text()
    assert text.count("Which port?") == 1
    assert text.count("Port 8123, as ever.") == 8
    await expect(at.turn(1).get_by_text("Hm.")).to_have_count(0)
    await at.turn(1).get_by_text("Reasoning").click()
    await expect(at.turn(1).get_by_text("Hm.")).to_be_visible()


async def test_an_answer_is_stopped(
    talking: Callable[[Script], Awaitable[RunningServer]], open_page: OpenPage
) -> None:
    """By its button or by a key; what arrived of it stays, and one goes on talking."""
    endless = ScriptedAnswer("word " * 5_000, chunk=20, chunk_delay=0.02)
    server = await talking([endless, endless, "At last."])
    at = await open_page(server, "#/session/ada/notes")
    for number in (1, 2):
        await at.page.get_by_label("Message").fill(f"Question {number}")
        await at.page.keyboard.press("Enter")
        await expect(at.turn(number).locator(".arriving")).to_contain_text("word word")
        if number == 1:
            await at.turn(1).get_by_role("button", name="Stop").click()
        else:
            await at.page.locator(".scroller").focus()
            await at.page.keyboard.press("x")
        await expect(at.page.locator(".arriving")).to_have_count(0)
        await expect(at.turn(number)).to_contain_text("word word")
    await at.page.get_by_label("Message").fill("Question 3")
    await at.page.keyboard.press("Enter")
    await expect(at.turn(3)).to_contain_text("At last.")
    assert len(await (await server.bank.session("ada/notes")).turns(10)) == 3


async def test_an_answer_of_another_process_says_that_it_is_not_stopped_here(
    server: RunningServer, open_page: OpenPage
) -> None:
    session = await server.bank.session("ada/notes")
    await session.append("Tell me")
    at = await open_page(server, "#/session/ada/notes")
    async with session.answer() as answer:
        await answer.text("Once upon ")
        await at.turn(1).get_by_role("button", name="Stop").click()
        await expect(at.turn(1).get_by_role("alert")).to_contain_text("cannot stop it")


async def test_a_reload_in_the_middle_of_a_stream(
    server: RunningServer, open_page: OpenPage
) -> None:
    session = await server.bank.session("ada/notes")
    await session.append("Tell me")
    at = await open_page(server, "#/session/ada/notes")
    async with session.answer() as answer:
        await answer.text("Once upon ")
        await expect(at.turn(1)).to_contain_text("Once upon")
        await at.page.reload()
        await expect(at.turn(1)).to_contain_text("Once upon")
        await expect(at.turn(1).locator(".typing")).to_be_visible()
        await expect(at.page.locator(".agents .answering")).to_be_visible()
        await answer.text("a time.")
        await expect(at.turn(1)).to_contain_text("Once upon a time.")
        await answer.finish()
    await expect(at.page.locator(".arriving")).to_have_count(0)
    assert (await at.turn(1).inner_text()).count("Once upon a time.") == 1


async def test_an_answer_that_nobody_goes_on_with_has_stopped(
    server: RunningServer, open_page: OpenPage
) -> None:
    session = await server.bank.session("ada/notes")
    await session.append("Tell me")
    try:
        async with session.answer() as answer:
            await answer.text("Once upon ")
            raise TimeoutError
    except TimeoutError:
        pass
    at = await open_page(server, "#/session/ada/notes")
    await expect(at.turn(1)).to_contain_text("Once upon")
    await expect(at.turn(1).locator(".stopped")).to_contain_text("stopped")
    await expect(at.turn(1).get_by_role("button", name="Answer again")).to_be_visible()


async def test_a_writer_that_is_killed_has_stopped(
    server: RunningServer, open_page: OpenPage
) -> None:
    """It is typing as long as its heartbeat comes, however slow it writes. Nobody tells its end."""
    await server.bank.session("ada/notes")
    at = await open_page(server, "#/session/ada/notes")
    await expect(at.page.get_by_text("No turns yet.")).to_be_visible()
    await at.page.clock.install()
    async with writer(server.bank.url) as other:
        await other.do("stream ada/notes Once upon")
        typing, stopped = at.turn(1).locator(".typing"), at.turn(1).locator(".stopped")
        for _ in range(3):
            await at.page.clock.fast_forward(16_000)
            await expect(typing).to_be_visible()
        await other.do("die")
        await other.process.wait()
        async with asyncio.timeout(PATIENCE / 1_000):
            while not await stopped.is_visible():  # what was under way may come behind that
                await at.page.clock.fast_forward(16_000)
                await asyncio.sleep(0.2)
    await expect(at.turn(1)).to_contain_text("Once upon")


async def test_a_conflict_is_said_at_the_message(
    talking: Callable[[Script], Awaitable[RunningServer]], open_page: OpenPage
) -> None:
    server = await talking(["Now it works."])
    at = await open_page(server, "#/session/ada/notes")
    error = {"code": "conflict", "message": "Somebody was first.", "hint": "Look what they did."}
    await at.page.route(
        "**/chat", lambda route: route.fulfill(status=409, json={"error": error}), times=1
    )
    await at.page.get_by_label("Message").fill("Hello?")
    await at.page.get_by_role("button", name="Send").click()
    message = at.page.locator(".pending").filter(has_text="Hello?")
    await expect(message.get_by_role("alert")).to_contain_text("Somebody was first.")
    await expect(message.get_by_role("alert")).to_contain_text("Look what they did.")
    await at.page.reload()  # it is kept, and not sent by itself
    await message.get_by_role("button", name="Try again").click()
    await expect(at.turn(1)).to_contain_text("Now it works.")
    await expect(at.page.locator(".pending")).to_have_count(0)
    assert (await at.turn(1).inner_text()).count("Hello?") == 1


async def test_a_message_that_fails_says_so_and_is_tried_again(
    talking: Callable[[Script], Awaitable[RunningServer]], open_page: OpenPage
) -> None:
    fault = ScriptedFault(status=400, message="The model is out of order.")
    server = await talking([fault, "Now it works."])
    at = await open_page(server, "#/session/ada/notes")
    await at.page.get_by_label("Message").fill("Hello?")
    await at.page.get_by_role("button", name="Send").click()
    await expect(at.page.get_by_role("alert")).to_contain_text("out of order")
    await at.page.get_by_role("button", name="Answer again").click()
    await expect(at.page.get_by_text("Now it works.")).to_be_visible()
    await expect(at.page.get_by_role("alert")).to_have_count(0)


async def test_without_a_model_the_message_says_what_to_do(
    server: RunningServer, open_page: OpenPage
) -> None:
    at = await open_page(server, "#/session/ada/notes")
    await at.page.get_by_label("Message").fill("Hello?")
    await at.page.get_by_role("button", name="Send").click()
    await expect(at.page.get_by_role("alert")).to_contain_text("Not sent.")
    await at.page.get_by_role("button", name="Discard").click()
    await expect(at.page.locator(".pending")).to_have_count(0)


async def test_tools_are_folded_with_their_results(
    server: RunningServer, open_page: OpenPage
) -> None:
    session = await server.bank.session("ada/notes")
    call = ToolCall("c1", "read_file", '{"path": "app.py"}')
    result = ToolResult("c1", (Text("import os\nprint(os.name)"),))
    await session.append(
        [
            user("Read it"),
            Message("assistant", (Reasoning("I should look."), call)),
            Message("tool", (result,)),
            assistant("It prints a name."),
        ]
    )
    at = await open_page(server, "#/session/ada/notes")
    await expect(at.turn(1)).to_contain_text("It prints a name.")
    await expect(at.page.get_by_text("print(os.name)")).to_have_count(0)
    await at.turn(1).get_by_text("read_file").click()
    await expect(at.turn(1).locator(".hl-keyword").first).to_have_text("import")
    assert (await at.turn(1).locator(".numbers").inner_text()).split() == ["1", "2"]


async def test_large_content_and_pictures_are_fetched_when_asked_for(
    server: RunningServer, open_page: OpenPage
) -> None:
    from base64 import b64decode

    from perdure.core.messages import Media

    pixel = b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    session = await server.bank.session("ada/notes")
    lines = "".join(f"line {n} of a long file\n" for n in range(1, 8_000))
    await session.append(
        [
            Message("user", (Text("Look"), Media("image/png", data=pixel, filename="dot.png"))),
            Message("assistant", (ToolCall("c1", "read_file", '{"path": "a.txt"}'),)),
            Message("tool", (ToolResult("c1", (Text(lines),)),)),
            assistant("Long."),
        ]
    )
    at = await open_page(server, "#/session/ada/notes")
    picture = at.turn(1).get_by_role("img", name="dot.png")
    await expect(picture).to_be_visible()
    assert await picture.evaluate("image => image.decode().then(() => image.naturalWidth)") == 1
    await at.turn(1).get_by_text("read_file").click()
    await at.turn(1).get_by_role("button", name="Fetch the rest").click()
    await expect(at.turn(1).locator(".code").last).to_contain_text("line 7999 of")


async def test_any_turn_at_any_level_with_one_key(
    server: RunningServer, open_page: OpenPage
) -> None:
    await say(server.bank, "ada/notes", *[(f"Ask {n}", f"Well, so be it: {n}.") for n in (1, 2, 3)])
    await server.bank.settle()
    at = await open_page(server, "#/session/ada/notes")
    await expect(at.turn(3)).to_contain_text("so be it")
    await at.page.keyboard.press("k")
    await at.page.keyboard.press("k")
    await expect(at.turn(2)).to_have_class(re.compile("chosen"))
    for level in "sct":
        await at.page.keyboard.press(level)
        await expect(at.turn(2).locator(f'[data-level="{level.upper()}"]')).to_contain_text("Ask 2")
    await at.page.keyboard.press("r")
    await expect(at.turn(2).locator(".rendering")).to_have_count(0)
    await at.turn(1).get_by_role("button", name="C").click()
    await expect(at.turn(1).locator('[data-level="C"]')).to_be_visible()


async def test_undone_and_forgotten_turns(server: RunningServer, open_page: OpenPage) -> None:
    """Also while the page is open, and in what the browser keeps."""
    await say(server.bank, "ada/notes", ("one", "1"), ("a secret", "no"), ("three", "3"))
    at = await open_page(server, "#/session/ada/notes")
    await expect(at.turn(2)).to_contain_text("a secret")
    await (await server.bank.session("ada/notes")).undo(1)
    await expect(at.turn(3)).to_contain_text("undone")
    await server.bank.forget("ada/notes", turns=["T-2"])
    await expect(at.turn(2)).to_contain_text("forgotten")
    await expect(at.page.get_by_text("a secret")).to_have_count(0)
    await at.page.reload()
    await expect(at.turn(2)).to_contain_text("forgotten")
    kept = """async () => {
        const [{ name }] = await indexedDB.databases();
        const db = await new Promise(done => {
            const request = indexedDB.open(name);
            request.onsuccess = () => done(request.result);
        });
        const all = await new Promise(done => {
            const request = db.transaction("turns").objectStore("turns").getAll();
            request.onsuccess = () => done(request.result);
        });
        db.close();
        return JSON.stringify(all);
    }"""
    assert "a secret" not in await at.page.evaluate(kept)


async def test_a_new_session_is_named(
    talking: Callable[[Script], Awaitable[RunningServer]], open_page: OpenPage
) -> None:
    server = await talking(["Here I am."])
    await say(server.bank, "ada/notes", ("one", "1"))
    at = await open_page(server, "#/session/ada/notes")
    await at.page.get_by_role("button", name="New session of ada").click()
    name = at.page.get_by_label("Name of the session")
    await name.fill("a/b")
    await at.page.get_by_role("button", name="Create").click()
    assert await name.evaluate("field => field.validity.patternMismatch")  # the browser says so
    await name.fill("a plan")
    await at.page.keyboard.press("Enter")
    await expect(at.page.get_by_role("heading", level=1)).to_have_text("ada/a plan")
    await at.page.get_by_label("Message").fill("Are you there?")
    await at.page.keyboard.press("Enter")
    await expect(at.turn(1)).to_contain_text("Here I am.")
    assert (await (await server.bank.session("ada/a plan")).head()).newest == 1


async def test_two_pages_in_one_session(
    talking: Callable[[Script], Awaitable[RunningServer]], open_page: OpenPage
) -> None:
    server = await talking(["To the one.", "To the other."])
    one = await open_page(server, "#/session/ada/notes")
    other = await open_page(server, "#/session/ada/notes", context=one.context)
    for number, (at, said) in enumerate([(one, "From one"), (other, "From the other")], 1):
        await at.page.bring_to_front()
        await at.page.get_by_label("Message").fill(said)
        await at.page.keyboard.press("Enter")
        for each in (one, other):
            await expect(each.turn(number)).to_contain_text(said)
            await expect(each.turn(number)).to_contain_text("To the")
            await expect(each.page.locator(".arriving, .pending")).to_have_count(0)
    for each in (one, other):
        texts = await shown(each)
        assert [
            sum(said in text for text in texts) for said in ("To the one.", "To the other.")
        ] == [1, 1]


async def test_a_page_that_may_only_read_sends_nothing(
    server: RunningServer, open_page: OpenPage
) -> None:
    await say(server.bank, "ada/notes", ("one", "1"))
    await say(server.bank, "bob/work", ("two", "2"))
    token = server.token(TokenScope.READ, agent="ada")
    at = await open_page(server, "#/session/ada/notes", token=token)
    await expect(at.turn(1)).to_contain_text("one")
    await expect(at.page.get_by_label("Message")).to_have_count(0)
    await expect(at.page.get_by_role("link", name="bob")).to_have_count(0)


async def test_search_and_links_to_turns(server: RunningServer, open_page: OpenPage) -> None:
    await say(
        server.bank, "ada/notes", *[(f"Ask {n}", f"The word is w{n}w.") for n in range(1, 80)]
    )
    at = await open_page(server, "#/session/ada/notes")
    await expect(at.turn(79)).to_be_in_viewport()
    await at.page.keyboard.press("/")
    await at.page.keyboard.type("w17w")
    await at.page.get_by_role("option").filter(has_text="T-17").click()
    await expect(at.turn(17)).to_be_in_viewport()
    await expect(at.turn(17)).to_contain_text("w17w")
    assert at.page.url.endswith("/turns/T-17")
    await at.page.keyboard.press("/")
    await at.page.keyboard.type("T-3")
    await expect(at.page.get_by_role("option").first).to_have_text("Go to T-3")
    await at.page.keyboard.press("Enter")
    await expect(at.turn(3)).to_be_in_viewport()
    linked = await open_page(server, "#/session/ada/notes/turns/T-40", context=at.context)
    await expect(linked.turn(40)).to_be_in_viewport()
    await expect(linked.turn(40)).to_contain_text("w40w")


async def test_the_search_finds_what_is_old(
    server: RunningServer, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words are sought in the newest turns of the session; recall finds those before."""
    monkeypatch.setattr(turn_search, "MOST_TURNS", 5)
    await say(server.bank, "ada/notes", ("Which fruit?", "The quince."))
    await say(server.bank, "ada/notes", *[(f"Ask {n}", f"Answer {n}.") for n in range(2, 12)])
    await server.bank.settle()
    at = await open_page(server, "#/session/ada/notes")
    await expect(at.turn(11)).to_be_in_viewport()
    await at.page.keyboard.press("/")
    await at.page.keyboard.type("quince")
    await at.page.get_by_role("option").filter(has_text="quince").click()
    await expect(at.turn(1)).to_contain_text("The quince.")


async def test_one_search_over_the_bank(server: RunningServer, open_page: OpenPage) -> None:
    """By the keyboard alone, from no session: turns of any, names, memories."""
    await say(server.bank, "ada/notes", ("Which port?", "The kiwi listens on port 8123."))
    await say(server.bank, "ada/plans", ("And then?", "We ship."))
    await say(server.bank, "bob/kiwi", ("Hi", "Hello"))
    await server.bank.memories.add("bob", "The kiwi is rebuilt each night.")
    await server.bank.settle()
    at = await open_page(server)
    await expect(at.page.get_by_role("link", name="bob")).to_be_visible()
    await at.page.keyboard.press("/")
    await at.page.keyboard.type("kiwi")
    options = at.page.get_by_role("option")
    for found in ("bob/kiwi", "rebuilt each night", "ada/notes#T-1"):
        await expect(options.filter(has_text=found)).to_have_count(1)
    for _ in range(await options.count()):
        if "ada/notes#T-1" in await at.page.locator("[aria-selected=true]").inner_text():
            break
        chosen = await at.page.get_by_role("combobox").get_attribute("aria-activedescendant")
        await at.page.keyboard.press("ArrowDown")
        await at.until(
            "document.querySelector('[role=combobox]').getAttribute('aria-activedescendant')"
            f" !== '{chosen}'"
        )
    await at.page.keyboard.press("Enter")
    await expect(at.turn(1)).to_contain_text("port 8123")
    assert at.page.url.endswith("#/session/ada/notes/turns/T-1")


async def test_nothing_jumps_while_one_reads(server: RunningServer, open_page: OpenPage) -> None:
    """Whatever is loaded above, written below, or unfolded."""
    await say(
        server.bank,
        "ada/notes",
        *[(f"Ask {n}", f"Answer {n}. " * (n % 40 + 1)) for n in range(1, 121)],
    )
    at = await open_page(server, "#/session/ada/notes/turns/T-60")
    await expect(at.turn(60)).to_be_in_viewport()
    await expect(at.turn(60)).to_contain_text("Answer 60.")
    place = "turn => turn.getBoundingClientRect().top"
    await until_still(at, 60)
    before = await at.turn(60).evaluate(place)
    height = await at.page.locator(".space").evaluate("space => space.offsetHeight")
    await say(server.bank, "ada/notes", *[(f"Ask {n}", f"Answer {n}") for n in range(121, 124)])
    await at.until(f"document.querySelector('.space').offsetHeight > {height}")
    await until_still(at, 60)
    assert abs(await at.turn(60).evaluate(place) - before) < 2
    await at.page.get_by_role("button", name="Newest").click()
    await expect(at.turn(123)).to_be_in_viewport()
    await say(server.bank, "ada/notes", ("One more", "At the end"))
    await expect(at.turn(124)).to_be_in_viewport()


async def until_still(at: BrowserPage, number: int) -> None:
    await at.page.evaluate(
        """async (number) => {
            let still = 0, last = NaN;
            while (still < 12) {
                await new Promise(requestAnimationFrame);
                const turn = document.querySelector(`[data-turn="${number}"]`);
                const top = turn?.getBoundingClientRect().top;
                still = top === last ? still + 1 : 0;
                last = top;
            }
        }""",
        number,
    )
