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
from perdure.history.log_records import SessionRecord, TurnPiece
from perdure.history.turn_log import TURNS
from perdure.jobs import PendingMark, marks_of
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


LIVES = """
import asyncio, sys
import perdure
from perdure.history.renditions.rendition_service import RenditionService

async def unfinished(self, go_on):
    await asyncio.sleep(0.01)
    return True  # as if there were much to shorten

async def say(bank, number, word):
    session = await bank.session(f"planner/valve-{number}")
    said = f"The {word} leaks at valve {number}."
    await session.append([{"role": "user", "content": said},
                          {"role": "assistant", "content": "Noted."}])

async def main(url, count, indexes):
    RenditionService.work = unfinished
    async with perdure.open(url) as bank:
        if indexes == "never":
            bank.jobs._idle._last = float("inf")
            bank.jobs._idle._is_impatient = lambda *_: False
        for number in range(int(count)):
            await say(bank, number, "gasket")
        pending = bank.index.pending
        while indexes != "never" and (pending is None or len(pending)):
            await asyncio.sleep(0.05)
            pending = bank.index.pending
        await asyncio.sleep(2 if indexes != "never" else 0)
        print("said", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        bank.jobs._idle._last = float("inf")
        bank.jobs._idle._is_impatient = lambda *_: False
        await say(bank, 0, "flange")
        print("said", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main(*sys.argv[1:]))
"""


class Living:
    """Another process, which has a bank open and goes on when it is told to."""

    def __init__(self, url: str, count: int, indexes: str) -> None:
        command = [sys.executable, "-c", LIVES, url, str(count), indexes]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    async def has_said(self) -> None:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(asyncio.to_thread(self.process.stdout.readline), 60)
        assert line == "said\n"

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def follows(bank: perdure.Bank) -> list[str]:
    """The sessions whose marks are followed from now on."""
    pending, found = bank.index.pending, list[str]()
    assert pending is not None
    follow = pending._follow

    async def noted(mark: PendingMark, asking: SessionRecord) -> None:
        found.append(mark.key)
        await follow(mark, asking)

    pending._follow = noted  # type: ignore[method-assign]
    return found


async def test_what_a_living_process_has_indexed_is_not_looked_at_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bank.db"
    async with perdure.open(url) as bank:
        session = await bank.session("planner/boiler")
        await session.append([user("The boiler hums."), assistant("It always does.")])
        await bank.settle()
        other = Living(url, 20, "soon")
        try:
            await other.has_said()
            followed = follows(bank)
            marks = await marks_of(bank.store, TURNS)
            assert len(marks) == 20, "its renditions are not made"
            assert all("indexing turns" in mark.done for mark in marks)
            found = await session.recall("What leaks at valve 7?")
            assert "gasket" in found.hits[0].text
            assert followed == []
            other.go_on()
            await other.has_said()
            found = await session.recall("Which flange leaks?")
            assert [hit.turn for hit in found.hits if "flange" in hit.text]
            assert followed == ["planner/valve-0"]
            mark = next(m for m in await marks_of(bank.store, TURNS) if m.key == followed[0])
            assert (mark.done, mark.first) == ((), 1), "other work was not done before"
        finally:
            other.end()


async def test_a_recall_follows_so_many_marks_and_the_next_one_the_rest(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bank.db"
    async with perdure.open(url) as bank:
        session = await bank.session("planner/boiler")
        await session.append([user("The boiler hums."), assistant("It always does.")])
        await bank.settle()
        other = Living(url, 40, "never")
        try:
            await other.has_said()
            followed = follows(bank)
            for number in range(1, 4):
                await session.recall("What leaks at valve 39?")
                assert len(followed) <= 16 * number
            assert len(set(followed)) == 40, "first those that were not followed before"
            found = await session.recall("What leaks at valve 39?", limit=50)
            assert len({hit.turn for hit in found.hits if "gasket" in hit.text}) == 40
        finally:
            other.end()
