"""The parts that our HTML pages share: the page itself, and tables that sort by the column whose heading is clicked."""

from __future__ import annotations

import html
from collections.abc import Sequence

STYLE = """
:root{color-scheme:light}
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:70rem;padding:0 1rem 3rem;color:#111;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2rem}img{max-width:100%;height:auto}.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem}th,td{padding:.25rem .5rem;text-align:right;border-bottom:1px solid #ccc}
td.t,th.t{text-align:left}td.c{text-align:left;min-width:min(22rem,56vw);overflow-wrap:anywhere}
th button{font:inherit;font-weight:600;background:none;border:0;cursor:pointer;color:#111;text-align:inherit}
mark{background:#ffe08a;color:#111}
pre{white-space:pre-wrap;overflow-wrap:anywhere;font:.9rem/1.7 ui-monospace,monospace;border:1px solid #ccc;padding:.75rem}
.b1{background:#e3f2e6}.b2{background:#c0e4c7}.b3{background:#93d3a0}.b4{background:#5fbd74}
.w1{background:#fbe9e2}.w2{background:#f6cbb9}.w3{background:#eea488}.w4{background:#e58a66}
"""
SCRIPT = """
for (const table of document.querySelectorAll("table.sorts")) {
  const heads = [...table.querySelectorAll("th")], body = table.tBodies[0];
  heads.forEach((head, column) => head.firstChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") !== "descending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = row => {
      const cell = row.cells[column], text = cell.dataset.v ?? cell.textContent;
      return isNaN(text) || text === "" ? text : Number(text);
    };
    const order = (a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * (down ? -1 : 1);
    body.append(...[...body.rows].sort(order));
  }));
}
"""
LEFT = ' class="t"'
TEXTS = ("word", "text", "where", "name", "document", "report", "kind", "made", "what it says", "files")
"""Headings of columns of text, which stand to the left."""


def page(title: str, content: str) -> str:
    """A whole page. ``title``: its title and heading, and ``content`` below it: both as HTML."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>{title}</title><style>{STYLE}</style></head><body><main>
<h1>{title}</h1>{content}</main><script>{SCRIPT}</script></body></html>
"""


def sorting_table(headings: Sequence[str], rows: Sequence[str], caption: str) -> str:
    """A table of HTML whose headings sort it when they are clicked."""
    heads = "".join(
        f'<th scope="col"{LEFT * (heading in TEXTS)}><button type="button">{html.escape(heading)}</button></th>'
        for heading in headings
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{caption}"><table class="sorts"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
