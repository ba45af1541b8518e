"""For tests of programs that use Perdure, and of backends written for it.

`run` and `trials_for` are the conformance kit for storage backends; `MemoryAdapter` is a store in
memory that passes it. `ManualClock` is a clock that a test sets; `ScriptedModel` a model server
that answers as a script says.
"""

from perdure.storage.backends.memory import MemoryAdapter
from perdure.testing.conformance import ConformanceReport, perform, run, trials_for
from perdure.testing.manual_clock import ManualClock
from perdure.testing.model import (
    ReceivedRequest,
    Script,
    ScriptedAnswer,
    ScriptedFault,
    ScriptedModel,
)

__all__ = [
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
