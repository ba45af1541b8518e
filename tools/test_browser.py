"""Unpacks the Chromium that the tests of the page run, from npm's @sparticuz/chromium, and fonts
from dejavu-fonts-ttf, so that it needs no root and no package of the system.

    python tools/test_browser.py NODE web/node_modules FOLDER

On another system than Linux on x86-64 it does nothing, and the tests use an installed browser.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

_INFLATE = """
const fs = require("node:fs"), zlib = require("node:zlib");
for (const [from, to] of JSON.parse(process.argv[1])) {
  fs.writeFileSync(to, zlib.brotliDecompressSync(fs.readFileSync(from)));
}
"""
#: Without a font, every text is empty.
_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig><dir>{folder}/fonts</dir><cachedir>{folder}/font-cache</cachedir></fontconfig>
"""


#: It brings letters of one kind alone, and no monospaced ones.
_LETTERS = ("DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf", "DejaVuSans.ttf")


def unpack(node: str, modules: Path, folder: Path) -> None:
    import json

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    packed = modules / "@sparticuz/chromium/bin"
    archives = ("al2023.tar", "fonts.tar", "swiftshader.tar")
    pairs = [(str(packed / f"{name}.br"), str(folder / name)) for name in ("chromium", *archives)]
    subprocess.run([node, "-e", _INFLATE, json.dumps(pairs)], check=True)
    for name in archives:
        with tarfile.open(folder / name) as archive:
            if sys.version_info >= (3, 11, 4):
                archive.extractall(folder, filter="data")
            else:
                archive.extractall(folder)  # of a package whose hash is pinned
        (folder / name).unlink()
    for name in _LETTERS:
        shutil.copy(modules / "dejavu-fonts-ttf/ttf" / name, folder / "fonts")
    (folder / "chromium").chmod(0o755)
    (folder / "fonts.conf").write_text(_FONTS.format(folder=folder), encoding="utf-8")


def main() -> None:
    node, modules, folder = sys.argv[1:]
    if (platform.system(), platform.machine()) == ("Linux", "x86_64"):
        unpack(node, Path(modules), Path(folder).resolve())


if __name__ == "__main__":
    main()
