"""The picture of docs/guide-choosing.md shows what results/today has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.today_figure import TABLE, main, recorded

DOCS = Path(__file__).parents[2] / "docs"


def test_the_picture_is_of_the_recorded_results(tmp_path: Path) -> None:
    main(["--output", str(tmp_path / "today.png")])
    drawn, kept = (np.asarray(Image.open(folder / "today.png").convert("L"), float) for folder in (tmp_path, DOCS))
    assert drawn.shape == kept.shape and abs(drawn - kept).mean() < 0.01, (
        "python -m benchmarks.today_figure draws it anew"
    )


def test_each_value_belongs_to_its_row() -> None:
    cells = recorded().cells
    assert cells["slide", TABLE.x] == (79.0,) and cells["slide", TABLE.size] == (61440.0,)
    assert {label for label, _ in cells} <= {row.label for row in TABLE.rows}
