"""Background work: jobs that are rows in the bank, and work that is repeated.

`Runner` is the in-process engine. A durable engine for many machines will stand beside it.
"""

from perdure.jobs.job import Handler, Job
from perdure.jobs.periodic import Periodic
from perdure.jobs.runner import Runner
from perdure.jobs.work import Counts

__all__ = ["Counts", "Handler", "Job", "Periodic", "Runner"]
