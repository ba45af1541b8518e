"""``perdure artifacts``: list, check, collect and move large content."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import readable, terminal
from perdure.cli.bank_access import existing_bank
from perdure.cli.command_options import CommandSettings, LimitOption
from perdure.cli.terminal import ProgressBar
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.artifacts import ArtifactFault


async def list_(
    settings: CommandSettings,
    *,
    limit: LimitOption = 50,
) -> None:
    """Show the artifacts, what they take, and how many refer to each."""
    shown: list[dict[str, Any]] = []
    count = size = 0
    async with ProgressBar("listing artifacts") as bar, existing_bank(settings) as bank:
        place = str(bank.artifacts.place)
        async for found in bank.artifacts.located():
            count += 1
            size += found.bytes
            bar("listing artifacts", count, 0)
            if not limit or len(shown) < limit:
                shown.append(
                    {
                        "artifact": found.artifact,
                        "place": str(found.place),
                        "put": readable.absolute_time(found.modified_us),
                        "bytes": found.bytes,
                        "references": await bank.artifacts.count(found.artifact),
                    }
                )
    if settings.json:
        terminal.emit({"place": place, "count": count, "bytes": size, "artifacts": shown})
        return
    rows = [
        (
            each["artifact"],
            each["place"],
            each["put"],
            terminal.format_size(each["bytes"]),
            f"{each['references']:,}",
        )
        for each in shown
    ]
    terminal.listing(("Artifact", "Place", "Put", "Size", "Referred to"), rows, right=2)
    left = count - len(shown)
    more = f" {left:,} are not shown: add --limit 0." if left else ""
    total = f"{terminal.plural(count, 'artifact')}, {terminal.format_size(size)}"
    terminal.note(f"{total}; {place}.{more}")


async def check(
    settings: CommandSettings,
    *,
    orphans: Annotated[
        bool, typer.Option("--orphans", help="Also name what nothing refers to.")
    ] = False,
) -> None:
    """Read every artifact, and look for each that is referred to.

    Names those that are damaged, missing, not to be read, or of another size. Exits with 0 if all
    is well, and with 1 if it is not; orphans are no fault.
    """
    faults: list[ArtifactFault] = []
    checked = 0
    async with ProgressBar("checking artifacts") as bar, existing_bank(settings) as bank:

        def count(what: str, done: int, total: int) -> None:
            nonlocal checked
            checked = done
            bar(what, done, total)

        async for fault in bank.artifacts.check(referred=True, orphans=orphans, progress=count):
            faults.append(fault)
            if not settings.json:
                bar.pause()
                terminal.say(f"{fault.artifact}: {fault.kind}: {fault.what}")
    bad = [fault for fault in faults if fault.kind != "orphan"]
    if settings.json:
        terminal.emit({"ok": not bad, "checked": checked, "faults": faults})
    elif bad:
        found = terminal.plural(len(bad), "artifact")
        terminal.say(f"{found} cannot be read back. Restore them from a backup.", style="red")
    else:
        terminal.say("The artifacts are sound.")
    if bad:
        raise typer.Exit(1)


async def collect(
    settings: CommandSettings,
    *,
    grace: Annotated[
        str,
        typer.Option("--grace", metavar="1d", help="Keep what was put within this time."),
    ] = "1d",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be deleted.")
    ] = False,
) -> None:
    """Delete the artifacts that nothing refers to.

    Records refer to them by fields of the type Artifact, turns by what was moved out of them. Safe
    while the bank is in use.
    """
    spared = 0.0 if grace in {"0", "0s"} else grace
    async with ProgressBar("looking at artifacts") as bar, existing_bank(settings) as bank:
        done = await bank.artifacts.collect(grace=spared, dry_run=dry_run, progress=bar)
    if settings.json:
        terminal.emit(done)
        return
    would = "would be deleted" if dry_run else "deleted"
    terminal.say(
        f"{terminal.plural(done.deleted, 'artifact')} of {done.seen:,} {would}:"
        f" {terminal.format_size(done.bytes)}."
    )


async def move(
    settings: CommandSettings,
    place: Annotated[
        str, typer.Argument(metavar="PLACE", help="A folder, or s3://bucket/prefix?region=….")
    ],
    *,
    delete: Annotated[
        bool,
        typer.Option("--delete", help="Delete what was moved at the old place, once read back."),
    ] = False,
    source: Annotated[
        str,
        typer.Option("--from", metavar="PLACE", help="From there, not from the bank's own place."),
    ] = "",
) -> None:
    """Copy all large artifacts to another place.

    What is there already is skipped, so it may be interrupted and repeated. Then put the new place
    into the configuration (artifacts.folder or artifacts.url), restart what uses the bank, and move
    once more with --from the old place, for what came in between.
    """
    from perdure.artifacts import place_of

    old = place_of(source) if source else None
    if isinstance(old, Path) and not old.is_dir():
        raise InvalidInput(f"There is no folder {old}.", hint="Check what --from names.")
    if delete and old is None:
        raise InvalidInput(
            "That would empty the place in which the bank looks for its artifacts.",
            hint="Move without --delete, set artifacts.folder or artifacts.url to the new place,"
            " then move again with --from the old one and --delete.",
        )
    to = place_of(place)
    async with ProgressBar("copying artifacts") as bar, existing_bank(settings) as bank:
        done = await bank.artifacts.move(to, source=old, delete=delete, progress=bar)
    if settings.json:
        terminal.emit(done)
    else:
        terminal.say(
            f"{terminal.plural(done.copied, 'artifact')} copied"
            f" ({terminal.format_size(done.bytes)}),"
            f" {done.skipped:,} already there, {done.deleted:,} deleted at the old place."
        )
        if old is None:
            setting = "artifacts.url" if "://" in place else "artifacts.folder"
            terminal.prose(
                f"Now set {setting} to the new place, restart what uses the bank, and move again"
                " with --from the old one."
            )
        for tagged in done.damaged:
            terminal.say(f"{tagged}: cannot be read, and stays where it is", style="red")
    if done.damaged:
        raise typer.Exit(1)
