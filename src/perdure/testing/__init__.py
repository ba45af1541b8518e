"""For tests of programs that use Perdure, and of backends written for it.

`run` and `trials_for` are the conformance kit for storage backends; `MemoryAdapter` is a store in
memory that passes it. `ManualClock` is a clock that a test sets; `ScriptedModel` a model server
that answers as a script says, with the providers' batch modes and their `BatchFaults`.
"""

from perdure.storage.backends.memory import MemoryAdapter
from perdure.testing.conformance import ConformanceReport, perform, run, trials_for
from perdure.testing.manual_clock import ManualClock
from perdure.testing.model import (
    BatchFaults,
    ReceivedRequest,
    Script,
    ScriptedAnswer,
    ScriptedFault,
    ScriptedModel,
)

__all__ = [
    "BatchFaults",
    "ConformanceReport",
    "ManualClock",
    "MemoryAdapter",
    "ReceivedRequest",
    "Script",
    "ScriptedAnswer",
    "ScriptedFault",
    "ScriptedModel",
    "perform",
    "run",
    "trials_for",
]
