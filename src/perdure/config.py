"""One configuration file, overridden by environment variables.

The file is TOML, at the path in ``PERDURE_CONFIG`` or in the user's configuration folder::

    bank = "postgresql://localhost/perdure"

    [jobs]
    concurrency = 8

Each key can be set by a variable: ``PERDURE_BANK``, ``PERDURE_JOBS_CONCURRENCY``; models have one
for each purpose: ``PERDURE_MODEL_CHAT="openai/gpt-5, ollama/qwen3"``. Arguments in code and on the
command line come before both.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from perdure.core.errors import InvalidConfig

_Seconds = Annotated[float, msgspec.Meta(gt=0)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Complexity = Literal["simple", "moderate", "complex"]
#: Dollars for a million tokens.
_Price = Annotated[float, msgspec.Meta(ge=0)]
#: What people call the key that a provider wants.
_KEYS = frozenset({"key", "apikey", "token", "apitoken", "secret"})


class _Refused(InvalidConfig, ValueError):
    """What a section says of itself. As a ValueError, msgspec adds the place where it stands."""


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings. Those made in code are held to the same rules as those of a file.

    Raises `InvalidConfig`, naming the key, for a value that cannot be used. Lists become tuples.
    """

    def __post_init__(self) -> None:
        if _is_default(self):
            return  # at once: to read the types of every section takes some milliseconds
        for field in msgspec.structs.fields(self):
            given = getattr(self, field.name)
            if given is field.default or (field.default_factory is dict and given == {}):
                continue
            value = _checked(given, field.type, f"{type(self).__name__}.{field.name}")
            msgspec.structs.force_setattr(self, field.name, value)


def _is_default(section: _Section) -> bool:
    """Whether nothing in it was given."""
    defaults = section.__struct_defaults__
    return len(defaults) == len(section.__struct_fields__) and all(
        given is default or (getattr(default, "factory", None) is dict and given == {})
        for given, default in zip(msgspec.structs.astuple(section), defaults, strict=True)
    )


class StorageConfig(_Section, frozen=True):
    """How the bank keeps its records."""

    #: Compress the types that ask for it.
    compression: bool = True
    #: Seconds between two sweeps of expired records.
    sweep_every: _Seconds = 60.0
    #: Seconds between two looks for events that other processes emitted.
    deliver_every: _Seconds = 1.0


class ArtifactsConfig(_Section, frozen=True):
    """Where large content lies."""

    #: A folder; empty: beside the bank's file, or in the user's data folder.
    folder: str = ""


class PruneRule(_Section, frozen=True):
    """What becomes of the results of some tools.

    An error is never reduced to a count or to nothing: its ends and its error lines stay.
    """

    #: Names of tools, or of programs that a shell runs; ``*`` and ``?`` stand for anything. Case
    #: does not matter, nor does what a server puts in front (``mcp__files__read_file``).
    tool: str | tuple[str, ...]
    #: Characters up to which a result stays as it is.
    over: _Count = 2_000
    #: A number of files; the first and last lines; everything; nothing.
    keep: Literal["count", "ends", "all", "none"] = "ends"
    #: Of the ends, so many lines at most …
    head: _Count = 20
    tail: _Count = 20
    #: … and so many characters, together with what is said about what was left out.
    cap: _Count = 2_000
    #: Whether the text may tell of errors and exit codes. Not so for a file: it may speak of errors
    #: without being one.
    errors: bool = True


class SecretsConfig(_Section, frozen=True):
    """What is masked before it is written."""

    #: Mask secrets at all.
    mask: bool = True
    #: What is no secret: the value itself, or an expression between slashes: ``/^test-/``.
    allow: tuple[str, ...] = ()
    #: Rules that are not applied.
    off: tuple[str, ...] = ()
    #: Further rules: a name, and a regular expression whose first group, or all of it, is masked.
    rules: dict[str, str] = {}


class HistoryConfig(_Section, frozen=True):
    """How turns are kept."""

    #: Text of more characters moves to the artifact store.
    offload_over: Annotated[int, msgspec.Meta(ge=256)] = 16_384
    #: Tools whose results are artifacts, whatever their size.
    artifact_tools: tuple[str, ...] = ("create_*artifact*", "artifacts")
    #: Seconds between two saves of an answer that arrives.
    heartbeat: Annotated[float, msgspec.Meta(gt=0, le=5)] = 2.0
    #: How tool results are shortened for readers; before the rules that come with Perdure.
    prune: tuple[PruneRule, ...] = ()
    #: How a session's history is shown to a model, and in how many tokens, unless it says itself.
    strategy: Literal["gradient", "regular"] = "gradient"
    budget: Annotated[int, msgspec.Meta(ge=500)] = 100_000


class RenditionsConfig(_Section, frozen=True):
    """How turns are shortened."""

    #: Let a model shorten them too, where one is configured for `compress`.
    model: bool = True
    #: Calls at the same time.
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    #: How often a model is tried before what the algorithm made stays for good.
    attempts: Annotated[int, msgspec.Meta(ge=1, le=20)] = 3


class JobsConfig(_Section, frozen=True):
    """Background work."""

    #: Jobs that run at the same time.
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=256)] = 4
    #: Seconds that running jobs get to end when the bank is closed.
    grace: Annotated[float, msgspec.Meta(ge=0)] = 5.0


class ProviderConfig(_Section, frozen=True):
    """A server of models. What is left out is as for the built-in provider of the same name."""

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


class ByComplexity(_Section, frozen=True):
    """Models for work of each complexity. What has none takes those of its neighbour."""

    simple: str | tuple[str, ...] = ()
    moderate: str | tuple[str, ...] = ()
    complex: str | tuple[str, ...] = ()


#: ``provider/model``, several of them in order of preference, or those by complexity.
_Models = str | tuple[str, ...] | ByComplexity


class ModelsConfig(_Section, frozen=True):
    """Which models serve a purpose. One that has none here has none: see `gateway.catalog`."""

    chat: _Models = ()
    compress: _Models = ()
    filter: _Models = ()
    judge: _Models = ()
    reflect: _Models = ()
    embed: _Models = ()


class BudgetConfig(_Section, frozen=True, kw_only=True):
    """What may be spent in a time: on everything, on one purpose, by one agent."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    #: Empty: all.
    purpose: Literal["", "chat", "compress", "filter", "judge", "reflect", "embed"] = ""
    agent: str = ""
    #: Days and months are those of UTC.
    per: Literal["hour", "day", "month", "ever"] = "day"
    tokens: _Count | None = None
    dollars: Annotated[float, msgspec.Meta(ge=0)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens is None and self.dollars is None:
            raise _Refused(
                f"The budget {self.name!r} limits neither tokens nor dollars.",
                hint="Set tokens, dollars, or both.",
            )


class PriceConfig(_Section, frozen=True):
    """What a model costs, in dollars for a million tokens; before the prices that are built in."""

    input: _Price
    output: _Price
    #: None: as `input`.
    cache_read: _Price | None = None
    cache_write: _Price | None = None


class GatewayConfig(_Section, frozen=True):
    """How models are called."""

    #: The provider whose models come first while nothing is known about the others; empty: as
    #: listed.
    default: str = ""
    #: Seconds that one attempt may take to answer, and a stream to say something more.
    timeout: _Seconds = 120.0
    #: Seconds to reach a server.
    connect_timeout: _Seconds = 10.0
    #: Seconds for everything: queueing, retries, fallbacks.
    deadline: _Seconds = 600.0
    #: Further attempts at the same model, where that makes sense.
    retries: Annotated[int, msgspec.Meta(ge=0, le=20)] = 2
    #: Answer the same request from the cache. Off: who asks twice may want another answer.
    cache: bool = False
    #: Seconds for which an answer may be used again.
    cache_ttl: _Seconds = 86_400.0
    providers: dict[str, ProviderConfig] = {}
    models: ModelsConfig = ModelsConfig()
    #: Kinds of work, by the name that callers give them.
    tasks: dict[str, _Complexity] = {}
    budgets: tuple[BudgetConfig, ...] = ()
    #: By ``provider/model``.
    prices: dict[str, PriceConfig] = {}


class Config(_Section, frozen=True):
    """Everything that can be configured, with its defaults."""

    #: Address of the bank; empty: a file in the user's data folder.
    bank: str = ""
    storage: StorageConfig = StorageConfig()
    artifacts: ArtifactsConfig = ArtifactsConfig()
    jobs: JobsConfig = JobsConfig()
    history: HistoryConfig = HistoryConfig()
    renditions: RenditionsConfig = RenditionsConfig()
    secrets: SecretsConfig = SecretsConfig()
    gateway: GatewayConfig = GatewayConfig()

    def bank_url(self) -> str:
        """The address of the bank, or of the default one."""
        return self.bank or f"sqlite:///{data_folder() / 'bank.db'}"


def data_folder() -> Path:
    """Where the default bank lies."""
    import platformdirs

    return Path(platformdirs.user_data_dir("perdure", appauthor=False))


def config_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the configuration is looked for."""
    if named := environ.get("PERDURE_CONFIG"):
        return Path(named)
    import platformdirs

    return Path(platformdirs.user_config_dir("perdure", appauthor=False)) / "config.toml"


def load(path: Path | None = None, environ: Mapping[str, str] = os.environ) -> Config:
    """The configuration in force.

    Raises `InvalidConfig`, naming the key, if something in it cannot be used, and if a file that
    was asked for (by argument or variable) is not there.
    """
    file = path or config_file(environ)
    asked = path is not None or "PERDURE_CONFIG" in environ
    settings = _read(file, required=asked)
    try:
        config: Config = _checked(settings, Config)
    except InvalidConfig as exc:
        raise InvalidConfig(f"{file}: {exc.message}", hint=exc.hint) from exc
    return _override(config, environ)


def _read(file: Path, *, required: bool) -> dict[str, Any]:
    try:
        text = file.read_text("utf-8")
    except FileNotFoundError:
        if required:
            raise InvalidConfig(
                f"There is no configuration file {file}.", hint="Make it, or name another."
            ) from None
        return {}
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidConfig(f"{file} cannot be read: {exc}.", hint="Check the file.") from exc
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise InvalidConfig(f"{file} is not TOML: {exc}.", hint="Correct the file.") from exc


def _override(config: Config, environ: Mapping[str, str]) -> Config:
    """The configuration with the variables put over it."""
    changes: dict[str, Any] = {}
    for field in msgspec.structs.fields(Config):
        current = getattr(config, field.name)
        if isinstance(current, msgspec.Struct):
            inner = {
                part.name: _value(name, environ[name], part.type)
                for part in msgspec.structs.fields(current)
                if (name := f"PERDURE_{field.name}_{part.name}".upper()) in environ
            }
            changes[field.name] = msgspec.structs.replace(current, **inner)
        elif (name := f"PERDURE_{field.name}".upper()) in environ:
            changes[field.name] = _value(name, environ[name], field.type)
    config = msgspec.structs.replace(config, **changes)
    known = {f"PERDURE_MODEL_{name}".upper(): name for name in ModelsConfig.__struct_fields__}
    models = {}
    for name in (name for name in environ if name.startswith("PERDURE_MODEL_")):
        if name not in known:
            raise InvalidConfig(
                f"The variable {name} names no purpose of models.",
                hint=f"Use one of {', '.join(known)}, or unset it.",
            )
        named = (model.strip() for model in environ[name].split(","))
        models[known[name]] = tuple(model for model in named if model)
    if not models:
        return config
    gateway = msgspec.structs.replace(
        config.gateway, models=msgspec.structs.replace(config.gateway.models, **models)
    )
    return msgspec.structs.replace(config, gateway=gateway)


def _value(name: str, text: str, wanted: Any) -> Any:
    try:
        return msgspec.convert(text, wanted, strict=False)
    except msgspec.ValidationError as exc:
        raise _trouble(exc, wanted, f"The variable {name} cannot be {text!r}") from exc


# What is wrong, and where ----------------------------------------------------------------------


def choices(wanted: Any) -> tuple[str, ...]:
    """The words that a type allows; none if it does not list them."""
    if get_origin(wanted) is Literal:
        return tuple(str(word) or '""' for word in get_args(wanted))
    return tuple(word for kind in _kinds(wanted) if kind is not wanted for word in choices(kind))


def _checked(value: Any, wanted: Any, key: str = "") -> Any:
    """The value as this type. Raises `InvalidConfig`, naming the key."""
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError as exc:
        # Msgspec does not say which entry of a table it was: look for it.
        for place, inner, kind in _inside(value, wanted):
            _checked(inner, kind, f"{key}{place}" if key else place.lstrip("."))
        raise _trouble(exc, wanted, key) from exc


def _trouble(exc: msgspec.ValidationError, wanted: Any, key: str) -> InvalidConfig:
    own = exc.__cause__ if isinstance(exc.__cause__, _Refused) else None
    text = own.message if own else f"{str(exc).partition(' - at ')[0]}."
    allowed = choices(wanted)
    hint = f"Use one of {', '.join(allowed)}." if allowed else own.hint if own else "Correct it."
    if "unknown field" in text:
        field = text.rpartition("field `")[2].rstrip("`.")
        if wanted is ProviderConfig and field.lower().replace("_", "") in _KEYS:
            hint = "Put the key in a variable, and the variable's name in key_variable."
        key = f"{key}.{field}" if key else field
        return InvalidConfig(
            f"{key} is not a setting; docs/configuration.md lists them.", hint=hint
        )
    return InvalidConfig(f"{key}: {text[0].lower()}{text[1:]}" if key else text, hint=hint)


def _inside(value: Any, wanted: Any) -> Iterator[tuple[str, Any, Any]]:
    """What a value is made of: each with its place, and the type that it has to have."""
    for kind in _kinds(wanted):
        if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, _Section):
            for field in msgspec.structs.fields(kind):
                if field.name in value:
                    yield f".{field.name}", value[field.name], field.type
        elif isinstance(value, dict) and get_origin(kind) is dict:
            yield from ((f".{name}", each, get_args(kind)[1]) for name, each in value.items())
        elif isinstance(value, list | tuple) and get_origin(kind) is tuple:
            yield from ((f"[{at}]", each, get_args(kind)[0]) for at, each in enumerate(value))


def _kinds(wanted: Any) -> Iterator[Any]:
    """The types that a type is one of."""
    origin = get_origin(wanted)
    if origin is Annotated:
        yield from _kinds(get_args(wanted)[0])
    elif origin in {Union, UnionType}:
        for kind in get_args(wanted):
            yield from _kinds(kind)
    else:
        yield wanted
