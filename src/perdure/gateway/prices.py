"""What models cost: a dated list that ships with Perdure; the configuration comes first.

    prices = Prices.load(config.gateway.prices)
    prices.cost("openai", "gpt-5", usage)      # picodollars, or None if it cannot be known

A model is found by its exact name, or without the date at its end (``gpt-5-2025-08-07`` costs what
``gpt-5`` does). Nothing is guessed: a missing price or rate gives None, never zero. Local servers
are listed as free. Amounts are whole picodollars (10⁻¹² $), computed without rounding.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from datetime import date
from decimal import Decimal, InvalidOperation
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from perdure.core.errors import InvalidConfig
from perdure.core.messages import Usage

DOLLAR = 10**12
_PER_TOKEN = DOLLAR // 10**6  # a dollar for a million tokens, in picodollars for one
_DATED = re.compile(r"-(?:20\d\d-[01]\d-[0-3]\d|20\d\d[01]\d[0-3]\d)$")
_RATES = ("input", "output", "cache_read", "cache_write", "cache_write_1h")


class Rates(msgspec.Struct, frozen=True):
    """Picodollars for a token of each kind; None is unknown."""

    input: int
    #: None for models that put nothing out, such as embedding models.
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    cache_write_1h: int | None = None


class Price(msgspec.Struct, frozen=True):
    """The price of a model, and its limits of input and output."""

    rates: Rates
    #: Prompts of more tokens than this cost, as a whole, what `long` says.
    above: int | None = None
    long: Rates | None = None
    window: int | None = None
    max_output: int | None = None

    def for_prompt(self, tokens: int) -> Rates:
        if self.long is not None and self.above is not None and tokens > self.above:
            return self.long
        return self.rates


FREE = Price(Rates(0, 0, 0, 0, 0))


class PriceList(msgspec.Struct, frozen=True):
    """A list of prices, as in the file that ships."""

    as_of: date
    source: str
    #: Provider → model → price.
    models: dict[str, dict[str, Price]]
    #: Providers that cost nothing, and those whose usage says what was charged.
    free: frozenset[str] = frozenset()
    stated: frozenset[str] = frozenset()
    #: Providers that have the prices of another.
    same: dict[str, str] = {}


class Prices:
    """The prices of models, immutable. Made by `load`."""

    def __init__(self, listed: PriceList, overrides: Mapping[str, Price]) -> None:
        self._listed = listed
        self._overrides = overrides

    @classmethod
    def load(cls, overrides: Mapping[str, Any] | None = None) -> Prices:
        """The list that ships, overridden by configured prices.

        `overrides` is by ``provider/model``, ``address#model`` or ``provider/*``; values are
        dollars for a million tokens: `input`, `output`, and optionally `cache_read`, `cache_write`,
        `cache_write_1h` (default: `input`). Raises `InvalidConfig`.
        """
        own = {
            _place(name): _overriding(f"gateway.prices.{name}", value)
            for name, value in (overrides or {}).items()
        }
        return cls(_shipped(), own)

    @property
    def as_of(self) -> date:
        return self._listed.as_of

    @property
    def source(self) -> str:
        return self._listed.source

    def find(self, provider: str, model: str) -> Price | None:
        for name in _names(model):
            if (own := self._overrides.get(f"{provider}/{name}")) is not None:
                return own
        if (own := self._overrides.get(f"{provider}/*")) is not None:
            return own
        if provider in self._listed.free:
            return FREE
        models = self._listed.models.get(self._listed.same.get(provider, provider), {})
        for name in _names(model):
            if (listed := models.get(name)) is not None:
                return listed
        return None

    def cost(self, provider: str, model: str, usage: Usage) -> int | None:
        """In picodollars; None if the price, the usage or a rate is unknown. What the provider says
        that it charged counts before the list.
        """
        if provider in self._listed.stated and (charged := _charged(usage)) is not None:
            return charged
        price = self.find(provider, model)
        if price is FREE:
            return 0
        if price is None or usage.input is None:
            return None
        rates = price.for_prompt(usage.input)
        if usage.output is None and rates.output is not None:
            return None
        read, written = usage.cache_read or 0, usage.cache_write or 0
        for_an_hour = min(_for_an_hour(usage), written)
        return _total(
            (max(0, usage.input - read - written), rates.input),
            (read, rates.cache_read),
            (written - for_an_hour, rates.cache_write),
            (for_an_hour, rates.cache_write_1h),
            (usage.output or 0, rates.output),
        )

    def estimate(
        self, provider: str, model: str, input_tokens: int, output_tokens: int
    ) -> int | None:
        """In picodollars, without cache reads, at the dearer of plain and cache-write rates. No
        strict limit: a one-hour cache costs more.
        """
        price = self.find(provider, model)
        if price is None:
            return None
        rates = price.for_prompt(input_tokens)
        return _total(
            (input_tokens, max(rates.input, rates.cache_write or 0)),
            (output_tokens if rates.output is not None else 0, rates.output),
        )


def batch_price(cost: int | None) -> int | None:
    """What a call costs in a provider's batch mode: half, rounded up; None is unknown."""
    return None if cost is None else -(-cost // 2)


def picodollars(dollars: str | float | Decimal, what: str = "an amount") -> int:
    """Dollars as whole picodollars. Raises `InvalidConfig` if negative, finer, or no amount."""
    try:
        amount = Decimal(repr(dollars) if isinstance(dollars, float) else dollars) * DOLLAR
    except (InvalidOperation, ValueError, TypeError):
        amount = Decimal(-1)
    if not amount.is_finite() or amount < 0 or amount != amount.to_integral_value():
        raise InvalidConfig(
            f"{what}: {dollars!r} is no amount in dollars.",
            hint="Write a number that is not negative, with at most 12 decimals.",
        )
    return int(amount)


def dollars(picodollars: int) -> str:
    """For people: ``$1.25``, ``$0.000420``. Rounded up, so that little is not nothing."""
    decimals = 2 if picodollars >= DOLLAR or not picodollars else 6
    step = DOLLAR // 10**decimals
    return f"${Decimal(-(-picodollars // step)).scaleb(-decimals):,.{decimals}f}"


def _names(model: str) -> tuple[str, ...]:
    undated = _DATED.sub("", model)
    return (model,) if undated == model else (model, undated)


def _total(*shares: tuple[int, int | None]) -> int | None:
    total = 0
    for tokens, rate in shares:
        if tokens:
            if rate is None:
                return None
            total += tokens * rate
    return total


def _for_an_hour(usage: Usage) -> int:
    written = usage.native.get("cache_creation")
    tokens = written.get("ephemeral_1h_input_tokens") if isinstance(written, dict) else None
    return tokens if isinstance(tokens, int) and tokens > 0 else 0


def _charged(usage: Usage) -> int | None:
    cost = usage.native.get("cost")
    if isinstance(cost, bool) or not isinstance(cost, int | float):
        return None
    amount = Decimal(repr(cost)) * DOLLAR
    return int(amount.to_integral_value()) if amount.is_finite() and amount >= 0 else None


def _place(name: str) -> str:
    if "://" in name:
        address, mark, model = name.partition("#")
    else:
        address, mark, model = name.partition("/")
    if not address or not mark or not model:
        raise InvalidConfig(
            f"gateway.prices: {name!r} names no model.",
            hint='Write "provider/model", or "provider/*" for all models of one.',
        )
    return f"{address}/{model}"


def _overriding(where: str, value: Any) -> Price:
    fields = dict(value) if isinstance(value, Mapping) else msgspec.structs.asdict(value)
    fields = {name: each for name, each in fields.items() if each is not None}
    if "input" in fields:
        fields = dict.fromkeys(("cache_read", "cache_write"), fields["input"]) | fields
        fields.setdefault("cache_write_1h", fields["cache_write"])
    return _price(where, fields)


def _price(where: str, fields: Mapping[str, Any]) -> Price:
    allowed = {*_RATES, "above", "long", "window", "max_output"}
    if "input" not in fields or not allowed.issuperset(fields):
        raise InvalidConfig(
            f"{where} is no price.", hint=f"Give input and output, and of {sorted(allowed)} others."
        )
    longer = fields.get("long")
    return Price(
        _rates(where, fields),
        above=fields.get("above"),
        long=None if longer is None else _rates(f"{where}.long", longer),
        window=fields.get("window"),
        max_output=fields.get("max_output"),
    )


def _rates(where: str, fields: Mapping[str, Any]) -> Rates:
    found = dict[str, int]()
    for kind in _RATES:
        if kind in fields:
            million = picodollars(fields[kind], f"{where}.{kind}")
            if million % 10**6:
                raise InvalidConfig(
                    f"{where}.{kind}: {fields[kind]!r} is finer than a picodollar for a token.",
                    hint="Use at most 6 decimals.",
                )
            found[kind] = million // 10**6
    return Rates(**found)


@cache
def _shipped() -> PriceList:
    text = resources.files(__package__).joinpath("prices.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    models = {
        provider: {name: _price(f"{provider}/{name}", each) for name, each in listed.items()}
        for provider, listed in data["models"].items()
    }
    return PriceList(
        data["as_of"],
        data["source"],
        models,
        frozenset(data["free"]),
        frozenset(data["stated"]),
        data["same"],
    )
