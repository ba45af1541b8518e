"""The adapters in examples/adapter, registered as a third party's would be."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import perdure.testing
from examples.adapter.perdure_folder import FolderAdapter
from examples.adapter.template import TemplateAdapter
from perdure.core.errors import AccessDenied, Corrupted, InvalidURL, Unavailable, Unsupported
from perdure.storage import registry
from perdure.storage.store import Store
from perdure.testing import perform, run, trials_for
from perdure.testing.conformance import Trial
from tests.storage.notes import Author, Note

EXAMPLES = Path(__file__).parents[2] / "examples" / "adapter"


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    registry.register("folder", FolderAdapter)
    registry.register("template", TemplateAdapter)
    yield
    registry.unregister("folder")
    registry.unregister("template")


@pytest.mark.parametrize("trial", trials_for(FolderAdapter.capabilities), ids=lambda t: t.id)
async def test_folder(trial: Trial, tmp_path: Path) -> None:
    await perform(trial, f"folder:///{tmp_path / 'bank'}")


async def test_template() -> None:
    report = await run("template://")
    assert report.passed, report.failures
    assert report.level is not None
    assert report.level.name == "key-value"


async def test_folder_is_a_store(tmp_path: Path) -> None:
    url = f"folder:///{tmp_path / 'bank'}"
    async with Store(registry.adapter_for(url)) as store:
        await store.collection(Author).put(Author("ada", "Ada"))
        with pytest.raises(Unsupported, match="tags"):
            await store.collection(Note).put(Note("a"))
    async with Store(registry.adapter_for(url)) as store:
        page = await store.collection(Author).list()
        assert page.values == [Author("ada", "Ada")]
        with pytest.raises(Unavailable, match="another process"):
            await registry.adapter_for(url).initialize()


async def test_what_folder_refuses(tmp_path: Path) -> None:
    with pytest.raises(InvalidURL):
        registry.adapter_for("folder://")
    (tmp_path / "file").write_text("")
    with pytest.raises(AccessDenied):
        await registry.adapter_for(f"folder:///{tmp_path}/file").initialize()
    (tmp_path / "bank" / "authors").mkdir(parents=True)
    (tmp_path / "bank" / "authors" / "x.json").write_text("{}")
    async with Store(registry.adapter_for(f"folder:///{tmp_path}/bank")) as store:
        with pytest.raises(Corrupted, match=r"x\.json"):
            await store.collection(Author).get("a")


@pytest.mark.repeated
def test_the_package_works_installed(tmp_path: Path) -> None:
    """Its tests, run in its own folder as its author would; and its entry point."""
    for name in ("perdure_folder.py", "test_perdure_folder.py"):
        (tmp_path / name).write_bytes((EXAMPLES / name).read_bytes())
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "-k",
                "ttl or missing",
            ),
            *("-o", "asyncio_mode=auto", "-o", "pythonpath=.", "--rootdir", str(tmp_path)),
        ],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(perdure.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
