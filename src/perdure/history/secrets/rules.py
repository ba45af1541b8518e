"""What a rule is, and how the published ones are read."""

from __future__ import annotations

import functools
import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec

from perdure.core.errors import InvalidConfig

#: What a rule knows about the value that it finds, and hence how the value is judged.
#:
#: * ``token``: the value has a form of its own, which no other text has
#: * ``loose``: the same, but names made of words can have that form, too
#: * ``vendor``: any letters and digits, behind the name of a provider
#: * ``assigned``: any value, behind a word such as ``key`` or ``secret``
#: * ``password``: a value that a person may have chosen, behind a word such as ``password``
#: * ``block``: a private key, with its first line, and its last if it is there
#: * ``place``: the place alone makes it a secret; anything but a placeholder is one
#: * ``user``: a rule of the user's; all that it finds is a secret
Kind = Literal["token", "loose", "vendor", "assigned", "password", "block", "place", "user"]


class Exemption(msgspec.Struct, frozen=True):
    """What a rule finds and its authors know to be harmless."""

    regexes: tuple[str, ...] = ()
    #: What the expressions are searched in.
    target: Literal["secret", "match", "line"] = "secret"
    #: Lower case; a secret that holds one of them is none.
    stopwords: tuple[str, ...] = ()


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of secret. Expressions are RE2's."""

    id: str
    #: The secret is the first group that took part in the match, or else all of it.
    regex: str
    #: What occurs in every text that `regex` finds something in, and in few others.
    gate: str
    kind: Kind = "token"
    #: Bits a character that a value must have, by the frequencies of its own characters.
    entropy: float = 0.0
    exemptions: tuple[Exemption, ...] = ()


#: Where a token may begin. Backslashes are searched as spaces (see `finder`), so what was an escape
#: of JSON is a space and a letter, without a gap before the token.
START = r"(?:\b| (?:[nrt]|u00\w\w))"

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
#: Gates for rules whose keywords are in every other text.
_GATES = {
    GENERIC: r"(?i)(?:access|auth|api|credential|creds|key|passw(?:or)?d|secret|token)"
    rf"""[ \t\w.-]{{0,20}}[\s'"\]]*{_ASSIGNS}\S\S""",
    "azure-ad-client-secret": r"\dQ~[\w~.-]{31}",
}


@functools.cache
def published() -> tuple[tuple[Rule, ...], Exemption]:
    """The rules of gitleaks, and what is harmless whichever rule finds it.

    Raises `InvalidConfig` if the package that carries them is not as it should be: a bank that
    cannot find secrets must not open as if it could.
    """
    file = locate()
    try:
        content = tomllib.loads(file.read_text("utf-8"))
        rules = tuple(
            _adapted(rule)
            for rule in content["rules"]
            # A rule that is bound to a kind of file cannot tell anything here.
            if "regex" in rule
            and "path" not in rule
            and rule["id"] not in LEFT_OUT
            and not _IDENTIFIER.search(rule["id"])
        )
        everywhere = _exemption(content["allowlist"])
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise InvalidConfig(
            f"The rules that find secrets cannot be read: {exc}.",
            hint="Install Perdure's dependencies again, or set secrets.mask to false.",
        ) from exc
    return rules, everywhere


def locate() -> Path:
    """The file of published rules. Raises `InvalidConfig` if it is not installed."""
    # The package is found and not imported: only its data is wanted, none of its code runs.
    spec = importlib.util.find_spec("secretscreen")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not folders:
        raise InvalidConfig(
            "The rules that find secrets are not installed.",
            hint="Install the package secretscreen, or set secrets.mask to false.",
        )
    return Path(folders[0]) / "gitleaks.toml"


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
    name, operator, rest = regex.partition(_OPERATOR)
    if operator and "|" not in rest.partition(_END_OF_VALUE)[2]:
        # Anything may stand where the expression counts: counting makes automata large.
        return name.replace("{0,20}", "*").replace("{0,10}", "*") + _ASSIGNS
    return "(?i)" + "|".join(re.escape(word) for word in keywords)


def _exemption(listed: dict[str, Any]) -> Exemption:
    return Exemption(
        regexes=tuple(listed.get("regexes", ())),
        target=listed.get("regexTarget", "secret"),
        stopwords=tuple(word.lower() for word in listed.get("stopwords", ())),
    )
