"""Metrics: how often, how long, how much, and what went wrong.

`middleware` counts, `measures` is what was counted, `alerts` raises an event when a limit is
passed, `publishing` leaves what one process has counted where others can read it, `prometheus`
renders it, `asgi` answers with that.
"""

from perdure.storage.metrics.alerts import Alert, Alerts
from perdure.storage.metrics.middleware import BUCKETS, Counted, Measure, Metrics
from perdure.storage.metrics.publishing import Publisher

__all__ = ["BUCKETS", "Alert", "Alerts", "Counted", "Measure", "Metrics", "Publisher"]
