"""Deadlines of recall that no machine misses.

At its deadline recall answers with what has arrived, and on a busy machine that is less. Tests are
about what it finds. Those that are about deadlines give their own.

The rest of what depends on time is the vectors of what was just written: `Bank.settle` waits for
them.
"""

from __future__ import annotations

from typing import Any

from perdure.config import RecallConfig

#: The whole is more than its parts: filters get nothing of what is kept for the judge.
_SECONDS = {"deadline": 200.0, "keyword": 40.0, "vectors": 40.0, "filters": 40.0, "judge": 40.0}
#: The same for banks that are opened without a configuration, also by other processes.
VARIABLES = {f"PERDURE_RECALL_{name.upper()}": str(value) for name, value in _SECONDS.items()}


def patient(**settings: Any) -> RecallConfig:
    """A configuration of recall with these deadlines, unless the settings say otherwise."""
    return RecallConfig(**{**_SECONDS, **settings})
