"""What `make dist` makes: the same bytes wherever it is built, and nothing is missing from it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import check_dist

ROOT = Path(__file__).parents[2]
NODE = ROOT / ".venv-web" / "nodejs" / "bin" / "node"

pytestmark = pytest.mark.slow


def checkout(folder: Path, mode: int) -> Path:
    """A copy of what is under git, with rights of its own, and a page that is built there."""
    listed = subprocess.check_output(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, text=True
    )
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
            (folder / name).chmod(mode)
    (folder / "web" / "node_modules").symlink_to(ROOT / "web" / "node_modules")
    page = folder / "src" / "perdure" / "server" / "page"
    built = subprocess.run(
        [NODE, "web/build.mjs", page], cwd=folder, check=False, capture_output=True, text=True
    )
    assert not built.returncode, built.stderr
    return folder


@pytest.fixture(scope="module", autouse=True)
def one_time() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1795000000")
        yield


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel and a source distribution, of a copy in a folder of its own."""
    folder = tmp_path_factory.mktemp("dist")
    tree = checkout(folder / "tree", 0o644)
    shutil.move(check_dist.build(tree, folder / "sdist", "sdist"), folder)
    shutil.move(check_dist.build(tree, folder / "wheel", "wheel"), folder)
    return folder


def test_two_builds_in_different_folders_have_the_same_bytes(tmp_path: Path) -> None:
    first = checkout(tmp_path / "here", 0o644)
    second = checkout(tmp_path / "somewhere else" / "deeper", 0o664)
    wheels = [
        check_dist.build(tree, tmp_path / f"dist-{number}", "wheel")
        for number, tree in enumerate((first, second))
    ]
    assert wheels[0].name == wheels[1].name
    assert wheels[0].read_bytes() == wheels[1].read_bytes()


def test_a_wheel_of_the_source_distribution_is_the_same(dist: Path) -> None:
    check_dist.check_contents(check_dist.wheel_in(dist))
    check_dist.check_same_again(dist)


def test_the_installed_wheel_has_command_modules_example_and_page(
    dist: Path, tmp_path: Path
) -> None:
    """Its dependencies are those of this environment; `make check-dist` fetches them anew."""
    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True)
    wheel = check_dist.wheel_in(dist)
    command = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")]
    subprocess.run([*command, "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    folder = sysconfig.get_path("purelib", vars={"base": str(environment)})
    Path(folder, "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}{os.linesep}")

    installed = check_dist.Installed(tmp_path / "user", environment / "bin")
    installed.check_command(wheel.name.split("-")[1])
    missing = installed.check_imports(expected_missing=True)
    assert all(module.startswith("perdure.integrations.") for module in missing), missing
    installed.check_example()
    installed.check_page()
