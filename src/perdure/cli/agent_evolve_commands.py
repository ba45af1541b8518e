"""``perdure agent evolve`` and ``rate``: tests of variants, promotions, and the words of people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import readable, terminal
from perdure.cli.agent_stats_commands import AgentArgument
from perdure.cli.bank_access import existing_bank
from perdure.cli.command_options import CommandSettings
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.bank import Bank
    from perdure.learning.evolution import AgentEvolution
    from perdure.learning.experiment_records import EvolutionStep, Experiment, StrategyChanges
    from perdure.learning.learned_selector import TaskChoice

_SHOWN_STEPS = 10
_REASONS = {
    "promoted": "won a test",
    "learned": "worth most",
    "configured": "as configured",
    "table": "by the table",
    "seed": "by the seed's formula",
}


async def show(settings: CommandSettings, agent: AgentArgument) -> None:
    """Show how an agent works, which models it asks and why, and its tests.

    A test compares a variant (another model, prompt, budget, recall) with how the agent works now,
    by session. The bounds of the difference hold however often you look.
    """
    from perdure.agents.agent_stats import require_known_agent

    async with existing_bank(settings) as bank:
        found = await bank.learning.show(agent)
        if found.is_empty:
            await require_known_agent(bank.services, agent)
    if settings.json:
        terminal.emit(found)
    else:
        _show(found)


async def accept(settings: CommandSettings, agent: AgentArgument) -> None:
    """Use the variant that won its test."""
    async with existing_bank(settings) as bank:
        step = await bank.learning.evolution.accept(agent)
    _tell(settings, step, f"{agent} now works with {_words(step.after)}.")


async def revert(settings: CommandSettings, agent: AgentArgument) -> None:
    """Take back the last promotion of a variant."""
    async with existing_bank(settings) as bank:
        step = await bank.learning.evolution.revert(agent)
    _tell(settings, step, f"{agent} works with {_words(step.after)} again.")


async def dismiss(settings: CommandSettings, agent: AgentArgument) -> None:
    """Stop an agent's test, or turn down the variant that won it."""
    async with existing_bank(settings) as bank:
        step = await bank.learning.evolution.dismiss(agent)
    _tell(settings, step, f"{agent} goes on with {_words(step.after)}.")


async def rate(
    settings: CommandSettings,
    outcome: Annotated[
        str,
        typer.Argument(
            metavar="OUTCOME", help="The outcome of a reply, or a message: router/00000012."
        ),
    ],
    score: Annotated[float, typer.Argument(metavar="SCORE", help="From 0 to 1.")],
    comment: Annotated[str, typer.Argument(metavar="[COMMENT]", help="Why.")] = "",
) -> None:
    """Rate a model's answer: what people say counts more than what a judge does.

    The agent learns from it which model to ask.
    """
    async with existing_bank(settings) as bank:
        if "/" in outcome:
            await _rate_message(bank, outcome, score, comment)
        else:
            await bank.gateway.feedback(outcome, score, comment)
        await bank.gateway.settle()
    if settings.json:
        terminal.emit({"outcome": outcome, "score": score, "comment": comment})
    else:
        terminal.say(f"Rated {score:g}.")


async def _rate_message(bank: Bank, id: str, score: float, comment: str) -> None:
    from perdure.agents.agent import AgentReply

    message = await bank.agents.mailboxes.get(id)
    if message.state != "done":
        raise InvalidInput(
            f"The message {id} is {message.state}: it has no reply to be rated.",
            hint="Rate it when it is done.",
        )
    await AgentReply(bank.agents, message).feedback(score, comment)


def _tell(settings: CommandSettings, step: EvolutionStep, words: str) -> None:
    if settings.json:
        terminal.emit(step)
    else:
        terminal.prose(words)


def _show(found: AgentEvolution) -> None:
    terminal.prose(f"{found.agent} works with {_words(found.strategy)}.")
    if found.choices:
        _show_choices(found.choices)
    if found.experiment is not None:
        _show_experiment(found.agent, found.experiment)
    if found.steps:
        terminal.say()
        rows = [
            (
                readable.absolute_time(step.at),
                step.kind,
                step.reason,
                "" if step.kind == "started" else _bounds(step),
                step.by,
            )
            for step in found.steps[:_SHOWN_STEPS]
        ]
        terminal.listing(("When", "What", "Why", "Evidence", "By"), rows)


def _show_choices(choices: list[TaskChoice]) -> None:
    terminal.say()
    rows = [
        (
            choice.task if place == 0 else "",
            each.model,
            _REASONS[choice.by] if place == 0 else "",
            f"{each.utility:.2f}",
            f"{min(max(each.quality, 0.0), 1.0):.2f} ±{each.uncertainty:.2f}",
            f"{each.success:.0%}",
            f"${each.dollars:.4f}",
            f"{each.seconds:.1f} s",
        )
        for choice in choices
        for place, each in enumerate(choice.models)
    ]
    header = ("Task", "Asked in this order", "Why", "Worth", "Quality", "Success", "Cost", "Takes")
    terminal.listing(header, rows, right=5)
    terminal.say()


def _show_experiment(agent: str, experiment: Experiment) -> None:
    task = f" for {experiment.task}" if experiment.task else ""
    terminal.prose(
        f"{'In test' if experiment.state == 'running' else 'It won its test'}{task}:"
        f" {_words(experiment.variant)}. Started because of: {experiment.reason}."
    )
    verdict = experiment.verdict
    if verdict is not None:
        found = verdict.difference
        terminal.prose(
            f"{terminal.plural(verdict.control.sessions, 'session')} as before,"
            f" worth {verdict.control.mean:.3f};"
            f" {verdict.variant.sessions:,} with the variant, worth {verdict.variant.mean:.3f}."
            f" Difference {found.mean:+.3f}, between {found.low:+.3f} and {found.high:+.3f}."
        )
    if experiment.state == "better":
        terminal.prose(f"Use it: perdure agent evolve accept {agent}", "bold")


def _bounds(step: EvolutionStep) -> str:
    if step.evidence is None:
        return ""
    found = step.evidence.difference
    return f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"


def _words(strategy: StrategyChanges) -> str:
    found = list[str]()
    for task, model in strategy.models.items():
        found.append(model if task == "*" else f"{model} for {task}")
    if strategy.prompt_version:
        found.append(f"version {strategy.prompt_version} of its prompt")
    if strategy.budget:
        found.append(f"a context of {strategy.budget:,} tokens")
    if strategy.recall is not None:
        found.append("recall" if strategy.recall else "no recall")
    return ", ".join(found) or "what is configured"
