"""A proxy for clients of Chat Completions, Responses and Messages: their history never runs out."""
