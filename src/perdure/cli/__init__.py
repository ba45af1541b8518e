"""The command ``perdure``: one module per group of commands.

`app` joins the groups and turns errors into one line on stderr; `command_options` has the common
options, `bank_access` finds the bank, `terminal` prints. Commands import inside their functions,
so that ``perdure --help`` loads no database.
"""

from __future__ import annotations

import gc
import os
import sys


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        # A file name in another encoding, or "…" on an ASCII terminal, must not end in an error.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]

    from perdure.cli.app import run_command

    try:
        run_command()
    finally:
        _flush()
        # The interpreter's last collection would walk all that was imported: 50 ms of a command.
        gc.freeze()


def _flush() -> None:
    """Write what is buffered; a closed pipe is no error."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes again at exit, and would report the same error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
