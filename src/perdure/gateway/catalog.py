"""Which models may answer: the providers of a configuration, and candidates by purpose.

A model is named ``provider/model``; the rest after the first slash is the provider's own name. A
server that is in no list is named by its address, ``http://127.0.0.1:8080/v1#model``, and called by
Chat Completions, without a key.

A purpose without models has none: `compress` does not fall back to those of `chat`, so that nobody
pays for background work by having configured a chat. Only `embed` has a default, the local model.
`compress` may have models for each level of a rendition: the tasks smooth, compressed and tiny.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from perdure.config import (
    COMPRESSION_TASKS,
    CompressionModels,
    GatewayConfig,
    ModelsByComplexity,
    ProviderConfig,
    config_file,
)
from perdure.core.errors import InvalidConfig, NoModel
from perdure.gateway.calls import PURPOSES, CallOptions, Complexity, Purpose
from perdure.gateway.providers import (
    ADDRESSES,
    BUILT_IN,
    COMPATIBLE,
    LOCAL,
    LOCAL_MODEL,
    SELF_HOSTED,
    Habits,
    Provider,
)

#: Kinds of work whose names speak for themselves. The configuration comes first.
_TASKS: dict[str, Complexity] = {
    **dict.fromkeys(("classify", "email-routing", "extract", "format", "route"), "simple"),
    **dict.fromkeys(("tag", "title", "triage"), "simple"),
    **dict.fromkeys(("answer", "chat", "document-analysis", "rewrite"), "moderate"),
    **dict.fromkeys(("summarize", "translate"), "moderate"),
    **dict.fromkeys(("architecture", "code-review", "debug", "design"), "complex"),
    **dict.fromkeys(("legal-reasoning", "plan", "prove", "refactor", "research"), "complex"),
}
#: Where to look for models, nearest first. Between two neighbours, rather the abler.
_NEAREST: dict[Complexity, tuple[Complexity, ...]] = {
    "simple": ("simple", "moderate", "complex"),
    "moderate": ("moderate", "complex", "simple"),
    "complex": ("complex", "moderate", "simple"),
}
_VARIABLE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


class ModelCandidate(msgspec.Struct, frozen=True):
    """A model that may answer, and who serves it."""

    provider: Provider
    model: str

    @property
    def name(self) -> str:
        return f"{self.provider.name}{'#' if '://' in self.provider.name else '/'}{self.model}"


class ModelCatalog:
    """The providers and models of one configuration. Reads the environment when it is made.

    Raises `InvalidConfig`, naming the key, for a provider or model name that cannot be used. A
    variable missing in an address is reported when the address is needed.
    """

    def __init__(self, config: GatewayConfig, environ: Mapping[str, str] = os.environ) -> None:
        self._config = config
        self._environ = environ
        self._providers = {
            name: _provider(name, config.providers.get(name), environ)
            for name in (*BUILT_IN, *(n for n in config.providers if n not in BUILT_IN))
        }
        self._tasks = {_task(name): complexity for name, complexity in config.tasks.items()}
        self._lists: dict[tuple[Purpose, str], list[ModelCandidate]] = {}
        if config.default and config.default not in self._providers:
            raise InvalidConfig(
                f"gateway.default: there is no provider {config.default!r}.",
                hint=f"Use one of {', '.join(self._providers)}, or add"
                f" [gateway.providers.{config.default}] with its base_url.",
            )
        for purpose in PURPOSES:
            for kind in (*_NEAREST, *COMPRESSION_TASKS):
                for name in self._names(purpose, kind):
                    self._read(name, f"gateway.models.{purpose}: ")

    @property
    def environ(self) -> Mapping[str, str]:
        """The variables that it was made with, keys included."""
        return self._environ

    @property
    def providers(self) -> Mapping[str, Provider]:
        """Every provider that can be named; a variable of its address may be unset."""
        return self._providers

    def complexity(self, options: CallOptions) -> Complexity:
        """As asked, else as configured for the task, else as the task's name says."""
        if options.complexity is not None:
            return options.complexity
        task = _task(options.task)
        return self._tasks.get(task) or _TASKS.get(task, "moderate")

    def has(self, purpose: Purpose) -> bool:
        """Whether any model is configured for this purpose; it need not be usable."""
        return next(self.uses(purpose), None) is not None

    def uses(self, purpose: Purpose) -> Iterator[tuple[str, CallOptions]]:
        """What has models for this purpose, each with options that ask for them: all complexities,
        if any has, and tasks with models of their own.
        """
        if purpose == "embed" or any(self._names(purpose, each) for each in _NEAREST):
            for complexity in _NEAREST:
                yield complexity, CallOptions(purpose=purpose, complexity=complexity)
        for task in COMPRESSION_TASKS:
            if self._names(purpose, task):
                yield task, CallOptions(purpose=purpose, task=task)

    def candidates(self, options: CallOptions) -> list[ModelCandidate]:
        """The models that may answer, best first; at least one. No server is asked.

        `CallOptions.model` alone if given; else those for the purpose and the task, or the nearest
        complexity that has some, in configured order, with the default provider's first.

        Raises `NoModel` if there are none or one cannot do it (embeddings, say), and
        `InvalidConfig` for a name that cannot be read or an address that lacks its variable.
        """
        if options.model:
            return [self._able(self.find(options.model), options.purpose)]
        purpose, task = options.purpose, _task(options.task)
        is_own = task in COMPRESSION_TASKS and bool(self._names(purpose, task))
        kind = task if is_own else self.complexity(options)
        found = self._lists.get((purpose, kind))
        if found is None:
            found = self._lists[purpose, kind] = self._listed(purpose, kind)
        return found.copy()

    def find(self, name: str, *, key: str = "") -> ModelCandidate:
        """The candidate of a name; `key` is where it is configured. Raises `InvalidConfig`."""
        where = f"{key}: " if key else ""
        found = self._read(name, where)
        missing = _VARIABLE.search(found.provider.base_url)
        if missing is not None:
            known = found.provider.name
            raise InvalidConfig(
                f"{where}the address of {known} needs the variable {missing[1]}.",
                hint=f"Set {missing[1]}, or gateway.providers.{known}.base_url.",
            )
        return found

    def _read(self, name: str, where: str) -> ModelCandidate:
        if "://" in name:
            address, _, model = name.partition("#")
            if not model:
                raise InvalidConfig(
                    f"{where}{_shown(address)!r} does not say which model.",
                    hint="Write it like http://127.0.0.1:8080/v1#model.",
                )
            address = _address(address, where)
            habits = SELF_HOSTED
            provider = Provider(name=address, base_url=address, needs_key=False, habits=habits)
            return ModelCandidate(provider, model)
        known, _, model = name.partition("/")
        if not model and self._config.default:
            known, model = self._config.default, known
        if not model or known not in self._providers:
            raise InvalidConfig(
                f"{where}{name!r} does not name a model of a known provider.",
                hint=f"Write provider/model, with one of {', '.join(self._providers)}; or add"
                " [gateway.providers.NAME] with its base_url; or name a server's own address:"
                " http://127.0.0.1:8080/v1#model.",
            )
        return ModelCandidate(self._providers[known], model)

    def _listed(self, purpose: Purpose, kind: str) -> list[ModelCandidate]:
        kinds = next((nearest for each, nearest in _NEAREST.items() if each == kind), (kind,))
        names = next((n for each in kinds if (n := self._names(purpose, each))), ())
        if not names and purpose == "embed":
            names = (f"{LOCAL}/{LOCAL_MODEL}",)
        if not names:
            raise self._nothing(purpose)
        key = f"gateway.models.{purpose}"
        found = [self._able(self.find(name, key=key), purpose) for name in dict.fromkeys(names)]
        # A stable sort: the others stay as they are listed.
        return sorted(found, key=lambda c: c.provider.name != self._config.default)

    def _names(self, purpose: Purpose, kind: str) -> tuple[str, ...]:
        """The models of a complexity, or of a task with models of its own."""
        found = getattr(self._config.models, purpose)
        if kind in COMPRESSION_TASKS:
            found = getattr(found, kind) if isinstance(found, CompressionModels) else ()
        elif isinstance(found, ModelsByComplexity):
            found = getattr(found, kind)
        names: tuple[str, ...] = (found,) if isinstance(found, str) else found
        return tuple(name for name in names if name)

    @staticmethod
    def _able(candidate: ModelCandidate, purpose: Purpose) -> ModelCandidate:
        provider = candidate.provider
        if purpose == "embed" and not provider.embeddings:
            raise NoModel(
                f"{provider.name} does not embed.",
                hint="Name another model in gateway.models.embed or PERDURE_MODEL_EMBED, or none:"
                " texts are then embedded on this machine.",
            )
        return candidate

    def _nothing(self, purpose: Purpose) -> NoModel:
        example = "ollama/qwen3"
        return NoModel(
            f"No model is configured for {purpose}.",
            hint=f'Set PERDURE_MODEL_{purpose.upper()}="{example}", or write'
            f' {purpose} = ["{example}"] under [gateway.models] in {config_file(self._environ)},'
            " with a provider and a model of yours.",
        )


def _task(name: str) -> str:
    return name.strip().casefold().replace("_", "-").replace(" ", "-")


def _provider(name: str, changes: ProviderConfig | None, environ: Mapping[str, str]) -> Provider:
    key = f"gateway.providers.{name}"
    if not name or re.search(r"[/#\s]", name):
        raise InvalidConfig(
            f"{key}: {name!r} cannot be the name of a provider.",
            hint="Leave out slashes, # and spaces: a model is named provider/model.",
        )
    changes = changes or ProviderConfig()
    base = BUILT_IN.get(name)
    if base is None:
        if not changes.base_url:
            raise InvalidConfig(
                f"{key}.base_url is missing.", hint="Say where its API begins: https://…/v1."
            )
        base = Provider(
            name=name, base_url="", needs_key=bool(changes.key_variable), habits=COMPATIBLE
        )
    elif name == LOCAL and changes != ProviderConfig():
        raise InvalidConfig(
            f"{key}: it runs in this process; nothing about it can be set.",
            hint="Give your server another name.",
        )
    fields: dict[str, Any] = {
        field: value
        for field in ("wire", "key_variable", "needs_key", "embeddings", "batch", "concurrency")
        if (value := getattr(changes, field)) is not None
    }
    if name != LOCAL:
        fields["base_url"] = _base_url(base, changes, environ, key)
    if changes.wire == "messages" and changes.embeddings is None:
        fields["embeddings"] = ""
    if changes.headers:
        fields["headers"] = {**base.headers, **changes.headers}
    if changes.habits:
        fields["habits"] = _habits(base.habits, changes.habits, key)
    return msgspec.structs.replace(base, **fields)


def _base_url(base: Provider, changes: ProviderConfig, environ: Mapping[str, str], key: str) -> str:
    variable = ADDRESSES.get(base.name, "")
    given = environ.get(variable, "").strip()
    if changes.base_url:
        address, where = changes.base_url, f"{key}.base_url: "
    elif given:
        address, where = given, f"{variable}: "
        if variable == "OLLAMA_HOST":
            address = _ollama(given)
        elif variable == "ANTHROPIC_BASE_URL" and not urlsplit(given).path.strip("/"):
            address = f"{given.rstrip('/')}/v1"  # Anthropic's own programs put it there themselves
    else:
        address, where = base.base_url, f"{key}.base_url: "
    return _address(_VARIABLE.sub(lambda m: environ.get(m[1]) or m[0], address), where)


def _address(address: str, where: str) -> str:
    try:
        parts = urlsplit(address)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, a bracket that is not closed
        usable = False
        parts = urlsplit("")
    if parts.password or parts.username:
        # Not shown: there is a key in it.
        raise InvalidConfig(
            f"{where}the address of {parts.hostname} contains a user or a key.",
            hint="Put the key in a variable, and its name in key_variable.",
        )
    if not usable or parts.query or parts.fragment:
        raise InvalidConfig(
            f"{where}{_shown(address)!r} is not the address of a server.",
            hint="Write it like http://127.0.0.1:8080/v1, without ? and #. A key belongs in a"
            " variable, named by key_variable.",
        )
    return address.rstrip("/")


def _shown(address: str) -> str:
    """The address without what may be a key: a user, or a query."""
    scheme, sign, rest = address.partition("://")
    if not sign:
        scheme, rest = "", address
    cut = re.split(r"[?#]", rest, maxsplit=1)
    if len(cut) > 1 and "@" in cut[1]:
        return f"{scheme}{sign}…"  # a password may have a ? in it
    return f"{scheme}{sign}{cut[0].rpartition('@')[2]}{'?…' if len(cut) > 1 else ''}"


def _ollama(host: str) -> str:
    """The address of Ollama's API from OLLAMA_HOST, in the forms that Ollama accepts."""
    scheme, found, rest = host.partition("://")
    if not found:
        scheme, rest = "http", host
    rest, _, path = rest.partition("/")
    bare = rest.startswith("[") and rest.endswith("]")  # an IPv6 address without a port
    name, colon, port = (rest, "", "") if bare else rest.rpartition(":")
    if not colon:
        name, port = rest, "" if found else "11434"
    if name in {"", "0.0.0.0", "[::]"}:  # noqa: S104  # where a server listens: we call, and call it here
        name = "127.0.0.1"
    port = f":{port}" if port else ""
    path = f"/{path.strip('/')}" if path.strip("/") else ""
    return f"{scheme}://{name}{port}{path}/v1"


def _habits(base: Habits, changes: Mapping[str, bool | int | str], key: str) -> Habits:
    try:
        return msgspec.convert({**msgspec.structs.asdict(base), **changes}, Habits)
    except msgspec.ValidationError as exc:
        text, _, habit = str(exc).partition(" - at `$.")
        known = ", ".join(field.name for field in msgspec.structs.fields(Habits))
        raise InvalidConfig(
            f"{key}.habits{habit and '.'}{habit.rstrip('`')}: {text[0].lower()}{text[1:]}.",
            hint=f"The habits are {known}.",
        ) from exc
