"""``perdure bank``: create, inspect and migrate a bank."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import terminal
from perdure.cli.bank_access import existing_bank
from perdure.cli.command_options import CommandSettings
from perdure.cli.terminal import ProgressBar
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.artifacts.artifact_places import S3Address
    from perdure.bank import BankInfo
    from perdure.cli.diagnosis import FolderUse
    from perdure.storage.record_migrations import Migrated
    from perdure.storage.records import RecordType
    from perdure.storage.rows import Size


async def init(settings: CommandSettings) -> None:
    """Make the bank. One that is already there stays as it is."""
    from perdure.bank import Bank
    from perdure.storage import registry
    from perdure.storage.adapter import Capability

    bank = Bank(config=settings.load())
    url, location = registry.shown(bank.url), registry.location(bank.url)
    if Capability.DURABLE not in bank.store.adapter.capabilities:
        raise InvalidInput(
            f"A bank at {url} ends with the program that opens it.",
            hint="Name a place that lasts, such as sqlite:///memory.db.",
        )
    was_there = await bank.store.adapter.exists()
    async with ProgressBar("opening the bank"), bank:
        pass
    if settings.json:
        terminal.emit({"url": url, "location": location, "created": not was_there})
    elif was_there:
        terminal.say(f"The bank at {location} is already there.")
    else:
        terminal.say(f"Made a bank at {location}.")


async def info(settings: CommandSettings) -> None:
    """Show what the bank is, and what it holds."""
    import asyncio

    from perdure.cli.diagnosis import folder_use

    async with ProgressBar("looking at the bank"), existing_bank(settings) as bank:
        found = await bank.info()
        artifacts = await asyncio.to_thread(folder_use, bank.artifacts.place)
    if settings.json:
        import msgspec

        from perdure.artifacts.artifact_places import S3Address

        place = str(artifacts) if isinstance(artifacts, S3Address) else artifacts
        terminal.emit({**msgspec.structs.asdict(found), "artifacts": place})
    else:
        _show(found, artifacts)


def _show(found: BankInfo, artifacts: FolderUse | S3Address) -> None:
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
    terminal.table(
        ("Collection", "Rows", "Size"),
        [(each.collection, f"{each.rows:,}", _bytes(each.bytes)) for each in collections],
        right=2,
    )


def _bytes(count: int | None) -> str:
    return "unknown" if count is None else terminal.format_size(count)


ImportOption = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="A module that declares record types, such as my_app.records. May be repeated.",
    ),
]
CollectionOption = Annotated[
    list[str] | None,
    typer.Option("--collection", metavar="NAME", help="Only this collection. May be repeated."),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only tell what would be done, and what would fail.")
]


async def migrate(
    settings: CommandSettings,
    *,
    modules: ImportOption = None,
    collections: CollectionOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Bring all records to the schema and serializer of their types.

    Others may use the bank meanwhile. Interrupted, it goes on when it is run again. Records that
    cannot be migrated are named and stay as they are; the exit code is 1 then, and also if old
    code kept adding records.
    """
    _import_modules(modules or [])
    from perdure.storage.record_migrations import migrate as migrate_records

    done: list[Migrated] = []
    async with ProgressBar("looking at the bank") as bar, existing_bank(settings) as bank:
        types = _declared()
        there = [size.collection for size in await bank.store.adapter.sizes()]
        for name in _chosen(types, there, collections or []):
            cls = types[name].cls
            done += await migrate_records(bank.store, cls, dry_run=dry_run, progress=bar)
    unknown = [] if collections else _undeclared(types, there)
    complete = all(each.is_complete for each in done)
    if settings.json:
        terminal.emit(
            {"ok": complete, "dry_run": dry_run, "collections": done, "undeclared": unknown}
        )
    else:
        _show_migrated(done, unknown, dry_run=dry_run)
    if not complete:
        raise typer.Exit(1)


def _import_modules(modules: list[str]) -> None:
    if modules and os.getcwd() not in sys.path:  # noqa: PTH109 (as text)
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    for name in modules:
        try:
            importlib.import_module(name)
        except (ImportError, SyntaxError) as exc:
            raise InvalidInput(
                f"The module {name!r} cannot be imported: {exc}.",
                hint="Run the command in the folder that holds it, or set PYTHONPATH.",
            ) from exc
        except Exception as exc:  # it runs code of anybody's
            raise InvalidInput(
                f"The module {name!r} cannot be imported, it raises {type(exc).__name__}: {exc}.",
                hint=f"See with `python -c 'import {name}'` where, and mend it.",
            ) from exc


def _declared() -> dict[str, RecordType[Any]]:
    from perdure.storage.records import all_types

    return {declared.name: declared for declared in all_types()}


def _chosen(
    types: dict[str, RecordType[Any]], there: list[str], collections: list[str]
) -> list[str]:
    for name in collections:
        if name not in types:
            raise InvalidInput(
                f"No record type is declared for the collection {name!r}.",
                hint="Name the module that declares it: --import my_app.records.",
            )
        if name not in there:
            raise InvalidInput(
                f"There is no collection {name!r} in this bank.",
                hint="`perdure bank info` tells what is there.",
            )
    return [name for name in collections or sorted(types) if name in there]


def _undeclared(types: dict[str, RecordType[Any]], there: list[str]) -> list[str]:
    return [name for name in there if name not in types and not name.startswith("perdure_")]


def _show_migrated(done: list[Migrated], unknown: list[str], *, dry_run: bool) -> None:
    told = [each for each in done if each.migrated or each.newer or not each.is_complete]
    if told:
        work = "To do" if dry_run else "Done"
        terminal.table(
            ("Collection", "To schema", "Found", work, "Failed", "Newer", "Left"),
            [
                (
                    each.collection,
                    f"{each.schema}",
                    ", ".join(f"{rows:,} of {schema}" for schema, rows in each.found.items()),
                    f"{each.migrated:,}",
                    f"{each.failed:,}",
                    f"{each.newer:,}",
                    f"{each.left:,}",
                )
                for each in told
            ],
            right=4,
        )
        for each in told:
            _show_failures(each)
            if each.left:
                left = terminal.plural(each.left, "record")
                terminal.note(
                    f"Old code has written {left} of {each.collection} meanwhile: stop it, and run"
                    " this again."
                )
    else:
        terminal.say("Every record is as its type declares it.")
    if unknown:
        terminal.note(
            f"Left out, because no record type is declared for them: {', '.join(unknown)}."
            " Name their modules with --import."
        )


def _show_failures(done: Migrated) -> None:
    for failure in done.failures:
        terminal.say(f"{done.collection}/{failure.key}: {failure.what}", style="red")
    if done.failed > len(done.failures):
        more = done.failed - len(done.failures)
        terminal.say(f"… and {terminal.plural(more, 'more record')} of {done.collection}.")
