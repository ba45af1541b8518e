"""The turn log: writing and reading turns, and what is derived from them. docs/architecture.md says
which module does what.
"""
