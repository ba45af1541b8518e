"""For everybody: axe, the keyboard alone, a phone; and for nobody: scripts in messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.async_api import expect

from perdure.bank.bank import Bank
from perdure.core.messages import Message, Reasoning, Text, ToolCall, ToolResult, assistant, user
from tests.page.browser import ROOT
from tests.page.conftest import BrowserPage, OpenPage
from tests.server.conftest import RunningServer

AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
#: What people and tools have written to run a script in somebody else's page.
ATTACKS = (
    "<script>window.hit=1</script>",
    "<img src=x onerror=window.hit=1>",
    "<svg/onload=window.hit=1>",
    "<svg><animate onbegin=window.hit=1 attributeName=x dur=1s>",
    "<iframe srcdoc='<script>parent.hit=1</script>'></iframe>",
    "<details open ontoggle=window.hit=1>",
    "<math><mi//xlink:href='data:x,<script>window.hit=1</script>'>",
    "<a href='javascript:window.hit=1'>click</a>",
    "[click](javascript:window.hit=1)",
    "[click](JaVaScRiPt&colon;window.hit=1)",
    "[click](data:text/html,<script>window.hit=1</script>)",
    "![x](https://evil.example/pixel.png)",
    '![x" onerror="window.hit=1](x)',
    '[a](https://evil.example/"onmouseover="window.hit=1)',
    "`<img src=x onerror=window.hit=1>`",
    "```html\n<img src=x onerror=window.hit=1>\n```",
    '```"><img src=x onerror=window.hit=1>\nx\n```',
    "| <img src=x onerror=window.hit=1> | b |\n|-|-|\n| <script>window.hit=1</script> | 2 |",
    "</textarea><img src=x onerror=window.hit=1>",
    "{{constructor.constructor('window.hit=1')()}}",
    "<style>@import 'https://evil.example/x.css';*{display:none}</style>",
    "<meta http-equiv=refresh content='0;url=https://evil.example'>",
    "<base href='https://evil.example/'>",
    "\u202e<script>window.hit=1</script>",
)
#: Elements that no message may become.
MARKUP = "/^(script|iframe|object|embed|style|link|meta|base|form|svg|math|img)$/i"


async def fill(bank: Bank) -> None:
    """A session with everything that a turn can have."""
    session = await bank.session("ada/notes")
    await session.append(
        [
            Message("system", (Text("Be brief."),)),
            user("Read it, please. **Now.**"),
            Message("assistant", (Reasoning("I should."), ToolCall("c1", "read_file", "{}"))),
            Message("tool", (ToolResult("c1", (Text("x = 1  # one"),)),)),
            assistant(
                "# Done\n\n- `x` is 1\n\n| a | b |\n|-|-|\n| 1 | 2 |\n\n> so\n\n```py\nx = 1\n```"
            ),
        ]
    )
    await session.append([user("And?"), assistant("That is all. See https://example.org.")])
    await session.append([user("No."), assistant("As you like.")])
    await session.undo(1)
    await bank.session("ada/plans")
    await bank.session("bob/work")


async def violations(at: BrowserPage) -> list[str]:
    if not await at.page.evaluate("'axe' in window"):
        await at.page.evaluate(AXE.read_text(encoding="utf-8"))
    found: dict[str, Any] = await at.page.evaluate("axe.run(document)")
    return [
        f"{each['id']}: {each['help']}: {[node['html'][:200] for node in each['nodes'][:3]]}"
        for each in found["violations"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing(server: RunningServer, open_page: OpenPage, scheme: str) -> None:
    await fill(server.bank)
    at = await open_page(server, "#/session/ada/notes", color_scheme=scheme)
    await expect(at.turn(2)).to_contain_text("That is all.")
    await at.page.locator(".scroller").focus()
    for key in ("g", "o"):
        await at.page.keyboard.press(key)
    await expect(at.turn(1).locator(".inside").first).to_be_visible()
    assert await violations(at) == []
    await at.page.keyboard.press("?")
    await expect(at.page.get_by_role("dialog")).to_be_visible()
    assert await violations(at) == []
    await at.page.keyboard.press("Escape")
    await at.page.keyboard.press("/")
    await at.page.keyboard.type("ada")
    await expect(at.page.get_by_role("option").first).to_be_visible()
    assert await violations(at) == []
    await at.page.keyboard.press("Escape")
    await at.page.set_viewport_size({"width": 390, "height": 780})
    assert await violations(at) == []
    await at.go("#/")
    await expect(at.page.get_by_role("link", name="bob")).to_be_visible()
    assert await violations(at) == []
    nobody = await open_page(server, token="pd_wrong", color_scheme=scheme)
    await expect(nobody.page.get_by_label("Token")).to_be_visible()
    assert await violations(nobody) == []


async def test_by_keyboard_alone(server: RunningServer, open_page: OpenPage) -> None:
    await fill(server.bank)
    at = await open_page(server)
    press, focused = at.page.keyboard.press, at.page.locator(":focus")
    await expect(at.page.get_by_role("link", name="bob")).to_be_visible()
    await press("Tab")
    await expect(focused).to_have_text("Go to the content")
    for _ in range(20):
        await press("Tab")
        if "ada" in (await focused.inner_text()):
            break
    await press("Enter")
    await expect(at.page.get_by_role("heading", level=1)).to_contain_text("ada/")
    for _ in range(2):  # whichever of the two was used last
        if "ada/notes" in at.page.url:
            break
        await press("]")
        await press("[") if "ada/plans" in at.page.url else None
    await at.go("#/session/ada/notes")
    await expect(at.turn(2)).to_be_visible()
    await press("g")
    await expect(at.turn(1)).to_have_class("turn  chosen")
    await press("o")
    await expect(at.turn(1).locator("details[open]").first).to_be_visible()
    await press("o")
    await expect(at.turn(1).locator("details[open]")).to_have_count(0)
    await press("m")
    await expect(focused).to_have_attribute("id", "message")
    await at.page.keyboard.type("?/jk")  # are letters there
    assert await at.page.locator("#message").input_value() == "?/jk"
    await press("Escape")
    await press("?")
    await expect(at.page.get_by_role("dialog")).to_contain_text("Write a message")
    await press("Escape")
    await expect(at.page.get_by_role("dialog")).to_have_count(0)
    await press("}")
    await expect(at.page.get_by_role("heading", level=1)).to_contain_text("bob")


async def test_on_a_phone(server: RunningServer, open_page: OpenPage) -> None:
    await fill(server.bank)
    size = {"width": 360, "height": 700}
    at = await open_page(server, "#/", viewport=size, has_touch=True, is_mobile=True)
    await at.page.get_by_role("link", name="ada").tap()
    await at.page.get_by_role("link", name="Agents and sessions").tap()
    await expect(at.page.get_by_role("link", name="bob")).to_be_visible()
    for name in ("plans", "notes"):  # the sessions of whom one comes from
        await at.page.get_by_role("link", name=name).tap()
        await expect(at.page.get_by_role("heading", level=1)).to_have_text(f"ada/{name}")
        if name == "plans":
            await at.page.get_by_role("link", name="Agents and sessions").tap()
    await expect(at.turn(2)).to_be_in_viewport()
    await expect(at.page.get_by_label("Message")).to_be_in_viewport()
    wide = "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth) > innerWidth"
    assert not await at.page.evaluate(wide)
    over = """[...document.querySelectorAll(".turn *")].filter(each =>
        !each.closest(".code, .table") && each.getBoundingClientRect().right > innerWidth + 1
    ).length"""
    assert await at.page.evaluate(over) == 0


async def test_nothing_in_a_message_becomes_markup(
    server: RunningServer, open_page: OpenPage
) -> None:
    """In words, results of tools, names of tools and files, and in what they are called."""
    session = await server.bank.session("ada/<b onclick=window.hit=1>notes")
    for number, attack in enumerate(ATTACKS):
        await session.append(
            [
                Message("user", (Text(attack),), id=f"u{number}"),
                Message(
                    "assistant",
                    (
                        Reasoning(attack),
                        Text(attack),
                        ToolCall(f"c{number}", attack[:60], json.dumps({"path": attack})),
                    ),
                ),
                Message("tool", (ToolResult(f"c{number}", (Text(attack),)),)),
                assistant(f"> - {attack}"),
            ]
        )
    await server.bank.settle()
    at = await open_page(server, "#/session/ada/%3Cb%20onclick%3Dwindow.hit%3D1%3Enotes")
    for number in range(len(ATTACKS), 0, -1):
        await at.go(f"#/session/ada/%3Cb%20onclick%3Dwindow.hit%3D1%3Enotes/turns/T-{number}")
        await expect(at.turn(number).locator(".prompt")).to_be_visible()
        await at.turn(number).evaluate(
            "turn => { for (const each of turn.querySelectorAll('details')) each.open = true }"
        )
        await expect(at.turn(number).locator("details .inside").first).to_be_visible()
    found = await at.page.evaluate(
        """[...document.querySelectorAll(".turn *")].filter(each => {
            const leads = each.getAttribute("href") ?? "";
            return BAD.test(each.tagName)
                || each.getAttributeNames().some(name => name.startsWith("on"))
                || (each.tagName === "A" && !/^(https?:|mailto:|#.session.)/.test(leads));
        }).map(each => each.outerHTML)""".replace("BAD", MARKUP)
    )
    assert found == []
    assert await at.page.evaluate("window.hit") is None
    # The fixture checks that nothing was asked of another host, and nothing had to be refused.
