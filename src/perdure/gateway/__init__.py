"""The one way to call models: candidates, retries, budgets, response cache, telemetry.

A call goes from `gateway` to `catalog` (candidates by purpose and complexity), `model_selection`
(their order), `fallback` (one after the other, under one deadline), `attempts` (breaker, gate,
budget, outcome around one try) and `transport`. `requests/` builds the bodies and `streams/` reads
the answers, with a module for each wire format.
"""
