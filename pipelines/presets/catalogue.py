"""The presets as a person chooses from them: an overview in groups for `--help`, and a search.

print(overview())                      every group with its patterns, a line each
print(search(["pg19", "rec"]))         every preset that matches both words: its model, parameters, corpus and line
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from common.errors import UserError, nearest
from pipelines.config.run import TrainConfig
from pipelines.presets import GROUPS, PRESETS
from pipelines.terminal.output import first_line, listing
from pipelines.terminal.tables import counted, short

OTHERS = "Others"
"""Heading of presets that no pattern matches: those of plug-ins without a group."""


def place_of(name: str) -> tuple[str, str]:
    """The heading and the pattern under which a preset stands; ``OTHERS`` and its own name where there is none."""
    matching = [
        (heading, pattern) for heading, patterns in GROUPS.items() for pattern in patterns if fnmatchcase(name, pattern)
    ]
    return max(matching, key=lambda place: len(place[1]), default=(OTHERS, name))


def line_of(name: str) -> str:
    """One line on a preset: its group's, or else its model's."""
    heading, pattern = place_of(name)
    return GROUPS.get(heading, {}).get(pattern) or first_line(type(PRESETS[name].model))


def overview() -> str:
    """All groups; a pattern with a line of its own stands for the presets that match it, with their number."""
    places = {name: place_of(name) for name in PRESETS}
    blocks = dict[str, dict[str, str]]()
    for heading, patterns in {**GROUPS, OTHERS: dict.fromkeys(PRESETS, "")}.items():
        lines = dict[str, str]()
        for pattern, line in patterns.items():
            names = [name for name, place in places.items() if place == (heading, pattern)]
            if line and names and pattern not in names:
                lines[pattern] = f"{line} ({counted(len(names), 'preset')})"
            else:
                lines |= {name: line_of(name) for name in names}
        if lines:
            blocks[heading] = lines
    width = max(len(name) for lines in blocks.values() for name in lines)
    return "\n\n".join(f"{heading}:\n{listing(lines, width)}" for heading, lines in blocks.items())


def search(words: Sequence[str]) -> str:
    """A table of the presets that match every word: a part of the name, of the model's name or of the corpus, a pattern as in
    `--help`, or a word of the group's heading or line. All presets without words.

    Raises UserError where none matches.
    """
    found = [name for name in PRESETS if all(matches(name, word) for word in words)]
    if not found:
        near = nearest(words[-1], PRESETS, "--presets without words lists all")
        raise UserError(f"no preset matches {' '.join(words)!r}: {near}")
    rows = [("preset", "model", "parameters", "corpus", "")]
    rows += [row_of(name, PRESETS[name]) for name in found]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        f"{name:{widths[0]}}  {model:{widths[1]}}  {parameters:>{widths[2]}}  {corpus:{widths[3]}}  {line}".rstrip()
        for name, model, parameters, corpus, line in rows
    ]
    note = "Parameters are without embeddings and an output layer of its own, which grow with the tokenizer."
    return "\n".join([*lines, f"{counted(len(found), 'preset')}. {note}"])


def matches(name: str, word: str) -> bool:
    """Whether a word finds this preset; capitals do not matter."""
    word = word.lower()
    config = PRESETS[name]
    parts = (name.lower(), config.model.name, config.data.corpus)
    text = f"{place_of(name)[0]} {line_of(name)}".lower()
    in_text = re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text)
    return any(word in part for part in parts) or fnmatchcase(name.lower(), word) or in_text is not None


def row_of(name: str, config: TrainConfig) -> tuple[str, str, str, str, str]:
    """The columns of a preset in a search. Parameters are those that no vocabulary changes."""
    costs = config.model.costs(257)
    of_an_id = config.model.costs(258).parameters - costs.parameters  # its embedding, and a row of an output layer
    parameters = short(costs.parameters - 257 * of_an_id)
    return name, config.model.name, parameters, config.data.corpus, line_of(name)
