"""Sessions: one conversation each; what is written to it, read from it, shown to a model."""
