"""Corpora of lines, each a window long, in which names are said and asked for: benchmarks.recall and benchmarks.planted.

my name is kato        a statement
fig oak zip rye        filler: four words of a list
your name: kato        a question and its answer
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from common.errors import UserError
from common.files import write_atomically

LINE = 16
"""Bytes of a line, with its newline: the window of both models."""
WORDS = (
    *("ape", "bee", "cow", "dog", "elk", "fig", "gum", "hay", "ivy", "jam", "kit", "log"),
    *("map", "nut", "oak", "pea", "rye", "sap", "tea", "urn", "vat", "wax", "yak", "zip"),
)
STATEMENT, QUESTION = "my name is {}\n", "your name: {}\n"
ANSWER = slice(11, 15)
"""Where the name stands in its line."""
CONSONANTS, VOWELS = "bcdfghjklmnprstv", "aeiou"
NAMES = [a + b + c + d for a in CONSONANTS for b in VOWELS for c in CONSONANTS for d in VOWELS]


def line(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=4)) + "\n"


def write_files(folder: Path, files: Mapping[str, str]) -> Path:
    """Write the files that are not there yet. Raises UserError when others are there."""
    for file in folder.rglob("*.txt"):
        if files.get(file.relative_to(folder).as_posix()) != file.read_text("utf-8"):
            raise UserError(f"{folder} holds a corpus made with other options ({file.name}): give another --root")
    for path, text in files.items():
        file = folder / path
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, text.encode())
    return folder


def call(module: str, *words: str) -> None:
    """Run one of our entry scripts as a user does. Raises ValueError when it fails; it has said why."""
    done = subprocess.run([sys.executable, "-m", module, *words], check=False)
    if done.returncode:
        raise UserError(f"{module} {words[0]} failed with status {done.returncode}: see its message above")
