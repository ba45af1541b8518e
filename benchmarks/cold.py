"""One prompt in a new process; run by `assemble`, not by hand.

Given a bank, a session and a prompt. Modules that it is told of are imported before its clock
starts; none of the benchmarks' own are. Prints the seconds, those that a core worked for it, those
that it worked for the whole process, and what was imported in the end.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from contextlib import suppress
from time import perf_counter, process_time

import perdure
from perdure.config import Config, RecallConfig
from perdure.context.history_tools import HISTORY_TOOLS


async def main(url: str, name: str, prompt: str) -> tuple[float, float]:
    start, worked = perf_counter(), process_time()
    async with perdure.open(url, config=Config(recall=RecallConfig(on=False))) as bank:
        session = await bank.session(name)
        context = await session.context(prompt, tools=HISTORY_TOOLS)
        context.to_messages()
        return perf_counter() - start, process_time() - worked


if __name__ == "__main__":
    for module in sys.argv[4:]:
        with suppress(ImportError):  # some are there under a name of their own only
            importlib.import_module(module)
    seconds, core = asyncio.run(main(*sys.argv[1:4]))
    told = {"seconds": seconds, "core": core, "core_whole": process_time()}
    print(json.dumps({**told, "modules": sorted(sys.modules)}))
