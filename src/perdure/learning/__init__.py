"""Learning which model to ask, and how an agent is to work: docs/learning.md.

Every call tells about success, cost and latency; only a judge and people tell about quality.
"""
