"""``perdure audit``: who did what to which record, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import terminal
from perdure.cli.bank_access import existing_bank
from perdure.cli.command_options import CommandSettings, moment_of

if TYPE_CHECKING:
    from perdure.storage.audit import AuditEntry, TrailPage, Verdict

#: Digits of a hash that are shown; --json has all of them.
_HASH = 8


async def audit(
    settings: CommandSettings,
    about: Annotated[
        str,
        typer.Argument(
            metavar="[COLLECTION[/KEY]]", help="A collection, or one record of it; else all."
        ),
    ] = "",
    *,
    actor: Annotated[
        str | None, typer.Option("--actor", metavar="NAME", help="Only what this one did.")
    ] = None,
    action: Annotated[
        str | None,
        typer.Option(
            "--action",
            metavar="ACTION",
            help="Only this: put, delete, rewrite, read, find, summarize, prune or deny.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="From then on: 2026-02-12, 30d."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=10_000, help="At most so many entries.")
    ] = 50,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Check whether the entries of COLLECTION/KEY join."),
    ] = False,
) -> None:
    """Show the audit trail, the newest entries first.

    Entries are left by banks whose configuration names collections in audit.collections, and by
    servers about requests that they deny. With --verify, exits with 1 if the trail of the record
    shows that it was changed without an entry.
    """
    from perdure.storage.audit import AuditTrail

    collection, _, key = about.partition("/")
    if verify and not key:
        raise typer.BadParameter("Name one record: COLLECTION/KEY.", param_hint="--verify")
    first = None if since is None else moment_of(since)
    async with existing_bank(settings) as bank:
        trail = AuditTrail(bank.store)
        if verify:
            _show_verdict(settings, await trail.verify(collection, key))
            return
        page = await trail.entries(
            collection=collection or None,
            key=key or None,
            actor=actor,
            action=action,
            since=first,
            limit=limit,
            newest_first=True,
        )
    if settings.json:
        terminal.emit(page)
    else:
        _show(page)


def _show(page: TrailPage) -> None:
    if not page.entries:
        terminal.say("No entries.")
        return
    rows = [
        (
            _time(entry),
            entry.actor,
            entry.action.value,
            f"{entry.collection}/{entry.record}" if entry.record else entry.collection,
            _change(entry),
            entry.reason,
        )
        for entry in page.entries
    ]
    terminal.table(("When", "Who", "What", "Record", "Change", "Why"), rows)
    if page.next is not None:
        terminal.note("There are older ones: raise --limit, or narrow the question.", "dim")


def _time(entry: AuditEntry) -> str:
    return f"{entry.at.astimezone():%Y-%m-%d %H:%M:%S}"


def _change(entry: AuditEntry) -> str:
    if not entry.record:
        counted = terminal.plural(entry.count, "request" if entry.action == "deny" else "record")
        return f"{counted} · {entry.query}" if entry.query else counted
    before = _state(entry.version_before, entry.hash_before)
    after = _state(entry.version_after, entry.hash_after)
    return before if before == after else f"{before} → {after}"


def _state(version: int, hash_: str) -> str:
    return f"v{version} {hash_[:_HASH]}" if version else "–"


def _show_verdict(settings: CommandSettings, verdict: Verdict) -> None:
    if settings.json:
        import msgspec

        terminal.emit({"ok": verdict.ok, **msgspec.structs.asdict(verdict)})
    else:
        entries = "1 entry" if verdict.entries == 1 else f"{verdict.entries:,} entries"
        name = f"{verdict.collection}/{verdict.key}"
        for gap in verdict.gaps:
            terminal.say(f"{name}: {gap}")
        if not verdict.entries:
            terminal.say(f"{name} has no entries: nothing can be said.")
        elif verdict.ok:
            since = f", from version {verdict.begins_at} on" if verdict.begins_at else ""
            terminal.say(f"The trail of {name} joins: {entries}{since}.")
        else:
            terminal.say(f"{name} was changed without an entry; it has {entries}.", style="red")
    if not verdict.ok:
        raise typer.Exit(1)
