"""What is written is found from the moment it is written, whoever wrote it and however it ended."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import perdure
from perdure.core.messages import assistant, user
from perdure.history.turn_log import TURNS
from perdure.jobs import marks_of

APPENDS = """
import asyncio, os, signal, sys
import perdure

async def main(url, name, word, ends):
    async with perdure.open(url) as bank:
        session = await bank.session(name)
        said = f"The {word} leaks at the third valve."
        await session.append([{"role": "user", "content": said},
                              {"role": "assistant", "content": "Noted."}])
        if ends == "killed":
            os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(*sys.argv[1:]))
"""


async def append_elsewhere(url: str, name: str, word: str, ends: str) -> None:
    command = [sys.executable, "-c", APPENDS, url, name, word, ends]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == (-signal.SIGKILL if ends == "killed" else 0), done.stderr


async def test_what_a_killed_process_appended_is_found_by_the_next_recall(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bank.db"
    async with perdure.open(url) as bank:
        session = await bank.session("planner/boiler")
        await session.append([user("The boiler hums."), assistant("It always does.")])
        assert (await session.recall("boiler")).hits
        for name, word in (("planner/boiler", "condenser"), ("planner/pumps", "impeller")):
            await append_elsewhere(url, name, word, "killed")
            found = await session.recall(f"What leaks at the {word}?")
            assert [hit for hit in found.hits if word in hit.text], found


async def test_what_a_closed_process_indexed_is_not_looked_at_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bank.db"
    async with perdure.open(url) as bank:
        session = await bank.session("planner/boiler")
        await session.append([user("The boiler hums."), assistant("It always does.")])
        await bank.settle()
        for name, word in (("planner/boiler", "condenser"), ("planner/pumps", "impeller")):
            await append_elsewhere(url, name, word, "closed")
            for mark in await marks_of(bank.store, TURNS):
                assert "indexing turns" in mark.done
            found = await session.recall(f"What leaks at the {word}?")
            assert [hit for hit in found.hits if word in hit.text], found


async def test_a_turn_of_this_process_is_recalled_at_once(tmp_path: Path) -> None:
    async with perdure.open(f"sqlite:///{tmp_path}/bank.db") as bank:
        session = await bank.session("planner/boiler")
        other = await bank.session("planner/pumps")
        for word in ("condenser", "impeller"):
            await other.append([user(f"The {word} leaks."), assistant("Noted.")])
            found = await session.recall(f"What about the {word}?")
            assert [hit for hit in found.hits if word in hit.text], found
