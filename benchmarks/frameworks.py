"""Append and load-20 through each framework's interface, against its own SQLite store.

Sessions of 1,000 and 10,000 messages, in turns of four. An append is a turn (of Google ADK, each of
its four events); a load is of the newest 20 messages, as before a run. LangGraph knows no newest
messages: it loads the state. Both sides run in the frameworks' environment, each in a process of
its own, ours with masking, chain, index and everything else on. Claude's SDK and Pydantic AI have
no SQLite store.

`worst_ratio` is the worst at 10,000 messages, of total times; `worst_median_ratio` is that of
medians, which leave out what others on the machine kept waiting. The bytes are those of the files,
indexes included.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.harness import Block, Contestant, Report, Tally, alternate, ratio, work_folder
from benchmarks.peers import Peer

#: By name: the module of the framework's own store, the class of ours, and how often it works more
#: slowly than the fastest, so that it is asked for less.
_PAIRS = {
    "openai_agents": ("openai_session", "OpenAI", 1),
    "langgraph": ("langgraph_saver", "LangGraph", 10),
    "google_adk": ("adk_session", "Adk", 2),
    "llama_index": ("llama_index_memory", "LlamaIndex", 4),
}
_SESSION = "bench"
_NEWEST = 20


async def run(report: Report, *, quick: bool) -> None:
    sizes = (40, 80) if quick else (1_000, 10_000)
    rounds, count = (2, 2) if quick else (6, 40)
    worst: list[float] = []
    medians: list[float] = []
    everyone: dict[str, Tally] = {}
    for name, (theirs, ours, slower) in _PAIRS.items():
        with ExitStack() as stack:
            pair = [
                stack.enter_context(peers.framework_running(report, module))
                for module in (f"perdure_frameworks:{ours}", theirs)
            ]
            us, them = pair
            if us is None or them is None:
                break
            for size in sizes:
                with work_folder() as folder:
                    found = await _contest(
                        report,
                        f"{name}_{size}",
                        us,
                        them,
                        Path(folder),
                        size,
                        rounds,
                        max(count // slower, 2),
                        everyone=everyone,
                        quick=quick,
                    )
                if size == sizes[-1]:
                    worst += found
                    medians += [
                        report.figures[f"{name}_{size}_{what}_median_ratio"]
                        for what in ("append", "load")
                    ]
    if everyone:
        report.tallies(everyone)
    report.figures["worst_ratio"] = max(worst) if worst else None
    report.figures["worst_median_ratio"] = max(medians) if medians else None


async def _contest(  # noqa: PLR0917
    report: Report,
    name: str,
    us: Peer,
    them: Peer,
    folder: Path,
    size: int,
    rounds: int,
    count: int,
    *,
    everyone: dict[str, Tally],
    quick: bool,
) -> list[float]:
    files = {peer: str(folder / f"{who}.db") for who, peer in (("ours", us), ("theirs", them))}
    for peer, file in files.items():
        filled = {"kind": "bulk", "count": size // 4, "seed": size}
        peer.ask("fill", bank=file, session=_SESSION, made=filled)

    async def append(peer: Peer, number: int) -> Block:
        new = {"kind": "turns", "count": count, "seed": size * 1_000 + number}
        return peer.timed("append", bank=files[peer], session=_SESSION, made=new)

    async def load(peer: Peer, _: int) -> Block:
        sessions = [_SESSION] * count
        return peer.timed("read", bank=files[peer], sessions=sessions, limit=_NEWEST)

    contestants: dict[str, Contestant] = {
        f"{name} {what}, {who}": partial(work, peer)
        for what, work in (("append", append), ("load", load))
        for who, peer in (("ours", us), ("theirs", them))
    }
    tallies = await alternate(contestants, rounds, quick=quick)
    worst: list[float] = []
    for what in ("append", "load"):
        ours, theirs = (tallies[f"{name} {what}, {who}"] for who in ("ours", "theirs"))
        measured = ratio(ours, theirs)
        report.ratio(f"{name}_{what}_ratio", measured)
        median = round(ours.percentile(0.5) / theirs.percentile(0.5), 3)
        report.figures[f"{name}_{what}_median_ratio"] = median
        worst.append(measured.value)
    sizes: dict[str, Any] = {
        who: peer.ask("close", bank=files[peer]) for who, peer in (("ours", us), ("theirs", them))
    }
    report.figures[f"{name}_bytes"] = sizes["ours"]
    report.figures[f"{name}_bytes_theirs"] = sizes["theirs"]
    everyone.update(tallies)
    return worst
