"""``perdure keys``: make, list, rotate, destroy keys; ``perdure bank encrypt`` and ``decrypt``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import readable, terminal
from perdure.cli.bank_access import existing_bank
from perdure.cli.command_options import CommandSettings, YesOption
from perdure.cli.terminal import ProgressBar
from perdure.core.errors import InvalidConfig, InvalidInput, Unavailable

if TYPE_CHECKING:
    from perdure.storage.encryption import Rewrapped, Rotated, ScopeStanding


def make(
    settings: CommandSettings,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to; it must not exist yet.")],
) -> None:
    """Write a new random master key to a file that only you may read.

    Name it in the configuration, as encryption.key = "file:FILE", and keep a copy in another place:
    without it, nothing that it encrypts can ever be read again.
    """
    from perdure.storage.encryption import make_file

    master = make_file(file)
    if settings.json:
        terminal.emit({"file": str(file), "fingerprint": master.fingerprint})
    else:
        terminal.say(f"Made the master key {master.fingerprint} in {file}.")
        terminal.note(
            f'Set encryption.key = "file:{file.absolute()}", and keep a copy in another place:'
            " without the key nothing can be read."
        )


async def list_(
    settings: CommandSettings,
    *,
    rows: Annotated[
        bool, typer.Option("--rows", help="Count the records that need each key.")
    ] = False,
) -> None:
    """Show which data keys there are, and which master keys they are wrapped with."""
    async with ProgressBar("looking at keys"), existing_bank(settings) as bank:
        found = await bank.encryption.status(rows=rows)
    if settings.json:
        masters = sorted({each.master for scope in found for each in scope.generations})
        terminal.emit({"masters": masters, "scopes": found})
    else:
        _show(found)


async def rotate(
    settings: CommandSettings,
    *,
    master: Annotated[
        bool,
        typer.Option("--master", help="Wrap all data keys with the master key in encryption.key."),
    ] = False,
    scope: Annotated[
        str | None,
        typer.Option(
            "--scope", metavar="SCOPE", help="Only the data keys of this: collection:notes."
        ),
    ] = None,
) -> None:
    """Replace data keys, or the master key, while others read and write.

    Records are encrypted anew, and the old data keys destroyed. Interrupted, it goes on where it
    was when it is called again. Exits with 1 if a record could not be encrypted anew.
    """
    if master and scope is not None:
        raise typer.BadParameter("The master key is that of all scopes.", param_hint="--scope")
    async with ProgressBar("replacing keys") as bar, existing_bank(settings) as bank:
        keys = bank.encryption
        done = await (keys.rotate_master(bar) if master else keys.rotate_data_keys(scope, bar))
    if settings.json:
        terminal.emit(done)
    else:
        for line in _in_words(done):
            terminal.say(line)
    if getattr(done, "failed", 0):
        raise typer.Exit(1)


async def shred(
    settings: CommandSettings,
    scope: Annotated[
        str, typer.Argument(metavar="SCOPE", help="collection:NAME or agent:NAME; see list.")
    ],
    *,
    yes: YesOption = False,
) -> None:
    """Destroy the data keys of a scope, so that nobody can ever read what it holds.

    Backups from before hold these keys too, wrapped with the master key.
    """
    words = f"This makes everything in {scope} unreadable for ever."
    settings.confirm("Destroy its keys?", words, done="destroyed", yes=yes)
    async with ProgressBar("destroying keys"), existing_bank(settings) as bank:
        erased = await bank.encryption.shred(scope, confirm=scope)
    if settings.json:
        terminal.emit({"scope": scope, "shredded": True, "erased": erased})
        return
    terminal.say(f"The data keys of {scope} are destroyed.")
    if not erased:
        terminal.note("Traces of them may still be in the store's files: others had them open.")


def _show(found: list[ScopeStanding]) -> None:
    if not found:
        terminal.say("There are no data keys yet: nothing was encrypted.")
        return
    rows: list[tuple[str, ...]] = []
    for scope in found:
        for each in scope.generations:
            count = "" if each.rows is None else f"{each.rows:,}"
            made = readable.absolute_time(each.created)
            rows.append((scope.scope, str(each.number), each.state, each.master, made, count))
        if scope.shredded:
            count = "" if scope.forgotten is None else f"{scope.forgotten:,}"
            when = readable.absolute_time(scope.shredded_at)
            rows.append((scope.scope, f"to {scope.shredded}", "shredded", "", when, count))
    terminal.table(("Scope", "Key", "State", "Master", "Since", "Rows"), rows, right=1)


def _in_words(done: Rotated | Rewrapped) -> list[str]:
    from perdure.storage.encryption import Rewrapped

    if isinstance(done, Rewrapped):
        scopes = terminal.plural(done.scopes, "scope")
        return [
            f"Wrapped {terminal.plural(done.rewrapped, 'data key')} again.",
            f"All keys of {scopes} are wrapped with the master key {done.master} now.",
            "Former master keys are not needed any more.",
        ]
    records = terminal.plural(done.rewritten, "record")
    destroyed = terminal.plural(done.destroyed, "old key")
    scopes = terminal.plural(len(done.scopes), "scope")
    lines = [f"{scopes}: {records} encrypted anew, {destroyed} destroyed."]
    if done.kept:
        lines.append(f"{terminal.plural(done.kept, 'old key')} still needed, and kept.")
    lines += [f"{failure.key}: {failure.what}" for failure in done.failures]
    return lines


KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="SOURCE",
        help="Where the master key is: file:PATH or env:VARIABLE. Else that of the configuration.",
        show_default=False,
    ),
]


async def encrypt(
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
    from perdure.storage.backends.sqlite.encryption import encrypt_file, rekey_file

    path, source = _file_and_source(settings, key)
    current = await _file_key(source)
    if former is None:
        encrypt_file(path, current)
    else:
        rekey_file(path, await _file_key(former), current)
    if settings.json:
        terminal.emit({"file": str(path)})
    else:
        terminal.prose(
            f"The file {path} is encrypted. Set encryption.whole_file = true, and keep the key"
            " safe: without it nothing can be read."
        )


async def decrypt(settings: CommandSettings, *, key: KeyOption = None) -> None:
    """Keep the file of an encrypted SQLite bank in clear again."""
    from perdure.storage.backends.sqlite.encryption import decrypt_file

    path, source = _file_and_source(settings, key)
    decrypt_file(path, await _file_key(source))
    if settings.json:
        terminal.emit({"file": str(path)})
    else:
        terminal.prose(f"The file {path} is in clear. Set encryption.whole_file = false.")


def _file_and_source(settings: CommandSettings, key: str | None) -> tuple[Path, str]:
    """The bank's file, and where its key is."""
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
    return path, source


async def _file_key(source: str) -> bytes:
    from perdure.storage.encryption.master_keys import file_key, read_key

    return file_key(await read_key(source))
