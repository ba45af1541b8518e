"""What is written is found from the moment it is written, whoever wrote it and however it ended."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

import perdure
from perdure.core.messages import assistant, user
from perdure.history.log_records import TurnPiece
from perdure.history.turn_log import TURNS
from perdure.jobs import marks_of
from perdure.storage.options import STRONG

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


async def test_an_append_that_was_cancelled_and_committed_all_the_same_is_indexed(
    tmp_path: Path,
) -> None:
    async with perdure.open(f"sqlite:///{tmp_path}/bank.db") as bank:
        session = await bank.session("planner/boiler")
        await session.append([user("Hello."), assistant("Hi.")])
        await bank.settle()
        append = asyncio.create_task(
            session.append([user("The quokka leaks."), assistant("Noted.")], options=STRONG)
        )
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # its commit is under way
        append.cancel()
        await asyncio.wait({append})
        await bank.settle()
        found = await session.recall("quokka")
        is_written = len(await session.turns()) == 2
        assert ("T-2.1" in {hit.turn for hit in found.hits}) is is_written
        assert (await bank.index.check()).missing == 0


async def test_a_damaged_turn_keeps_no_other_from_being_found(tmp_path: Path) -> None:
    async with perdure.open(f"sqlite:///{tmp_path}/bank.db") as bank:
        bank.jobs._idle._last = float("inf")  # nothing is indexed before somebody asks
        harmed, sound = await bank.session("planner/a"), await bank.session("planner/b")
        await harmed.append([user("The zebra leaks."), assistant("Noted.")])
        pieces = bank.collection(TurnPiece)
        piece = (await pieces.query().prefix("planner/a/").values())[0]
        await pieces.put(msgspec.structs.replace(piece, content=b"\xc1"))
        await sound.append([user("The quokka leaks."), assistant("Noted.")])
        found = await sound.recall("quokka")
        assert [hit.turn for hit in found.hits][:1] == ["T-1.1"]


async def test_a_recall_waits_for_what_is_being_indexed(tmp_path: Path) -> None:
    async with perdure.open(f"sqlite:///{tmp_path}/bank.db") as bank:
        session = await bank.session("planner/boiler")
        await session.append([user("Hello."), assistant("Hi.")])
        await bank.settle()
        bank.jobs._idle._last = float("inf")
        await session.append([user("The quokka leaks."), assistant("Noted.")])
        pending = bank.index.pending
        assert pending is not None
        writing = asyncio.create_task(pending.write())
        await asyncio.sleep(0)
        found = await session.recall("quokka")
        assert [hit.turn for hit in found.hits][:1] == ["T-2.1"]
        await writing
