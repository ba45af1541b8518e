"""Metrics: how often, how long, how much, and what went wrong.

`metrics_middleware` counts, `metric_alerts` raises an event when a limit is passed,
`metrics_publisher` leaves what one process has counted where others can read it, `prometheus_text`
renders it, `metrics_app` answers with that.
"""

from perdure.storage.metrics.metric_alerts import Alert, Alerts
from perdure.storage.metrics.metrics_middleware import BUCKETS, Measure, Metrics, OperationCounts
from perdure.storage.metrics.metrics_publisher import Publisher

__all__ = ["BUCKETS", "Alert", "Alerts", "Measure", "Metrics", "OperationCounts", "Publisher"]
