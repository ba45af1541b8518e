"""What the shell of the clients' hooks starts: ``prompt``, ``preamble`` or ``import``.

Nothing is printed but what is meant for the model, and the exit code is 0: a failure is noted for
`perdure doctor`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perdure.integrations.client_hooks.hook_failures import note_failure

#: Seconds after which a hook that a client waits for gives up, whatever it is doing.
_SECONDS = float(os.environ.get("PERDURE_HOOK_SECONDS") or 5)
_WAITED_FOR = ("prompt", "preamble")
_EVENTS = {"prompt": "UserPromptSubmit", "preamble": "SessionStart", "import": "import"}


def main(words: list[str]) -> None:
    what, home = words[0], Path(words[1])
    client = words[2] if len(words) > 2 else ""
    event = _EVENTS[what]

    def give_up() -> None:
        note_failure(home, event, client, f"It took longer than {_SECONDS:g} seconds.")
        os._exit(0)

    if what in _WAITED_FOR:
        timer = threading.Timer(_SECONDS, give_up)
        timer.daemon = True
        timer.start()
    try:
        printed = _run(what, home, words)
    except Exception as exc:  # noqa: BLE001  # the client must not notice; doctor tells
        note_failure(home, event, client, f"{type(exc).__name__}: {exc}")
        printed = ""
    if printed:
        sys.stdout.write(f"{printed}\n")
        sys.stdout.flush()
    if what in _WAITED_FOR:
        os._exit(0)  # no thread that still waits for a lock keeps the client waiting


def _run(what: str, home: Path, words: list[str]) -> str:
    if what == "import":
        from perdure.integrations.client_hooks.transcript_import import import_spooled

        if os.getpid() != os.getsid(0):
            os.setsid()
        import_spooled(home)
        return ""
    if what == "prompt":
        from perdure.integrations.client_hooks.prompt_recall import answer_prompt

        return asyncio.run(answer_prompt(home, _given(), _SECONDS / 3))
    asyncio.run(_make_preamble(home, words[3], words[4:]))
    return ""


async def _make_preamble(home: Path, folder: str, transcripts: Sequence[str]) -> None:
    from perdure.integrations.client_hooks.attended import is_attended
    from perdure.integrations.client_hooks.project_bank import location_of, project_bank

    location = location_of(home, folder)
    async with project_bank(location) as bank:
        project = bank.project(location.root)
        asks = is_attended([Path(each) for each in transcripts])
        await project.anchors.refresh(asks=asks)
        await project.preamble.prebuild()


def _given() -> dict[str, Any]:
    found = json.loads(sys.stdin.buffer.read() or b"{}")
    return found if isinstance(found, dict) else {}


if __name__ == "__main__":
    main(sys.argv[1:])
