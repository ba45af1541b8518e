"""Persistent memory for LLM agents.

    import perdure

    async with perdure.open("sqlite:///memory.db") as bank:
        session = await bank.session("planner/auth")
        ...

Everything public is reachable from here. The names stand in `__init__.pyi`, where type checkers
read them; each is imported when it is first used, so that `import perdure` costs next to nothing.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_MODULES = {
    name: module
    for module, names in re.findall(
        r"^from (perdure[\w.]*) import (\([^)]*\)|.*)$", _STUB, re.MULTILINE
    )
    for name in re.findall(r"\w+ as (\w+)", names)
}

__all__ = sorted(_MODULES)  # noqa: PLE0605 (a list of texts)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
