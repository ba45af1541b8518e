"""Ways to show a history in a window of fixed size; see `strategy`."""
