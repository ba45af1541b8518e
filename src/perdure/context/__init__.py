"""Composes one prompt from system text, history, injection and the caller's prompt. `composer` does
it for a session; `context` is the result.
"""
