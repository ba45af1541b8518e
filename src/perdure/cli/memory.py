"""``perdure memory``: look at what an agent has learnt, and correct it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import memory_use, memory_words, moments, terminal
from perdure.cli.memory_use import Changed, KeyArgument
from perdure.cli.opened import change_bank, with_bank
from perdure.cli.options import Settings, common_options
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.bank import Bank
    from perdure.recall.memories.memory_records import FormerMemory, Memory

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
_KINDS = "lesson, preference, pattern, decision, fact, topic"
_KIND = typer.Option("--kind", help=f"One of {_KINDS}.")


@app.command()
@common_options()
def add(
    settings: Settings,
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

    async def work(bank: Bank) -> Memory:
        return await bank.memories.add(
            agent,
            text,
            kind=kind,
            weight=weight,
            tags=tag or (),
            provenance=source or (),
            shared=share or (),
            pinned=pin,
            by=memory_words.person_here(bank),
        )

    def tell(made: Memory) -> None:
        known = f"{made.name} ({made.kind}) says so already: it was seen {made.seen:,} times."
        memory_words.tell(settings, made, known if made.seen > 1 else f"Remembered as {made.name}.")

    change_bank(settings, work, tell)


@app.command("list")
@common_options()
def list_(
    settings: Settings,
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

    async def work(bank: Bank) -> list[Memory]:
        return await bank.memories.list(
            agent,
            kind=kind,
            tag=tag,
            status=None if status == "any" else status,
            weight=weight,
            words=words,
        )

    found = with_bank(settings, work)
    shown = found[: limit or None]
    if settings.json:
        terminal.emit(
            {"count": len(found), "memories": [memory_words.plain(memory) for memory in shown]}
        )
        return
    memory_words.table(shown)
    left = len(found) - len(shown)
    more = f" {left:,} are not shown: add --limit 0." if left else ""
    word = "memory" if len(found) == 1 else "memories"
    terminal.note(f"{len(found):,} {word}.{more}")


@app.command()
@common_options()
def show(settings: Settings, key: KeyArgument) -> None:
    """Show all that is known about a memory."""

    async def work(bank: Bank) -> tuple[Memory, dict[str, Memory]]:
        memory = await memory_words.found(bank, key)
        return memory, await bank.memories.rivals([memory]) if memory.is_active else {}

    memory, rivals = with_bank(settings, work)
    if settings.json:
        terminal.emit(memory_words.plain(memory))
        return
    from perdure.recall.memories.contradictions import said

    for line in terminal.lines(said(memory, rivals.values())):
        terminal.say(line)
    terminal.table(("", ""), memory_words.facts(memory))


@app.command()
@common_options()
def edit(
    settings: Settings,
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

    async def work(bank: Bank) -> Changed:
        before = await memory_words.found(bank, key)
        after = await bank.memories.edit(
            key,
            text=text,
            kind=kind,
            weight=weight,
            tags=None if tag is None else [each for each in tag if each],
            shared=None if share is None else [each for each in share if each],
            expected=expected,
            by=memory_words.person_here(bank),
        )
        return Changed(before, after, await bank.memories.doubles(after))

    def tell(changed: Changed) -> None:
        before, after, doubles = changed
        done = f"{after.name} is at version {after.version} now."
        same = f"{after.name} says that already, and is as it was: at version {after.version}."
        words = same if after.version == before.version else done
        memory_words.tell(settings, after, words, doubles)

    change_bank(settings, work, tell)


@app.command()
@common_options()
def history(settings: Settings, key: KeyArgument) -> None:
    """Show the versions of a memory: who made each, when, and what was new."""

    async def work(bank: Bank) -> tuple[Memory, list[FormerMemory]]:
        return await memory_words.found(bank, key), await bank.memories.history(key)

    memory, former = with_bank(settings, work)
    versions = memory_words.versions(memory, former)
    if settings.json:
        found = [
            {**memory_words.plain(each.memory), "at": each.at.isoformat(), "new": each.new}
            for each in versions
        ]
        terminal.emit({"memory": memory.name, "versions": found})
        return
    rows = [
        (
            str(each.memory.version),
            moments.absolute(each.at),
            memory_words.who(each.memory.author),
            ", ".join(each.new),
            " ".join(each.memory.text.split()),
        )
        for each in versions
    ]
    terminal.table(("Version", "When", "By", "New", "Text"), rows)


for _command in (
    *(memory_use.merge, memory_use.pin, memory_use.unpin),
    *(memory_use.retire, memory_use.restore, memory_use.delete),
):
    app.command()(_command)
