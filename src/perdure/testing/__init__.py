"""For tests of programs that use Perdure, and of backends written for it.

The *conformance kit* shows whether a backend keeps its promises; `MemoryAdapter` is a store that
needs no disk, and passes the same kit; `ManualClock` is time as a test sets it.
"""

from perdure.storage.backends.memory import MemoryAdapter
from perdure.testing.clock import ManualClock
from perdure.testing.conformance import Report, perform, run, trials_for

__all__ = ["ManualClock", "MemoryAdapter", "Report", "perform", "run", "trials_for"]
