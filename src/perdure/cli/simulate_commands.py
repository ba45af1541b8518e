"""``perdure simulate``: the cost of transcripts under each history policy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import terminal
from perdure.cli.command_options import CommandSettings
from perdure.cli.terminal import ProgressBar

if TYPE_CHECKING:
    from perdure.simulation import History, PolicyComparison

_BUDGET, _SYSTEM = 100_000, 8_000
#: What a JSON object tells of each policy; others depend on these names.
_FIELDS = (
    *("input_tokens", "cache_read", "cache_write", "hit_ratio", "cost", "dollars"),
    *("rewrites", "span", "covered", "max_tokens", "prefix_violations"),
    *("fill_mean", "fill_after_epoch", "fill_after_epoch_least", "bands", "bands_in_range"),
    *("bands_possible", "bands_kept"),
    "known",
)
_COMMON = (
    *("budget", "requests", "turns", "tokens", "old_uses", "system", "injection", "prices"),
    "model",
)


async def simulate(
    settings: CommandSettings,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Transcripts, or folders of them."),
    ],
    *,
    kind: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="claude-code, codex, openai-chat, anthropic or perdure; else each file tells.",
        ),
    ] = None,
    budget: Annotated[
        int, typer.Option("--budget", metavar="N", help="Tokens for the messages of a request.")
    ] = _BUDGET,
    prices: Annotated[
        str,
        typer.Option(
            "--prices",
            metavar="RULES",
            help="Whose cache: anthropic, anthropic-1h, openai (up to GPT-5.5) or openai-5.6.",
        ),
    ] = "anthropic",
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="Dollars are at the prices of this model."),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="NAME", help="Only this one; may be given several times."),
    ] = None,
    system: Annotated[
        int,
        typer.Option(
            "--system", min=0, metavar="N", help="Tokens of system text and tools to assume."
        ),
    ] = _SYSTEM,
    injection: Annotated[
        int,
        typer.Option("--injection", min=0, metavar="N", help="Tokens to inject with each request."),
    ] = 0,
) -> None:
    """Compare what transcripts would have cost under each way to keep a history.

    They are replayed request by request, joined into one long session; no model is called. Shown
    are the tokens that the provider's prompt cache would have served, what the rest would have
    cost, how much of the history each request still stands for, how full it was, and whether what
    the model named again stood in it.
    """
    from perdure.gateway.prices import Prices
    from perdure.simulation import POLICIES, read_history, rules_for
    from perdure.simulation import simulate as compare
    from perdure.simulation.policy_replay import Bill, check_budget, policy_named

    # What can be wrong is found before files are read.
    config = settings.load()
    bill = Bill.of(rules_for(prices), model, Prices.load(config.gateway.prices))
    check_budget(budget)
    chosen = policy or list(POLICIES)
    for name in chosen:
        policy_named(name)
    async with ProgressBar("reading") as bar:
        history = await read_history(paths, kind, bar)
        compared = await compare(
            history,
            policies=chosen,
            bill=bill,
            progress=bar,
            budget=budget,
            system=system,
            injection=injection,
            shown=config.history,
        )
    if settings.json:
        terminal.emit(_described(history, compared))
    else:
        from perdure.cli import charts

        charts.show_policies(history, compared)


def _described(history: History, compared: PolicyComparison) -> dict[str, Any]:
    import msgspec

    return {
        "policies": {
            name: {field: msgspec.to_builtins(getattr(figures, field)) for field in _FIELDS}
            for name, figures in compared.policies.items()
        },
        **{field: getattr(compared, field) for field in _COMMON},
        "formats": history.formats,
        "unread": history.unread,
    }
