"""``perdure memory``: look at what an agent has learnt, and correct it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import memory_words, terminal
from perdure.cli.opened import with_bank
from perdure.cli.options import (
    BankOption,
    ConfigOption,
    DebugOption,
    JsonOption,
    refine,
)
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.bank import Bank
    from perdure.recall.memories.records import FormerMemory, Memory

app = typer.Typer(
    help="Look at memories, what an agent has learnt, and correct them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
#: Memories that are listed, unless more are asked for.
_LISTED = 50

KeyArgument = Annotated[str, typer.Argument(metavar="MEMORY", help="Its key: planner/M-7.")]
AgentArgument = Annotated[str, typer.Argument(metavar="AGENT", help="Whose memory it is.")]
TagOption = Annotated[
    list[str] | None, typer.Option("--tag", metavar="TAG", help="A tag. Repeatable.")
]
SharedOption = Annotated[
    list[str] | None,
    typer.Option("--share", metavar="AGENT", help="Who sees it, too; '*': all. Repeatable."),
]
WeightOption = Annotated[
    float | None, typer.Option("--weight", min=0, max=1, help="How much it matters, from 0 to 1.")
]
_KINDS = "lesson, preference, pattern, decision, fact, topic"


@app.command()
def add(
    ctx: typer.Context,
    agent: AgentArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What is to be remembered.")],
    *,
    kind: Annotated[str, typer.Option("--kind", help=f"One of {_KINDS}.")] = "fact",
    weight: WeightOption = None,
    tag: TagOption = None,
    source: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="TURN", help="planner/auth#T-12: where from. Repeatable."),
    ] = None,
    share: SharedOption = None,
    pin: Annotated[bool, typer.Option("--pin", help="Let it come first.")] = False,
    bank: BankOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Remember something.

    What an older memory says already is not kept twice: that one was seen once more.
    """
    settings = refine(ctx, bank=bank, config=config, json=json, debug=debug)

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

    made = with_bank(settings, work)
    again = f" It was seen {made.seen:,} times." if made.seen > 1 else ""
    memory_words.tell(settings, made, f"Remembered as {made.name}.{again}")


@app.command("list")
def list_(
    ctx: typer.Context,
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
    bank: BankOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show memories, pinned ones first, then by weight."""
    settings = refine(ctx, bank=bank, config=config, json=json, debug=debug)

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
def show(
    ctx: typer.Context,
    key: KeyArgument,
    *,
    bank: BankOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show all that is known about a memory."""
    settings = refine(ctx, bank=bank, config=config, json=json, debug=debug)

    async def work(bank: Bank) -> tuple[Memory, dict[str, Memory]]:
        memory = await _found(bank, key)
        return memory, await bank.memories.rivals([memory])

    memory, rivals = with_bank(settings, work)
    if settings.json:
        terminal.emit(memory_words.plain(memory))
        return
    from perdure.recall.memories.wording import said

    for line in terminal.lines(said(memory, rivals.values())):
        terminal.say(line)
    terminal.table(("", ""), memory_words.facts(memory))


@app.command()
def edit(
    ctx: typer.Context,
    key: KeyArgument,
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="What it is to say; as it is, if left out.")
    ] = None,
    *,
    kind: Annotated[str | None, typer.Option("--kind", help=f"One of {_KINDS}.")] = None,
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
    bank: BankOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Change a memory, and keep its former version.

    No machine changes it from then on.
    """
    settings = refine(ctx, bank=bank, config=config, json=json, debug=debug)

    async def work(bank: Bank) -> Memory:
        return await bank.memories.edit(
            key,
            text=text,
            kind=kind,
            weight=weight,
            tags=None if tag is None else [each for each in tag if each],
            shared=None if share is None else [each for each in share if each],
            expected=expected,
            by=memory_words.person_here(bank),
        )

    changed = with_bank(settings, work)
    memory_words.tell(settings, changed, f"{changed.name} is at version {changed.version} now.")


@app.command()
def merge(
    ctx: typer.Context,
    keys: Annotated[
        list[str], typer.Argument(metavar="MEMORY…", help="Keys of one agent: the first stays.")
    ],
    *,
    text: Annotated[
        str | None, typer.Option("--text", help="What it is to say; as the first, if left out.")
    ] = None,
    bank: BankOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Make several memories one.

    The others are kept as merged into it, and can be restored.
    """
    settings = refine(ctx, bank=bank, config=config, json=json, debug=debug)

    async def work(bank: Bank) -> Memory:
        return await bank.memories.merge(keys, text=text, by=memory_words.person_here(bank))

    made = with_bank(settings, work)
    memory_words.tell(settings, made, f"{made.name} stands for {len(set(keys)):,} memories now.")


@app.command()
def pin(
    ctx: typer.Context,
    key: KeyArgument,
    *,
    bank: BankOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Let a memory come first, and lead where another contradicts it."""
    settings = refine(ctx, bank=bank, config=config, json=json, debug=debug)
    done = with_bank(
        settings, lambda bank: bank.memories.pin(key, by=memory_words.person_here(bank))
    )
    memory_words.tell(settings, done, f"{done.name} is pinned.")


@app.command()
def unpin(
    ctx: typer.Context,
    key: KeyArgument,
    *,
    bank: BankOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Let a memory come in its turn."""
    settings = refine(ctx, bank=bank, config=config, json=json, debug=debug)
    done = with_bank(
        settings, lambda bank: bank.memories.unpin(key, by=memory_words.person_here(bank))
    )
    memory_words.tell(settings, done, f"{done.name} is not pinned.")


@app.command()
def retire(
    ctx: typer.Context,
    key: KeyArgument,
    *,
    superseded_by: Annotated[
        str | None,
        typer.Option("--superseded-by", metavar="MEMORY", help="Because this one is better."),
    ] = None,
    bank: BankOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Keep a memory, but recall it no more."""
    settings = refine(ctx, bank=bank, config=config, json=json, debug=debug)

    async def work(bank: Bank) -> Memory:
        return await bank.memories.retire(
            key, superseded_by=superseded_by, by=memory_words.person_here(bank)
        )

    done = with_bank(settings, work)
    memory_words.tell(settings, done, f"{done.name} is {done.status}, and not recalled any more.")


@app.command()
def restore(
    ctx: typer.Context,
    key: KeyArgument,
    *,
    bank: BankOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Bring back a memory that was retired, merged or superseded."""
    settings = refine(ctx, bank=bank, config=config, json=json, debug=debug)
    done = with_bank(
        settings, lambda bank: bank.memories.restore(key, by=memory_words.person_here(bank))
    )
    memory_words.tell(settings, done, f"{done.name} is active again.")


@app.command()
def delete(
    ctx: typer.Context,
    key: KeyArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bank: BankOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Delete a memory for good.

    Its former versions go with it, and what was merged into it.
    """
    settings = refine(ctx, bank=bank, config=config, json=json, debug=debug)
    if settings.json and not yes:
        raise InvalidInput("With --json nobody is asked.", hint="Add --yes to delete it.")
    if not yes and not _agreed(key):
        terminal.note("Nothing was deleted.")
        raise typer.Exit(1)
    erased = with_bank(
        settings, lambda bank: bank.memories.delete(key, by=memory_words.person_here(bank))
    )
    if settings.json:
        terminal.emit({"memory": key, "deleted": True, "erased": erased})
        return
    terminal.say(f"{key} is deleted.")
    if not erased:
        terminal.note("Traces of it may still be in the bank's files: others had them open.")


@app.command()
def history(
    ctx: typer.Context,
    key: KeyArgument,
    *,
    bank: BankOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show the versions of a memory, oldest first, and who made each."""
    settings = refine(ctx, bank=bank, config=config, json=json, debug=debug)

    async def work(bank: Bank) -> tuple[Memory, list[FormerMemory]]:
        return await _found(bank, key), await bank.memories.history(key)

    memory, former = with_bank(settings, work)
    versions = [*(each.memory for each in former), memory]
    if settings.json:
        terminal.emit(
            {"memory": memory.name, "versions": [memory_words.plain(each) for each in versions]}
        )
        return
    memory_words.versions(versions)


async def _found(bank: Bank, key: str) -> Memory:
    memory = await bank.memories.get(key)
    if memory is None:
        raise InvalidInput(f"There is no memory {key}.", hint="`perdure memory list` has all.")
    return memory


def _agreed(key: str) -> bool:
    terminal.note(f"This deletes {key} for good, with its former versions.")
    try:
        return typer.confirm("Delete it?", err=True)
    except typer.Abort:  # nobody is there to answer
        return False
