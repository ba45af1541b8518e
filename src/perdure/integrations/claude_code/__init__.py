"""The Claude Code plugin, as package data: see docs/coding-agents.md."""

from __future__ import annotations

from pathlib import Path

#: A folder that Claude Code takes as a marketplace, with the plugin in it.
MARKETPLACE = Path(__file__).parent
PLUGIN = MARKETPLACE / "plugin"
