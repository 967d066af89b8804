"""Places where a long text may be cut, so that its pieces have the same tokens as the whole.

for piece in Cuts("\n", characters=4096).pieces(text): ...
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Cuts:
    """Places at which a text may be cut without a change of ids: encoding the pieces gives the ids of the whole."""

    pattern: str
    """Regular expression; a piece ends where a match ends."""
    characters: int
    """A piece ends at the first such place after this many characters."""
    skip: int = 0
    """Characters left out after a piece: a space that the tokenizer itself puts before the next one."""
    fallback: str = ""
    """Regular expression of further places, for a text that has none of `pattern`'s for long; empty for none."""
    fallback_characters: int = 1 << 16
    """A piece that has no end after this many characters ends at the next place of `fallback`."""

    def pieces(self, text: str) -> Iterator[str]:
        """The pieces of a text, in order; an empty text has none."""
        search = re.compile(self.pattern).search
        search_on = re.compile(self.fallback).search
        start = 0
        while start < len(text):
            if self.fallback:
                most = start + self.fallback_characters
                found = search(text, start + self.characters, most) or search_on(text, most)
            else:
                found = search(text, start + self.characters)
            stop = found.end() if found else len(text)
            yield text[start:stop]
            start = stop + self.skip
