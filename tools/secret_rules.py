"""Writes down the published rules that find secrets, as Perdure searches for them.

Run it as `python -m tools.secret_rules` after renewing the package `secretscreen`, which carries
gitleaks' rules as a data file; nothing else of it is used, and it is not needed at run time. To
read that file, and to adapt its rules, takes 20 ms; to read what is written here takes one.

A test fails while the file is not what the installed package gives.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from perdure.history.secrets.masking_rules import FILE, START, Exemption, Kind, Published, Rule

PACKAGE = "secretscreen"

#: Of the published rules, those that would do harm in a conversation.
LEFT_OUT = {
    "sourcegraph-access-token": "finds every commit hash in a text that mentions the company",
    "curl-auth-header": "looks through five lines for each curl; ours finds the header itself",
    "curl-auth-user": "the same",
    "flutterwave-public-key": "public",
    "lob-pub-api-key": "public",
    "mailgun-pub-key": "public",
}
#: Rules whose value is a name and no secret. Masking it would take away what the text is about.
_IDENTIFIER = re.compile(r"-(?:client|access|api)-id$")
#: Short words, and parts of ordinary ones: their occurrence tells nothing.
_ORDINARY = {"curl", "test_", "live_", "_pub", "ext_", "api-", "pat.", "sat."}
_TELLING = 4

# The published expressions are generated, and share these pieces. They are written for files; in a
# conversation a key may stand before a comma or a bracket, or in JSON that was quoted repeatedly.
_LEAD = r"[\w.-]{0,50}?"
_BEHIND_NAME = r"(?:[ \t\w.-]{0,20})"
_BEFORE_OPERATOR = (r"""[\s'"]{0,3}""", r"""[\s'"\]]{0,10}""")
_AFTER_OPERATOR = (r"""[\x60'"\s=]{0,5}""", r"""[\x60'"\s=]{0,10}""")
_VALUE = (r"[\w.=-]{10,150}", r"[\w.=-]{10,}")
_OPERATOR = r"(?:=|>|:{1,3}=|\|\||:|=>|\?=|,)"
_END = r"""(?:[\x60'"\s;]|\\[nr]|$)"""
_END_OF_VALUE = r"""(?:[\x60'"\s;,)}\]&<|]|$)"""
_END_OF_WORD = r"""(?:[^\w+/=-]|$)"""

#: The one published rule for values behind any telling word.
GENERIC = "generic-api-key"
_KINDS: dict[str, Kind] = {GENERIC: "assigned", "private-key": "block"}
# What gates look for behind a name: an operator, and the beginning of a value.
_ASSIGNS = r"""(?:=|>|:|,|\|\||\?)[=>:\x60'"\s]*[\w/+=.:%-]{8}"""
#: Gates for rules whose keywords are in every other text, or whose expressions count far.
_GATES = {
    GENERIC: r"(?i)(?:access|auth|api|credential|creds|key|passw(?:or)?d|secret|token)"
    rf"""[ \t\w.-]{{0,20}}[\s'"\]]*{_ASSIGNS}\S\S""",
    "authress-service-client-access-key": r"(?:sc|ext|authress)(?:auth)?_\w+\.\w+\.acc[_-]",
    "azure-ad-client-secret": r"\dQ~[\w~.-]{31}",
    "flyio-access-token": r"(?:fo1|fm1[ar]|fm2)_[\w+/-]{16}",
    "sendgrid-api-token": r"SG\.[\w=.-]{16}",
    "vault-service-token": rf"{START}(?:hvs\.[\w-]{{16}}|s\.[A-Za-z0-9]{{16}})",
}


def main() -> int:
    found = adapted()
    FILE.write_bytes(written(found))
    print(f"{FILE.name}: {len(found.rules)} rules from {found.source}.")
    return 0


def written(found: Published) -> bytes:
    """The content of the file: a line for each rule, so that a new release can be reviewed."""
    encode = msgspec.json.encode
    lines = b",\n".join(encode(rule) for rule in found.rules)
    return b'{"source":%b,\n"everywhere":%b,\n"rules":[\n%b\n]}\n' % (
        encode(found.source),
        encode(found.everywhere),
        lines,
    )


def adapted() -> Published:
    """The rules of the installed package, adapted to conversations.

    Raises `KeyError` if they are not written as they used to be.
    """
    spec = importlib.util.find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not folders:
        sys.exit(f"The package {PACKAGE} is not installed; it comes with Perdure's extra 'dev'.")
    content = tomllib.loads((Path(folders[0]) / "gitleaks.toml").read_text("utf-8"))
    return Published(
        source=f"{PACKAGE} {importlib.metadata.version(PACKAGE)}",
        rules=tuple(
            _adapted(rule)
            for rule in content["rules"]
            # A rule that is bound to a kind of file cannot tell anything here.
            if "regex" in rule
            and "path" not in rule
            and rule["id"] not in LEFT_OUT
            and not _IDENTIFIER.search(rule["id"])
        ),
        everywhere=_exemption(content["allowlist"]),
    )


def _adapted(rule: dict[str, Any]) -> Rule:
    regex: str = rule["regex"]
    kind = _KINDS.get(rule["id"], "vendor" if _OPERATOR in regex else "token")
    for piece, wider in (_BEFORE_OPERATOR, _AFTER_OPERATOR, _VALUE):
        regex = regex.replace(piece, wider)
    if kind == "vendor":
        # What stands before the provider's name is not asked for, and takes six times as long.
        regex = regex.replace(_LEAD, "")
    regex = re.sub(r"^((?:\(\?i\))?)\\b", lambda found: found[1] + START, regex)
    regex = regex.replace(_END, _END_OF_WORD if kind == "token" else _END_OF_VALUE)
    return Rule(
        id=rule["id"],
        regex=regex,
        gate=_gate(rule, regex),
        lead=_lead(regex) if kind == "vendor" else "",
        kind=kind,
        entropy=float(rule.get("entropy", 0)),
        exemptions=tuple(
            _exemption(listed)
            for listed in rule.get("allowlists", ())
            # What is harmless in a kind of file only may be harmful here.
            if "paths" not in listed
        ),
    )


def _gate(rule: dict[str, Any], regex: str) -> str:
    if rule["id"] in _GATES:
        return _GATES[rule["id"]]
    keywords: list[str] = rule["keywords"]
    if any(len(word) < _TELLING or word in _ORDINARY for word in keywords):
        return regex
    name, operator, _ = regex.partition(_OPERATOR)
    if operator and not _has_another(regex):
        # Anything may stand where the expression counts: counting makes automata large.
        return name.replace("{0,20}", "*").replace("{0,10}", "*") + _ASSIGNS
    return "(?i)" + "|".join(re.escape(word) for word in keywords)


def _has_another(regex: str) -> bool:
    """Whether an alternative follows the value behind the provider's name."""
    return "|" in regex.partition(_OPERATOR)[2].partition(_END_OF_VALUE)[2]


def _lead(regex: str) -> str:
    """The provider's name, with which the expressions of vendors begin."""
    name, behind, _ = regex.partition(_BEHIND_NAME)
    if not behind or _has_another(regex):
        return ""
    return name if name.count("(") == name.count(")") else name + ")"


def _exemption(listed: dict[str, Any]) -> Exemption:
    return Exemption(
        regexes=tuple(listed.get("regexes", ())),
        target=listed.get("regexTarget", "secret"),
        stopwords=tuple(word.lower() for word in listed.get("stopwords", ())),
    )


if __name__ == "__main__":
    sys.exit(main())
