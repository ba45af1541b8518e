"""The web page's files, as `make page` or the wheel's build put them into ``server/page``.

Names of scripts and styles hold a hash of what is in them, so a browser keeps them for ever. The
page itself, and the worker that keeps it for times when the server is away, are asked for each time
and answered by 304.
"""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from perdure.core.errors import NotFound

FOLDER = Path(__file__).parent / "page"
INDEX, WORKER = "index.html", "worker.js"
_MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
#: As everywhere, and pictures that were fetched with a token.
_POLICY = (
    "default-src 'self'; img-src 'self' blob:; object-src 'none'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'"
)
_KEPT, _ASKED = "public, max-age=31536000, immutable", "no-cache"
_MISSING = """<!doctype html>
<html lang="en"><title>Perdure</title>
<h1>The page is not built</h1>
<p>This is a clone of the repository, and its page is made from <code>web/</code>:
run <code>make page</code>. The API works without it.</p>
</html>
"""


def is_built(folder: Path = FOLDER) -> bool:
    """Whether there is a page: in a clone, only after `make page`."""
    return (folder / INDEX).is_file()


class _PageFile(msgspec.Struct, frozen=True):
    """A file, plain and packed."""

    body: bytes
    packed: bytes
    etag: str
    media: str


class PageFiles:
    """One per server. Built anew while the server runs, the page is read anew."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._files: dict[str, _PageFile] = {}
        self._built = 0

    def answer(self, name: str, request: Request) -> Response:
        """Raises `NotFound` if the page has no such file."""
        files = self._read()
        if not files and name == INDEX:
            return HTMLResponse(_MISSING, 503)
        found = files.get(name)
        if found is None:
            raise NotFound(f"The page has no file {name!r}.", hint="Load the page anew.")
        headers = {
            "etag": found.etag,
            "cache-control": _ASKED if name in {INDEX, WORKER} else _KEPT,
            "vary": "accept, accept-encoding",
            "content-security-policy": _POLICY,
        }
        if request.headers.get("if-none-match") == found.etag:
            return Response(status_code=304, headers=headers)
        body = found.body
        if "gzip" in request.headers.get("accept-encoding", ""):
            body, headers["content-encoding"] = found.packed, "gzip"
        return Response(body, headers=headers, media_type=found.media)

    def _read(self) -> dict[str, _PageFile]:
        try:
            built = (self._folder / INDEX).stat().st_mtime_ns
        except OSError:
            return {}
        if built != self._built:
            self._files = {
                path.name: _read_file(path)
                for path in self._folder.iterdir()
                if path.suffix in _MEDIA
            }
            self._built = built
        return self._files


def _read_file(path: Path) -> _PageFile:
    body, packed = path.read_bytes(), path.with_name(f"{path.name}.gz")
    etag = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
    small = packed.read_bytes() if packed.exists() else gzip.compress(body, mtime=0)
    return _PageFile(body, small, etag, _MEDIA[path.suffix])
