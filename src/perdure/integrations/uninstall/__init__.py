"""`perdure uninstall`: all that Perdure has put on this machine, and how each part goes."""
