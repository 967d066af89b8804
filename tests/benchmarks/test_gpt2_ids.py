"""Nothing compared is not the same as nothing different."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import gpt2_ids
from common.errors import UserError


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for name in ("texts", "nowhere"):
        with pytest.raises(UserError, match=f"{name} has no files: name a folder of texts"):
            gpt2_ids.main([str(tmp_path), str(tmp_path / name)])
