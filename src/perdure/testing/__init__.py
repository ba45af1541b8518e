"""For tests of programs that use Perdure, and of backends written for it.

The *conformance kit* shows whether a backend keeps its promises; `MemoryAdapter` is a store that
needs no disk, and passes the same kit; `ManualClock` is time as a test sets it; `ScriptedModel` is
a server of models that says what a test wrote down.
"""

from perdure.storage.backends.memory import MemoryAdapter
from perdure.testing.clock import ManualClock
from perdure.testing.conformance import Report, perform, run, trials_for
from perdure.testing.model import Answer, Fault, Received, Script, ScriptedModel

__all__ = [
    "Answer",
    "Fault",
    "ManualClock",
    "MemoryAdapter",
    "Received",
    "Report",
    "Script",
    "ScriptedModel",
    "perform",
    "run",
    "trials_for",
]
