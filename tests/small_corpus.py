"""Helpers of tests that prepare small corpora; the fixtures `text_folder` and `make_config` use them."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path


@functools.cache
def words(name: str, count: int) -> str:
    """Text that differs from name to name, with lines, indents, non-ASCII letters and odd line ends."""
    text = []
    for i in range(count):
        word = hashlib.blake2b(f"{name}{i}".encode(), digest_size=3).hexdigest()
        after = "\n    " if i % 11 == 0 else " "
        if i % 17 == 0:
            after = "é€ \r\n"
        text.append(word + after)
    return "".join(text)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path in it."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def flip(path: Path, offset: int | None = None) -> None:
    """Change one bit of a file, in its middle unless an offset says where."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if offset is None else offset] ^= 1
    path.write_bytes(data)
