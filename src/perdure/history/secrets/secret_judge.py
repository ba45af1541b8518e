"""Decides whether a value that a rule found is a secret, or a name, hash, path, expression or
placeholder. Decided by the value and the words before it alone: the same text is always judged the
same.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter

from perdure.history.secrets.masking_rules import Rule

_PLACEHOLDER = re.compile(
    r"""^[<\[({]|^\$[A-Za-z_{(]|^@\w+@$|^%(?:\w+%|[a-z])$|[<>{}]|\$[({]
    |(?-i:^[A-Z_]{3,16}$)|x{4}|\*{3}|\.{3}|…
    |example|placeholder|change[_-]?(?:me|it)|redacted|replace[_-]?(?:me|with|this)|insert[_-]
    |not[_-]?a[_-]?real|os\.environ|process\.env|getenv
    |0123456789|1234567890|abcdefgh|qwerty
    |(?<![a-z0-9])(?:your?|my|fake|dummy|sample|some|mock)[_-]""",
    re.IGNORECASE | re.VERBOSE,
)
_SEPARATORS = re.compile(r"[^A-Za-z0-9]+")
_RUNS = re.compile(r"[A-Za-z0-9]{6,}")
_PIECES = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_WORD = re.compile(r"[a-z]{5}")
_DIGITS = re.compile(r"\d+")
_HASH = re.compile(r"(?i)(?:sha\d+[-:])?(?:[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{56,128})")
_UUID = re.compile(r"(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
#: What is longer is a file.
_LONGEST = 4096
_KEY_MATERIAL = re.compile(r"[A-Za-z0-9+/=]{32}")
#: So much base64 around a value, without a gap, makes it a part of something larger.
_RUN = 512
_BASE64 = (string.ascii_letters + string.digits + "+/_-").encode()
#: A name with a small number at its end, as variables and tests have.
_NAME = re.compile(r"[A-Za-z_][A-Za-z_.-]*\d{0,2}")
_PATH = re.compile(
    r"^(?:~|\.{1,2})/|^/(?:[a-z][a-z0-9_.-]{1,20}|[A-Z][a-z]+)(?:/|$)|^[A-Za-z]:[\\/]|://"
    r"|^[\w.-]+(?:/[\w.-]+)+\.\w{1,5}$"
)
_CODE = re.compile(r"[({\[]|::|->|=>|\$\{|\w\.\w+\.[A-Za-z_]")

#: Words before a value that leave no doubt that it is a secret, even if it looks like a hash.
_SURELY = re.compile(
    r"(?i)secret(?!s)|passw|api[_.-]?key|private[_.-]?key|(?:access|client|master|encryption|signing)"
    r"[_.-]?key|(?:access|auth|refresh|api|bearer|bot|session)[_.-]?token|credential|authorization"
)
#: Words before a value of a provider's that make more of it than an id.
_SECRETIVE = re.compile(r"(?i)key|token|secret|auth|passw|cred|pat\b")
#: Tokens that tell where to go on, or that a form is one's own; keys under which things are found.
_HARMLESS = re.compile(
    r"(?i)(?:page|next|continuation|sync|resume|csrf|xsrf)[_.-]?token"
    r"|(?:pub|public|cache|idempotency|partition|sort|group|dedup\w*|object|s3)[_.-]?key"
)
#: The last word of the name says that the value is no secret itself.
_ABOUT = re.compile(
    r"""(?:[_.-]|(?<=[a-z]))(?:[iI]ds?|ID|[nN]ames?|[hH]ash|[dD]igest|[cC]hecksum|[sS]ha\d*
    |[fF]ingerprint|[vV]ersion|[uU]r[il]|URL|[pP]ath|[fF]ile|[tT]ype|[cC]ount|[lL]ength|[sS]ize
    |[lL]imit|[eE]xpir\w*|[aA]t|[tT]tl|[dD]ate|[tT]ime\w*|[iI]ndex|[aA]rn|[uU]sage|[bB]udget)
    [\s'"`\]]*(?:=|>|:{1,3}=|\|\||:|=>|\?=|,)+[\s'"`=]*$""",
    re.VERBOSE,
)


def is_secret(rule: Rule, value: str, before: bytes) -> bool:
    if rule.entropy and entropy(value) < rule.entropy:
        return False
    match rule.kind:
        case "user":
            return True
        case "token":
            return is_token(value)
        case "loose":
            return is_token(value) and is_random(value)
        case "vendor":
            return is_vendor_secret(value, before.decode("utf-8", "replace"))
        case "assigned":
            return is_assigned_secret(value, before.decode("utf-8", "replace"))
        case "password":
            return is_password(value)
        case "block":
            return is_private_key(value)
        case "place":
            return not is_placeholder(value)


def entropy(value: str) -> float:
    """Bits a character, by the frequencies in the value itself."""
    size = len(value)
    return -sum(n / size * math.log2(n / size) for n in Counter(value).values())


def is_placeholder(value: str) -> bool:
    return _PLACEHOLDER.search(value) is not None or len(set(value)) < 3


def is_random(value: str, longest: float = 3.0) -> bool:
    """Whether the value was made by a machine, not put together from words and numbers. Splits it
    as a name in camel case: pieces of a name are words; those of random characters are two or three
    long, on average no more than `longest`.
    """
    runs = _RUNS.findall(value)
    size = sum(map(len, runs))
    pieces = [piece for run in runs for piece in _PIECES.findall(run)]
    numbers = sum(piece.isdigit() for piece in pieces)
    if size < 8 or not numbers:
        return False
    if numbers >= 3 or (numbers == 2 and size >= 16 and not _WORD.search(value)):
        return True
    return size <= len(pieces) * (longest if size >= 12 else longest * 0.75)


def is_token(value: str) -> bool:
    """For values with a form of their own: they are real, unless they are made up."""
    return not is_placeholder(value) and len(set(value)) > 7


def is_vendor_secret(value: str, before: str) -> bool:
    if is_placeholder(value) or not _DIGITS.search(value):
        return False
    if value.isdigit() or _HASH.fullmatch(value) or _UUID.fullmatch(value):
        return _SECRETIVE.search(before) is not None and not _ABOUT.search(before)
    return is_random(value)


def is_assigned_secret(value: str, before: str) -> bool:
    if is_placeholder(value) or len(value) > _LONGEST or _PATH.search(value):
        return False
    if _ABOUT.search(before) or _HARMLESS.search(before):
        return False
    surely = _SURELY.search(before) is not None
    if _HASH.fullmatch(value) or _UUID.fullmatch(value):
        return surely
    if before.endswith(('"', "'", "`")):
        return is_random(value, 5.0 if surely else 3.0)
    return is_random(value) and not _CODE.search(value)


def is_password(value: str) -> bool:
    """For values behind a word such as ``password``: what a person may have chosen, but no code."""
    if is_placeholder(value) or _PATH.search(value) or _CODE.search(value):
        return False
    letters = any(char.isalpha() for char in value)
    digits = any(char.isdigit() for char in value)
    marks = any(char in "!@#$%^&*+?~" for char in value[:-1])
    if not letters or not (digits or marks) or _NAME.fullmatch(value):
        return False
    # A name of words and numbers is none: test_case_3, python3.11.
    pieces = _SEPARATORS.split(value)
    return (
        marks
        or not all(piece.isalpha() or piece.isdigit() for piece in pieces if piece)
        or (len(pieces) == 1)
    )


def is_private_key(value: str) -> bool:
    """For all from the first line of a key to the last: code that reads keys has them, too."""
    return _KEY_MATERIAL.search(value) is not None


def in_blob(text: bytes, start: int, end: int) -> bool:
    """Whether a value is part of a long run of base64, such as an image."""
    before, after = text[max(0, start - _RUN) : start], text[end : end + _RUN]
    run = len(before) - len(before.rstrip(_BASE64)) + len(after) - len(after.lstrip(_BASE64))
    return run >= _RUN
