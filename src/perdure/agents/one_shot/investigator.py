"""Somebody who looks into a run that seems stuck, once: a command, or a model."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from perdure.agents.one_shot.exit_records import last_objects, read_report, text_in
from perdure.core.errors import PerdureError
from perdure.core.messages import user
from perdure.gateway.calls import CallOptions, Request
from perdure.gateway.gateway import Gateway

Advice: TypeAlias = Literal["continue", "done", "needs_feedback", "stop"]
_VERDICTS: dict[str, Advice] = {
    "continue": "continue",
    "done": "done",
    "needs_feedback": "needs_feedback",
    "stop": "stop",
}
_FILES = 60_000  # Characters of each file that a model is shown.


class Investigation(msgspec.Struct, frozen=True, kw_only=True):
    """What an investigator found."""

    verdict: Advice
    advice: str = ""
    question: str = ""
    text: str = ""
    cost: int | None = None  # Picodollars; None is unknown.


def read_investigation(out: str, err: str = "") -> Investigation | None:
    """None if it gave no verdict."""
    report = read_report(out, err)
    for found in last_objects(report.text):
        said = found.get("verdict", found.get("status"))
        verdict = _VERDICTS.get(text_in(said).strip().lower().replace(" ", "_").replace("-", "_"))
        if verdict is not None:
            return Investigation(
                verdict=verdict,
                advice=text_in(found.get("advice")),
                question=text_in(found.get("question")),
                text=report.text,
                cost=report.cost,
            )
    return None


async def ask_model(
    gateway: Gateway, prompt: str, files: dict[str, str], options: dict[str, Any]
) -> Investigation | None:
    """None if no model is configured, or none answered with a verdict."""
    purpose: Literal["judge", "chat"] = "judge" if gateway.has("judge") else "chat"
    if not gateway.has(purpose) and not options.get("model"):
        return None
    shown = "\n\n".join(f"# {name}\n{text[-_FILES:]}" for name, text in files.items() if text)
    request = Request(messages=(user(f"{shown}\n\n{prompt}"),))
    try:
        reply = await gateway.complete(request, CallOptions(purpose=purpose, **options))
    except PerdureError:
        return None
    found = read_investigation(reply.text)
    return None if found is None else msgspec.structs.replace(found, cost=reply.cost)
