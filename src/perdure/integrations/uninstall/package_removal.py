"""How the package itself is removed, by what installed it."""

from __future__ import annotations

import shlex
import sys
from importlib import metadata
from pathlib import Path

import msgspec


def removal_advice() -> str:
    """A sentence with the command, for this Python."""
    prefix = Path(sys.prefix)
    if (prefix / "pipx_metadata.json").is_file():
        return "The package goes with `pipx uninstall perdure`."
    if (prefix / "uv-receipt.toml").is_file():
        return "The package goes with `uv tool uninstall perdure`."
    clone = _clone()
    if clone is not None:
        return f"Perdure runs from {clone}: delete that folder, and the environment {prefix}."
    python = shlex.quote(sys.executable)
    if _installer() == "uv":
        return f"The package goes with `uv pip uninstall --python {python} perdure`."
    return f"The package goes with `{python} -m pip uninstall perdure`."


class _Folder(msgspec.Struct):
    editable: bool = False


class _Origin(msgspec.Struct):
    """``direct_url.json``: what a distribution was installed from."""

    url: str = ""
    dir_info: _Folder | None = None


def _clone() -> str | None:
    """The folder of an editable installation."""
    try:
        origin = msgspec.json.decode(_text("direct_url.json") or "{}", type=_Origin)
    except msgspec.DecodeError:
        return None
    if origin.dir_info is None or not origin.dir_info.editable:
        return None
    return origin.url.removeprefix("file://")


def _installer() -> str:
    return _text("INSTALLER").strip()


def _text(name: str) -> str:
    try:
        return metadata.distribution("perdure").read_text(name) or ""
    except metadata.PackageNotFoundError:
        return ""
