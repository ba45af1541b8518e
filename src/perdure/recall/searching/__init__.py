"""Asking the index: occurrences to evidence, evidence to features, features to an order."""
