"""Finds secrets in a text."""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import re2  # type: ignore[import-untyped]  # has no types

from perdure.core.errors import InvalidConfig
from perdure.history.secrets.masking_rules import OWN, Exemption, Kind, Rule, published

#: For the states of an automaton of gates. When it is full it is emptied and filled again, in the
#: middle of a text: slower, not wrong.
_MEMORY = 16 << 20
#: Kinds whose gates share an automaton. States are made when a text first needs them, and in an
#: automaton of all gates each new text needs new combinations: two passes take half of that.
_FAMILIES: tuple[frozenset[Kind], ...] = (
    frozenset({"block", "token", "loose", "place", "vendor"}),
    frozenset({"password", "assigned"}),
)
_ORDER: tuple[Kind, ...] = ("block", "token", "loose", "vendor", "place", "password", "assigned")
_LINE = 300  # How far from a match its line is looked at.
#: What stands in the place of a secret; see `masker`.
_MASK = re.compile(rb"\[secret:([a-z0-9-]{1,64})(?::[0-9a-f]{4})?\]")
_RULE_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_REST_OF_TOKEN = re.compile(rb"[\w-]*")


class FoundSecret(NamedTuple):
    """A secret's place, in bytes, and the rule that found it."""

    start: int
    end: int
    rule: Rule
    first: int  # Where the words begin that tell of it.


class SecretFinder:
    """Finds secrets, in linear time. Can be used by several threads.

    `allow` are secrets that may stay: the value itself, or an expression between slashes that is
    searched in it. `off` are ids of rules to switch off. `rules` adds rules by id; the secret is
    the first group of the expression, or all that it matches.

    Raises `InvalidConfig` for an expression that RE2 does not take (no look-around, no back
    references), for an id that is taken or not well-formed, for an unknown rule to switch off, and
    if the published rules cannot be read.
    """

    def __init__(
        self,
        *,
        allow: Iterable[str] = (),
        off: Iterable[str] = (),
        rules: Mapping[str, str] | None = None,
    ) -> None:
        known = published().rules
        unwanted = set(off)
        if unknown := unwanted - {rule.id for rule in (*known, *OWN)}:
            raise InvalidConfig(
                f"secrets.off: there is no rule called {min(unknown)!r}.",
                hint="A mask names the rule that made it: [secret:RULE].",
            )
        # The more a rule knows of what it finds, the earlier it comes.
        self._rules = sorted(
            (rule for rule in (*known, *OWN) if rule.id not in unwanted),
            key=lambda rule: _ORDER.index(rule.kind),
        )
        self._gates = [
            _Gates(
                [rank for rank, rule in enumerate(self._rules) if rule.kind in kinds], self._rules
            )
            for kinds in _FAMILIES
        ]
        self._users = [_user_rule(name, regex) for name, regex in (rules or {}).items()]
        self._ids = {rule.id for rule in (*known, *OWN)}
        for rule in self._users:
            if rule.id in self._ids:
                raise InvalidConfig(
                    f"secrets.rules: {rule.id} is a rule already.", hint="Give it another name."
                )
        self._ids |= {rule.id for rule in self._users}
        given = list(allow)
        self._allowed = {value for value in given if not _is_expression(value)}
        self._patterns = [
            _expression(value[1:-1], "secrets.allow") for value in given if _is_expression(value)
        ]
        self._everywhere = _Exempt(published().everywhere)
        self._compiled: dict[str, tuple[Any, list[_Exempt]]] = {
            rule.id: (_expression(rule.regex, "secrets.rules"), []) for rule in self._users
        }

    def candidates(self, text: bytes) -> list[Rule]:
        """The rules that may find something: none for almost every text."""
        probe = _plain(text)
        found = [rule for rule in self._users if self._of(rule)[0].search(probe)]
        hits = [rank for gates in self._gates for rank in gates.hits(probe)]
        return found + [self._rules[rank] for rank in sorted(hits)] if hits else found

    def find(self, text: bytes, candidates: Iterable[Rule]) -> list[FoundSecret]:
        """The secrets in a UTF-8 text, in order, none overlapping. `candidates` are those of this
        text, or of a longer one that contains it.
        """
        probe = _plain(text)
        found = [place for rule in candidates for place in self._places(rule, probe)]
        return _apart(found, self._masks(text)) if found else []

    def _masks(self, text: bytes) -> list[tuple[int, int]]:
        return [
            mask.span() for mask in _MASK.finditer(text) if mask[1].decode("ascii") in self._ids
        ]

    def _places(self, rule: Rule, probe: bytes) -> Iterator[FoundSecret]:
        from perdure.history.secrets import secret_judge  # few texts come this far

        expression, exemptions = self._of(rule)
        for match in expression.finditer(probe):
            group = next((n for n, value in enumerate(match.groups(), 1) if value), 0)
            start, end = match.span(group)
            if rule.kind in ("token", "loose"):
                rest = _REST_OF_TOKEN.match(probe, end)
                end = rest.end() if rest else end
            # An expression of bytes may stop in the middle of a character.
            while end < len(probe) and probe[end] & 0xC0 == 0x80:
                end += 1
            value = probe[start:end].decode("utf-8", "replace")
            if (
                value
                and secret_judge.is_secret(rule, value, probe[match.start() : start])
                and not (
                    rule.kind in ("token", "loose") and secret_judge.in_blob(probe, start, end)
                )
                and not self._is_allowed(value)
                and not any(exempt.covers(probe, match, value) for exempt in exemptions)
            ):
                yield FoundSecret(start, end, rule, match.start())

    def _of(self, rule: Rule) -> tuple[Any, list[_Exempt]]:
        """A rule's expression and exemptions; made when it is first tried, as few ever are."""
        made = self._compiled.get(rule.id)
        if made is None:
            exemptions = [_Exempt(listed) for listed in rule.exemptions]
            made = (
                re2.compile(rule.regex.encode(), _options(captures=True)),
                [*exemptions, self._everywhere],
            )
            self._compiled[rule.id] = made
        return made

    def _is_allowed(self, value: str) -> bool:
        return value in self._allowed or any(
            pattern.search(value.encode()) for pattern in self._patterns
        )


@functools.cache
def usual_finder() -> SecretFinder:
    """The one without user settings, shared by all banks of a process."""
    return SecretFinder()


class _Gates:
    """The gates of several rules, known by their ranks. One with a lead is looked at, and compiled,
    only where its lead is found.
    """

    def __init__(self, ranks: list[int], rules: list[Rule]) -> None:
        self._ranks = ranks
        self._rules = [rules[rank] for rank in ranks]
        self._leads = _set_of(rule.lead or rule.gate for rule in self._rules)
        self._behind: dict[str, Any] = {}  # Gates with leads, by themselves.

    def hits(self, probe: bytes) -> list[int]:
        found = self._leads.Match(probe) or ()
        return [self._ranks[at] for at in found if self._is_open(self._rules[at], probe)]

    def _is_open(self, rule: Rule, probe: bytes) -> bool:
        if not rule.lead:
            return True
        gate = self._behind.get(rule.gate)
        if gate is None:
            gate = self._behind[rule.gate] = re2.compile(rule.gate.encode(), _options())
        return gate.search(probe) is not None


class _Exempt:
    def __init__(self, listed: Exemption) -> None:
        self._target = listed.target
        self._regex = _any_of(listed.regexes)
        self._stopwords = _any_of(f"(?i){re.escape(word)}" for word in listed.stopwords)

    def covers(self, probe: bytes, match: Any, value: str) -> bool:
        secret = value.encode()
        if self._stopwords is not None and self._stopwords.search(secret):
            return True
        match self._target:
            case "secret":
                looked_at = secret
            case "match":
                looked_at = match.group(0)
            case _:
                first = probe.rfind(b"\n", max(0, match.start() - _LINE), match.start()) + 1
                last = probe.find(b"\n", match.end(), match.end() + _LINE)
                first = max(first, match.start() - _LINE, 0)
                looked_at = probe[first : last if last >= 0 else match.end() + _LINE]
        return self._regex is not None and self._regex.search(looked_at) is not None


def _set_of(regexes: Iterable[str]) -> Any:
    made = re2.Set.SearchSet(_options())
    for regex in regexes:
        made.Add(regex.encode())
    made.Compile()
    return made


def _any_of(regexes: Iterable[str]) -> Any:
    joined = "|".join(f"(?:{regex})" for regex in regexes)
    return re2.compile(joined.encode(), _options()) if joined else None


def _apart(found: list[FoundSecret], masks: list[tuple[int, int]]) -> list[FoundSecret]:
    """In order; overlapping ones as one, under the name of the first rule that found it. Leaves out
    what was masked before, and what only the words of a mask tell of.
    """
    starts = [start for start, _ in masks]

    def is_masked(place: FoundSecret) -> bool:
        within = bisect.bisect_left(starts, place.first) - 1
        over = bisect.bisect_left(starts, place.end) - 1
        return (within >= 0 and masks[within][1] > place.first) or (
            over >= 0 and masks[over][1] > place.start
        )

    apart: list[tuple[int, FoundSecret]] = []  # with their rank among the rules
    ranked = [(rank, place) for rank, place in enumerate(found) if not is_masked(place)]
    for rank, place in sorted(ranked, key=lambda one: one[1].start):
        if apart and place.start < apart[-1][1].end:
            best, last = apart[-1]
            rule = place.rule if rank < best else last.rule
            joined = FoundSecret(last.start, max(last.end, place.end), rule, last.first)
            apart[-1] = (min(rank, best), joined)
        else:
            apart.append((rank, place))
    return [place for _, place in apart]


def _plain(text: bytes) -> bytes:
    """The text as it is searched: a backslash, from JSON in JSON say, separates as a space does."""
    return text.replace(b"\\", b" ")


def _options(*, captures: bool = False) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY
    options.never_capture = not captures
    # Byte by byte: our expressions are of ASCII, and the automaton is smaller for it.
    options.encoding = re2.Options.Encoding.LATIN1
    return options


def _user_rule(name: str, regex: str) -> Rule:
    if not _RULE_ID.fullmatch(name):
        raise InvalidConfig(
            f"secrets.rules: {name!r} cannot be the name of a rule.",
            hint="Use small letters, digits and hyphens.",
        )
    return Rule(id=name, regex=regex, gate="", kind="user")


def _is_expression(value: str) -> bool:
    return len(value) > 2 and value[0] == value[-1] == "/"


def _expression(regex: str, where: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(regex, options)
    except re2.error as exc:
        # The expression is not shown: it may hold what it is to find.
        raise InvalidConfig(
            f"{where}: an expression cannot be used.",
            hint="RE2 knows no look-around and no back references.",
        ) from exc
