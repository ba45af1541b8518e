"""Checks what `make dist` made: a wheel and a source distribution.

    python -m tools.check_dist dist [--python PYTHON …] [--installers] [--frameworks]

The wheel has the page, types and the licences of all that it ships; built once more, from the
source distribution in another folder, it has the same bytes. Then it is installed into an empty
environment of each Python from 3.11 to 3.14 that is found here, with what it needs from the
package index: every module is imported, bare and with the extras, the README's first example
prints what it says, and the server shows its page where there is no Node. `--installers` tries
pipx and uv, too, and `--frameworks` installs the integrations' frameworks (a gigabyte).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import urllib.request
import zipfile
from pathlib import Path

from tests.patience import VARIABLES

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
#: What everybody who installs the wheel is to find in it.
SHIPPED = (
    r"perdure/py\.typed",
    r"perdure/server/page/index\.html",
    r"perdure/server/page/page-\w+\.js",
    r"perdure/server/page/page-\w+\.css",
    r"perdure/integrations/claude_code/\.claude-plugin/marketplace\.json",
    r"perdure/gateway/wordllama/vectors\.npy",
    r".+\.dist-info/licenses/LICENSE",
    r".+\.dist-info/licenses/.+/wordllama/LICENSE",
    r".+\.dist-info/licenses/.+/secrets/NOTICE",
    r".+\.dist-info/licenses/.+/page_licenses\.txt",
)
#: What is never to be in it.
KEPT_OUT = (r"(^|/)__pycache__/", r"\.pyc$", r"(^|/)\.git", r"node_modules", r"^tests/", r"\.db$")
#: Extras of a gigabyte, and those that are for developers.
FRAMEWORKS = (
    *("claude-agent-sdk", "google-adk", "langgraph", "llama-index", "openai-agents"),
    *("pydantic-ai", "sentence-transformers"),
)
DEVELOPERS = ("dev", "test")

#: Imports every module, and prints which could not be, and what they lack.
IMPORTS = """
import importlib, json, pathlib, perdure
missing, folder = {}, pathlib.Path(perdure.__file__).parent
for name in sorted({*dir(perdure), *getattr(perdure, "__all__", ())}):
    getattr(perdure, name)
for path in sorted(folder.rglob("*.py")):
    parts = path.relative_to(folder.parent).with_suffix("").parts
    module = ".".join(each for each in parts if each != "__init__")
    if module.endswith("__main__") or "plugin" in parts:
        continue
    try:
        importlib.import_module(module)
    except (ImportError, perdure.PerdureError) as exc:
        cause = exc if isinstance(exc, ImportError) else exc.__cause__
        if not isinstance(cause, ImportError):
            raise
        missing[module] = (cause.name or str(cause)).partition(".")[0]
print(json.dumps({"file": perdure.__file__, "version": perdure.__version__, "missing": missing}))
"""


class DistError(Exception):
    """What was made is not fit to be given to anybody."""


def wheel_in(folder: Path) -> Path:
    found = sorted(folder.glob("perdure-*.whl"))
    if len(found) != 1:
        raise DistError(f"There is not one wheel in {folder}, but {len(found)}: run `make dist`.")
    return found[0]


def check_contents(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        described = opened.read(metadata).decode()
    lacks = [each for each in SHIPPED if not any(re.fullmatch(each, name) for name in names)]
    if lacks:
        raise DistError(f"{wheel.name} lacks {', '.join(lacks)}.")
    strays = [name for name in names if any(re.search(each, name) for each in KEPT_OUT)]
    if strays:
        raise DistError(f"{wheel.name} has what is not to be there: {', '.join(strays[:5])}.")
    version = re.search(r"^Version: (.+)$", described, re.MULTILINE)
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if version is None or version[1] != own or f"-{own}-" not in wheel.name:
        raise DistError(f"{wheel.name} is not of version {own}.")


def check_same_again(folder: Path, python: str = sys.executable) -> None:
    """The wheel of the source distribution, unpacked elsewhere, has the same bytes."""
    wheel = wheel_in(folder)
    (source,) = sorted(folder.glob("perdure-*.tar.gz"))
    with tempfile.TemporaryDirectory() as elsewhere:
        with tarfile.open(source) as opened:
            moment = max(int(member.mtime) for member in opened)
            opened.extractall(elsewhere, filter="data")
        (unpacked,) = Path(elsewhere).iterdir()
        again = build(unpacked, Path(elsewhere) / "again", "wheel", python, moment)
        if again.read_bytes() != wheel.read_bytes():
            raise DistError(f"{wheel.name} of the source distribution differs: {again.name}.")


def build(
    tree: Path, into: Path, target: str, python: str = sys.executable, moment: int | None = None
) -> Path:
    """What was built. The time in it is `moment`, else the caller's SOURCE_DATE_EPOCH, else
    hatchling's constant.
    """
    given = {} if moment is None else {"SOURCE_DATE_EPOCH": str(moment)}
    done = subprocess.run(
        [python, "-m", "hatchling", "build", "--directory", str(into), "--target", target],
        cwd=tree,
        env={**os.environ, **given},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise DistError(f"{tree} cannot be built: {done.stderr.strip()[-800:]}")
    (made,) = into.iterdir()
    return made


# Installed ------------------------------------------------------------------------------------


class Installed:
    """A wheel in an environment of its own, run as a user would: with nothing else on the path,
    and an own home.
    """

    def __init__(self, folder: Path, programs: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.programs = programs
        self.environment = {
            "HOME": str(self.home),
            "PATH": str(programs),
            "LANG": "C.UTF-8",
            **VARIABLES,
            **{name: os.environ[name] for name in _PASSED if name in os.environ},
        }

    def run(self, *command: str, within: float = 600) -> str:
        done = subprocess.run(
            [str(self.programs / command[0]), *command[1:]],
            cwd=self.home,
            env=self.environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=within,
        )
        if done.returncode:
            told = (done.stderr or done.stdout).strip()[-1_500:]
            raise DistError(f"`{' '.join(command)[:120]}` failed:\n{told}")
        return done.stdout

    def check_command(self, version: str) -> None:
        if version not in self.run("perdure", "--version"):
            raise DistError(f"`perdure --version` does not say {version}.")
        if "Usage: perdure" not in self.run("perdure", "--help"):
            raise DistError("`perdure --help` says nothing.")

    def check_uninstall(self, removal: str) -> None:
        """It says how the package goes, by what installed it."""
        if removal not in self.run("perdure", "uninstall", "--dry-run"):
            raise DistError(f"`perdure uninstall` does not say `{removal}`.")

    def check_imports(self, *, expected_missing: bool) -> dict[str, str]:
        """The modules that lack something, and what."""
        found = json.loads(self.run("python", "-c", IMPORTS).splitlines()[-1])
        if ROOT in Path(found["file"]).parents:
            raise DistError(f"{found['file']} was imported, not the wheel.")
        missing: dict[str, str] = found["missing"]
        if missing and not expected_missing:
            raise DistError(f"These cannot be imported: {missing}.")
        return missing

    def check_example(self) -> None:
        """The README's first example prints what the README says; where tokens are estimated, the
        same turns at the same levels.
        """
        text = (ROOT / "README.md").read_text()
        found = re.search(
            r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
        )
        assert found is not None, "the README has an example and its output"
        (self.home / "example.py").write_text(found[1])
        printed = self.run("python", "example.py")
        counter = "from perdure.core.tokens import o200k; print(o200k().name)"
        is_exact = self.run("python", "-c", counter).strip() == "o200k"
        if _told(printed, whole=is_exact) != _told(found[2], whole=is_exact):
            raise DistError(f"The README's example prints something else:\n{printed}")

    def check_page(self) -> None:
        """The server shows its page; there is no Node on its path."""
        if shutil.which("node", path=self.environment["PATH"]):
            raise DistError("There is a Node beside it: this shows nothing.")
        bank = f"sqlite:///{self.home / 'served.db'}"
        with subprocess.Popen(
            [str(self.programs / "perdure"), "--bank", bank, "serve", "--port", "0", "--json"],
            cwd=self.home,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        ) as server:
            try:
                assert server.stdout is not None
                first = server.stdout.readline()
                if not first:
                    raise DistError("`perdure serve` ended without a word.")
                url = json.loads(first)["url"]
                page = _get(url)
                for name in re.findall(r'(?:href|src)="(/page/[^"]+)"', page):
                    _get(url + name)
                if "/page/page-" not in page:
                    raise DistError("The server shows no page.")
            finally:
                server.terminate()
                server.wait(timeout=60)


def _told(printed: str, *, whole: bool) -> list[str]:
    """The words of an output, or only who spoke and the marks of turns."""
    return printed.split() if whole else re.findall(r"^\w+|<T-[\w-]+>", printed, re.MULTILINE)


#: Variables that say where packages come from, and which certificates are trusted.
_PASSED = (
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE", "PIP_CERT", "UV_INDEX_URL"),
    *("UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS", "PIP_FIND_LINKS", "PIP_NO_INDEX"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY"),
    *("NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "TMPDIR"),
)


def _get(url: str) -> str:
    request = urllib.request.Request(url, headers={"accept": "text/html, */*"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.read().decode())


def pythons() -> dict[str, Path]:
    """The Pythons of this machine that Perdure is made for, by version."""
    found: dict[str, Path] = {}
    own = Path.home() / ".pyenv" / "versions"
    for version in VERSIONS:
        places = [shutil.which(f"python{version}")]
        places += [str(each) for each in sorted(own.glob(f"{version}.*/bin/python"))]
        for place in filter(None, places):
            if _works(place, version):
                found[version] = Path(place)
                break
    return found


def _works(python: str, version: str) -> bool:
    said = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", said], check=False, capture_output=True, text=True)
    return done.stdout.strip() == version


def extras_of(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (each for each in opened.namelist() if each.endswith(".dist-info/METADATA"))
        text = opened.read(name).decode()
    return re.findall(r"^Provides-Extra: (.+)$", text, re.MULTILINE)


def check_python(python: Path, wheel: Path, *, frameworks: bool) -> str:
    """Everything about one Python; returns what is to be told."""
    version = wheel.name.split("-")[1]
    with tempfile.TemporaryDirectory() as folder:
        programs = _environment(python, Path(folder) / "environment")
        pip = [str(programs / "python"), "-m", "pip", "install", "-q"]
        pip.append("--disable-pip-version-check")
        _run(*pip, str(wheel))
        installed = Installed(Path(folder), programs)
        installed.check_command(version)
        installed.check_uninstall("-m pip uninstall perdure")
        bare = installed.check_imports(expected_missing=True)
        installed.check_example()
        installed.check_page()
        chosen = [each for each in extras_of(wheel) if each not in (*FRAMEWORKS, *DEVELOPERS)]
        if frameworks:
            chosen += FRAMEWORKS
        # As Perdure itself tells: what is installed stays, its extras come.
        _run(*pip, f"perdure[{','.join(chosen)}]")
        left = installed.check_imports(expected_missing=not frameworks)
        strangers = {module for module in left if not module.startswith("perdure.integrations.")}
        if strangers:
            raise DistError(f"With all extras, these cannot be imported: {sorted(strangers)}.")
        installed.check_command(version)
    return (
        f"{len(bare)} modules need extras; with {', '.join(chosen)}"
        f" {len(left)} need a framework; example and page are there"
    )


def check_installers(python: Path, wheel: Path) -> None:
    """Install by pipx and by uv, as their users do, and run the command."""
    version = wheel.name.split("-")[1]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        programs = _environment(python, home / "installers")
        _run(str(programs / "python"), "-m", "pip", "install", "-q", "pipx", "uv")
        for name, command in {
            "pipx": ("pipx", "install", "--python", str(python), str(wheel)),
            "uv": ("uv", "tool", "install", "--python", str(python), str(wheel)),
        }.items():
            own = home / name
            places = {
                "HOME": str(own / "home"),
                "PIPX_HOME": str(own / "pipx"),
                "PIPX_BIN_DIR": str(own / "bin"),
                "UV_TOOL_DIR": str(own / "tools"),
                "UV_TOOL_BIN_DIR": str(own / "bin"),
                "UV_PYTHON_DOWNLOADS": "never",
                "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            }
            _run(str(programs / command[0]), *command[1:], **places)
            installed = Installed(own / "user", own / "bin")
            installed.check_command(version)
            installed.check_uninstall(f"{'uv tool' if name == 'uv' else name} uninstall perdure")
            installed.check_page()
            print(f"{name:6} {version} installed, the command and the page work")


def _environment(python: Path, folder: Path) -> Path:
    _run(str(python), "-m", "venv", str(folder))
    return folder / "bin"


def _run(*command: str, **variables: str) -> None:
    done = subprocess.run(
        command, env={**os.environ, **variables}, check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise DistError(f"`{' '.join(command)}` failed:\n{done.stderr.strip()[-1_500:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", action="append", type=Path, help="only this; may be repeated")
    parser.add_argument("--installers", action="store_true", help="try pipx and uv, too")
    parser.add_argument("--frameworks", action="store_true", help="with the frameworks' extras")
    given = parser.parse_args()
    try:
        wheel = wheel_in(given.folder)
        check_contents(wheel)
        print(f"{wheel.name}: page, types and licences are inside")
        check_same_again(given.folder)
        print("Built again from the source distribution, in another folder: the same bytes")
        chosen = pythons()
        if given.python:
            chosen = {each.name: each for each in given.python}
        for version, python in chosen.items():
            told = check_python(python, wheel.resolve(), frameworks=given.frameworks)
            print(f"Python {version}: {told}", flush=True)
        if given.installers:
            check_installers(next(iter(chosen.values())), wheel.resolve())
        for version in VERSIONS if not given.python else ():
            if version not in chosen:
                print(f"Python {version} was not tried: it is not on this machine")
    except DistError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
