"""The results of a paper's table, invented: the orderings that they keep, and how a picture draws them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from PIL import Image

from studies.papers import PAPERS
from studies.papers.picture import draw, drawn_columns, look_of, plot
from studies.papers.results import Results
from studies.papers.tables import PARAMETERS, Column, Row, Table


def results(cells: dict[str, tuple[float, ...]]) -> Results:
    """Our results for rows that the paper has at 1, 2, 3 and 3."""
    rows = tuple(Row(label, {"bits": value}) for label, value in zip("abcd", (1.0, 2.0, 3.0, 3.0), strict=True))
    table = Table("A table", (Column("bits", "bits_per_token"),), rows)
    return Results("mine", table, "tiny", (0, 1), {(label, "bits"): values for label, values in cells.items()})


def test_orderings_that_hold_and_that_do_not_are_named() -> None:
    found = results({"a": (1.5, 1.6), "b": (1.9, 2.3), "c": (2.1, 2.2), "d": (1.0, 1.1)}).ordering(
        Column("bits", "bits_per_token")
    )
    assert found.holds == [("a", "b"), ("a", "c")] and found.fails == [("a", "d"), ("b", "d")]
    assert found.undecided == [("b", "c")]  # c and d are equal in the paper
    few = results({"a": (3.0, 3.1, 2.9), "b": (3.01,), "c": (2.5,), "d": (2.5,)})
    found = few.ordering(Column("bits", "bits_per_token"))
    assert ("a", "b") in found.undecided and ("b", "c") in found.fails  # b's one seed has no spread
    assert "not of all 2 seeds: b (bits) of 1; c (bits) of 1; d (bits) of 1" in few.sentences()
    text = results({"a": (1.5,), "b": (1.0,)}).markdown()
    assert "| a | 1.000 | 1.500 |" in text and "| c | 3.000 | – |" in text
    assert "0 of 1 pairs of rows that the paper puts apart are ordered as in the paper" in text
    assert "in another order than in the paper: a below b" in text
    one = replace(results({"a": (1.5,), "b": (1.0,)}), seeds=(0,))
    assert any("one seed" in said for said in one.remarks()) and "one seed" not in text
    worth = Column("cleared", "states_cleared", form="+.2f")  # of which the paper says nothing
    both = replace(one, table=replace(one.table, columns=(*one.table.columns, worth)), cells={("a", "cleared"): (0.5,)})
    headings, ((*first,), *_) = both.grid()
    assert headings == ["", "bits, paper", "bits, ours", "cleared"] and first == ["a", "1.000", "–", "+0.50"]
    assert both.title() == "mine (A table), ours at scale tiny, seed 0"
    assert "| 1.550 ± 0.071 |" in results({"a": (1.5, 1.6)}).markdown()


def test_a_column_of_the_best_seed_has_its_value_and_the_range_of_all() -> None:
    bits = Column("bits", "bits_per_token", form=".1f", best=True)
    seeds: dict[str, tuple[float, ...]] = {
        "a": (1.5, 1.9, 9.0),
        "b": (2.5, 2.41, 3.0),
        "c": (2.4, 2.8, 2.6),
        "d": (0.1,),
    }
    best = {("a", "bits"): 1.9, ("b", "bits"): 2.41, ("c", "bits"): 2.4}  # by validation, which is not always the least
    found = results(seeds)
    found = replace(found, table=replace(found.table, columns=(bits, PARAMETERS)), best=best, seeds=(0, 1, 2))
    found = replace(found, cells={**found.cells, ("a", "parameters"): (9e6, 9e6, 9e6)})
    _, (first, second, _, alone) = found.grid()
    assert (
        first == ["a", "1.0", "1.9 (1.5 to 9.0)", "9,000,000"] and second[2] == "2.4 (2.4 to 3.0)" and alone[2] == "0.1"
    )
    ordering = found.ordering(bits)
    assert ordering.holds == [("a", "b"), ("a", "c")] and ordering.undecided == [("b", "c")]
    assert found.spread(found.table.rows[0], bits) == (pytest.approx(0.4), pytest.approx(7.1))
    assert any(said.startswith("bits: that of the seed which is the best on validation") for said in found.sentences())
    assert "bits, level: b below c" in found.sentences() and "±" not in found.markdown()


def test_a_picture_has_no_panel_that_nobody_has_a_value_for(tmp_path: Path) -> None:
    bits, worth, time = (
        Column("bits", "bits_per_token"),
        Column("cleared", "states_cleared"),
        Column("ms", "ms_per_step"),
    )
    both = results({"a": (1.5,), "b": (1.0,)})
    both = replace(
        both, table=replace(both.table, columns=(bits, worth)), cells={**both.cells, ("a", "cleared"): (0.5,)}
    )
    assert drawn_columns(both) == ([bits], ["paper", "ours"])
    curves = tuple(replace(row, paper={}, x=place) for place, row in enumerate(both.table.rows, 1))
    ours = replace(both, table=replace(both.table, columns=(bits, worth, time), rows=curves, x="size"))
    assert drawn_columns(ours) == ([bits, worth], ["ours"])  # the time was not measured
    assert drawn_columns(replace(ours, cells={})) == ([bits, worth, time], ["ours"])
    small, large = (Image.open(plot(made, tmp_path / f"{made.table.x}.png")) for made in (ours, both))
    assert small.height < large.height
    sized = replace(ours, table=replace(ours.table, columns=(bits, PARAMETERS)), cells={("a", "parameters"): (9e6,)})
    assert drawn_columns(sized) == ([bits], ["ours"])  # a size is no curve
    alone = replace(ours, table=replace(ours.table, columns=(bits,), x="bits"))
    assert drawn_columns(alone) == ([bits], ["ours"])  # asked for by --columns


@pytest.mark.parametrize(
    ("places", "ticks"), [((50, 3260), [50, 100, 200, 500, 1000, 2000]), ((128, 2048), [128, 256, 512, 1024, 2048])]
)
def test_ticks_are_round_numbers(places: tuple[int, int], ticks: list[int]) -> None:
    rows = tuple(Row(label, {}, x=place) for label, place in zip("ab", places, strict=True))
    made = results({"a": (1.5,), "b": (1.0,)})
    made = replace(made, table=replace(made.table, rows=rows, x="size"))
    axes = Figure().subplots()
    draw(made, axes, made.table.columns[0], False)
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == pytest.approx(ticks)


def test_a_circles_radius_is_proportional_to_the_parameters() -> None:
    """The staircase paper's Figure 3."""
    table = PAPERS["staircase"]["figure-3"]
    labels = ("Transformer-XL 2x deep", "Staircase, 2 steps", "Universal, 2 steps")
    table = replace(table, rows=tuple(row for row in table.rows if row.label in labels))
    counts = {"Transformer-XL 2x deep": 6e5, "Staircase, 2 steps": 4e5, "Universal, 2 steps": 1e5}
    times = {"Transformer-XL 2x deep": 30.0, "Staircase, 2 steps": 20.0, "Universal, 2 steps": 10.0}
    cells = {(label, "parameters"): (count,) for label, count in counts.items()}
    cells |= {(label, "batch time, ms"): (time,) for label, time in times.items()}
    cells |= {(label, "test ppl"): (5.0,) for label in labels}
    made = Results("staircase figure-3", table, "tiny", (0,), cells)
    assert [column.name for column in drawn_columns(made)[0]] == ["validation ppl", "test ppl"]
    (column,) = [column for column in table.columns if column.name == "test ppl"]
    for of_paper, expected in ((True, [218 / 218, 117 / 218, 29 / 218]), (False, [1.0, 4 / 6, 1 / 6])):
        axes = Figure().subplots()
        draw(made, axes, column, of_paper)
        circles = [found for found in axes.collections if isinstance(found, PathCollection)]
        areas = sorted((area for found in circles for area in found.get_sizes()), reverse=True)
        assert [(area / areas[0]) ** 0.5 for area in areas] == pytest.approx(expected)
        legend = axes.get_legend()
        assert legend and legend.get_title().get_text().endswith("218M" if of_paper else "600k")
    headings, rows = made.grid()
    assert headings[1:3] == ["parameters, paper", "parameters, ours"]
    assert rows[0][1:3] == ["218,000,000", "600,000"]


def test_a_corpus_in_place_of_the_papers_is_named() -> None:
    """Beside our values, since the column has the name of the paper's corpus."""
    made = replace(results({"a": (1.5,), "b": (1.9,)}), corpus="python-source")
    assert made.title().startswith("mine (A table), ours at scale tiny, text of python-source, seeds 0, 1")
    assert made.to_json()["corpus"] == "python-source"


def test_many_models_in_a_figure_can_be_told_apart() -> None:
    """Today's Figure 1 has more rows than there are colours; its circles' areas are the sizes of State."""
    table = PAPERS["today"]["figure-1"]
    sizes = {row.label: 1000.0 * (number + 1) for number, row in enumerate(table.rows)}
    cells = {(label, table.size): (size,) for label, size in sizes.items()}
    cells |= {(label, table.x): (5.0 * number,) for number, label in enumerate(sizes)}
    (column,) = [column for column in table.columns if column.name not in (table.x, table.size)]
    cells |= {(label, column.name): (50.0,) for label in sizes}
    axes = Figure().subplots()
    results = Results("today figure-1", table, "tiny", (0,), cells)
    draw(results, axes, column, False)
    looks = {(line.get_color(), line.get_marker()) for line in axes.lines if line.get_marker() not in ("", "None", "_")}
    assert len(looks) == len(sizes) > 20
    circles = [found for found in axes.collections if isinstance(found, PathCollection)]
    areas = sorted(float(area) for found in circles for area in found.get_sizes())
    assert [area / areas[-1] for area in areas] == pytest.approx(
        [size / max(sizes.values()) for size in sizes.values()]
    )
    assert not axes.get_legend()
    names = {text.get_text(): text for text in axes.texts}
    assert sorted(names) == sorted(sizes)
    assert {name: str(text.get_color()) for name, text in names.items()} == {
        name: look_of(results, name)[0] for name in sizes
    }


def test_percentages_are_drawn_from_0_to_100() -> None:
    table = replace(PAPERS["today"]["table-1"], rows=PAPERS["today"]["table-1"].rows[:1])
    (parity,) = [column for column in table.columns if column.name.startswith("parity")]
    axes = Figure().subplots()
    results = Results("today table-1", table, "tiny", (0,), {(table.rows[0].label, parity.name): (43.0,)})
    draw(results, axes, parity, False)
    low, high = axes.get_xlim()
    assert low < 0 and high > 100
    assert drawn_columns(results) == ([parity], ["ours"])


def test_either_rows_seeds_may_leave_a_pair_undecided() -> None:
    found = results({"a": (2.0, 2.0), "b": (1.5, 2.9)}).ordering(Column("bits", "bits_per_token"))
    assert found.undecided == [("a", "b")]
