"""For tests of programs that use Perdure, and of backends written for it.

The *conformance kit* shows whether a backend keeps its promises; `MemoryAdapter` is a store that
needs no disk, and passes the same kit; `ManualClock` is time as a test sets it; `ScriptedModel` is
a server of models that says what a test wrote down.
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
