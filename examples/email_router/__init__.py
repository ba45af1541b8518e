"""An email-routing agent that improves: ``make example-email``."""
