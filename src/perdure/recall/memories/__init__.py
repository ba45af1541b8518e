"""Memories: distilled items with versions; what says the same, what contradicts."""
