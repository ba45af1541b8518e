"""``perdure bank migrate``: bring every record to what its type declares now."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import terminal
from perdure.cli.options import Settings, common_options
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.storage.migrating import Migrated
    from perdure.storage.records import RecordType

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


@common_options()
def migrate(
    settings: Settings,
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
    import asyncio

    _import(modules or [])
    done, unknown = asyncio.run(_migrate(settings, collections or [], dry_run=dry_run))
    complete = all(each.is_complete for each in done)
    if settings.json:
        terminal.emit(
            {"ok": complete, "dry_run": dry_run, "collections": done, "undeclared": unknown}
        )
    else:
        _show(done, unknown, dry_run=dry_run)
    if not complete:
        raise typer.Exit(1)


def _import(modules: list[str]) -> None:
    """Import modules as `python -m` would: from the current folder, too."""
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


async def _migrate(
    settings: Settings, collections: list[str], *, dry_run: bool
) -> tuple[list[Migrated], list[str]]:
    """What was done, and the collections that are there but not declared."""
    from perdure.cli import places
    from perdure.cli.progress import Bar
    from perdure.storage.migrating import migrate as migrate_records

    with Bar("looking at the bank") as bar:
        async with places.existing_bank(settings, settings.load()) as bank:
            types = _declared()
            there = [size.collection for size in await bank.store.adapter.sizes()]
            chosen = _chosen(types, there, collections)
            done: list[Migrated] = []
            for name in chosen:
                cls = types[name].cls
                done += await migrate_records(bank.store, cls, dry_run=dry_run, progress=bar)
            return done, [] if collections else _undeclared(types, there)


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
    """Collections of the user's that nothing is known about."""
    return [name for name in there if name not in types and not name.startswith("perdure_")]


def _show(done: list[Migrated], unknown: list[str], *, dry_run: bool) -> None:
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
