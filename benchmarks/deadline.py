"""Recall with models that sleep: by how much its deadline is missed, if it is.

A bank on SQLite with some hundred turns of a project, indexed and embedded, whose filters and judge
are models on loopback, in a process of their own. One prompt after the other is recalled for, with
search, ranking, texts, filters and judge, all under the default deadline of a second.

- both sleep: no model ever answers,
- the judge sleeps: filters answer at once,
- some sleep: each answer takes between nothing and two seconds,
- nobody sleeps.

`p99_ms` is the p99 of what whole recalls took, over the first three; the deadline is 1,000.
`together_p99_ms` is the same for four prompts at a time in one process, all models asleep: ranking
works on the event loop, so who asks waits for the slices of others. Not promised, but told.
`quick_p50_ms` is how long a recall takes that no model is asked for.

    python -m benchmarks.deadline serve       # the models; ends when its input does
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from time import perf_counter

from benchmarks.harness import Report, millis, percentile, work_folder
from examples.made_up_project import fill_project, project_turn
from perdure.bank import Bank
from perdure.config import Config, GatewayConfig, ModelsConfig, ProviderConfig, RecallConfig
from perdure.testing import (
    ReceivedRequest,
    ScriptedAnswer,
    ScriptedModel,
)

#: Seconds.
_NEVER, _LONG = 60.0, 2.0
#: Model names that say how the models behave: of filters, and of the judge.
_CASES = {
    "both sleep": ("sleeps", "sleeps"),
    "the judge sleeps": ("awake", "sleeps"),
    "some sleep": ("dozes", "dozes"),
    "nobody sleeps": ("awake", "awake"),
}
_SLOW = tuple(_CASES)[:3]
_LANES = 4
#: As many as for a prompt.
_HITS = 24


async def run(report: Report, *, quick: bool) -> None:
    turns, repeats = (20, 1) if quick else (400, 40)
    slow, stages = list[float](), dict[str, dict[str, int]]()
    with work_folder() as folder, _models() as base_url:
        file = Path(folder) / "bank.db"
        async with _opened(file, base_url) as bank:
            await fill_project(await bank.session("bench/project"), turns)
            await bank.settle()
        for name, (filters, judge) in _CASES.items():
            models = ModelsConfig(filter=f"ours/{filters}", judge=f"ours/{judge}-judge")
            async with _opened(file, base_url, models) as bank:
                took, reached = await _asked(bank, turns, repeats)
            if name in _SLOW:
                slow += took
            stages[name] = dict(reached)
            told = ", ".join(f"{count} {stage}" for stage, count in reached.items())
            report.say(
                f"  {name}: p50 {percentile(took, 0.5) * 1e3:.0f} ms,"
                f" p99 {percentile(took, 0.99) * 1e3:.0f} ms; reached {told}"
            )
        asleep = ModelsConfig(filter="ours/sleeps", judge="ours/sleeps-judge")
        async with _opened(file, base_url, asleep) as bank:
            together, _ = await _asked(bank, turns, repeats, _LANES)
        report.say(
            f"  {_LANES} at a time, both sleep: p99 {percentile(together, 0.99) * 1e3:.0f} ms"
        )
        async with _opened(file, base_url) as bank:
            took, _ = await _asked(bank, turns, repeats)
        report.say(f"  without models: p50 {percentile(took, 0.5) * 1e3:.1f} ms")
    report.figures["p99_ms"] = millis(percentile(slow, 0.99))
    report.figures["together_p99_ms"] = millis(percentile(together, 0.99))
    report.figures["worst_ms"] = millis(max(slow))
    report.figures["quick_p50_ms"] = millis(percentile(took, 0.5))
    report.figures["recalls"] = float(len(slow))
    report.figures["stages"] = stages


async def _asked(
    bank: Bank, turns: int, repeats: int, lanes: int = 1
) -> tuple[list[float], Counter[str]]:
    """What each recall took, in seconds, and how far it came; so many lanes at the same time."""
    session = await bank.existing_session("bench/project")
    took, reached = list[float](), Counter[str]()
    prompts = _prompts(turns)
    for _ in range(2):  # what loads, loads
        await session.recall(next(prompts), judged=True, limit=_HITS)

    async def lane() -> None:
        for _ in range(repeats):
            prompt = next(prompts)
            start = perf_counter()
            found = await session.recall(prompt, judged=True, limit=_HITS)
            took.append(perf_counter() - start)
            reached[found.stage] += 1

    await asyncio.gather(*(lane() for _ in range(lanes)))
    return took, reached


def _prompts(turns: int) -> Iterator[str]:
    """What was asked in the project, in another order."""
    order = random.Random(0)
    while True:
        yield project_turn(order.randint(1, turns))[0].text


@asynccontextmanager
async def _opened(
    file: Path, base_url: str, models: ModelsConfig | None = None
) -> AsyncIterator[Bank]:
    gateway = GatewayConfig(
        providers={"ours": ProviderConfig(wire="chat", base_url=base_url, needs_key=False)},
        models=models or ModelsConfig(),
    )
    async with Bank(
        f"sqlite:///{file}", config=Config(gateway=gateway, recall=RecallConfig())
    ) as bank:
        yield bank


# The models -------------------------------------------------------------------------------------


@contextmanager
def _models() -> Iterator[str]:
    """The models' base URL, while they run."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.deadline", "serve"],
        cwd=Path(__file__).parent.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:  # closes its input, and waits for its end
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise RuntimeError("The models' server did not start; see its message above.")
        yield url


def _script() -> Callable[[ReceivedRequest], ScriptedAnswer]:
    naps = random.Random(0)
    chosen = json.dumps({"full": [1, 2], "ticklers": [3, 4], "layers": []})

    def line(request: ReceivedRequest) -> ScriptedAnswer:
        behaviour, _, is_judge = request.model.partition("-")
        delay = {"sleeps": _NEVER, "dozes": naps.uniform(0, _LONG), "awake": 0.0}[behaviour]
        return ScriptedAnswer(chosen if is_judge else "yes", delay=delay)

    return line


async def _serve() -> None:
    async with ScriptedModel(_script()) as model:
        ended = asyncio.Event()
        # Nothing is ever written to it.
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
        print(model.url, flush=True)
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(_serve())
