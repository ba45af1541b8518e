"""``make clients``: installs the real clients once, and runs their tests in a network of their own.

Where that is not possible, it says why and ends well: nothing else needs it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.clients import installed_clients, own_network


def main() -> int:
    reason = "" if own_network.unshare_command() else "there are no network namespaces here"
    reason = reason or installed_clients.install()
    if reason:
        print(f"Skipped the tests with real clients: {reason}.")
        return 0
    tests = [sys.executable, "-m", "pytest", "-n", "0", str(Path(__file__).parent), *sys.argv[1:]]
    return own_network.enter(tests)


sys.exit(main())
