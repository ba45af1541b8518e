"""For tests of programs that use Perdure, and of backends written for it."""

from perdure.storage.backends.memory import MemoryAdapter
from perdure.testing.clock import ManualClock
from perdure.testing.conformance import ConformanceReport, perform, run, trials_for
from perdure.testing.model import (
    ReceivedRequest,
    Script,
    ScriptedAnswer,
    ScriptedFault,
    ScriptedModel,
)
from perdure.testing.project import fill_project, planted, project_history, project_turn

__all__ = [
    "ConformanceReport",
    "ManualClock",
    "MemoryAdapter",
    "ReceivedRequest",
    "Script",
    "ScriptedAnswer",
    "ScriptedFault",
    "ScriptedModel",
    "fill_project",
    "perform",
    "planted",
    "project_history",
    "project_turn",
    "run",
    "trials_for",
]
