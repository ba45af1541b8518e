"""``perdure memory merge``, ``pin``, ``retire`` and so on: whether, and how, one is recalled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import typer

from perdure.cli import memory_words, terminal
from perdure.cli.memory_words import in_words
from perdure.cli.opened import change_bank, with_bank
from perdure.cli.options import Settings, common_options
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.bank import Bank
    from perdure.recall.memories.memory_records import Author, Memory

KeyArgument = Annotated[str, typer.Argument(metavar="MEMORY", help="Its key: planner/M-7.")]
#: Changes a memory on behalf of somebody.
Change: TypeAlias = "Callable[[Bank, Author], Awaitable[Memory]]"


class Changed(NamedTuple):
    """A memory before and after somebody changed it; and what says the same then."""

    before: Memory
    after: Memory
    doubles: list[Memory]


@common_options()
def merge(
    settings: Settings,
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

    async def work(bank: Bank) -> Memory:
        return await bank.memories.merge(keys, text=text, by=memory_words.person_here(bank))

    def tell(made: Memory) -> None:
        others = ", ".join(key for key in dict.fromkeys(keys) if key != made.name)
        said = f"{made.name} stands for {others} as well, and says: {in_words(made.text)}"
        memory_words.tell(settings, made, said)
        if not settings.json:
            terminal.note(f"{others}: not recalled any more. `perdure memory restore` undoes that.")

    change_bank(settings, work, tell)


@common_options()
def pin(settings: Settings, key: KeyArgument) -> None:
    """Let a memory come first, and lead where another contradicts it."""

    def words(before: Memory, after: Memory) -> str:
        is_new = f"{after.name} is pinned: it comes first."
        return f"{after.name} was pinned already." if before.pinned else is_new

    _change(settings, key, lambda bank, by: bank.memories.pin(key, by=by), words)


@common_options()
def unpin(settings: Settings, key: KeyArgument) -> None:
    """Let a memory come in its turn."""

    def words(before: Memory, after: Memory) -> str:
        is_new = f"{after.name} is not pinned any more."
        return is_new if before.pinned else f"{after.name} was not pinned."

    _change(settings, key, lambda bank, by: bank.memories.unpin(key, by=by), words)


@common_options()
def retire(
    settings: Settings,
    key: KeyArgument,
    *,
    superseded_by: Annotated[
        str | None,
        typer.Option("--superseded-by", metavar="MEMORY", help="Because this one is better."),
    ] = None,
) -> None:
    """Keep a memory, but recall it no more. It loses its pin."""

    async def change(bank: Bank, by: Author) -> Memory:
        return await bank.memories.retire(key, superseded_by=superseded_by, by=by)

    def words(before: Memory, after: Memory) -> str:
        status = f"superseded by {superseded_by}" if superseded_by else after.status
        unpinned = ", not pinned any more," if before.pinned else ""
        is_new = f"{after.name} is {status}: it is kept{unpinned} and not recalled."
        known = f"{after.name} was {status} already."
        return known if after.version == before.version else is_new

    _change(settings, key, change, words)


@common_options()
def restore(settings: Settings, key: KeyArgument) -> None:
    """Bring back a memory that was retired, merged or superseded."""

    def words(before: Memory, after: Memory) -> str:
        is_new = f"{after.name} was {before.status}, and is active again."
        return f"{after.name} was active all the time." if before.is_active else is_new

    _change(settings, key, lambda bank, by: bank.memories.restore(key, by=by), words, compares=True)


@common_options()
def delete(
    settings: Settings,
    key: KeyArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a memory for good.

    Its former versions go with it, and what was merged into it.
    """
    if settings.json and not yes:
        raise InvalidInput("With --json nobody is asked.", hint="Add --yes to delete it.")

    async def work(bank: Bank) -> tuple[str, list[str], bool] | None:
        memory = await memory_words.found(bank, key)
        parts = [part.name for part in await bank.memories.merged_into(key)]
        if not yes and not _agreed(memory, parts):
            return None
        erased = await bank.memories.delete(key, by=memory_words.person_here(bank))
        return memory.name, parts, erased

    done = with_bank(settings, work)
    if done is None:
        terminal.note("Nothing was deleted.")
        raise typer.Exit(1)
    name, parts, erased = done
    if settings.json:
        terminal.emit({"memory": name, "deleted": True, "merged": parts, "erased": erased})
        return
    terminal.say(f"{name} is deleted, with its former versions{_and(parts)}.")
    if not erased:
        terminal.note("Traces of it may still be in the bank's files: others had them open.")


def _change(
    settings: Settings,
    key: str,
    change: Change,
    words: Callable[[Memory, Memory], str],
    *,
    compares: bool = False,
) -> None:
    """Let whoever is here change a memory, and say what happened to it in these words.

    And, if it `compares`, what says the same then.
    """

    async def work(bank: Bank) -> Changed:
        before = await memory_words.found(bank, key)
        after = await change(bank, memory_words.person_here(bank))
        return Changed(before, after, await bank.memories.doubles(after) if compares else [])

    def tell(done: Changed) -> None:
        memory_words.tell(settings, done.after, words(done.before, done.after), done.doubles)

    change_bank(settings, work, tell)


def _agreed(memory: Memory, parts: list[str]) -> bool:
    terminal.note(f"{memory.name}: {in_words(memory.text)}")
    terminal.note(f"This deletes it for good, with its former versions{_and(parts)}.")
    try:
        return typer.confirm("Delete it?", err=True)
    except typer.Abort:  # nobody is there to answer
        return False


def _and(parts: list[str]) -> str:
    return f" and what was merged into it: {', '.join(parts)}" if parts else ""
