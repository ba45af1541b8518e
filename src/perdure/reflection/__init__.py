"""Reflection: memories distilled from past turns, offline, as operations that can be undone."""
