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
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import platformdirs

from perdure.core.errors import InvalidConfig

_Seconds = Annotated[float, msgspec.Meta(gt=0)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Complexity = Literal["simple", "moderate", "complex"]
#: Dollars for a million tokens.
_Price = Annotated[float, msgspec.Meta(ge=0)]


class StorageConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the bank keeps its records."""

    #: Compress the types that ask for it.
    compression: bool = True
    #: Seconds between two sweeps of expired records.
    sweep_every: _Seconds = 60.0
    #: Seconds between two looks for events that other processes emitted.
    deliver_every: _Seconds = 1.0


class ArtifactsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where large content lies."""

    #: A folder; empty: beside the bank's file, or in the user's data folder.
    folder: str = ""


class PruneRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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


class SecretsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is masked before it is written."""

    #: Mask secrets at all.
    mask: bool = True
    #: What is no secret: the value itself, or an expression between slashes: ``/^test-/``.
    allow: tuple[str, ...] = ()
    #: Rules that are not applied.
    off: tuple[str, ...] = ()
    #: Further rules: a name, and a regular expression whose first group, or all of it, is masked.
    rules: dict[str, str] = {}


class HistoryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How turns are kept."""

    #: Text of more characters moves to the artifact store.
    offload_over: Annotated[int, msgspec.Meta(ge=256)] = 16_384
    #: Tools whose results are artifacts, whatever their size.
    artifact_tools: tuple[str, ...] = ("create_*artifact*", "artifacts")
    #: Seconds between two saves of an answer that arrives.
    heartbeat: Annotated[float, msgspec.Meta(gt=0, le=5)] = 2.0
    #: How tool results are shortened for readers; before the rules that come with Perdure.
    prune: tuple[PruneRule, ...] = ()


class JobsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Background work."""

    #: Jobs that run at the same time.
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=256)] = 4
    #: Seconds that running jobs get to end when the bank is closed.
    grace: Annotated[float, msgspec.Meta(ge=0)] = 5.0


class ProviderConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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


class ByComplexity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Models for work of each complexity. What has none takes those of its neighbour."""

    simple: str | tuple[str, ...] = ()
    moderate: str | tuple[str, ...] = ()
    complex: str | tuple[str, ...] = ()


#: ``provider/model``, several of them in order of preference, or those by complexity.
_Models = str | tuple[str, ...] | ByComplexity


class ModelsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which models serve a purpose. One that has none here has none: see `gateway.catalog`."""

    chat: _Models = ()
    compress: _Models = ()
    filter: _Models = ()
    judge: _Models = ()
    reflect: _Models = ()
    embed: _Models = ()


class BudgetConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
        if self.tokens is None and self.dollars is None:
            raise ValueError(f"the budget {self.name!r} limits neither tokens nor dollars")


class PriceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a model costs, in dollars for a million tokens; before the prices that are built in."""

    input: _Price
    output: _Price
    #: None: as `input`.
    cache_read: _Price | None = None
    cache_write: _Price | None = None


class GatewayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that can be configured, with its defaults."""

    #: Address of the bank; empty: a file in the user's data folder.
    bank: str = ""
    storage: StorageConfig = StorageConfig()
    artifacts: ArtifactsConfig = ArtifactsConfig()
    jobs: JobsConfig = JobsConfig()
    history: HistoryConfig = HistoryConfig()
    secrets: SecretsConfig = SecretsConfig()
    gateway: GatewayConfig = GatewayConfig()

    def bank_url(self) -> str:
        """The address of the bank, or of the default one."""
        return self.bank or f"sqlite:///{data_folder() / 'bank.db'}"


def data_folder() -> Path:
    """Where the default bank lies."""
    return Path(platformdirs.user_data_dir("perdure", appauthor=False))


def config_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the configuration is looked for."""
    named = environ.get("PERDURE_CONFIG")
    folder = Path(platformdirs.user_config_dir("perdure", appauthor=False))
    return Path(named) if named else folder / "config.toml"


def load(path: Path | None = None, environ: Mapping[str, str] = os.environ) -> Config:
    """The configuration in force.

    Raises `InvalidConfig`, naming the key, if something in it cannot be used, and if a file that
    was asked for (by argument or variable) is not there.
    """
    file = path or config_file(environ)
    asked = path is not None or "PERDURE_CONFIG" in environ
    settings = _read(file, required=asked)
    try:
        config = msgspec.convert(settings, Config)
    except msgspec.ValidationError as exc:
        raise InvalidConfig(f"{file}: {_explain(exc)}", hint="Correct the file.") from exc
    return _override(config, environ)


def _read(file: Path, *, required: bool) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        if required:
            raise InvalidConfig(
                f"There is no configuration file {file}.", hint="Make it, or name another."
            ) from None
        return {}
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidConfig(f"{file} cannot be read: {exc}.", hint="Check the file.") from exc
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
    models = {
        field.name: tuple(model.strip() for model in environ[name].split(",") if model.strip())
        for field in msgspec.structs.fields(ModelsConfig)
        if (name := f"PERDURE_MODEL_{field.name}".upper()) in environ
    }
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
        raise InvalidConfig(
            f"The variable {name} cannot be {text!r}: {_explain(exc)}", hint="Correct or unset it."
        ) from exc


def _explain(exc: msgspec.ValidationError) -> str:
    """Msgspec's message with the path as a key: ``jobs.concurrency: expected `int`…``."""
    text, _, path = str(exc).partition(" - at `$.")
    # Msgspec does not say which entry of a table it was.
    key = path.rstrip("`").replace("[...]", ".*")
    if "unknown field" in text:
        field = text.rpartition("field `")[2].rstrip("`")
        name = f"{key}.{field}" if key else field
        return f"{name} is not a setting; docs/configuration.md lists them."
    return f"{key}: {text[0].lower()}{text[1:]}." if key else f"{text}."
