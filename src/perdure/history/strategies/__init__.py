"""Ways to show a history in a window of fixed size: `regular` and `gradient`."""
