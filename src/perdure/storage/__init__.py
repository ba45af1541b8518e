"""Typed, transactional records over any backend. Knows nothing of turns.

From the outside in: `Store` and `Collection` are what callers use; `middleware` wraps every
operation; an `Adapter` in `backends` does the work.
"""
