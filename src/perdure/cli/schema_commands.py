"""``perdure schema``: record types of a bank, and whether its records match."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import readable, terminal
from perdure.cli.bank_access import existing_bank
from perdure.cli.command_options import CommandSettings
from perdure.cli.terminal import ProgressBar
from perdure.cli.transfer_commands import open_output

if TYPE_CHECKING:
    from perdure.storage.schemas.schema_records import Schema, Version
    from perdure.storage.schemas.schema_registry import Checked
    from perdure.storage.schemas.type_shapes import Description


_Collection = Annotated[
    str, typer.Argument(metavar="COLLECTION", help="Its name.", show_default=False)
]


async def list_(settings: CommandSettings) -> None:
    """List the collections whose record types are known."""
    async with existing_bank(settings) as bank:
        schemas = bank.store.schemas
        found = [await schemas.describe(name) for name in await schemas.collections()]
        rows = {size.collection: size.rows for size in await bank.store.adapter.sizes()}
    if settings.json:
        terminal.emit({"collections": [_summary(schema, rows) for schema in found]})
    elif not found:
        terminal.say("No record type was written to this bank yet.")
    else:
        terminal.table(
            ("Collection", "Type", "Serializer", "Since", "Schema", "Fields", "Records"),
            [
                (
                    schema.collection,
                    schema.current.description.name,
                    schema.current.serializer,
                    readable.absolute_time(schema.current.since),
                    str(schema.current.schema),
                    str(len(schema.current.description.fields)),
                    f"{rows.get(schema.collection, 0):,}",
                )
                for schema in found
            ],
            right=3,
        )


async def show(settings: CommandSettings, collection: _Collection) -> None:
    """Show the fields of a collection's records, and how they changed."""
    async with existing_bank(settings) as bank:
        schema = await bank.store.schemas.describe(collection)
    if settings.json:
        terminal.emit({**_summary(schema), "versions": [_described(v) for v in schema.versions]})
    else:
        _show(schema)


async def proto(
    settings: CommandSettings,
    collection: _Collection,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write here; else to stdout."),
    ] = None,
) -> None:
    """Write the .proto file of a collection whose serializer is protobuf.

    With it, `protoc --decode=perdure.notes.Note notes.proto` reads a stored value.
    """
    async with existing_bank(settings) as bank:
        text = await bank.store.schemas.proto(collection)
    if out is not None:
        with open_output(out) as file:
            file.write(text.encode())
    if settings.json:
        shown = {"collection": collection, "file": None if out is None else str(out)}
        terminal.emit({**shown, "proto": text})
    elif out is None:
        print(text, end="")
    else:
        terminal.say(f"Wrote {out}.")


async def check(
    settings: CommandSettings,
    collection: Annotated[
        str | None,
        typer.Argument(metavar="[COLLECTION]", help="All, if none is named.", show_default=False),
    ] = None,
) -> None:
    """Compare every record with the schema that is kept of its collection.

    Needs no code of yours. Records of older schema versions are counted: they are migrated when
    they are read. Exits with 1 if a record does not fit.
    """
    async with ProgressBar("checking records") as bar, existing_bank(settings) as bank:
        schemas = bank.store.schemas
        names = await schemas.collections() if collection is None else [collection]
        found = [await schemas.check(name, bar) for name in names]
    unfit = sum(checked.unfit for checked in found)
    if settings.json:
        terminal.emit({"ok": not unfit, "collections": found})
    else:
        _show_checked(found)
    if unfit:
        raise typer.Exit(1)


def _show(schema: Schema) -> None:
    current = schema.current
    terminal.say(
        f"{schema.collection}: {current.description.name}, schema version {current.schema},"
        f" {current.serializer}."
    )
    for index in current.indexes:
        where = ", ".join(f"{column} = {value}" for column, value in index.where)
        terminal.say(f"index over {', '.join(index.columns)}{f' where {where}' if where else ''}")
    terminal.say()
    terminal.table(("Field", "Type", ""), _fields(current.description))
    if len(schema.versions) > 1:
        terminal.say()
        rows = [
            (readable.absolute_time(now.since), str(now.schema), now.serializer, change)
            for before, now in zip((None, *schema.versions), schema.versions, strict=False)
            for change in _changes(before, now)
        ]
        terminal.table(("Since", "Schema", "Serializer", "Change"), rows)


def _fields(description: Description) -> Iterator[tuple[str, str, str]]:
    for name, fields in description.types.items():
        for field in fields.fields:
            path = f"{name}.{field.name}" if name else field.name
            yield path, str(field.shape), "" if field.required else "has a default"


def _changes(before: Version | None, now: Version) -> list[str]:
    from perdure.storage.schemas.schema_comparison import compare

    if before is None:
        return ["declared"]
    found = compare(before.description, now.description)
    unsafe = found.needs_migration and before.schema == now.schema
    told = [str(change) for change in found.changes]
    if unsafe:
        told.append("this needed a migration, and has none")
    return told or ["the same fields"]


def _show_checked(found: list[Checked]) -> None:
    for checked in found:
        for key, problems in checked.problems.items():
            terminal.say(f"{checked.collection}/{key}: {'; '.join(problems)}")
    unfit = sum(checked.unfit for checked in found)
    older = sum(
        count
        for checked in found
        for schema, count in checked.versions.items()
        if schema < checked.schema
    )
    records = terminal.plural(sum(checked.records for checked in found), "record")
    terminal.say(
        f"{records} checked: {f'{unfit:,} do not fit' if unfit else 'all fit'}"
        f"{f'; {older:,} of older versions, to be migrated when read' if older else ''}.",
        style="red" if unfit else "",
    )


def _summary(schema: Schema, rows: dict[str, int] | None = None) -> dict[str, Any]:
    current = schema.current
    records = {} if rows is None else {"records": rows.get(schema.collection, 0)}
    return {
        "collection": schema.collection,
        "type": current.description.name,
        "schema": current.schema,
        "serializer": current.serializer,
        "since": current.since.isoformat(),
        **records,
    }


def _described(version: Version) -> dict[str, Any]:
    return {
        "schema": version.schema,
        "serializer": version.serializer,
        "since": version.since.isoformat(),
        "indexes": version.indexes,
        "fields": {
            path: {"type": type_, "required": not default}
            for path, type_, default in _fields(version.description)
        },
    }
