"""The document that is encoded whole and in pieces: its size, and the memory that is counted beyond it."""

from __future__ import annotations

from pathlib import Path

from benchmarks.long_document import document, measure


def test_it_has_so_many_bytes_and_ends_with_a_whole_character(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("drei Zeichen: 三、", "utf-8")
    text, size = document(path, 1)
    assert size == 1_000_000 and size - 3 < len(text.encode()) <= size
    assert text.startswith("drei Zeichen: 三、drei")


def test_what_is_freed_before_hides_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("a line of a book\n" * 1000, "utf-8")
    _, peak, ids = measure("bytes", "whole", path, 20, 1)
    assert len(ids) == 20_000_000 and 2.9 < peak < 3.1  # its bytes, and two for each id
