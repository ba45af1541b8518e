"""Perdure behind other programs: the Model Context Protocol, and hooks of coding clients."""
