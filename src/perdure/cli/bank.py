"""``perdure bank``: make one, look at one, keep it safe, move it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from perdure.cli import backups, encrypting, migrate, terminal
from perdure.cli.options import Settings, common_options
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.artifacts.addresses import S3Address
    from perdure.bank import Info
    from perdure.cli.places import FolderUse
    from perdure.storage.rows import Size

app = typer.Typer(
    help="Make a bank, look at one, keep it safe, move it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
@common_options()
def init(settings: Settings) -> None:
    """Make the bank. One that is already there stays as it is."""
    import asyncio

    made = asyncio.run(_init(settings))
    if settings.json:
        terminal.emit(made)
    elif made["created"]:
        terminal.say(f"Made a bank at {made['location']}.")
    else:
        terminal.say(f"The bank at {made['location']} is already there.")


@app.command()
@common_options()
def info(settings: Settings) -> None:
    """Show what the bank is, and what it holds."""
    import asyncio

    found, artifacts = asyncio.run(_info(settings))
    if settings.json:
        import msgspec

        from perdure.artifacts.addresses import S3Address

        place = str(artifacts) if isinstance(artifacts, S3Address) else artifacts
        terminal.emit({**msgspec.structs.asdict(found), "artifacts": place})
    else:
        _show(found, artifacts)


app.command("backup")(backups.backup)
app.command("backups")(backups.list_)
app.command("restore")(backups.restore)
app.command("copy")(backups.copy)
app.command("encrypt")(encrypting.encrypt)
app.command("decrypt")(encrypting.decrypt)
app.command("migrate")(migrate.migrate)


async def _init(settings: Settings) -> dict[str, Any]:
    from perdure.bank import Bank
    from perdure.cli.progress import Bar
    from perdure.storage import urls
    from perdure.storage.adapter import Capability

    with Bar("opening the bank"):
        bank = Bank(config=settings.load())
        if Capability.DURABLE not in bank.store.adapter.capabilities:
            raise InvalidInput(
                f"A bank at {urls.shown(bank.url)} ends with the program that opens it.",
                hint="Name a place that lasts, such as sqlite:///memory.db.",
            )
        was_there = await bank.store.adapter.exists()
        async with bank:
            return {
                "url": urls.shown(bank.url),
                "location": urls.location(bank.url),
                "created": not was_there,
            }


async def _info(settings: Settings) -> tuple[Info, FolderUse | S3Address]:
    import asyncio

    from perdure.cli import places
    from perdure.cli.progress import Bar

    with Bar("looking at the bank"):
        async with places.existing_bank(settings, settings.load()) as bank:
            found = await bank.info()
            return found, await asyncio.to_thread(places.folder_use, bank.artifacts.place)


def _show(found: Info, artifacts: FolderUse | S3Address) -> None:
    terminal.table(
        ("", ""),
        [
            ("Bank", found.url),
            ("Backend", found.backend),
            ("Capabilities", ", ".join(found.capabilities)),
            ("Artifacts", str(artifacts)),
        ],
    )
    terminal.say()
    if found.collections:
        show_collections(found.collections)
    else:
        terminal.say("It holds no collections yet.")


def show_collections(collections: Sequence[Size]) -> None:
    """Print what each collection takes."""
    terminal.table(
        ("Collection", "Rows", "Size"),
        [(each.collection, f"{each.rows:,}", _bytes(each.bytes)) for each in collections],
        right=2,
    )


def _bytes(count: int | None) -> str:
    return "unknown" if count is None else terminal.format_size(count)
