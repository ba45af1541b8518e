"""The page's files as the server gives them, and who logs in by it."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from perdure.core.messages import Message, ToolCall, assistant, user
from perdure.server import page_files
from perdure.server.access_tokens import AccessTokens
from perdure.server.operations import TokenScope
from perdure.server.page_files import PageFiles
from tests.server.conftest import RunningServer

HTML = {"accept": "text/html,*/*"}


@pytest.fixture
def built(tmp_path: Path, server: RunningServer) -> Path:
    """A page, as the build leaves it."""
    folder = tmp_path / "page"
    folder.mkdir()
    (folder / "page-abc.js").write_text("let page = 1;")
    (folder / "worker.js").write_text("let worker = 1;")
    (folder / "index.html").write_text("<!doctype html><title>Perdure</title>")
    server.app.state.add(PageFiles(folder))
    return folder


async def test_a_browser_gets_the_page_and_a_program_a_signpost(
    server: RunningServer, built: Path
) -> None:
    anyone = await server.client()
    page = await anyone.get("/", headers=HTML)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert (await anyone.get("/")).json()["page"] == "/"
    script = await anyone.get("/page/page-abc.js")
    assert (script.text, script.headers["content-type"]) == (
        "let page = 1;",
        "text/javascript; charset=utf-8",
    )
    assert (await anyone.get("/worker.js")).text == "let worker = 1;"


async def test_files_are_kept_for_ever_and_the_page_is_asked_for(
    server: RunningServer, built: Path
) -> None:
    anyone = await server.client()
    script = await anyone.get("/page/page-abc.js")
    assert "immutable" in script.headers["cache-control"]
    page = await anyone.get("/", headers=HTML)
    assert page.headers["cache-control"] == "no-cache"
    again = await anyone.get("/", headers=HTML | {"if-none-match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    (built / "index.html").write_text("<!doctype html><title>New</title>")
    again = await anyone.get("/", headers=HTML | {"if-none-match": page.headers["etag"]})
    assert (again.status_code, again.text) == (200, "<!doctype html><title>New</title>")
    packed = await anyone.get("/", headers=HTML | {"accept-encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    plain = await anyone.get("/", headers=HTML | {"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.text == packed.text


@pytest.mark.parametrize("name", ["..%2F..%2Fpage_files.py", "%2Fetc%2Fpasswd", "x.js", "%2E"])
async def test_only_the_files_of_the_page(server: RunningServer, built: Path, name: str) -> None:
    anyone = await server.client()
    assert (await anyone.get(f"/page/{name}")).status_code == 404


async def test_a_clone_without_the_build_says_what_to_do(
    server: RunningServer, tmp_path: Path
) -> None:
    server.app.state.add(PageFiles(tmp_path / "nothing"))
    anyone = await server.client()
    answer = await anyone.get("/", headers=HTML)
    assert answer.status_code == 503
    assert "make page" in answer.text


async def test_a_link_on_another_site_may_lead_to_the_page_alone(
    server: RunningServer, built: Path
) -> None:
    foreign = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", **HTML}
    anyone = await server.client()
    assert (await anyone.get("/", headers=foreign)).status_code == 200
    assert (await anyone.get("/page/page-abc.js", headers=foreign)).status_code == 403
    foreign["sec-fetch-mode"] = "cors"
    assert (await anyone.get("/", headers=foreign)).status_code == 403


async def test_a_login_of_the_page_outlives_the_server(server: RunningServer) -> None:
    anyone = await server.client()
    code = server.app.run_tokens.login_code("ada")
    answer = await anyone.post("/api/v1/login", json={"code": code, "keep": True})
    token = answer.json()["token"]
    caller = (await (await server.client(token)).get("/api/v1/caller")).json()
    assert caller["name"].startswith("page of ada ")
    assert "admin" in caller["scopes"]
    tokens = AccessTokens(server.bank.store)  # as another run finds them
    (kept,) = await tokens.all()
    assert kept.expires is not None
    await tokens.revoke(kept.short)
    assert await tokens.all() == []
    again = await anyone.post("/api/v1/login", json={"code": code, "keep": True})
    assert again.status_code == 401


async def test_the_same_bank_has_the_same_name(
    server: RunningServer, client: httpx2.AsyncClient
) -> None:
    first = (await client.get("/api/v1/caller")).json()
    assert first == (await client.get("/api/v1/caller")).json()
    ada = await server.client(server.token(TokenScope.READ, agent="ada"))
    assert (await ada.get("/api/v1/caller")).json()["agent"] == "ada"


async def test_what_each_agent_does(server: RunningServer, client: httpx2.AsyncClient) -> None:
    idle = await server.bank.session("ada/notes")
    await idle.append([user("Hi"), assistant("Hello")])
    calling = await server.bank.session("bob/work")
    await calling.append([user("List"), Message("assistant", (ToolCall("c1", "shell", "{}"),))])
    typing = await server.bank.session("eve/chat")
    await typing.append([user("Tell me")])
    async with typing.answer() as answer:
        await answer.text("Once")
        found = {
            each["agent"]["name"]: each for each in (await client.get("/api/v1/activity")).json()
        }
    states = {name: (each["state"], each["session"]) for name, each in found.items()}
    assert states == {
        "ada": ("idle", "ada/notes"),
        "bob": ("calling", "bob/work"),
        "eve": ("answering", "eve/chat"),
    }


def test_the_page_is_looked_for_beside_the_server() -> None:
    assert page_files.FOLDER.parent == Path(page_files.__file__).parent
