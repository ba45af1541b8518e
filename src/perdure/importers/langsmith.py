"""Runs of LangSmith, as its API, its SDK's ``list_runs`` and its command line give them.

A run of the type ``llm`` is a model call, with messages in the form of LangChain, OpenAI or
Anthropic. A thread is a conversation (``thread_id``, ``session_id`` or ``conversation_id`` in the
metadata); a trace without one is a conversation of its own. Other runs repeat what those have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from perdure.core.clock import from_datetime
from perdure.importers.importer import kind, word
from perdure.importers.message_parts import items, mapping
from perdure.importers.trace_files import ModelCall, TraceImporter
from perdure.importers.trace_messages import listed

_FURTHER = "further answer to a call"
_THREAD = ("thread_id", "session_id", "conversation_id")


class LangSmithImporter(TraceImporter):
    """Reads runs of LangSmith."""

    def calls(self, records: Iterable[Any], others: dict[str, int]) -> Iterator[ModelCall]:
        for record in records:
            listed = mapping(record).get("runs")
            for run in items(listed) if isinstance(listed, list) else [record]:
                yield from _calls(run, others)


def _calls(run: Any, others: dict[str, int]) -> Iterator[ModelCall]:
    found = mapping(run)
    what = found.get("run_type")
    if what != "llm":
        other = f"run: {kind(what)}" if "run_type" in found else "no run of LangSmith"
        others[other] = others.get(other, 0) + 1
    else:
        yield _call(found, others)
    for child in items(found.get("child_runs")):
        yield from _calls(child, others)


def _call(run: dict[str, Any], others: dict[str, int]) -> ModelCall:
    extra, outputs = mapping(run.get("extra")), mapping(run.get("outputs"))
    metadata = mapping(extra.get("metadata")) or mapping(run.get("metadata"))
    params = mapping(extra.get("invocation_params"))
    inputs = mapping(run.get("inputs"))
    trace = word(run.get("trace_id")) or word(run.get("id")) or "unnamed"
    threads = [word(metadata.get(name)) for name in _THREAD] + [word(run.get("thread_id"))]
    made, further = _made(outputs)
    if further:
        others[_FURTHER] = others.get(_FURTHER, 0) + further
    counted = {
        **mapping(mapping(outputs.get("llm_output")).get("token_usage")),
        **{name: value for name, value in run.items() if name.endswith("_tokens") and value},
        **mapping(outputs.get("usage")),
        **mapping(outputs.get("usage_metadata")),
        **mapping(mapping(_kwargs(made[0] if made else None)).get("usage_metadata")),
    }
    began = _moment(run.get("start_time"))
    record = {
        "agent": word(metadata.get("lc_agent_name")),
        "system": inputs.get("system"),
        "given": inputs.get("messages", inputs.get("prompts", inputs.get("input", []))),
        "made": made,
        "model": word(metadata.get("ls_model_name")) or word(params.get("model")),
        "usage": counted,
        "error": word(run.get("error"))[:4_000],
        "time": began,
        "ended": _moment(run.get("end_time")),
    }
    order = began or 0, word(run.get("dotted_order"))
    return ModelCall(next(filter(None, threads), trace), order, record)


def _made(outputs: dict[str, Any]) -> tuple[list[Any], int]:
    """The answer, of several to one call the first; and how many others there are."""
    generations = outputs.get("generations")
    while isinstance(generations, list) and any(isinstance(each, list) for each in generations):
        generations = [one for each in generations for one in listed(each)]
    if several := items(generations):
        first = several[0]
        said = first["message"] if mapping(first.get("message")) else word(first.get("text"))
        return [said], len(several) - 1
    if several := items(outputs.get("choices")):
        return [several[0].get("message")], len(several) - 1
    for name in ("messages", "message", "output"):
        if (found := outputs.get(name)) is not None:
            return found if isinstance(found, list) else [found], 0
    if "content" in outputs:
        return [{"role": outputs.get("role", "assistant"), "content": outputs["content"]}], 0
    return [], 0


def _kwargs(message: Any) -> Any:
    found = mapping(message)
    return found.get("kwargs", found)


def _moment(value: Any) -> int | None:
    """Its times are UTC, also without saying so; milliseconds in JavaScript's."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value * 1000)
    try:
        moment = datetime.fromisoformat(word(value))
        return from_datetime(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        return None
