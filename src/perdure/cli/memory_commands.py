"""``perdure memory``: list and correct what an agent has learnt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import readable, terminal
from perdure.cli.bank_access import changed_bank, existing_bank, require_agent
from perdure.cli.command_options import CommandSettings, LimitOption, YesOption
from perdure.cli.memory_display import (
    author_in_words,
    existing_memory,
    memory_facts,
    memory_json,
    memory_table,
    memory_versions,
    person_here,
    tell_change,
)
from perdure.core.display import one_line
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.reflection.memory_audit import MemoryAuditReport

WeightOption = Annotated[
    float | None, typer.Option("--weight", min=0, max=1, help="How much it matters, from 0 to 1.")
]
KeyArgument = Annotated[str, typer.Argument(metavar="MEMORY", help="Its key: planner/M-7.")]
_KINDS = "lesson, preference, pattern, decision, fact, topic"
_KIND = typer.Option("--kind", help=f"One of {_KINDS}.")


async def add(
    settings: CommandSettings,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Whose memory it is.")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What is to be remembered.")],
    *,
    kind: Annotated[str, _KIND] = "fact",
    weight: WeightOption = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="A tag. Repeatable.")
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="TURN", help="planner/auth#T-12: where from. Repeatable."),
    ] = None,
    share: Annotated[
        list[str] | None,
        typer.Option("--share", metavar="AGENT", help="Who sees it, too; '*': all. Repeatable."),
    ] = None,
    pin: Annotated[bool, typer.Option("--pin", help="Let it come first.")] = False,
) -> None:
    """Remember something.

    What an older memory says already is not kept twice: that one was seen once more, and stays of
    the kind that it is.
    """
    async with changed_bank(settings) as bank:
        made = await bank.memories.add(
            agent,
            text,
            kind=kind,
            weight=weight,
            tags=tag or (),
            provenance=source or (),
            shared=share or (),
            pinned=pin,
            by=person_here(bank),
        )
        known = f"{made.name} ({made.kind}) says so already: it was seen {made.seen:,} times."
        tell_change(settings, made, known if made.seen > 1 else f"Remembered as {made.name}.")


async def list_(
    settings: CommandSettings,
    agent: Annotated[
        str | None, typer.Argument(metavar="AGENT", help="Whose; those of all if left out.")
    ] = None,
    *,
    kind: Annotated[
        str | None, typer.Option("--kind", help=f"Only of this kind: {_KINDS}.")
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Only with this tag.")] = None,
    status: Annotated[
        str,
        typer.Option("--status", help="Only active, retired, merged or superseded ones; or any."),
    ] = "active",
    weight: Annotated[
        float, typer.Option("--weight", min=0, max=1, help="Only of this weight and above.")
    ] = 0.0,
    words: Annotated[str, typer.Option("--words", help="Only with all of these words.")] = "",
    limit: LimitOption = 50,
) -> None:
    """Show memories, or find them by words; pinned ones first, then by weight."""
    async with existing_bank(settings) as bank:
        found = await bank.memories.list(
            agent,
            kind=kind,
            tag=tag,
            status=None if status == "any" else status,
            weight=weight,
            words=words,
        )
    shown = found[: limit or None]
    if settings.json:
        terminal.emit({"count": len(found), "memories": [memory_json(each) for each in shown]})
        return
    memory_table(shown)
    left = len(found) - len(shown)
    more = f" {left:,} are not shown: add --limit 0." if left else ""
    word = "memory" if len(found) == 1 else "memories"
    terminal.note(f"{len(found):,} {word}.{more}")


async def show(settings: CommandSettings, key: KeyArgument) -> None:
    """Show all that is known about a memory."""
    async with existing_bank(settings) as bank:
        memory = await existing_memory(bank, key)
        rivals = await bank.memories.rivals([memory]) if memory.is_active else {}
    if settings.json:
        terminal.emit(memory_json(memory))
        return
    from perdure.recall.memories.contradictions import said

    terminal.verbatim(terminal.lines(said(memory, rivals.values())))
    terminal.table(("", ""), memory_facts(memory))


async def edit(
    settings: CommandSettings,
    key: KeyArgument,
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="What it is to say; as it is, if left out.")
    ] = None,
    *,
    kind: Annotated[str | None, _KIND] = None,
    weight: WeightOption = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="TAG", help="Instead of its tags; '' is none. Repeatable."),
    ] = None,
    share: Annotated[
        list[str] | None,
        typer.Option("--share", metavar="AGENT", help="Who sees it, too; '': none. Repeatable."),
    ] = None,
    expected: Annotated[
        int | None, typer.Option("--expected", help="Only if it still has this version.")
    ] = None,
) -> None:
    """Change a memory, and keep its former version.

    No machine changes it from then on.
    """
    if all(given is None for given in (text, kind, weight, tag, share)):
        raise InvalidInput(
            "Nothing is to be changed.", hint="Give a text, --kind, --weight, --tag or --share."
        )
    async with changed_bank(settings) as bank:
        before = await existing_memory(bank, key)
        after = await bank.memories.edit(
            key,
            text=text,
            kind=kind,
            weight=weight,
            tags=None if tag is None else [each for each in tag if each],
            shared=None if share is None else [each for each in share if each],
            expected=expected,
            by=person_here(bank),
        )
        words = f"{after.name} is at version {after.version} now."
        if after.version == before.version:
            words = f"{after.name} says that already, and is as it was: at version {after.version}."
        tell_change(settings, after, words, await bank.memories.doubles(after))


async def history(settings: CommandSettings, key: KeyArgument) -> None:
    """Show the versions of a memory: who made each, when, and what was new."""
    async with existing_bank(settings) as bank:
        memory = await existing_memory(bank, key)
        versions = memory_versions(memory, await bank.memories.history(key))
    if settings.json:
        found = [
            {**memory_json(each.memory), "at": each.at.isoformat(), "new": each.new}
            for each in versions
        ]
        terminal.emit({"memory": memory.name, "versions": found})
        return
    rows = [
        (
            str(each.memory.version),
            readable.absolute_time(each.at),
            author_in_words(each.memory.author),
            ", ".join(each.new),
            " ".join(each.memory.text.split()),
        )
        for each in versions
    ]
    terminal.table(("Version", "When", "By", "New", "Text"), rows)


async def merge(
    settings: CommandSettings,
    keys: Annotated[
        list[str], typer.Argument(metavar="MEMORY…", help="Keys of one agent: the first stays.")
    ],
    *,
    text: Annotated[
        str | None, typer.Option("--text", help="What it is to say; as the first, if left out.")
    ] = None,
) -> None:
    """Make several memories one.

    The first keeps its kind, and its words unless there are others. The rest are kept as merged
    into it, are not recalled any more, and can be restored.
    """
    async with changed_bank(settings) as bank:
        made = await bank.memories.merge(keys, text=text, by=person_here(bank))
        others = ", ".join(key for key in dict.fromkeys(keys) if key != made.name)
        said = f"{made.name} stands for {others} as well, and says: {one_line(made.text, 100)}"
        tell_change(settings, made, said)
        if not settings.json:
            terminal.note(f"{others}: not recalled any more. `perdure memory restore` undoes that.")


async def pin(settings: CommandSettings, key: KeyArgument) -> None:
    """Let a memory come first, and lead where another contradicts it."""
    async with changed_bank(settings) as bank:
        before = await existing_memory(bank, key)
        after = await bank.memories.pin(key, by=person_here(bank))
        words = "was pinned already" if before.pinned else "is pinned: it comes first"
        tell_change(settings, after, f"{after.name} {words}.")


async def unpin(settings: CommandSettings, key: KeyArgument) -> None:
    """Let a memory come in its turn."""
    async with changed_bank(settings) as bank:
        before = await existing_memory(bank, key)
        after = await bank.memories.unpin(key, by=person_here(bank))
        words = "is not pinned any more" if before.pinned else "was not pinned"
        tell_change(settings, after, f"{after.name} {words}.")


async def retire(
    settings: CommandSettings,
    key: KeyArgument,
    *,
    superseded_by: Annotated[
        str | None,
        typer.Option("--superseded-by", metavar="MEMORY", help="Because this one is better."),
    ] = None,
) -> None:
    """Keep a memory, but recall it no more. It loses its pin."""
    async with changed_bank(settings) as bank:
        before = await existing_memory(bank, key)
        by = person_here(bank)
        after = await bank.memories.retire(key, superseded_by=superseded_by, by=by)
        status = f"superseded by {superseded_by}" if superseded_by else after.status
        unpinned = ", not pinned any more," if before.pinned else ""
        words = f"{after.name} is {status}: it is kept{unpinned} and not recalled."
        if after.version == before.version:
            words = f"{after.name} was {status} already."
        tell_change(settings, after, words)


async def restore(settings: CommandSettings, key: KeyArgument) -> None:
    """Bring back a memory that was retired, merged or superseded."""
    async with changed_bank(settings) as bank:
        before = await existing_memory(bank, key)
        after = await bank.memories.restore(key, by=person_here(bank))
        words = f"{after.name} was {before.status}, and is active again."
        if before.is_active:
            words = f"{after.name} was active all the time."
        tell_change(settings, after, words, await bank.memories.doubles(after))


async def delete(
    settings: CommandSettings,
    key: KeyArgument,
    *,
    yes: YesOption = False,
) -> None:
    """Delete a memory for good.

    Its former versions go with it, and what was merged into it.
    """
    async with existing_bank(settings) as bank:
        name = (memory := await existing_memory(bank, key)).name
        parts = [part.name for part in await bank.memories.merged_into(key)]
        others = f" and what was merged into it: {', '.join(parts)}" if parts else ""
        settings.confirm(
            "Delete it?",
            f"{name}: {one_line(memory.text, 100)}",
            f"This deletes it for good, with its former versions{others}.",
            done="deleted",
            yes=yes,
        )
        erased = await bank.memories.delete(key, by=person_here(bank))
    if settings.json:
        terminal.emit({"memory": name, "deleted": True, "merged": parts, "erased": erased})
        return
    terminal.say(f"{name} is deleted, with its former versions{others}.")
    if not erased:
        terminal.note("Traces of it may still be in the bank's files: others had them open.")


async def import_(
    settings: CommandSettings,
    kind: Annotated[str, typer.Argument(metavar="FORMAT", help="mem0, letta or claude-mem.")],
    path: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="The memories; mem0 and claude-mem have a place."),
    ] = None,
    *,
    agent: Annotated[
        str | None,
        typer.Option("--agent", metavar="AGENT", help="Who gets them; else mem0@alice and so on."),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="NAME", help="Those of this user, agent or project."),
    ] = None,
) -> None:
    """Bring in the memories of another memory system.

    Importing again adds what is new, and changes what was changed there; what a person has changed
    here stays. The bank is made if it is not there.
    """
    from msgspec import to_builtins

    from perdure.bank import Bank
    from perdure.importers.memory_files import import_memories

    async with Bank(config=settings.load()) as bank:
        found = await import_memories(bank, kind, path, agent=agent, only=only)
        await bank.index.embeddings.settle_own()
    if settings.json:
        terminal.emit(to_builtins(found))
        return
    whose = f" of {', '.join(found.agents)}" if found.agents else ""
    counts = [
        f"{count:,} {what}"
        for count, what in (
            (found.added, "added"),
            (found.changed, "changed"),
            (found.known, "known already"),
            (found.kept, "left as they are here"),
        )
        if count
    ]
    terminal.say(f"Memories{whose}: {', '.join(counts) or 'none'}.")
    if found.skipped:
        ranked = sorted(found.skipped.items(), key=lambda item: -item[1])
        left_out = ", ".join(f"{count:,} {reason}" for reason, count in ranked)
        terminal.note(f"Left out: {left_out}.")


async def audit(
    settings: CommandSettings,
    agent: Annotated[
        str | None, typer.Argument(metavar="AGENT", help="Whose memories; all if left out.")
    ] = None,
    *,
    propose: Annotated[
        bool, typer.Option("--propose", help="Leave what would mend them in the inbox.")
    ] = False,
) -> None:
    """Look for what is wrong with memories; keep the score, to compare it over time."""
    from msgspec import to_builtins

    from perdure.reflection.memory_audit import MemoryAudit

    async with existing_bank(settings) as bank:
        if agent is not None:
            await require_agent(bank, agent)
        auditor = MemoryAudit(bank.services)
        names = await auditor.agents() if agent is None else [agent]
        reports = [await auditor.run(name) for name in names]
        posted = [await auditor.propose(report) if propose else [] for report in reports]
    if settings.json:
        found = [
            {**to_builtins(report), "proposed": [each.name for each in messages]}
            for report, messages in zip(reports, posted, strict=True)
        ]
        terminal.emit({"agents": found} if agent is None else found[0])
        return
    if not reports:
        terminal.say("There are no memories yet.")
    for report, messages in zip(reports, posted, strict=True):
        _tell_audit(report, len(messages))


def _tell_audit(report: MemoryAuditReport, proposed: int) -> None:
    rows = [(each.kind, ", ".join(each.keys), each.what) for each in report.findings]
    if rows:
        terminal.table(("What", "Memory", "Why"), rows)
    else:
        terminal.say(f"Nothing is wrong with the memories of {report.agent}.")
    latest, before = report.latest, report.scores[-2:-1]
    than = f" (it was {before[0].score})" if before else ""
    terminal.note(
        f"Score of {report.agent}: {latest.score} of 100{than}; {latest.memories:,} memories,"
        f" topics cover {latest.coverage:.0%}."
    )
    if proposed:
        count = terminal.plural(proposed, "proposal")
        terminal.note(f"In the inbox: {count}. `perdure inbox` lists them.")
