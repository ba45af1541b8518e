"""The files that a model may work on: those of the working folder, by tools.

Nothing outside is read or written, links included, but the three files of the run where they lie
elsewhere. The specification, the bank and the insides of a repository are not written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perdure.agents.one_shot.run_records import RunSettings
from perdure.agents.one_shot.work_files import VERSIONS, WorkFolder, read_text
from perdure.core.errors import InvalidInput
from perdure.gateway.calls import Tool

_LISTED = 1_000  # Files that are named.
_READ = 50_000  # Characters of a file in one answer.
_PATH = {"path": {"type": "string", "description": "Relative to the working folder."}}
FILE_TOOLS = (
    Tool("list_files", "List the files of the working folder."),
    Tool(
        "read_file",
        f"Read a text file, at most {_READ:,} characters from an offset on.",
        {
            "type": "object",
            "properties": {**_PATH, "offset": {"type": "integer", "minimum": 0}},
            "required": ["path"],
        },
    ),
    Tool(
        "write_file",
        "Write a text file: all of it anew. The specification cannot be written.",
        {
            "type": "object",
            "properties": {**_PATH, "text": {"type": "string"}},
            "required": ["path", "text"],
        },
    ),
)
FILE_TOOL_NAMES = frozenset(tool.name for tool in FILE_TOOLS)


class ModelFiles:
    """Carries out what a model asks for. Raises `InvalidInput` and `OSError`."""

    def __init__(self, settings: RunSettings, folder: WorkFolder) -> None:
        self._settings = settings
        self._folder = folder

    def answer(self, name: str, given: dict[str, Any]) -> str:
        if name == "list_files":
            return self._list()
        path = self._path(given.get("path"))
        if name == "read_file":
            return _read(path, given.get("offset", 0))
        return self._write(path, given.get("text"))

    def _list(self) -> str:
        base = Path(self._settings.folder)
        names = [str(path.relative_to(base)) for path in self._folder.files()]
        more = [f"… and {len(names) - _LISTED} more"] if len(names) > _LISTED else []
        return "\n".join([*names[:_LISTED], *more]) or "(There are none.)"

    def _path(self, given: Any) -> Path:
        settings = self._settings
        if not isinstance(given, str) or not given or "\0" in given:
            raise InvalidInput("path is missing.", hint="Name a file of the working folder.")
        path = Path(settings.folder, given).resolve()
        named = str(path) in {settings.spec, settings.tasks, settings.log}
        if not named and not path.is_relative_to(settings.folder):
            raise InvalidInput(f"{given} is outside of the folder.", hint="Stay inside of it.")
        if self._folder.is_bank(path):
            raise InvalidInput(f"{given} is the bank.", hint="Leave it alone.")
        return path

    def _write(self, path: Path, text: Any) -> str:
        if not isinstance(text, str):
            raise InvalidInput("text is missing.", hint="Give all of the file's text.")
        if str(path) == self._settings.spec:
            raise InvalidInput(
                "The specification is not yours to change.", hint="Ask a person: needs_feedback."
            )
        if not VERSIONS.isdisjoint(path.parts):
            raise InvalidInput(f"{path.name} is of the repository.", hint="Leave it alone.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return "Written."


def _read(path: Path, offset: Any) -> str:
    if not path.exists():
        raise InvalidInput("There is no such file.", hint="list_files names those there are.")
    text, start = read_text(str(path)), offset if isinstance(offset, int) and offset > 0 else 0
    shown = text[start : start + _READ]
    left = len(text) - start - len(shown)
    return (shown or "(It is empty.)") + (f"\n… {left:,} characters more" if left > 0 else "")
