"""``make pictures``: how each view looks, over the bank of ``make page``, into docs/pictures.

Views are found in the page itself: whatever stands beside the turns and at the foot of the list.
Each has its picture, and its place in docs/page.md.
"""

from __future__ import annotations

import asyncio
import base64
import re
import tempfile
from pathlib import Path

from playwright.async_api import expect

from examples.page import answer, fill, made_up_gateway
from perdure.testing import ScriptedModel
from tests.page.browser import PATIENCE, ROOT, BrowserPage, logged_in, open_in, running_browser
from tests.server.conftest import running_server

FOLDER = ROOT / "docs" / "pictures"
GUIDE = ROOT / "docs" / "page.md"
#: Whose prompts are composed.
SESSION = "coder/docs"
_SIZE = (1_200, 760)
#: Of WebP, whose letters are sharp, and which takes a third of a PNG.
_QUALITY = 82
_FRAMES = 30
_BLOCK = re.compile(r"(?<=<!-- make pictures -->\n).*?(?=<!-- end -->)", re.DOTALL)
#: Notes how many requests are under way.
_COUNT = """
    window.asking = 0;
    const ask = window.fetch;
    window.fetch = async (...given) => {
        window.asking++;
        try {
            return await ask(...given);
        } finally {
            window.asking--;
        }
    };
"""
#: Until nothing is asked for, and nothing changes, for half a second of frames.
_STILL = """async (frames) => {
    let still = 0, last = "";
    while (still < frames) {
        await new Promise(requestAnimationFrame);
        const now = document.getElementById("page").innerHTML;
        still = now === last && !window.asking ? still + 1 : 0;
        last = now;
    }
}"""
#: Each view that can be reached from a session, with its title.
_VIEWS = """[...document.querySelectorAll(".tabs a, .foot a")]
    .map(link => [link.getAttribute("href"), link.textContent.trim()])"""


def name_of(href: str) -> str:
    """``#/session/coder/release/turns``: ``turns``; ``#/bank/costs``: ``bank-costs``."""
    scope, *_, view = href.removeprefix("#/").split("/")
    return view if scope == "session" else f"{scope}-{view}"


async def take(at: BrowserPage, name: str) -> None:
    await at.page.evaluate(_STILL, _FRAMES)
    cdp = await at.context.new_cdp_session(at.page)
    shot = await cdp.send("Page.captureScreenshot", {"format": "webp", "quality": _QUALITY})
    await cdp.detach()
    (FOLDER / f"{name}.webp").write_bytes(base64.b64decode(shot["data"]))
    print(f"  {name}.webp, {(FOLDER / f'{name}.webp').stat().st_size / 1024:.0f} KB", flush=True)


async def walk(at: BrowserPage) -> dict[str, str]:
    """A picture of each view; their titles by name."""
    await expect(at.page.locator("[data-turn] .prompt").last).to_be_visible()
    found: list[tuple[str, str]] = await at.page.evaluate(_VIEWS)
    titles = dict[str, str]()
    for href, title in found:
        name = name_of(href)
        titles[name] = f"{title} of an agent" if name.startswith("agent-") else title
        await at.go(href)
        await take(at, name)
    await at.go(f"#/session/{SESSION}")
    await at.page.emulate_media(color_scheme="dark")
    await take(at, "turns-dark")
    return titles


def guide(text: str, titles: dict[str, str]) -> str:
    """The guide with these pictures, those of former views left out."""
    lines = [f"**{title}**\n\n![{title}](pictures/{name}.webp)" for name, title in titles.items()]
    lines.append("**In the dark**\n\n![Turns in the dark](pictures/turns-dark.webp)")
    return _BLOCK.sub(lambda _: "\n\n".join(lines) + "\n", text)


async def main() -> None:
    expect.set_options(timeout=PATIENCE)
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.webp"):
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        async with (
            ScriptedModel(answer) as model,
            running_server(Path(folder), gateway=made_up_gateway(model)) as server,
        ):
            print("Making up some months of work ...", flush=True)
            await fill(server.bank, Path(folder))
            async with running_browser() as browser:
                width, height = _SIZE
                context = await logged_in(
                    browser,
                    server,
                    viewport={"width": width, "height": height},
                    color_scheme="light",
                )
                await context.add_init_script(_COUNT)
                at = await open_in(context, server, f"#/session/{SESSION}")
                titles = await walk(at)
                await context.close()
    GUIDE.write_text(guide(GUIDE.read_text(encoding="utf-8"), titles), encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
