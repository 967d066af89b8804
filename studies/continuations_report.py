"""Reports on passages that a model and their own text continue: for a terminal, as Markdown and as JSON. No torch, no mlflow.

paths = write_continuations(passages, "mine, step 2,000, on text/test", Path("runs/reports/continuations-mine"))
Console(markup=False).print(continuations_table(passages))
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from common.errors import UserError
from common.files import parse_json
from pipelines.reports.files import save
from pipelines.terminal.output import printable
from pipelines.terminal.tables import counted

SHOWN = 400
"""Number of a context's last characters that are shown; the JSON has all characters."""


@dataclass(frozen=True)
class Passage:
    """One place of a document."""

    document: str
    token: int
    """Position of the continuations' first token in the document, counted from 0."""
    context: str
    """The text that was read before it."""
    true: str
    """The document's own continuation."""
    seen: str
    """The model's text with the context's recurrent State and an empty window."""
    unseen: str
    """The model's text without the recurrent State."""
    bits_seen: float
    """Bits per token of the true continuation, with the recurrent State."""
    bits_unseen: float


HEADINGS = {
    "context": "context",
    "true": "the text's own continuation",
    "seen": "the model's, context seen through the recurrence alone",
    "unseen": "the model's, context not seen",
}


def summary(passages: Sequence[Passage]) -> str:
    """Mean bits per token with and without State, and the number of equal texts, in a sentence."""
    seen, unseen = (
        sum(bits) / len(passages) for bits in zip(*((p.bits_seen, p.bits_unseen) for p in passages), strict=True)
    )
    same = sum(p.seen == p.unseen for p in passages)
    return (
        f"The texts' own continuations have {seen:.4f} bits per token with the recurrent State and {unseen:.4f} without; in {same} "
        f"of {counted(len(passages), 'place')} the model writes the same with it and without."
    )


def shown(passage: Passage, name: str) -> str:
    """A text of a passage; of a long context its end alone."""
    text = getattr(passage, name)
    return f"… {text[-SHOWN:]}" if name == "context" and len(text) > SHOWN else text


def continuations_table(passages: Sequence[Passage]) -> Table:
    """A row for each place, as in Tables 3 and 4 of the paper."""
    made = Table(show_lines=True)
    for heading in HEADINGS.values():
        made.add_column(heading, ratio=1, overflow="fold")
    for passage in passages:
        made.add_row(*(printable(shown(passage, name)) for name in HEADINGS))
    return made


def write_continuations(passages: Sequence[Passage], title: str, folder: Path) -> list[Path]:
    """Write continuations.md and continuations.json, each atomically. Returns their paths."""
    lines = [f"# Continuations: {title}", "", summary(passages)]
    for passage in passages:
        lines += ["", f"## {passage.document}, token {passage.token:,}"]
        for name, heading in HEADINGS.items():
            # indented, a text is shown as it is, whatever it holds
            lines += [
                "",
                f"{heading.capitalize()}:",
                "",
                *(f"    {line}" for line in shown(passage, name).splitlines()),
            ]
    texts = {
        "continuations.md": "\n".join(lines) + "\n",
        "continuations.json": json.dumps({"title": title, "passages": [asdict(p) for p in passages]}, indent=1) + "\n",
    }
    return [save(folder / name, text.encode()) for name, text in texts.items()]


def read_continuations(folder: Path) -> list[Passage]:
    """The passages that `write_continuations` wrote; none where it wrote nothing. Raises UserError where its file is damaged."""
    path = folder / "continuations.json"
    if not path.exists():
        return []
    try:
        return [Passage(**values) for values in parse_json(path.read_bytes())["passages"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}): remove it, and repeat the command that wrote it") from None
