"""What a rule is, and where the published ones are."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Literal

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


class Exemption(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a rule finds and its authors know to be harmless."""

    regexes: tuple[str, ...] = ()
    #: What the expressions are searched in.
    target: Literal["secret", "match", "line"] = "secret"
    #: Lower case; a secret that holds one of them is none.
    stopwords: tuple[str, ...] = ()


class Rule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One kind of secret. Expressions are RE2's."""

    id: str
    #: The secret is the first group that took part in the match, or else all of it.
    regex: str
    #: What occurs in every text that `regex` finds something in, and in few others.
    gate: str
    #: What occurs in every text that `gate` is open for, and takes less to look for; may be empty.
    lead: str = ""
    kind: Kind = "token"
    #: Bits a character that a value must have, by the frequencies of its own characters.
    entropy: float = 0.0
    exemptions: tuple[Exemption, ...] = ()


#: Where a token may begin. Backslashes are searched as spaces (see `finder`), so what was an escape
#: of JSON is a space and a letter, without a gap before the token.
START = r"(?:\b| (?:[nrt]|u00\w\w))"

#: The published rules as they are searched for here; made by `tools/secret_rules.py`.
FILE = Path(__file__).with_name("published.json")


class Published(msgspec.Struct, frozen=True):
    """What the file holds."""

    #: Where they were taken from, and its release.
    source: str
    rules: tuple[Rule, ...]
    #: What is harmless whichever rule finds it.
    everywhere: Exemption


@functools.cache
def published() -> Published:
    """The rules of gitleaks.

    Raises `InvalidConfig` if their file cannot be read: a bank that cannot find secrets must not go
    on as if it could.
    """
    try:
        return msgspec.json.decode(FILE.read_bytes(), type=Published)
    except (OSError, msgspec.MsgspecError) as exc:
        raise InvalidConfig(
            f"The rules that find secrets cannot be read: {exc}.",
            hint="Install Perdure again, or set secrets.mask to false.",
        ) from exc


def check_installed() -> None:
    """Raises `InvalidConfig` if the published rules are not there. Does not read them."""
    if not FILE.is_file():
        raise InvalidConfig(
            "The rules that find secrets are not installed.",
            hint="Install Perdure again, or set secrets.mask to false.",
        )
