"""``perdure mcp``: the memory of a folder for a client that speaks the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.command_options import CommandSettings
from perdure.cli.project_access import FolderOption, project_location

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from perdure.bank import Bank

#: Seconds that the embedding model may take to load in the first search.
_LOADING = 3.0


async def mcp(
    settings: CommandSettings,
    *,
    folder: FolderOption = Path(),
    agent: Annotated[
        str, typer.Option("--agent", metavar="NAME", help="Only this agent's memory.")
    ] = "",
) -> None:
    """Serve recall, memories and tasks to an MCP client, over stdio.

    Coding clients start it: `claude mcp add perdure -- perdure mcp`. In a project, what all its
    clients learnt is searched; elsewhere, what was said in this folder. Ends with the client.
    """
    from perdure.integrations.mcp_server import FolderAccess, serve_folder

    def open_bank(address: str) -> AbstractAsyncContextManager[Bank]:
        return _bank(settings, address)

    project_location(folder)  # a folder that is not there is said
    await serve_folder(FolderAccess(folder.absolute(), open_bank, agent))


def _bank(settings: CommandSettings, address: str) -> AbstractAsyncContextManager[Bank]:
    from dataclasses import replace

    from msgspec import structs

    from perdure.cli.bank_access import existing_bank

    found = replace(settings, bank=settings.bank or address or None)
    config = found.load()
    recall = structs.replace(config.recall, vectors=max(config.recall.vectors, _LOADING))
    return existing_bank(found, structs.replace(config, recall=recall))
