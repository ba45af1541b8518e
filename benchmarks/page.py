"""How fast the web page shows what it has, and how little it needs for that, in a real browser.

All times are taken inside the page. While it switches between sessions, the server holds every
answer of the API back for two seconds: what stands there earlier is what the browser kept. Half
of the switches are the first ones after a reload, out of IndexedDB, half out of memory. Frames are
those of the main thread, with the processor throttled to a quarter, while a session of 100,000
turns is scrolled; each round is another stretch of it. Its heap is measured after that, garbage
collected.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, CDPSession
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from benchmarks.harness import Report, percentile
from perdure.bank.bank import Bank
from perdure.core.errors import Unavailable
from perdure.core.messages import assistant, user
from perdure.server import page_files
from perdure.server.server_app import ServerApp
from tests.page.browser import BrowserPage, logged_in, open_in, running_browser
from tests.server.conftest import RunningServer, running_server

_DELAY = 2.0
_LONG = "ada/long"
#: Sessions that are switched between, and turns of each.
_SESSIONS, _TURNS = 12, 60
_THROTTLED = 4
#: Pixels per second: about twelve of these turns, which is faster than anybody reads.
_SPEED = 1_500
_SCROLL_SECONDS = 4.0
#: Milliseconds of a switch: from the change of the address until the turn of that session that was
#: written last is an element, looked at whenever the document has changed.
_SWITCH = """([place, text]) => new Promise(done => {
    const began = performance.now();
    const look = () => {
        for (const turn of document.querySelectorAll("[data-turn]")) {
            if (turn.textContent.includes(text)) {
                watch.disconnect();
                done(performance.now() - began);
                return;
            }
        }
    };
    const watch = new MutationObserver(look);
    watch.observe(document, { childList: true, subtree: true, characterData: true });
    location.hash = place;
    look();
})"""
#: Milliseconds from the beginning of the navigation until turns with text are elements.
_FIRST_VIEW = """
    new MutationObserver(() => {
        if (!window.firstView && document.querySelector("[data-turn] .prompt")?.textContent) {
            window.firstView = performance.now();
        }
    }).observe(document, { childList: true, subtree: true, characterData: true });
"""
#: Milliseconds between the frames of a scroll through the list, upwards or downwards.
_SCROLL = """([speed, seconds]) => new Promise(done => {
    const list = document.querySelector(".scroller");
    const way = list.scrollTop > list.scrollHeight / 2 ? -1 : 1;
    const frames = [];
    let before = 0, began = 0;
    const frame = (now) => {
        if (before) {
            frames.push(now - before);
            list.scrollTop += way * speed * (now - before) / 1_000;
        }
        began ||= now;
        before = now;
        if (now - began < seconds * 1_000) requestAnimationFrame(frame);
        else done(frames);
    };
    requestAnimationFrame(frame);
})"""


class DelayedApp(ServerApp):
    """A server whose API takes its time."""

    delay = 0.0

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        if self.delay and connection.get("path", "").startswith("/api/"):
            await asyncio.sleep(self.delay)
        await super().__call__(connection, receive, send)


async def run(report: Report, *, quick: bool) -> None:
    if not (page_files.FOLDER / page_files.INDEX).exists():
        raise Unavailable("The page is not built.", hint="Build it with `make page`.")
    turns = 400 if quick else 100_000
    rounds = 1 if quick else 8
    report.figures["gzip_kb"] = round(packed_bytes(page_files.FOLDER) / 1024, 1)
    with tempfile.TemporaryDirectory() as folder:
        async with running_server(Path(folder), app=DelayedApp) as server:
            # Else 100,000 turns are shortened and indexed meanwhile.
            await server.bank.services.jobs.stop()
            await _fill(server.bank, turns)
            async with running_browser() as browser:
                await _first_views(report, server, browser, rounds=2 * rounds)
                await _switches(report, server, browser, rounds=rounds)
                await _long_session(report, server, browser, turns, rounds=rounds)


def packed_bytes(folder: Path) -> int:
    """What the server sends of the page, each file packed."""
    return sum(each.stat().st_size for each in folder.glob("*.gz"))


async def _fill(bank: Bank, turns: int) -> None:
    for number in range(_SESSIONS):
        session = await bank.session(f"ada/s{number}")
        await session.append(
            [
                message
                for turn in range(1, _TURNS + 1)
                for message in (user(f"Ask {turn}"), assistant(f"Answer {turn} of s{number}. " * 9))
            ]
        )
    session = await bank.session(_LONG)
    for first in range(1, turns + 1, 2_000):
        numbers = range(first, min(first + 2_000, turns + 1))
        said = [(user(f"Ask {n}"), assistant(f"Answer {n}. " * (n % 23 + 1))) for n in numbers]
        await session.append([message for pair in said for message in pair])


async def _first_views(
    report: Report, server: RunningServer, browser: Browser, *, rounds: int
) -> None:
    """Each in a browser that knows nothing."""
    took = []
    for _ in range(rounds):
        context = await logged_in(browser, server)
        await context.add_init_script(_FIRST_VIEW)
        at = await open_in(context, server, "#/session/ada/s0")
        await at.until("window.firstView")
        took.append(float(await at.page.evaluate("window.firstView")))
        await context.close()
    _note(report, "first_view_ms", took, 0.5, "median")


async def _switches(
    report: Report, server: RunningServer, browser: Browser, *, rounds: int
) -> None:
    context = await logged_in(browser, server)
    at = await open_in(context, server)
    for number in range(_SESSIONS):
        await _switch(at, number)
    await at.until(_kept(_SESSIONS))
    kept, remembered = list[float](), list[float]()
    app = server.app
    assert isinstance(app, DelayedApp)
    app.delay = _DELAY
    for _ in range(rounds):
        await at.go("#/")
        await at.page.reload()
        await at.until("document.querySelector('.agents a')")
        for number in range(_SESSIONS):
            kept.append(await _switch(at, number))
        for number in range(_SESSIONS):
            remembered.append(await _switch(at, number))
    app.delay = 0.0
    await context.close()
    report.figures["switch_p50_ms"] = round(percentile([*kept, *remembered], 0.5), 2)
    report.figures["switch_after_reload_ms"] = round(percentile(kept, 0.95), 2)
    _note(report, "switch_ms", [*kept, *remembered], 0.95, "p95")


async def _switch(at: BrowserPage, number: int) -> float:
    text = f"Answer {_TURNS} of s{number}."
    took: float = await at.page.evaluate(_SWITCH, [f"#/session/ada/s{number}", text])
    return took


def _kept(sessions: int) -> str:
    """That the browser has the turns of so many sessions."""
    return f"""await indexedDB.databases().then(([{{ name }}]) => new Promise(done => {{
        indexedDB.open(name).onsuccess = ({{ target: {{ result: db }} }}) => {{
            db.transaction("histories").objectStore("histories").count().onsuccess =
                ({{ target }}) => {{ db.close(); done(target.result >= {sessions}); }};
        }};
    }}))"""


async def _long_session(
    report: Report, server: RunningServer, browser: Browser, turns: int, *, rounds: int
) -> None:
    context = await logged_in(browser, server)
    at = await open_in(context, server, f"#/session/{_LONG}")
    await at.until(f"document.querySelector('[data-turn=\"{turns}\"]')")
    cdp = await context.new_cdp_session(at.page)
    rates, waits, heaps = list[float](), list[float](), list[float]()
    for number in range(rounds):
        near = 1 + turns * (number + 1) // (rounds + 1)
        await at.go(f"#/session/{_LONG}/turns/T-{near}")
        await at.until(f"document.querySelector('[data-turn=\"{near}\"] .prompt')")
        await cdp.send("Emulation.setCPUThrottlingRate", {"rate": _THROTTLED})
        frames: list[float] = await at.page.evaluate(_SCROLL, [_SPEED, _SCROLL_SECONDS])
        await cdp.send("Emulation.setCPUThrottlingRate", {"rate": 1})
        rates.append(1_000 * len(frames) / sum(frames))
        waits += frames
        heaps.append(await _heap_mb(cdp))
    await context.close()
    _note(report, "frames_per_s", rates, 0.5, "median of the rounds")
    report.figures["frame_p95_ms"] = round(percentile(waits, 0.95), 1)
    _note(report, "heap_mb", heaps, 1.0, f"most, at {turns:,} turns")


#: Of scripts, of the document, and of what scripts hold outside of their heap.
_HEAPS = ("usedSize", "embedderHeapUsedSize", "backingStorageSize")


async def _heap_mb(cdp: CDPSession) -> float:
    await cdp.send("HeapProfiler.collectGarbage")
    found: dict[str, Any] = await cdp.send("Runtime.getHeapUsage")
    return float(sum(found[each] for each in _HEAPS if each in found)) / 2**20


def _note(report: Report, metric: str, found: list[float], share: float, what: str) -> None:
    """A percentile; the range beside it holds eight of ten."""
    figure = max(found) if share == 1 else percentile(found, share)
    report.figures[metric] = round(figure, 2)
    report.spread[metric] = [round(percentile(found, each), 2) for each in (0.1, 0.9)]
    report.say(f"  {metric}: {report.figures[metric]} ({what} of {len(found)})")
