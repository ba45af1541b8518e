"""Lists the modules that have grown large, and fails when one is too large.

A module aims to stay below 400 lines and stops at 800: what tells admired code from the
rest is not the typical file but the largest one.
"""

import sys
from pathlib import Path

AIM = 400
STOP = 800
ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    sizes = {
        path.relative_to(ROOT): len(path.read_text(encoding="utf-8").splitlines())
        for path in (ROOT / "src").rglob("*.py")
    }
    large = sorted(((n, path) for path, n in sizes.items() if n > AIM), reverse=True)
    for n, path in large:
        note = f"over {STOP}: split it" if n > STOP else f"over {AIM}"
        print(f"{n:5}  {path}  ({note})")
    print(f"{len(sizes)} modules, {len(large)} over {AIM} lines.")
    return int(any(n > STOP for n, _ in large))


if __name__ == "__main__":
    sys.exit(main())
