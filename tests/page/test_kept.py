"""What the browser keeps: it is there after a reload, without a server, and is nobody else's."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

from playwright.async_api import Route, WebSocketRoute, expect

from perdure.testing import Script
from tests.page.conftest import BrowserPage, OpenPage
from tests.page.test_turns import say, until_still
from tests.server.conftest import RunningServer
from tests.waiting import until

#: All of an object store, as text.
KEPT = """async (store) => {
    const [{ name }] = await indexedDB.databases();
    const db = await new Promise(done => {
        indexedDB.open(name).onsuccess = ({ target }) => done(target.result);
    });
    const all = await new Promise(done => {
        db.transaction(store).objectStore(store).getAll().onsuccess =
            ({ target }) => done(target.result);
    });
    db.close();
    return JSON.stringify(all);
}"""
#: As if the page had been closed before it had read what was new.
UNREAD = """new Promise(async (done) => {
    const [{ name }] = await indexedDB.databases();
    indexedDB.open(name).onsuccess = ({ target: { result: db } }) => {
        const change = db.transaction("histories", "readwrite");
        const histories = change.objectStore("histories");
        histories.getAll().onsuccess = ({ target: { result: all } }) => {
            for (const each of all) histories.put({ ...each, through: 0 });
        };
        change.oncomplete = () => { db.close(); done(); };
    };
})"""
TOP = "turn => turn.getBoundingClientRect().top"


async def kept(at: BrowserPage, store: str, text: str) -> None:
    """Until the browser has kept it."""
    await at.until(f"(await ({KEPT})('{store}')).includes({text!r})")


async def refuse(route: Route) -> None:
    await route.abort()


async def test_the_list_stands_where_it_stood(server: RunningServer, open_page: OpenPage) -> None:
    """After a reload, of turns that are not the newest, and while the server says nothing."""
    pairs = [(f"Ask {n}", f"Answer {n}. " * (n % 40 + 1)) for n in range(1, 201)]
    await say(server.bank, "ada/notes", *pairs)
    at = await open_page(server, "#/session/ada/notes/turns/T-50")
    await expect(at.turn(50)).to_contain_text("Answer 50.")
    await until_still(at, 50)
    await at.page.locator(".scroller").evaluate("list => { list.scrollTop -= 300 }")
    await until_still(at, 50)
    before = await at.turn(50).evaluate(TOP)
    assert before > 250  # not where its address leads
    for number in range(48, 53):
        await kept(at, "turns", f"Answer {number}.")
    await at.page.route("**/api/**", refuse)
    await at.page.reload()
    await expect(at.turn(50)).to_contain_text("Answer 50.")
    await expect(at.turn(48)).to_contain_text("Answer 48.")
    await until_still(at, 50)
    assert abs(await at.turn(50).evaluate(TOP) - before) < 2
    await expect(at.page.get_by_text("Offline")).to_be_visible()
    await at.page.unroute_all(behavior="ignoreErrors")
    await expect(at.page.get_by_text("Offline")).to_have_count(0)
    await until_still(at, 50)
    assert abs(await at.turn(50).evaluate(TOP) - before) < 2


async def test_a_message_under_way_is_not_lost_to_another_page(
    talking: Callable[[Script], Awaitable[RunningServer]], open_page: OpenPage
) -> None:
    """Two pages of one browser keep their messages side by side."""
    server = await talking(["At last.", "Me, too."])
    one = await open_page(server, "#/session/ada/notes")
    other = await open_page(server, "#/session/ada/notes", context=one.context)
    await one.context.route("**/chat", refuse)
    for at, text in ((one, "From the one"), (other, "From the other")):
        await at.page.bring_to_front()
        await at.page.get_by_label("Message").fill(text)
        await at.page.keyboard.press("Enter")
        await kept(at, "values", text)
    await say(server.bank, "ada/notes", ("Meanwhile", "Something else"))
    for at in (one, other):  # each keeps what it heard
        await expect(at.turn(1)).to_contain_text("Something else")
        await kept(at, "turns", "Something else")
    await one.page.reload()
    pending = one.page.locator(".pending")
    await expect(pending.filter(has_text="From the one")).to_be_visible()
    await expect(pending.filter(has_text="From the other")).to_be_visible()
    await one.context.unroute_all(behavior="ignoreErrors")
    for at in (one, other):
        for number in (2, 3):
            await expect(at.turn(number)).to_contain_text("From the o")
        await expect(at.page.locator(".pending, .arriving")).to_have_count(0)
    turns = await (await server.bank.session("ada/notes")).turns(10)
    said = sorted(message.text for turn in turns for message in turn.messages[:1])
    assert said == ["From the one", "From the other", "Meanwhile"]
    await one.page.reload()
    await expect(one.turn(3)).to_contain_text("From the o")
    await expect(one.page.locator(".pending")).to_have_count(0)
    await one.until(f"!(await ({KEPT})('values')).includes('From the')")


async def test_an_answer_ends_whose_turn_was_not_heard(
    talking: Callable[[Script], Awaitable[RunningServer]], open_page: OpenPage
) -> None:
    """As if it had been read before the end of its answer was told: nobody types for ever."""
    server = await talking(["Here it is."])
    at = await open_page(server)

    def overhear(socket: WebSocketRoute) -> None:
        upstream = socket.connect_to_server()
        upstream.on_message(
            lambda told: None if '"assistant"' in told and '"rounds"' in told else socket.send(told)
        )

    await at.page.route_web_socket(re.compile("/api/v1/live"), overhear)
    await at.go("#/session/ada/notes")
    await at.page.reload()
    await at.page.get_by_label("Message").fill("Where is it?")
    await at.page.keyboard.press("Enter")
    await expect(at.turn(1)).to_contain_text("Here it is.")
    await expect(at.page.locator(".pending, .arriving")).to_have_count(0)


async def test_what_is_heard_while_the_page_asks_is_newer(
    server: RunningServer, open_page: OpenPage
) -> None:
    """Answers from before a turn was forgotten, and another undone, come behind the news of it."""
    await say(server.bank, "ada/notes", ("one", "1"), ("a secret", "no"), ("three", "3"))
    at = await open_page(server, "#/session/ada/notes")
    await expect(at.turn(2)).to_contain_text("a secret")
    await kept(at, "turns", "a secret")
    await at.go("#/bank/nothing")
    held, release = list[str](), asyncio.Event()

    async def hold(route: Route) -> None:
        answer = await route.fetch()  # as of now
        held.append(route.request.url)
        await release.wait()
        await route.fulfill(response=answer)

    await at.page.route(re.compile(r"/notes/(head|turns\?)"), hold, times=2)
    await at.go("#/session/ada/notes")
    await until(lambda: len(held) == 2)
    await (await server.bank.session("ada/notes")).undo(1)
    await expect(at.turn(3)).to_contain_text("undone")
    await server.bank.forget("ada/notes", turns=["T-2"])
    await expect(at.page.get_by_text("a secret")).to_have_count(0)
    release.set()
    await expect(at.turn(2)).to_contain_text("forgotten")
    await expect(at.turn(3)).to_contain_text("undone")
    await expect(at.page.get_by_text("a secret")).to_have_count(0)
    await at.until(f"!(await ({KEPT})('turns')).includes('a secret')")


async def test_what_was_forgotten_while_the_page_was_closed(
    server: RunningServer, open_page: OpenPage
) -> None:
    await say(server.bank, "ada/notes", ("one", "1"), ("a secret", "no"), ("three", "3"))
    at = await open_page(server, "#/session/ada/notes")
    await expect(at.turn(2)).to_contain_text("a secret")
    await kept(at, "turns", "a secret")
    await at.go("#/bank/nothing")
    await at.page.evaluate(UNREAD)
    await at.page.close()
    await server.bank.forget("ada/notes", turns=["T-2"])
    again = await open_page(server, "#/session/ada/notes", context=at.context)
    await expect(again.turn(2)).to_contain_text("forgotten")
    await expect(again.page.get_by_text("a secret")).to_have_count(0)
    await again.until(f"!(await ({KEPT})('turns')).includes('a secret')")
