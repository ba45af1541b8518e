"""What Perdure depends on: known faults, and licences.

    python -m tools.check_deps --audit .venv-audit/bin/pip-audit

Asks PyPI whether faults are known of what `requirements/run.txt` pins; a package that PyPI cannot
be asked about fails, too. Lists the licence of each package that an installation with all small
extras brings, as it is installed in this environment; one that is not in `FITTING` fails.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("cluster", "encryption", "keyring", "postgres", "protobuf", "telemetry", "valkey")
#: What may be used by a program under Apache-2.0 that is passed on without them: they are installed
#: beside it. LGPL and MPL are about their own files.
FITTING = {
    *("0bsd", "any-osi", "hpnd", "historical permission notice and disclaimer", "public domain"),
    *("apache-2.0", "apache 2.0", "apache license 2.0", "apache license version 2.0"),
    *("apache software license", "bsd", "bsd license", "bsd-2-clause", "bsd-3-clause"),
    *("2-clause bsd license", "3-clause bsd license", "cc0-1.0", "cc0 1.0 universal"),
    *("isc", "isc license", "mit", "mit license", "mit-0", "mit no attribution license"),
    *("lgpl-2.1-only", "lgpl-2.1-or-later", "lgpl-3.0-only", "lgpl-3.0-or-later"),
    *("gnu lesser general public license v2", "gnu lesser general public license v2 or later"),
    *("gnu lesser general public license v3", "gnu lesser general public license v3 or later"),
    *("gnu library or lesser general public license", "mpl-2.0", "mozilla public license 2.0"),
    *("psf-2.0", "python-2.0", "python software foundation license", "unlicense"),
    *("zlib", "zlib/libpng license", "zpl-2.1", "zope public license"),
}
_brackets = re.compile(r"\(([^()]* (?:AND|OR) [^()]*)\)")
_abbreviation = re.compile(r" *\([^()]*\)$")
#: Packages whose metadata does not say it in a way that can be read, or that a choice may be made;
#: looked up by hand.
KNOWN: dict[str, str] = {}


def needed() -> set[str]:
    """All that comes with Perdure and those extras, in this environment."""
    found: set[str] = set()
    todo = [("perdure", frozenset(EXTRAS))]
    while todo:
        name, extras = todo.pop()
        for text in metadata.distribution(name).requires or ():
            wanted = Requirement(text)
            marker = wanted.marker
            if marker and not any(marker.evaluate({"extra": each}) for each in ("", *extras)):
                continue
            other = canonicalize_name(wanted.name)
            if other not in found or wanted.extras:
                found.add(other)
                todo.append((other, frozenset(wanted.extras)))
    return found - {"perdure"}


def licence_of(name: str) -> str:
    """As its metadata tells: an expression, else all classifiers, else the first line of a text.
    Several classifiers do not say that one may be chosen.
    """
    if name in KNOWN:
        return KNOWN[name]
    about = metadata.metadata(name)
    if expressions := about.get_all("License-Expression"):
        return str(expressions[0])
    told = [
        each.rpartition(" :: ")[2]
        for each in about.get_all("Classifier") or ()
        if each.startswith("License :: ")
    ]
    told = [each for each in told if each != "OSI Approved"]
    text = "".join(about.get_all("License") or ()).strip().splitlines()
    return " AND ".join(told) or (text[0][:60] if text else "")


def fits(licence: str) -> bool:
    """Whether each part of it, or one of several that may be chosen, is known to fit."""
    while (within := _brackets.search(licence)) is not None:
        name = "MIT" if fits(within[1]) else "none that fits"
        licence = licence[: within.start()] + name + licence[within.end() :]
    return any(
        all(_name(part) in FITTING for part in choice.split(" AND "))
        for choice in licence.split(" OR ")
    )


def _name(licence: str) -> str:
    plain = _abbreviation.sub("", licence.strip()).lower().replace(",", "")
    return plain.removeprefix("the ")


def check_licences() -> list[str]:
    """Prints them; returns what does not fit."""
    packages: dict[str, list[str]] = defaultdict(list)
    wrong = []
    for name in sorted(needed()):
        licence = licence_of(name)
        packages[licence or "not said"].append(name)
        if not fits(licence):
            wrong.append(f"{name}: {licence or 'it does not say'}")
    for licence, names in sorted(packages.items()):
        print(f"{licence}: {', '.join(names)}")
    return wrong


def check_faults(audit: Path) -> bool:
    """Whether PyPI knows of none; it prints those that it knows."""
    pinned = ROOT / "requirements" / "run.txt"
    done = subprocess.run(
        [
            *(audit, "-r", pinned, "--require-hashes", "--disable-pip"),
            *("--strict", "--vulnerability-service", "pypi"),
        ],
        check=False,
    )
    return not done.returncode


def check_extras_are_ours() -> None:
    """A new extra belongs into `EXTRAS`, or brings a framework of a gigabyte."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    from tools.check_dist import DEVELOPERS, FRAMEWORKS

    extras = set(project["optional-dependencies"])
    assert extras == {*EXTRAS, *FRAMEWORKS, *DEVELOPERS}, extras


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--audit", type=Path, help="pip-audit; without it only licences are read")
    given = parser.parse_args()
    check_extras_are_ours()
    wrong = check_licences()
    for each in wrong:
        print(f"This licence is not known to fit: {each}.", file=sys.stderr)
    sound = check_faults(given.audit) if given.audit else True
    return int(bool(wrong) or not sound)


if __name__ == "__main__":
    raise SystemExit(main())
