"""``perdure models``: configured models, their uses, and whether they answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from perdure.cli import readable, terminal
from perdure.cli.command_options import CommandSettings
from perdure.cli.terminal import ProgressBar

if TYPE_CHECKING:
    from perdure.cli.conversation_page import Sheet
    from perdure.gateway.breaker import BreakerView
    from perdure.gateway.calls import Purpose
    from perdure.gateway.gateway import Gateway
    from perdure.gateway.model_status import ModelUse, ModelView
    from perdure.gateway.prices import Price


class ListedModel(NamedTuple):
    """A model and what is known of it."""

    view: ModelView
    #: ``variable``, ``keyring``, ``missing``, or ``not_needed``.
    key: str


async def models(
    settings: CommandSettings,
    *,
    reach: Annotated[
        bool,
        typer.Option("--reach/--no-reach", help="Ask their servers whether they are there."),
    ] = True,
) -> None:
    """Show which models are configured, their prices, and whether they are there.

    Asking costs no tokens. Keys are never shown. Exits with 0 also if a model cannot be reached.
    """
    from perdure import config as configuration
    from perdure.gateway import model_status
    from perdure.gateway.calls import PURPOSES

    async with ProgressBar("asking the servers"), any_gateway(settings) as gateway:
        views = await model_status.models(gateway, reach=reach)
    providers = {view.name: gateway.catalog.find(view.name).provider for view in views}
    found = [
        ListedModel(view, _key(view, needs_key=providers[view.name].needs_key)) for view in views
    ]
    missing = [purpose for purpose in PURPOSES if not gateway.has(purpose)]
    as_of = gateway.prices.as_of.isoformat()
    if settings.json:
        listed = [model_json(model) for model in found]
        terminal.emit({"models": listed, "missing": missing, "prices_as_of": as_of})
        return
    _show(found)
    _advise(found, missing, str(settings.config or configuration.config_file()))
    if any(model.view.price is not None and model.view.base_url for model in found):
        terminal.prose(f"Prices are those of {as_of}, or your own.", "dim")


def model_json(model: ListedModel) -> dict[str, Any]:
    view = model.view
    return {
        "name": view.name,
        "provider": view.provider,
        "model": view.model,
        "wire": view.wire if view.base_url else None,
        "base_url": view.base_url or None,
        "uses": view.uses,
        "key": {"from": model.key, "variable": view.key_variable or None},
        "reachable": None if view.problem is None else not view.problem,
        "problem": view.problem or None,
        "price": None if view.price is None else _rates(view.price),
        "circuit": None if view.breaker is None else _circuit(view.breaker),
    }


def _rates(price: Price) -> dict[str, float | None]:
    kinds = ("input", "output", "cache_read", "cache_write")
    return {kind: readable.dollars_per_million(getattr(price.rates, kind)) for kind in kinds}


@asynccontextmanager
async def any_gateway(settings: CommandSettings) -> AsyncIterator[Gateway]:
    """The bank's gateway, or that of an empty bank in memory: models need none to be shown."""
    from perdure.bank import Bank
    from perdure.gateway.gateway import Gateway
    from perdure.learning.judging import with_judging_budget

    config = settings.load()
    bank = Bank(config=config)
    if not await bank.store.adapter.exists():
        bank = Bank("memory://", config=config)
    await bank.store.open()
    gateway = Gateway(bank.store, with_judging_budget(config))
    try:
        yield gateway
    finally:
        await gateway.close()
        await bank.store.close()


def _key(view: ModelView, *, needs_key: bool) -> str:
    import os

    if view.key_variable and os.environ.get(view.key_variable, "").strip():
        return "variable" if view.key else "missing"  # one that no header can carry is none
    if not needs_key:
        return "not_needed"
    return "keyring" if view.key else "missing"


def _show(found: list[ListedModel]) -> None:
    from perdure.cli.conversation_page import Sheet

    sheet = Sheet()
    lengths = Counter[tuple[str, str]](
        (use.purpose, use.complexity) for model in found for use in model.view.uses
    )
    for model in found:
        _show_model(sheet, model, lengths)
        sheet.blank()


def _show_model(sheet: Sheet, model: ListedModel, lengths: Mapping[tuple[str, str], int]) -> None:
    from rich.text import Text

    view = model.view
    if not view.base_url:
        status = "on this machine"
    elif view.problem is None:
        status = ""
    else:
        # What keeps it may be the key as well as the way to the server: its own words say it.
        status = "cannot be called" if view.problem else "reachable"
    sheet.spread(Text.assemble((terminal.visible(view.name), "bold")), status)
    if view.problem:
        _fact(sheet, "problem", view.problem, "red")
    _fact(sheet, "for", _uses(view.uses, lengths))
    if view.base_url:
        _fact(sheet, "at", f"{view.base_url} ({view.wire})")
        _fact(sheet, "key", _key_in_words(model), "red" if model.key == "missing" else "")
    _fact(sheet, "price", _price_in_words(view.price))
    if view.breaker is not None:
        style = "" if view.breaker.state == "closed" else "red"
        _fact(sheet, "circuit", _circuit_in_words(view.breaker), style)


def _fact(sheet: Sheet, name: str, words: str, style: str = "") -> None:
    sheet.block(f"  {name:<8}", [terminal.printable(words)], style, None, depth=11)


def _uses(uses: tuple[ModelUse, ...], lengths: Mapping[tuple[str, str], int]) -> str:
    places = dict[str, dict[str, str]]()
    for use in uses:
        place = f"{use.place} of {lengths[use.purpose, use.complexity]}"
        places.setdefault(use.purpose, {})[use.complexity] = place
    said = list[str]()
    for purpose, levels in places.items():
        alike = set(levels.values())
        if len(levels) == 3 and len(alike) == 1:
            said.append(f"{purpose} ({alike.pop()})")
        else:
            said.append(f"{purpose} ({', '.join(' '.join(each) for each in levels.items())})")
    return "; ".join(said)


def _key_in_words(model: ListedModel) -> str:
    variable = model.view.key_variable
    return {
        "variable": f"from {variable}",
        "keyring": f"from the keyring ({variable})",
        "missing": f"missing: set {variable}, or keyring set perdure {variable}",
        "not_needed": "none needed",
    }[model.key]


def _price_in_words(price: Price | None) -> str:
    if price is None:
        return "unknown; set it in gateway.prices"
    rates = price.rates
    if not any((rates.input, rates.output, rates.cache_read, rates.cache_write)):
        return "free"
    kinds = {
        "in": rates.input,
        "out": rates.output,
        "read from cache": rates.cache_read,
        "written to it": rates.cache_write,
    }
    said = [
        f"{readable.price_in_words(rate)} {kind}"
        for kind, rate in kinds.items()
        if rate is not None
    ]
    longer = f"; dearer above {price.above:,} tokens" if price.above is not None else ""
    return f"{', '.join(said)}, for a million tokens{longer}"


def _circuit(breaker: BreakerView) -> dict[str, Any]:
    return {name: getattr(breaker, name) for name in ("state", "failures", "next_probe")}


def _circuit_in_words(circuit: BreakerView) -> str:
    state = circuit.state.replace("_", " ")
    if circuit.next_probe is not None:
        state += f", probed in {circuit.next_probe:.0f} s"
    failed = terminal.plural(circuit.failures, "failure")
    return f"{state}; {failed} in a row" if circuit.failures else state


def _advise(found: list[ListedModel], missing: list[Purpose], file: str) -> None:
    if "chat" in missing:
        terminal.prose("No model is configured to chat. Name one, for example:")
        terminal.say()
        for name, note in _EXAMPLES:
            terminal.say(f'  export PERDURE_MODEL_CHAT="{name}"', "bold")
            terminal.say(f"      {note}", "dim")
        terminal.say()
        terminal.prose(f'Or write chat = ["{_EXAMPLES[0][0]}"] under [gateway.models] in {file}.')
    background = [purpose for purpose in missing if purpose != "chat"]
    if background:
        terminal.prose(
            f"No model is configured for {', '.join(background)}: their callers do without one.",
            "dim",
        )
    if any(model.view.provider == "local" for model in found):
        terminal.prose("local embeds texts on this machine, without a key.", "dim")


_EXAMPLES = (
    ("ollama/qwen3", "a server on this machine; no key"),
    ("http://127.0.0.1:8080/v1#any", "any OpenAI-compatible server, by its address"),
    ("openai/gpt-5", "with the key in OPENAI_API_KEY"),
    ("anthropic/claude-sonnet-4-5", "with the key in ANTHROPIC_API_KEY"),
)
