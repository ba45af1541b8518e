"""The messages that runs leave for the administrator. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from perdure.core.display import one_line, plural
from perdure.gateway.prices import dollars
from perdure.recall.memory_records import MAX_TAG, MAX_TAGS, MemoryQuote, checked_tags
from perdure.recall.references.layers import FEW, MANY
from perdure.reflection.inbox import InboxMessage, MessageKind
from perdure.reflection.operation_checks import CheckedOperation, MemoryOperation
from perdure.reflection.operation_plan import OperationPlan, Proposal
from perdure.reflection.reflection_records import ReflectionRun, RunPreview
from perdure.reflection.run_questions import RunQuestions
from perdure.reflection.word_sets import word_set

_TITLE = 100
#: Words of a title that are tags, where there are no others.
_TITLE_WORDS = 3
_word = re.compile(r"[^a-z0-9]+").sub
_words = re.compile(r"[^\W_]+").findall


def message(run: ReflectionRun, kind: MessageKind, title: str, text: str = "") -> InboxMessage:
    return InboxMessage(
        id="", agent=run.agent, kind=kind, title=one_line(title, _TITLE), text=text, run=run.name
    )


def too_much(built: RunQuestions) -> str:
    """Why a run does not begin."""
    wanted, left = built.estimate, built.left
    if left.cost is not None and wanted.cost is None:
        return "The price of the model is unknown, so a budget of dollars cannot be kept."
    needs, has = f"{wanted.tokens:,} tokens", f"{left.tokens or 0:,}"
    if left.tokens is None or wanted.tokens <= left.tokens:
        needs, has = dollars(wanted.cost or 0), dollars(left.cost or 0)
    return f"It may take {needs}, and {has} of today's budget for reflection are left."


def told_waiting(run: ReflectionRun | RunPreview) -> str:
    """What a run leaves to the next one."""
    turns, sessions = plural(run.waiting_turns, "turn"), plural(run.waiting_sessions, "session")
    return f"{turns} of {sessions} wait for the next run: this one holds no more."


def proposal_message(run: ReflectionRun, proposal: Proposal) -> InboxMessage:
    """A change of what a person wrote or pinned, or what is only proposed."""
    asked, names = proposal.asked, proposal.names
    verb = {
        "add": f"Add a {asked.kind}:",
        "update": "Change",
        "merge": "Merge",
        "retire": "Retire",
    }.get(asked.op, asked.op)
    lines = [f"{memory.name}: {memory.text}" for memory in proposal.memories]
    if asked.text:
        lines.append(f"New: {asked.text}")
    if asked.reason:
        lines.append(f"Because: {asked.reason}")
    if proposal.is_late:
        lines.append("It changed after the model had read it.")
    return InboxMessage(
        id="",
        agent=run.agent,
        kind="proposal",
        title=one_line(f"{verb} {', '.join(names) or asked.text}", _TITLE),
        text="\n".join((*lines, *_cited(proposal.quotes))),
        operation=asked,
        keys=names,
        versions=tuple(memory.version for memory in proposal.memories),
        quotes=proposal.quotes,
        run=run.name,
    )


def draft_message(
    run: ReflectionRun,
    checked: CheckedOperation,
    plan: OperationPlan,
    count_tokens: Callable[[str], int],
) -> InboxMessage:
    """A note to the administrator, a contradiction, or the draft of a reference layer."""
    asked = checked.asked
    if asked.op == "layer":
        return _layer_message(run, checked, plan, count_tokens)
    named = [key for key in asked.keys if key.upper().startswith("M-")]
    about = [memory for key in named if (memory := plan.by_key(key)) is not None]
    is_contradiction = len(about) > 1
    return InboxMessage(
        id="",
        agent=run.agent,
        kind="contradiction" if is_contradiction else "note",
        title=one_line(asked.text, _TITLE),
        text="\n".join((asked.text, *_cited(checked.quotes))),
        keys=tuple(memory.key for memory in about),
        versions=tuple(memory.version for memory in about),
        quotes=checked.quotes,
        run=run.name,
    )


def _layer_message(
    run: ReflectionRun,
    checked: CheckedOperation,
    plan: OperationPlan,
    count_tokens: Callable[[str], int],
) -> InboxMessage:
    asked = checked.asked
    title = asked.title or one_line(asked.text, 60)
    asked = replace(asked, title=title, tags=_layer_tags(title, asked.tags, plan))
    draft = layer_draft(asked, checked.quotes)
    tokens = count_tokens(draft)
    if FEW <= tokens <= MANY:
        return InboxMessage(
            id="",
            agent=run.agent,
            kind="layer",
            title=one_line(f"A reference layer: {title}", _TITLE),
            text=draft,
            operation=MemoryOperation(
                op="layer", keys=(_layer_name(title),), title=title, tags=asked.tags
            ),
            quotes=checked.quotes,
            run=run.name,
        )
    # Too short or too long to be loaded as it is: what should be collected is said all the same.
    return InboxMessage(
        id="",
        agent=run.agent,
        kind="note",
        title=one_line(f"A reference layer is recommended: {title}", _TITLE),
        text="\n".join(
            (
                f"{one_line(asked.text, 600)}",
                f"Its draft has {plural(tokens, 'token')}; a layer has {FEW} to {MANY:,}.",
                *_cited(checked.quotes),
            )
        ),
        quotes=checked.quotes,
        run=run.name,
    )


def _layer_tags(title: str, tags: Sequence[str], plan: OperationPlan) -> tuple[str, ...]:
    """By what a layer is loaded: its tags, else the topics that its title speaks of, else the
    title's longest words.
    """
    if tags:
        return checked_tags(tags[:MAX_TAGS])
    here = word_set(title)
    topics = [m.text for m in plan.memories() if m.kind == "topic" and m.is_active]
    spoken = [topic for topic in topics if (words := word_set(topic)) and words <= here]
    longest = sorted((w for w in _words(title) if word_set(w)), key=lambda w: (-len(w), w))
    found = [tag for tag in spoken or longest[:_TITLE_WORDS] if len(tag) <= MAX_TAG]
    return checked_tags(found[:MAX_TAGS])


def _layer_name(title: str) -> str:
    """Of Latin letters; a title that has none is told from others by its hash."""
    hashed = hashlib.blake2b(title.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return _word("-", title.lower()).strip("-")[:60] or f"layer-{hashed}"


def layer_draft(asked: MemoryOperation, quotes: Sequence[MemoryQuote]) -> str:
    """The Markdown of a recommended layer, with front matter and sources."""
    import yaml

    front = yaml.safe_dump(
        {"name": _layer_name(asked.title), "title": asked.title, "tags": list(asked.tags)},
        sort_keys=False,
        allow_unicode=True,
    )
    sources = "\n".join(f"- {quote.turn}: “{one_line(quote.text, 200)}”" for quote in quotes)
    return f"---\n{front}---\n{asked.text.strip()}\n\n## Sources\n\n{sources}\n"


def _cited(quotes: Sequence[MemoryQuote]) -> list[str]:
    return [f"{quote.turn}: “{quote.text}”" for quote in quotes]
