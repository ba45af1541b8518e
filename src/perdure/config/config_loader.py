"""The whole configuration, and how it is read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from perdure.config.section import Section, checked, trouble
from perdure.config.settings import (
    AgentsConfig,
    ArtifactsConfig,
    AuditConfig,
    CacheConfig,
    EncryptionConfig,
    GatewayConfig,
    HistoryConfig,
    LearningConfig,
    MetricsConfig,
    ModelsConfig,
    ProxyConfig,
    RecallConfig,
    ReflectionConfig,
    RenditionsConfig,
    SecretsConfig,
    ServerConfig,
    StorageConfig,
)
from perdure.core.errors import InvalidConfig
from perdure.core.input_types import require_path


class JobsConfig(Section, frozen=True):
    """Background work."""

    #: Jobs that run at the same time.
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=256)] = 4
    #: Seconds that running jobs get to end when the bank is closed.
    grace: Annotated[float, msgspec.Meta(ge=0)] = 5.0
    #: Who gives jobs to hosts. "auto" is procrastinate for a bank on PostgreSQL, if the extra
    #: `cluster` is installed, and leases in the rows for any other.
    engine: Literal["auto", "leases", "procrastinate"] = "auto"
    #: The kinds of jobs that are run here; none: all. The others are left to other processes.
    queues: tuple[str, ...] = ()


class Config(Section, frozen=True):
    """Everything that can be configured, with its defaults."""

    #: Address of the bank; empty: a file in the user's data folder.
    bank: str = ""
    storage: StorageConfig = StorageConfig()
    cache: CacheConfig = CacheConfig()
    encryption: EncryptionConfig = EncryptionConfig()
    audit: AuditConfig = AuditConfig()
    metrics: MetricsConfig = MetricsConfig()
    artifacts: ArtifactsConfig = ArtifactsConfig()
    jobs: JobsConfig = JobsConfig()
    history: HistoryConfig = HistoryConfig()
    renditions: RenditionsConfig = RenditionsConfig()
    recall: RecallConfig = RecallConfig()
    reflection: ReflectionConfig = ReflectionConfig()
    secrets: SecretsConfig = SecretsConfig()
    gateway: GatewayConfig = GatewayConfig()
    learning: LearningConfig = LearningConfig()
    server: ServerConfig = ServerConfig()
    proxy: ProxyConfig = ProxyConfig()
    agents: AgentsConfig = AgentsConfig()

    @property
    def reflects_by_itself(self) -> bool:
        """Whether an open bank reflects every so many hours."""
        own = self.reflection
        return own.every > 0 and bool(own.without_model or self.gateway.models.reflect)

    def bank_url(self) -> str:
        return self.bank or f"sqlite:///{data_folder() / 'bank.db'}"


def data_folder() -> Path:
    import platformdirs

    return Path(platformdirs.user_data_dir("perdure", appauthor=False))


def config_file(environ: Mapping[str, str] = os.environ) -> Path:
    if named := environ.get("PERDURE_CONFIG"):
        return Path(named)
    import platformdirs

    return Path(platformdirs.user_config_dir("perdure", appauthor=False)) / "config.toml"


def load(path: Path | str | None = None, environ: Mapping[str, str] = os.environ) -> Config:
    """The configuration in force.

    Raises `InvalidConfig`, naming the key; also if a file that was asked for is not there.
    """
    file = config_file(environ) if path is None else require_path(path, "path")
    asked = path is not None or "PERDURE_CONFIG" in environ
    settings = _read(file, required=asked)
    try:
        config: Config = checked(settings, Config)
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
    _refuse_unknown(config, environ)
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


def _refuse_unknown(config: Config, environ: Mapping[str, str]) -> None:
    """A misspelled variable would be ignored, and encryption stay off, say."""
    sources = {config.encryption.key, *config.encryption.former_keys}
    for field in msgspec.structs.fields(Config):
        section = getattr(config, field.name)
        if not isinstance(section, msgspec.Struct):
            continue
        prefix = f"PERDURE_{field.name}_".upper()
        settings = {part.name for part in msgspec.structs.fields(section)}
        for name in environ:
            given = name.removeprefix(prefix).lower()
            if name.startswith(prefix) and given not in settings and f"env:{name}" not in sources:
                raise InvalidConfig(
                    f"The variable {name} names no setting.",
                    hint=f"Settings of {field.name} are {', '.join(sorted(settings))}.",
                )


def _value(name: str, text: str, wanted: Any) -> Any:
    try:
        return msgspec.convert(text, wanted, strict=False)
    except msgspec.ValidationError as exc:
        raise trouble(exc, wanted, f"The variable {name} cannot be {text!r}") from exc
