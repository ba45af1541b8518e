"""Values everything shares. Nothing here does I/O."""
