"""HTTP and WebSocket: the API, and the proxy for unchanged clients."""
