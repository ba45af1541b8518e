"""An agent that does what a test wrote down: one step of a JSON plan for each time it is started.

Run as a command: ``python scripted_agent.py PLAN [--prompt-as-argument]``. It works in the current
folder, on TASKS.md and LOG.md. Its plan, and what it was told, lie elsewhere.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    plan = Path(sys.argv[1])
    steps = json.loads(plan.read_text())
    prompts = plan.parent / "prompts"
    prompts.mkdir(exist_ok=True)
    number = len(list(prompts.iterdir()))
    prompt = sys.argv[2] if len(sys.argv) > 2 else sys.stdin.read()
    (prompts / f"{number:04}.txt").write_text(prompt)
    step = steps[min(number, len(steps) - 1)]
    if "child" in step:  # something that it leaves running
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (plan.parent / "child").write_text(str(child.pid))
    tasks = Path("TASKS.md")
    for _ in range(step.get("tick", 0)):
        tasks.write_text(re.sub(r"\[ \]", "[x]", tasks.read_text(), count=1))
    if "tasks" in step:
        tasks.write_text(step["tasks"])
    for name, text in step.get("files", {}).items():
        Path(name).write_text(text.replace("{number}", str(number)))
    if step.get("log", True):
        with Path("LOG.md").open("a") as log:
            log.write(f"## Start {number + 1}\nDid a bit.\n")
    print(step.get("out", "I worked on it."), flush=True)
    if "err" in step:
        print(step["err"].replace("{number}", str(number)), file=sys.stderr, flush=True)
    if "beat" in step:  # signs of life: only the log grows
        for _ in range(step["beat"]):
            time.sleep(0.3)
            with Path("LOG.md").open("a") as log:
                log.write("still here\n")
    if "wait_for" in step:
        (plan.parent / "waiting").write_text(str(os.getpid()))
        limit = time.monotonic() + 120
        while not (plan.parent / step["wait_for"]).exists() and time.monotonic() < limit:
            time.sleep(0.02)
    if "kill" in step:
        os.kill(os.getpid(), 9)
    if "record" in step:
        line = json.dumps(step["record"])
        if step.get("to_file"):
            Path(os.environ["PERDURE_RUN_RECORD"]).write_text(line)
        else:
            print(line)
    sys.exit(step.get("code", 0))


main()
