"""Reads what an agent printed: its answer, its exit record, its costs, what it was refused.

An agent ends a run with one JSON object as the last thing that it says::

    {"status": "continue" | "done" | "needs_feedback", "summary": "…", "question": "…"}

or writes it to the file that ``PERDURE_RUN_RECORD`` names. How it is written matters little (in a
code fence, over several lines, inside the JSON output of Claude Code or Codex); what it means is
strict: there are three statuses, and words that claim to be done are none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from perdure.agents.one_shot.run_records import ExitRecord, ExitStatus
from perdure.gateway.prices import picodollars

#: Characters that may follow the record: agents say goodbye.
_BEHIND = 200
_SEARCHED = 20_000  # Characters at the end that are searched for it.
_MOST_DOLLARS = 1_000_000
MOST = 2_000  # Characters of a summary or question.
_STATUSES: dict[str, ExitStatus] = {
    "continue": "continue",
    "done": "done",
    "needs_feedback": "needs_feedback",
}
_blank = re.compile(r"[\s-]+")
_proxy_cost = re.compile(r"^perdure: \$([\d.,]+) at list prices", re.MULTILINE)
_decoder = json.JSONDecoder()


class AgentReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent printed, read."""

    text: str  # The answer.
    record: ExitRecord | None = None
    cost: int | None = None  # Picodollars; None if it did not tell.
    #: Of a model whose price is not known in full: what is, and the tokens of the rest.
    known_cost: int = 0
    tokens: int = 0
    refused: str = ""  # What it was not allowed to do.
    error: str = ""  # What its program says went wrong.
    is_structured: bool = False  # The answer was inside JSON output.


def read_report(out: str, err: str = "", record_file: str = "") -> AgentReport:
    """Never raises: what cannot be read is the answer as it is."""
    report = _structured(out) or AgentReport(text=out)
    cost = report.cost if report.cost is not None else _cost_of_proxy(err)
    record = find_record(record_file) or find_record(report.text)
    return msgspec.structs.replace(report, record=record, cost=cost)


def find_record(text: str) -> ExitRecord | None:
    """The exit record that ends the text, or None."""
    for found in last_objects(text):
        if (record := _record(found)) is not None:
            return record
    return None


def last_objects(text: str) -> Iterator[dict[str, Any]]:
    """JSON objects that end the text, the last and innermost first."""
    text = text[-_SEARCHED:]
    end = len(text)
    while (start := text.rfind("{", 0, end)) >= 0:
        end = start
        try:
            found, stop = _decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if len(text[stop:].strip(" \n\r\t`")) > _BEHIND:
            return
        if isinstance(found, dict):
            yield found


def _record(found: dict[str, Any]) -> ExitRecord | None:
    status = found.get("status")
    if not isinstance(status, str):
        return None
    meant = _STATUSES.get(_blank.sub("_", status.strip().lower()))
    if meant is None:
        return None
    summary, question = (text_in(found.get(name)) for name in ("summary", "question"))
    if meant == "needs_feedback":
        question = question or summary or "It did not say what."
    return ExitRecord(meant, summary, question)


def _structured(out: str) -> AgentReport | None:
    """The output of ``claude -p --output-format json`` (or ``stream-json``), ``codex exec --json``;
    None for any other.
    """
    answer, error, found = "", "", False
    for event in _events(out):
        kind = event.get("type")
        if kind == "result" and ("result" in event or "subtype" in event):
            return _claude(event)
        item = event.get("item")
        if kind == "item.completed" and isinstance(item, dict):
            if item.get("type") == "agent_message":
                answer, found = text_in(item.get("text"), None), True
        elif kind in {"turn.failed", "error"}:
            failure = event.get("error")
            told = failure.get("message") if isinstance(failure, dict) else event.get("message")
            error, found = text_in(told), True
    return AgentReport(text=answer, error=error, is_structured=True) if found else None


def _claude(event: dict[str, Any]) -> AgentReport:
    answer = text_in(event.get("result"), None)
    denied = event.get("permission_denials")
    named = denied if isinstance(denied, list) else []
    names = [text_in(each.get("tool_name")) for each in named if isinstance(each, dict)]
    error = ""
    if event.get("is_error"):
        error = answer.strip()[:MOST] or text_in(event.get("subtype")) or "It failed."
    return AgentReport(
        text=answer,
        cost=_amount(event.get("total_cost_usd")),
        refused=", ".join(filter(None, names)),
        error=error,
        is_structured=True,
    )


def _events(out: str) -> Iterator[dict[str, Any]]:
    for line in out.splitlines():
        if line[:1] not in {"{", "["}:
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        for event in found if isinstance(found, list) else [found]:
            if isinstance(event, dict):
                yield event


def _cost_of_proxy(err: str) -> int | None:
    """What ``perdure proxy`` says at its end: in words, or with ``--json`` in its last line."""
    for event in _events(err):
        if "figures" in event and "requests" in event:
            cost = event.get("cost")
            return cost if isinstance(cost, int) else None
    if told := _proxy_cost.search(err):
        return _amount(told[1].replace(",", ""))
    return None


def _amount(dollars: Any) -> int | None:
    if isinstance(dollars, bool) or not isinstance(dollars, int | float | str):
        return None
    try:
        amount = Decimal(str(dollars))
    except InvalidOperation:
        return None
    return picodollars(amount) if amount.is_finite() and 0 <= amount <= _MOST_DOLLARS else None


def text_in(value: Any, most: int | None = MOST) -> str:
    """Empty for what is no text."""
    return value[:most] if isinstance(value, str) else ""
