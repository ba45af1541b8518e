"""The index: what of a turn is written to it, its vectors, filling, checking, forgetting."""
