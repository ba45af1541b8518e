"""One module, or folder, per technology. Nothing outside imports them but the registry."""
