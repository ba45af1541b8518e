"""The command ``perdure``: one module per group of commands.

`app` ties the groups together and is where errors become one line on stderr; `command_options`
holds what all commands take, `bank_access` finds the bank they mean, `terminal` is how they print.
A command imports what it works with inside its function, so that ``perdure --help`` loads no
database.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command with the arguments of this process, then exit."""
    for stream in (sys.stdout, sys.stderr):
        # A file name in another encoding, or "…" on an ASCII terminal, must not end in an error.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]

    from perdure.cli.app import app

    try:
        app(prog_name="perdure")
    finally:
        _flush()


def _flush() -> None:
    """Write what is still buffered; that nobody reads it any more is no reason to complain."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes again at exit, and would report the same error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
