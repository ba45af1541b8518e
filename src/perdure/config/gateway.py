"""How models are called."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from perdure.config.sections import Count, Refused, Seconds, Section

_Complexity = Literal["simple", "moderate", "complex"]
#: Dollars for a million tokens.
_Price = Annotated[float, msgspec.Meta(ge=0)]


class ProviderConfig(Section, frozen=True):
    """A server of models. What is left out is as for the built-in provider of the same name."""

    holds_no_keys: ClassVar[bool] = True

    wire: Literal["chat", "responses", "messages"] | None = None
    #: ``{NAME}`` in it stands for the variable of that name.
    base_url: str | None = None
    #: The variable that holds the key, and its name in the system's keyring. Never the key itself.
    key_variable: str | None = None
    needs_key: bool | None = None
    #: The path of embeddings; empty if it has none.
    embeddings: str | None = None
    #: Further headers, sent with each request. No place for keys: they are shown.
    headers: dict[str, str] = {}
    #: Where the server differs from its wire format's owner; see `gateway.providers.Habits`.
    habits: dict[str, bool | int | str] = {}
    #: Calls at the same time, for each model.
    concurrency: Annotated[int, msgspec.Meta(ge=1)] | None = None


class ByComplexity(Section, frozen=True):
    """Models for work of each complexity. What has none takes those of its neighbour."""

    simple: str | tuple[str, ...] = ()
    moderate: str | tuple[str, ...] = ()
    complex: str | tuple[str, ...] = ()


#: ``provider/model``, several of them in order of preference, or those by complexity.
_Models = str | tuple[str, ...] | ByComplexity


class ModelsConfig(Section, frozen=True):
    """Which models serve a purpose. One that has none here has none: see `gateway.catalog`."""

    chat: _Models = ()
    compress: _Models = ()
    filter: _Models = ()
    judge: _Models = ()
    reflect: _Models = ()
    embed: _Models = ()


class BudgetConfig(Section, frozen=True, kw_only=True):
    """What may be spent in a time: on everything, on one purpose, by one agent."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    #: Empty: all.
    purpose: Literal["", "chat", "compress", "filter", "judge", "reflect", "embed"] = ""
    agent: str = ""
    #: Days and months are those of UTC.
    per: Literal["hour", "day", "month", "ever"] = "day"
    tokens: Count | None = None
    dollars: Annotated[float, msgspec.Meta(ge=0)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens is None and self.dollars is None:
            raise Refused(
                f"The budget {self.name!r} limits neither tokens nor dollars.",
                hint="Set tokens, dollars, or both.",
            )


class PriceConfig(Section, frozen=True):
    """What a model costs, in dollars for a million tokens; before the prices that are built in."""

    input: _Price
    output: _Price
    #: None: as `input`.
    cache_read: _Price | None = None
    cache_write: _Price | None = None


class GatewayConfig(Section, frozen=True):
    """How models are called."""

    #: The provider whose models come first while nothing is known about the others; empty: as
    #: listed.
    default: str = ""
    #: Seconds that one attempt may take to answer, and a stream to say something more.
    timeout: Seconds = 120.0
    #: Seconds to reach a server.
    connect_timeout: Seconds = 10.0
    #: Seconds for everything: queueing, retries, fallbacks.
    deadline: Seconds = 600.0
    #: Further attempts at the same model, where that makes sense.
    retries: Annotated[int, msgspec.Meta(ge=0, le=20)] = 2
    #: Answer the same request from the cache. Off: who asks twice may want another answer.
    cache: bool = False
    #: Seconds for which an answer may be used again.
    cache_ttl: Seconds = 86_400.0
    providers: dict[str, ProviderConfig] = {}
    models: ModelsConfig = ModelsConfig()
    #: Kinds of work, by the name that callers give them.
    tasks: dict[str, _Complexity] = {}
    budgets: tuple[BudgetConfig, ...] = ()
    #: By ``provider/model``.
    prices: dict[str, PriceConfig] = {}
