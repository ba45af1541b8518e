"""One configuration file, overridden by environment variables.

The file is TOML, at the path in ``PERDURE_CONFIG`` or in the user's configuration folder::

    bank = "postgresql://localhost/perdure"

    [jobs]
    concurrency = 8

Each key can be set by a variable: ``PERDURE_BANK``, ``PERDURE_JOBS_CONCURRENCY``. Arguments in code
and on the command line come before both.
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


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that can be configured, with its defaults."""

    #: Address of the bank; empty: a file in the user's data folder.
    bank: str = ""
    storage: StorageConfig = StorageConfig()
    artifacts: ArtifactsConfig = ArtifactsConfig()
    jobs: JobsConfig = JobsConfig()
    history: HistoryConfig = HistoryConfig()
    secrets: SecretsConfig = SecretsConfig()

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
    return msgspec.structs.replace(config, **changes)


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
    key = path.rstrip("`")
    if "unknown field" in text:
        field = text.rpartition("field `")[2].rstrip("`")
        name = f"{key}.{field}" if key else field
        return f"{name} is not a setting; docs/configuration.md lists them."
    return f"{key}: {text[0].lower()}{text[1:]}." if key else f"{text}."
