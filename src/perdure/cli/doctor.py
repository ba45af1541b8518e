"""``perdure doctor``: is everything here that Perdure needs, and does it answer?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from perdure.cli import terminal
from perdure.cli.options import Settings, common_options

if TYPE_CHECKING:
    from perdure.cli.examination import Report


@common_options()
def doctor(settings: Settings) -> None:
    """Check versions, paths, and whether every configured part answers.

    Exits with 0 if all is well, and with 1 if something is not.
    """
    import asyncio

    from perdure.cli.examination import examine

    report = asyncio.run(examine(settings))
    if settings.json:
        terminal.emit({"ok": report.ok, **report.facts, "checks": report.checks})
    else:
        _show(report)
    if not report.ok:
        raise typer.Exit(1)


def _show(report: Report) -> None:
    terminal.table(
        ("", "", ""),
        [
            ("ok" if check.ok else "not ok", check.part, f"{check.what} {check.advice}".rstrip())
            for check in report.checks
        ],
    )
    collections = report.facts.get("bank", {}).get("collections")
    if collections:
        from perdure.cli.bank import show_collections

        terminal.say()
        show_collections(collections)
