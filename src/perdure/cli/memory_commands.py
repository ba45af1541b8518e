"""``perdure memory``: list and correct what an agent has learnt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import readable, terminal
from perdure.cli.bank_access import changed_bank, existing_bank
from perdure.cli.command_options import CommandSettings, common_options
from perdure.cli.memory_display import (
    author_in_words,
    existing_memory,
    first_words,
    memory_facts,
    memory_json,
    memory_table,
    memory_versions,
    person_here,
    tell_change,
)
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.recall.memories.memories import Memories
    from perdure.recall.memory_records import Author, Memory

app = typer.Typer(
    help="Look at memories, what an agent has learnt, and correct them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
#: Memories that are listed, unless more are asked for.
_LISTED = 50

WeightOption = Annotated[
    float | None, typer.Option("--weight", min=0, max=1, help="How much it matters, from 0 to 1.")
]
KeyArgument = Annotated[str, typer.Argument(metavar="MEMORY", help="Its key: planner/M-7.")]
_KINDS = "lesson, preference, pattern, decision, fact, topic"
_KIND = typer.Option("--kind", help=f"One of {_KINDS}.")


@app.command()
@common_options()
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


@app.command("list")
@common_options()
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
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="Show at most so many; 0 shows all.")
    ] = _LISTED,
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


@app.command()
@common_options()
async def show(settings: CommandSettings, key: KeyArgument) -> None:
    """Show all that is known about a memory."""
    async with existing_bank(settings) as bank:
        memory = await existing_memory(bank, key)
        rivals = await bank.memories.rivals([memory]) if memory.is_active else {}
    if settings.json:
        terminal.emit(memory_json(memory))
        return
    from perdure.recall.memories.contradictions import said

    for line in terminal.lines(said(memory, rivals.values())):
        terminal.say(line)
    terminal.table(("", ""), memory_facts(memory))


@app.command()
@common_options()
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

    def words(before: Memory, after: Memory) -> str:
        done = f"{after.name} is at version {after.version} now."
        same = f"{after.name} says that already, and is as it was: at version {after.version}."
        return same if after.version == before.version else done

    async def change(memories: Memories, by: Author) -> Memory:
        return await memories.edit(
            key,
            text=text,
            kind=kind,
            weight=weight,
            tags=None if tag is None else [each for each in tag if each],
            shared=None if share is None else [each for each in share if each],
            expected=expected,
            by=by,
        )

    await _change(settings, key, change, words, compares=True)


@app.command()
@common_options()
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


@app.command()
@common_options()
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
        said = f"{made.name} stands for {others} as well, and says: {first_words(made.text)}"
        tell_change(settings, made, said)
        if not settings.json:
            terminal.note(f"{others}: not recalled any more. `perdure memory restore` undoes that.")


@app.command()
@common_options()
async def pin(settings: CommandSettings, key: KeyArgument) -> None:
    """Let a memory come first, and lead where another contradicts it."""

    def words(before: Memory, after: Memory) -> str:
        is_new = f"{after.name} is pinned: it comes first."
        return f"{after.name} was pinned already." if before.pinned else is_new

    await _change(settings, key, lambda memories, by: memories.pin(key, by=by), words)


@app.command()
@common_options()
async def unpin(settings: CommandSettings, key: KeyArgument) -> None:
    """Let a memory come in its turn."""

    def words(before: Memory, after: Memory) -> str:
        is_new = f"{after.name} is not pinned any more."
        return is_new if before.pinned else f"{after.name} was not pinned."

    await _change(settings, key, lambda memories, by: memories.unpin(key, by=by), words)


@app.command()
@common_options()
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

    def change(memories: Memories, by: Author) -> Awaitable[Memory]:
        return memories.retire(key, superseded_by=superseded_by, by=by)

    def words(before: Memory, after: Memory) -> str:
        status = f"superseded by {superseded_by}" if superseded_by else after.status
        unpinned = ", not pinned any more," if before.pinned else ""
        is_new = f"{after.name} is {status}: it is kept{unpinned} and not recalled."
        known = f"{after.name} was {status} already."
        return known if after.version == before.version else is_new

    await _change(settings, key, change, words)


@app.command()
@common_options()
async def restore(settings: CommandSettings, key: KeyArgument) -> None:
    """Bring back a memory that was retired, merged or superseded."""

    def words(before: Memory, after: Memory) -> str:
        is_new = f"{after.name} was {before.status}, and is active again."
        return f"{after.name} was active all the time." if before.is_active else is_new

    await _change(
        settings, key, lambda memories, by: memories.restore(key, by=by), words, compares=True
    )


@app.command()
@common_options()
async def delete(
    settings: CommandSettings,
    key: KeyArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a memory for good.

    Its former versions go with it, and what was merged into it.
    """
    if settings.json and not yes:
        raise InvalidInput("With --json nobody is asked.", hint="Add --yes to delete it.")

    async with existing_bank(settings) as bank:
        name = (memory := await existing_memory(bank, key)).name
        parts = [part.name for part in await bank.memories.merged_into(key)]
        if not yes and not _agreed(memory, parts):
            terminal.note("Nothing was deleted.")
            raise typer.Exit(1)
        erased = await bank.memories.delete(key, by=person_here(bank))
    if settings.json:
        terminal.emit({"memory": name, "deleted": True, "merged": parts, "erased": erased})
        return
    terminal.say(f"{name} is deleted, with its former versions{_and(parts)}.")
    if not erased:
        terminal.note("Traces of it may still be in the bank's files: others had them open.")


async def _change(
    settings: CommandSettings,
    key: str,
    change: Callable[[Memories, Author], Awaitable[Memory]],
    words: Callable[[Memory, Memory], str],
    *,
    compares: bool = False,
) -> None:
    """Change a memory as the user and report it; with `compares`, also memories that say the
    same.
    """
    async with changed_bank(settings) as bank:
        before = await existing_memory(bank, key)
        after = await change(bank.memories, person_here(bank))
        doubles = await bank.memories.doubles(after) if compares else []
        tell_change(settings, after, words(before, after), doubles)


def _agreed(memory: Memory, parts: list[str]) -> bool:
    terminal.note(f"{memory.name}: {first_words(memory.text)}")
    terminal.note(f"This deletes it for good, with its former versions{_and(parts)}.")
    try:
        return typer.confirm("Delete it?", err=True)
    except typer.Abort:  # nobody is there to answer
        return False


def _and(parts: list[str]) -> str:
    return f" and what was merged into it: {', '.join(parts)}" if parts else ""
