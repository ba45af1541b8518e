"""``perdure bank backup``, ``backups``, ``restore`` and ``copy``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import terminal
from perdure.cli.bank_access import existing_bank
from perdure.cli.command_options import CommandSettings
from perdure.cli.terminal import ProgressBar
from perdure.core.clock import to_datetime

if TYPE_CHECKING:
    from perdure.bank.backup import Backup
    from perdure.bank.backup_manifest import BackupCheck, BackupManifest
    from perdure.bank.bank_copy import BankCopy

FolderArgument = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="The folder of backups.", show_default=False)
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace whatever the target holds.")
]
VerifyOption = Annotated[
    bool, typer.Option(" /--no-verify", help="Do not check the bank in the end.")
]


async def backup(
    settings: CommandSettings,
    folder: FolderArgument,
    *,
    keep: Annotated[
        int | None,
        typer.Option("--keep", metavar="N", min=1, help="Keep the newest N snapshots only."),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Do not encrypt, though the bank has a master key.")
    ] = False,
    verify: Annotated[
        bool, typer.Option(" /--no-verify", help="Do not read again what was written.")
    ] = True,
) -> None:
    """Keep the bank as it is now, while others use it.

    Adds a snapshot to the folder: a SQLite bank, wherever it comes from. Large artifacts are stored
    once, however many snapshots need them. Exits with 1 if something in the bank was found to be
    damaged; the rest is kept.
    """
    async with ProgressBar("looking at the bank") as bar, existing_bank(settings) as bank:
        made = await bank.backup(folder, keep_last=keep, plain=plain, verify=verify, progress=bar)
    if settings.json:
        import msgspec

        terminal.emit({**msgspec.structs.asdict(made), **_facts(made.snapshot)})
    else:
        _show_backup(made)
    if made.snapshot.damaged or made.snapshot.missing:
        raise typer.Exit(1)


async def list_(
    settings: CommandSettings,
    folder: FolderArgument,
    *,
    verify: Annotated[
        bool, typer.Option(" /--no-verify", help="List them without reading every file.")
    ] = True,
) -> None:
    """List the snapshots in a folder, and check every file of them.

    Exits with 1 if one is damaged.
    """
    from perdure.bank.backup import check_backups

    async with ProgressBar("looking at the backups") as bar:
        found = await check_backups(folder, config=settings.load(), verify=verify, progress=bar)
    if settings.json:
        terminal.emit({"folder": str(folder), "snapshots": [_listed(each) for each in found]})
    elif found:
        terminal.table(
            ("Snapshot", "", "Records", "Artifacts", "Size"),
            [_line(each, verified=verify) for each in found],
            right=3,
        )
        for each in found:
            if each.error:
                terminal.say(f"{each.id}: {each.error}", style="red")
    else:
        terminal.say("There is no snapshot in it.")
    if not all(each.sound for each in found):
        raise typer.Exit(1)


async def restore(
    settings: CommandSettings,
    folder: FolderArgument,
    *,
    snapshot: Annotated[
        str, typer.Option("--snapshot", metavar="ID", help="Which one; without, the newest.")
    ] = "latest",
    overwrite: OverwriteOption = False,
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Leave out artifacts the backup has not sound.")
    ] = False,
    verify: VerifyOption = True,
) -> None:
    """Bring a bank back from a backup.

    The target is the bank of --bank, of any kind. It must be empty, unless --overwrite is given,
    and nobody may have it open. It gets everything, or stays as it is.
    """
    from perdure.bank import bank_copy

    async with ProgressBar("looking at the backup") as bar:
        made = await bank_copy.restore(
            folder,
            config=settings.load(),
            snapshot=snapshot,
            overwrite=overwrite,
            skip_damaged=skip_damaged,
            verify=verify,
            progress=bar,
        )
    _show_copy(settings, made)


async def copy(
    settings: CommandSettings,
    target: Annotated[
        str,
        typer.Argument(metavar="URL", help="The address of the other bank.", show_default=False),
    ],
    *,
    overwrite: OverwriteOption = False,
    target_config: Annotated[
        Path | None,
        typer.Option(
            "--target-config",
            metavar="FILE",
            help="The target's configuration, if it is another one than the bank's.",
        ),
    ] = None,
    verify: VerifyOption = True,
) -> None:
    """Copy the bank to another address, while others use it.

    Between files and servers, in any direction. The target must be empty, unless --overwrite is
    given, and nobody may have it open.
    """
    from perdure import config

    async with ProgressBar("looking at the bank") as bar, existing_bank(settings) as bank:
        made = await bank.copy_to(
            target,
            config=None if target_config is None else config.load(target_config),
            overwrite=overwrite,
            verify=verify,
            progress=bar,
        )
    _show_copy(settings, made)


def _facts(manifest: BackupManifest) -> dict[str, Any]:
    return {
        "snapshot": manifest.id,
        "taken": to_datetime(manifest.taken).isoformat(),
        "records": manifest.rows,
        "bytes": manifest.bytes,
        "artifacts": len(manifest.artifacts),
        "artifact_bytes": manifest.artifact_bytes,
        "damaged": manifest.damaged,
        "missing": manifest.missing,
        "rescued": manifest.rescued,
    }


def _listed(each: BackupCheck) -> dict[str, Any]:
    facts = {"snapshot": each.id} if each.manifest is None else _facts(each.manifest)
    return {**facts, "ok": each.sound, "error": each.error}


def _show_backup(made: Backup) -> None:
    manifest = made.snapshot
    terminal.say(
        f"Kept {terminal.plural(manifest.rows, 'record')} and"
        f" {terminal.plural(len(manifest.artifacts), 'large artifact')} ({made.copied} new) as"
        f" {manifest.id}."
    )
    if made.removed:
        terminal.say(f"Removed {terminal.plural(len(made.removed), 'older snapshot')}.")
    if made.not_removed:
        terminal.say(f"No older snapshot was removed: {made.not_removed}", style="red")
    if not made.encrypted:
        terminal.note(
            "The backup is not encrypted: whoever can read the folder can read it. What the bank"
            " keeps encrypted stays so, and still needs the master key.",
            "dim",
        )
    if manifest.damaged:
        terminal.say(
            f"Damaged in the bank already: {', '.join(manifest.damaged)}. Run `perdure verify`.",
            style="red",
        )
    if manifest.missing:
        terminal.say(f"Missing in the bank already: {', '.join(manifest.missing)}.", style="red")
    if manifest.rescued:
        terminal.say(f"In the backup all the same: {', '.join(manifest.rescued)}.")


def _line(each: BackupCheck, *, verified: bool) -> tuple[str, ...]:
    if each.manifest is None:
        return each.id, "not ok", "", "", ""
    manifest = each.manifest
    state = ("ok" if each.sound else "not ok") if verified or not each.sound else ""
    return (
        each.id,
        state,
        f"{manifest.rows:,}",
        f"{len(manifest.artifacts):,}",
        terminal.format_size(manifest.bytes + manifest.artifact_bytes),
    )


def _show_copy(settings: CommandSettings, made: BankCopy) -> None:
    if settings.json:
        terminal.emit(
            {
                "url": made.url,
                "records": made.rows,
                "artifacts": made.artifacts,
                "copied": made.copied,
                "shared_artifacts": made.shared_artifacts,
                "verified": made.problems is not None,
                "problems": made.problems or (),
                "snapshot": made.snapshot and made.snapshot.id,
            }
        )
    else:
        source = f" from {made.snapshot.id}" if made.snapshot is not None else ""
        checked = "" if made.problems is None else ", and checked it"
        terminal.say(
            f"Filled {made.url}{source} with {terminal.plural(made.rows, 'record')} and"
            f" {terminal.plural(made.artifacts, 'large artifact')}{checked}."
        )
        for problem in made.problems or ():
            terminal.say(f"{problem.subject}: {problem.what}", style="red")
        if made.shared_artifacts:
            terminal.note(
                "Both banks keep their large artifacts in the same place: what one of them deletes"
                " is gone for the other."
            )
    if made.problems:
        raise typer.Exit(1)
