"""Sphinx' settings for the site. `tools/docs_site/stage.py` lays out what it reads."""

from __future__ import annotations

import builtins
import re
from pathlib import Path
from typing import Any

from sphinx import addnodes

_ROOT = Path(__file__).resolve().parents[2]
_VERSION = re.search(
    r'^__version__ = "(.+)"',
    (_ROOT / "src" / "perdure" / "__init__.py").read_text("utf-8"),
    re.MULTILINE,
)

project = "Perdure"
release = version = _VERSION[1] if _VERSION else ""
author = "The authors of Perdure"
extensions = ["myst_parser", "sphinx_copybutton"]
language = "en"

# Headings can be linked to as on GitHub.
myst_heading_anchors = 6
myst_enable_extensions = ["colon_fence"]
add_module_names = False
toc_object_entries_show_parents = "hide"
python_maximum_signature_line_length = 88
#: Of prompts in examples of a terminal, only what is typed is copied.
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = f"Perdure {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_last_updated_fmt = None
html_favicon = "static/mark.svg"
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {"color-brand-primary": "#1f7a6d", "color-brand-content": "#1a6fb0"},
    "dark_css_variables": {"color-brand-primary": "#4fc3b0", "color-brand-content": "#6cb2ee"},
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"


def setup(app: Any) -> None:
    app.connect("doctree-read", _unlink_builtins)


def _unlink_builtins(_app: Any, doctree: Any) -> None:
    """``bytes`` in a signature is Python's: else it would lead to some attribute so named."""
    for each in list(doctree.findall(addnodes.pending_xref)):
        if each.get("refdomain") == "py" and hasattr(builtins, each.get("reftarget", "")):
            each.replace_self(each.children)
