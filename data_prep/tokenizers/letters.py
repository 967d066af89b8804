"""Letters and digits of scripts that put blanks between words: a text may be cut after two of them, before a blank.

Left out are CJK ideographs, which some normalizers put blanks around, marks, and characters that may combine with their neighbour
without a mark. `tests/data_prep/test_letters.py` checks what the proofs need of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

OTHER_LETTERS = (
    "\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff"  # Latin
    "\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03ce"  # Greek
    "\u0400-\u0481\u048a-\u052f"  # Cyrillic
    "\u0531-\u0556\u0561-\u0586"  # Armenian
    "\u05d0-\u05ea"  # Hebrew
    "\u0621-\u063a\u0641-\u064a\u0671-\u06d3"  # Arabic
    "\u0904-\u0939\u0985-\u098c\u0993-\u09a8\u09aa-\u09b0"  # Devanagari, Bengali
    "\u0a13-\u0a28\u0a85-\u0a8d\u0a93-\u0aa8\u0bae-\u0bb9"  # Gurmukhi, Gujarati, Tamil
    "\u0c12-\u0c28\u0c92-\u0ca8\u0d12-\u0d28"  # Telugu, Kannada, Malayalam
    "\u0e01-\u0e30\u10d0-\u10fa\u1200-\u1248"  # Thai, Georgian, Ethiopic
    "\uac00-\ud7a3"  # Hangul
)
"""Letters that are not ASCII, as the inside of a class of a regular expression."""

LETTERS = "0-9A-Za-z" + OTHER_LETTERS


def members(ranges: str) -> str:
    """The characters of such a class, in order."""
    return "".join(
        chr(code)
        for first, last in re.findall(r"(.)(?:-(.))?", ranges)
        for code in range(ord(first), ord(last or first) + 1)
    )


def ranges(characters: Iterable[str]) -> str:
    """The inside of a class of letters and digits with these characters, as ranges."""
    found: list[list[int]] = []
    for code in sorted(map(ord, characters)):
        if found and code == found[-1][1] + 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return "".join(chr(first) if first == last else f"{chr(first)}-{chr(last)}" for first, last in found)
