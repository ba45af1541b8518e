"""``perdure bank encrypt`` and ``decrypt``: the whole file of a SQLite bank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import terminal
from perdure.cli.command_options import CommandSettings, common_options
from perdure.core.errors import InvalidConfig, InvalidInput, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="SOURCE",
        help="Where the master key is: file:PATH or env:VARIABLE. Else that of the configuration.",
        show_default=False,
    ),
]


@common_options()
def encrypt(
    settings: CommandSettings,
    *,
    key: KeyOption = None,
    former: Annotated[
        str | None,
        typer.Option(
            "--former-key",
            metavar="SOURCE",
            help="The file is encrypted already, with this one.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Encrypt the whole file of a SQLite bank, while nobody has it open."""

    def work(path: Path, current: bytes) -> None:
        from perdure.storage.backends.sqlite.encryption import encrypt_file, rekey_file

        if former is None:
            encrypt_file(path, current)
        else:
            rekey_file(path, _file_key(former), current)

    _convert(
        settings,
        key,
        work,
        "The file {} is encrypted. Set encryption.whole_file = true, and keep the key safe:"
        " without it nothing can be read.",
    )


@common_options()
def decrypt(
    settings: CommandSettings,
    *,
    key: KeyOption = None,
) -> None:
    """Keep the file of an encrypted SQLite bank in clear again."""

    def work(path: Path, current: bytes) -> None:
        from perdure.storage.backends.sqlite.encryption import decrypt_file

        decrypt_file(path, current)

    _convert(settings, key, work, "The file {} is in clear. Set encryption.whole_file = false.")


def _convert(
    settings: CommandSettings, key: str | None, work: Callable[[Path, bytes], None], told: str
) -> None:
    from perdure.storage import registry

    config = settings.load()
    address = registry.parse(config.bank_url())
    if address.scheme != "sqlite":
        raise InvalidInput(
            f"{registry.shown(config.bank_url())} is no SQLite bank.",
            hint="On other backends, encrypt the records: encryption.everything.",
        )
    source = key or config.encryption.key
    if not source:
        raise InvalidConfig(
            "There is no master key to use.",
            hint="Make one with `perdure keys make FILE`, and name it with --key file:FILE.",
        )
    path = Path(address.path).absolute()
    if not path.exists():
        raise Unavailable(f"There is no bank at {path}.", hint="Check the address.")
    work(path, _file_key(source))
    if settings.json:
        terminal.emit({"file": str(path)})
    else:
        terminal.prose(told.format(path))


def _file_key(source: str) -> bytes:
    import asyncio

    from perdure.storage.encryption.master_keys import file_key, read_key

    return file_key(asyncio.run(read_key(source)))
