"""A bank behind a server: `perdure.connect`."""
