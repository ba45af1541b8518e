"""Rules for finding secrets: our own, and where the published ones are."""

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
    """Findings of a rule that are known to be harmless."""

    regexes: tuple[str, ...] = ()
    target: Literal["secret", "match", "line"] = "secret"  # What the expressions are searched in.
    stopwords: tuple[str, ...] = ()  # Lower case; a secret that holds one of them is none.


class Rule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One kind of secret. Expressions are RE2's."""

    id: str
    regex: str  # The secret is the first group that took part in the match, or else all of it.
    gate: str  # What occurs in every text that `regex` finds something in, and in few others.
    #: What occurs in every text that `gate` is open for, and takes less to look for; may be empty.
    lead: str = ""
    kind: Kind = "token"
    #: Bits a character that a value must have, by the frequencies of its own characters.
    entropy: float = 0.0
    exemptions: tuple[Exemption, ...] = ()


#: Where a token may begin. Backslashes are searched as spaces (see `secret_finder`): an escape of
#: JSON is a space and a letter, without a gap before the token.
START = r"(?:\b| (?:[nrt]|u00\w\w))"

FILE = Path(__file__).with_name("published.json")  # Made by `tools/secret_rules.py`.


class Published(msgspec.Struct, frozen=True):
    """The content of the file of published rules."""

    #: Where they were taken from, and its release.
    source: str
    rules: tuple[Rule, ...]
    everywhere: Exemption  # What is harmless whichever rule finds it.


@functools.cache
def published() -> Published:
    """The rules of gitleaks. Raises `InvalidConfig` if their file cannot be read: a bank that
    cannot find secrets must not go on as if it could.
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


#: Tokens with a beginning of their own. The names are the providers'.
_TOKENS = {
    "anthropic-key": r"sk-ant-[a-z]{2,8}\d{2}-[\w-]{20,}",
    "brave-search-key": r"BSA[\w-]{28}",
    "cerebras-key": r"csk-[a-z0-9]{40,}",
    "docker-token": r"dckr_[a-z]{3}_[\w-]{20,}",
    "e2b-key": r"e2b_[0-9a-f]{40}",
    "figma-token": r"figd_[\w-]{30,}",
    "firecrawl-key": r"fc-[0-9a-f]{32}",
    "fireworks-key": r"fw_[A-Za-z0-9]{22,}",
    "github-token": r"gh[pousr]_\w{36,}",
    "google-oauth-secret": r"GOCSPX-[\w-]{20,}",
    "google-oauth-token": r"ya29\.[\w-]{20,}",
    "google-refresh-token": r"1//0[\w-]{30,}",
    "groq-key": r"gsk_[A-Za-z0-9]{40,}",
    "huggingface-token": r"hf_[A-Za-z0-9]{30,}",
    "jina-key": r"jina_[0-9a-f]{32}[\w-]{20,}",
    "langsmith-key": r"lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{10}",
    "nvidia-key": r"nvapi-[\w-]{40,}",
    "openrouter-key": r"sk-or-v\d-[0-9a-f]{32,}",
    "pinecone-key": r"pcsk_[\w-]{30,}",
    "render-key": r"rnd_[A-Za-z0-9]{28,}",
    "replicate-token": r"r8_[A-Za-z0-9]{37,}",
    "resend-key": r"re_[A-Za-z0-9]{8}_[A-Za-z0-9]{20,}",
    "sentry-token": r"sntry[su]_[\w+/=.-]{40,}",
    "slack-token": r"xox[a-z](?:\.xox[a-z])?-[\w-]{20,}",
    "stripe-webhook-secret": r"whsec_[A-Za-z0-9+/]{24,}={0,2}",
    "supabase-token": r"sb(?:[ps]_[0-9a-f]{40}|_secret_[\w-]{20,})",
    "tailscale-key": r"tskey-[a-z]+-[\w-]{20,}",
    "tavily-key": r"tvly-(?:dev-|prod-)?[A-Za-z0-9]{20,}",
    "xai-key": r"xai-[A-Za-z0-9]{40,}",
}
#: The same, where words joined by hyphens or dots could look alike.
_LOOSE = {
    # OpenAI's, and those of the many that offer the same API.
    "openai-style-key": r"sk-(?:[a-z]{2,10}-)?[\w-]{20,}",
    "discord-bot-token": r"[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,38}",
    "telegram-bot-token": r"\d{8,10}:AA[\w-]{32,34}",
}

# Between a name and its value: `"name": "value"`, `name = 'value'`, `config["name"] = value`.
_IS = r"""[\s'"\x60\]]{0,10}(?::=|=>|={1,3}|:)\s{0,10}"""
# A value without quotes ends where code or a sentence would go on; one in quotes ends with them.
_BARE = r"""[^\s'"\x60,;(){}\[\]<>&|]"""
_QUOTED = r"""[^\s"'\x60]"""
_QUOTE = r"""["'\x60]"""
_CLOSED = r"""\s{0,8}["'\x60]"""  # spaces that were backslashes
_END = r"""(?:[\s'"\x60,;)}\]&<|]|$)"""
_CHOSEN = r"(?:password|passwd|passphrase|passwort|[_-]pass|[_-]?pwd|\bpass| [nrt]pass)"
_MADE = r"(?:secret|api[_.-]?key|access[_.-]?key|private[_.-]?key|token|credential)"
_OPTION = r"\s[nt]?--(?:[a-z]+-){0,3}(?:password|passphrase|secret|token|api-?key)(?:[ \t]+|=)"
_SIGNATURE = (
    r"(?:[?&;]|u0026)(?:sig|X-Amz-Signature|X-Amz-Security-Token|X-Goog-Signature|Signature)="
)

_PLACES = (
    # Cut off, so that it has no end: as much of it as there is.
    Rule(
        id="private-key-cut",
        kind="block",
        regex=r"(?i)-----BEGIN[ A-Z0-9]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        r"(?:\s{1,8}[\w-]{2,20}: [^\n]{1,80}){0,4}(?:\s{1,8}[A-Za-z0-9+/=]{40,})+"
        r"(?:\s{1,8}[A-Za-z0-9+/=]{1,76}){0,1}",
        gate=r"(?i)-----BEGIN[ A-Z0-9]*PRIVATE KEY",
    ),
    Rule(
        id="authorization-header",
        kind="assigned",
        regex=r"""(?i)authorization['"\x60\]\s]{0,6}[:=,]{1,2}[\s'"\x60fbr]{0,6}"""
        r"(?:bearer|basic|token|apikey|api-key|digest|bot|key)[ :=]{1,3}([\w.~+/=:-]{8,})",
        gate=r"""(?i)authorization['"\x60\]\s]{0,6}[:=,]""",
    ),
    Rule(
        id="bearer-token",
        kind="loose",
        regex=r"(?i)bearer[ :=]{1,3}([\w.~+/=-]{16,})",
        gate=r"(?i)bearer[ :=]{1,3}[\w.~+/=-]{16}",
    ),
    Rule(
        id="url-password",
        kind="place",
        regex=r"""[a-zA-Z][a-zA-Z0-9+.-]{1,30}://[^\s/:@'"\x60<>?#]{0,128}:"""
        r"""([^\s/@'"\x60<>]{1,256})@[\w\[]""",
        gate=r"""://[^\s/:@'"\x60<>?#]*:[^\s/@'"\x60<>]+@[\w\[]""",
    ),
    Rule(
        id="signed-url",
        kind="place",
        regex=rf"{_SIGNATURE}([\w%+/=-]{{32,}})",
        gate=rf"{_SIGNATURE}[\w%+/=-]{{32}}",
    ),
    Rule(
        id="discord-webhook",
        kind="token",
        regex=r"(?i)discord(?:app)?\.com/api/(?:v\d{1,2}/)?webhooks/\d{15,22}/([\w-]{40,})",
        gate=r"(?i)discord(?:app)?\.com/api/",
    ),
    Rule(
        id="curl-user",
        kind="place",
        regex=r"""curl\b[^\n]{0,400}?\s[nt]?(?:-u|--user)[ =]['"]?[\w.@+-]{1,64}:"""
        r"""([^\s'"\x60]{3,120})""",
        gate=r"""\s[nt]?(?:-u|--user)[ =]['"]?[\w.@+-]+:[^\s'"\x60]{3}""",
    ),
    Rule(
        id="netrc-password",
        kind="password",
        regex=r"login\s{1,8}\S{1,80}\s{1,8}[nt]?password\s{1,8}(\S{3,120})",
        gate=r"login\s+\S+\s+[nt]?password\s",
    ),
    Rule(
        id="command-password",
        kind="password",
        regex=r"(?:sshpass\s{1,4}-p\s{0,4}|mysql(?:dump|admin)?\b[^\n]{0,200}?\s-p)"
        r"""['"]?([^\s'"\x60]{4,120})""",
        gate=r"sshpass\s{1,4}-p|mysql(?:dump|admin)?\b[^\n]*\s-p\S{4}",
    ),
    # `--token VALUE`: nothing but a space before the value.
    Rule(
        id="option-secret",
        kind="password",
        regex=rf"(?i){_OPTION}{_QUOTE}?({_BARE}{{8,120}}){_END}",
        gate=rf"(?i){_OPTION}{_QUOTE}?{_BARE}{{8}}",
    ),
    Rule(
        id="assigned-password",
        kind="password",
        regex=rf"(?i){_CHOSEN}{_IS}"
        rf"(?:{_QUOTE}({_QUOTED}{{6,120}}){_CLOSED}|({_BARE}{{8,120}}){_END})",
        gate=rf"(?i){_CHOSEN}{_IS}(?:{_QUOTE}{_QUOTED}{{6}}|{_BARE}{{8}})",
    ),
    # As the published one for all words, but for the plainest words only: so with any punctuation
    # in quotes, with a value that begins with a slash, and without its many exceptions.
    Rule(
        id="assigned-secret",
        kind="assigned",
        entropy=3.0,
        regex=rf"(?i)[\w.-]{{0,30}}?{_MADE}[\w.-]{{0,20}}{_IS}"
        rf"(?:{_QUOTE}({_QUOTED}{{16,200}}){_CLOSED}|([\w+/=.~-]{{16,}}){_END})",
        gate=rf"(?i){_MADE}[\w.-]{{0,20}}{_IS}(?:{_QUOTE}{_QUOTED}{{16}}|[\w+/=.~-]{{16}})",
    ),
)


def _token(name: str, form: str, kind: Kind) -> Rule:
    return Rule(
        id=name, kind=kind, regex=rf"{START}({form})", gate=rf"{START}(?:{form})", entropy=3.0
    )


OWN: tuple[Rule, ...] = (
    *(_token(name, form, "token") for name, form in _TOKENS.items()),
    *(_token(name, form, "loose") for name, form in _LOOSE.items()),
    *_PLACES,
)
