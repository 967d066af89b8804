"""Settings of the site that `make docs` builds with Sphinx. Its source is the repository's root, so that links between documents
hold on the site and in the repository alike.
"""

from __future__ import annotations

import re
from importlib.metadata import version as version_of
from typing import Any

project = "Throughline"
author = "The Throughline authors"
copyright = "The Throughline authors"
version = release = version_of("throughline")

root_doc = "docs/index"
include_patterns = ["docs/*.md", "README.md", "RESULTS.md", "results/**.md", "CHANGELOG.md", "CONTRIBUTING.md"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
add_module_names = False
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"Throughline {release}"
html_static_path = ["static"]
html_js_files = ["accessibility.js"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
highlight_language = "console"


written: dict[str, list[str]] = {}
"""Docstrings by the names of what they describe, as they are before Napoleon reads them."""


def as_restructured_text(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Docstrings indent their examples, before which reStructuredText wants a `::`, and put code between single backticks."""
    literal: list[str] = []
    for number, line in enumerate(lines):
        begins = line.startswith("    ") and not lines[number - 1].strip() if number else False
        inside = bool(literal) and literal[-1].startswith("    ")
        if begins and not inside and what == "module":
            literal += ["::", ""]
        literal.append(re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", line))
    lines[:] = literal
    written[name] = literal


def keep_attributes(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Napoleon takes what stands before a colon for the type of a value: here types are annotations."""
    if what in ("attribute", "data", "property"):
        lines[:] = written[name]


def setup(app: Any) -> None:
    """Napoleon changes docstrings between the two (priority 500)."""
    app.connect("autodoc-process-docstring", as_restructured_text, 400)
    app.connect("autodoc-process-docstring", keep_attributes, 600)
