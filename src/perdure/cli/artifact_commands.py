"""``perdure artifacts``: list, check, collect and move large content."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import terminal
from perdure.cli.bank_access import existing_bank
from perdure.cli.command_options import CommandSettings, common_options
from perdure.cli.terminal import ProgressBar
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from typing import Any

    from perdure.artifacts import ArtifactFault, PlaceAddress
    from perdure.artifacts.artifact_collector import CollectedArtifacts
    from perdure.artifacts.artifact_contents import MovedArtifacts

app = typer.Typer(
    help="Look at artifacts: content that is kept by its hash.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
#: Artifacts that are listed one by one, unless more are asked for.
_LISTED = 50


@app.command("list")
@common_options()
async def list_(
    settings: CommandSettings,
    *,
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="Show at most so many; 0 shows all.")
    ] = _LISTED,
) -> None:
    """Show the artifacts, what they take, and how many refer to each."""
    found = await _list(settings, limit)
    if settings.json:
        terminal.emit(found)
        return
    terminal.listing(
        ("Artifact", "Place", "Put", "Size", "Referred to"),
        [
            (
                each["artifact"],
                each["place"],
                each["put"],
                terminal.format_size(each["bytes"]),
                f"{each['references']:,}",
            )
            for each in found["artifacts"]
        ],
        right=2,
    )
    count, size = found["count"], terminal.format_size(found["bytes"])
    left = count - len(found["artifacts"])
    more = f" {left:,} are not shown: add --limit 0." if left else ""
    terminal.note(f"{terminal.plural(count, 'artifact')}, {size}; {found['place']}.{more}")


@app.command()
@common_options()
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
    checked, faults = await _check(settings, orphans=orphans)
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


@app.command()
@common_options()
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
    done = await _collect(settings, 0.0 if grace in {"0", "0s"} else grace, dry_run=dry_run)
    if settings.json:
        terminal.emit(done)
        return
    would = "would be deleted" if dry_run else "deleted"
    terminal.say(
        f"{terminal.plural(done.deleted, 'artifact')} of {done.seen:,} {would}:"
        f" {terminal.format_size(done.bytes)}."
    )


@app.command()
@common_options()
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
    done = await _move(settings, place_of(place), old, delete=delete)
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


async def _list(settings: CommandSettings, limit: int) -> dict[str, Any]:
    from perdure.cli import readable
    from perdure.core.clock import to_datetime

    shown: list[dict[str, Any]] = []
    count = size = 0
    with ProgressBar("listing artifacts") as bar:
        async with existing_bank(settings) as bank:
            async for each in bank.artifacts.located():
                count += 1
                size += each.bytes
                bar("listing artifacts", count, 0)
                if limit and len(shown) >= limit:
                    continue
                shown.append(
                    {
                        "artifact": each.artifact,
                        "place": str(each.place),
                        "put": readable.absolute_time(to_datetime(each.modified_us)),
                        "bytes": each.bytes,
                        "references": await bank.artifacts.count(each.artifact),
                    }
                )
            place = str(bank.artifacts.place)
    return {"place": place, "count": count, "bytes": size, "artifacts": shown}


async def _check(settings: CommandSettings, *, orphans: bool) -> tuple[int, list[ArtifactFault]]:
    faults: list[ArtifactFault] = []
    checked = 0

    with ProgressBar("checking artifacts") as bar:

        def count(what: str, done: int, total: int) -> None:
            nonlocal checked
            checked = done
            bar(what, done, total)

        async with existing_bank(settings) as bank:
            async for fault in bank.artifacts.check(referred=True, orphans=orphans, progress=count):
                faults.append(fault)
                if not settings.json:
                    bar.pause()
                    terminal.say(f"{fault.artifact}: {fault.kind}: {fault.what}")
    return checked, faults


async def _collect(
    settings: CommandSettings, grace: str | float, *, dry_run: bool
) -> CollectedArtifacts:
    with ProgressBar("looking at artifacts") as bar:
        async with existing_bank(settings) as bank:
            return await bank.artifacts.collect(grace=grace, dry_run=dry_run, progress=bar)


async def _move(
    settings: CommandSettings, to: PlaceAddress, source: PlaceAddress | None, *, delete: bool
) -> MovedArtifacts:
    with ProgressBar("copying artifacts") as bar:
        async with existing_bank(settings) as bank:
            return await bank.artifacts.move(to, source=source, delete=delete, progress=bar)
