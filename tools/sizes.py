"""How large the source is and how plain its names are. Fails when a module is too large.

Later capabilities add lines and modules; what stays is that no module grows past 600 lines, that no
two public classes share a name, and that a file's stem tells it from the others in a search.
"""

import ast
import json
import sys
from collections import Counter
from pathlib import Path

AIM, STOP = 400, 600
#: Shares of modules whose stem another module has, at most.
STEMS = 0.15
SRC = Path(__file__).resolve().parent.parent / "src" / "perdure"
#: One module for each technology or wire format, named alike on purpose.
ALIKE = ("storage/backends/", "wire/", "gateway/requests/", "gateway/streams/")


def public_classes(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = (node.name for node in tree.body if isinstance(node, ast.ClassDef))
    return [name for name in names if not name.startswith("_")]


def main() -> int:
    paths = sorted(SRC.rglob("*.py"))
    lines = {
        path.relative_to(SRC).as_posix(): path.read_text(encoding="utf-8").count("\n")
        for path in paths
    }
    classes = Counter(name for path in paths for name in public_classes(path))
    shared = {name: n for name, n in classes.items() if n > 1}
    told_apart = [
        Path(name).stem
        for name in lines
        if not name.startswith(ALIKE) and not Path(name).stem.startswith("__")
    ]
    stems = {stem: n for stem, n in Counter(told_apart).items() if n > 1}
    figures = {
        "lines": sum(lines.values()),
        "modules": len(lines),
        "storage_lines": sum(n for name, n in lines.items() if name.startswith("storage/")),
        "search_lines": sum(n for name, n in lines.items() if name.startswith("search/")),
        "max_module": max(lines.values()),
        "shared_class_names": len(shared),
        "shared_stems": round(sum(stems.values()) / len(told_apart), 3),
    }
    for name, n in sorted(lines.items(), key=lambda item: -item[1]):
        if n > AIM:
            print(f"{n:5}  {name}  ({f'over {STOP}: split it' if n > STOP else f'over {AIM}'})")
    for title, names in (("classes", shared), ("stems", stems)):
        if names:
            listed = ", ".join(f"{name} ×{n}" for name, n in sorted(names.items()))
            print(f"{title} that share a name: {listed}")
    if "--json" in sys.argv:
        print(json.dumps(figures))
    else:
        print(", ".join(f"{name} {n:,}" for name, n in figures.items()))
    is_plain = not shared and figures["shared_stems"] <= STEMS
    return int(figures["max_module"] > STOP or ("--strict" in sys.argv and not is_plain))


if __name__ == "__main__":
    sys.exit(main())
