"""The corpora whose preparation is weighed, and a source that has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import prepare_memory
from common.errors import UserError


def test_a_source_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--source .* has no \*\.txt file with text in it"):
        prepare_memory.main(["--source", str(tmp_path)])
    (tmp_path / "empty.txt").touch()
    with pytest.raises(UserError, match=r"--source .* has no \*\.txt file with text in it"):
        prepare_memory.main(["--source", str(tmp_path)])
    with pytest.raises(UserError, match="--source"):
        prepare_memory.main([])


def test_a_long_document_is_the_files_over_and_over(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "text.txt").write_text("a line of a book\n" * 10_000)
    made = prepare_memory.long_document(prepare_memory.texts(str(tmp_path)), 1, tmp_path / "corpus")
    size = (made / "train" / "long.txt").stat().st_size
    assert 1_000_000 <= size < 1_170_000
