"""A paper's table as a search space, in which a row is a value of the pseudo-field ``preset``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from studies.papers.tables import Table
from tune_spaces.spaces import Domains, Space, Values, choice


def presets_of(table: Table) -> list[str]:
    """The presets of a table's rows at the paper's scale."""
    runs = [run for row in table.rows for run in row.runs.get("paper", {}).values()]
    return [run.preset for run in runs]


def over_presets(about: str, presets: Iterable[str], default: str = "", **defaults: str) -> Space:
    """Search space of the presets whose names begin with the corpus or task of the sweep's own preset. If there are none, their
    names begin with ``default`` or, without it, with that of the first preset. ``defaults``: those of `Space`.

    The space raises ValueError for a tiny preset.
    """
    names = list(dict.fromkeys(presets))

    def domains(values: Values) -> Domains:
        own = values["preset"].partition("-")[0]
        if own == "tiny":
            raise ValueError(
                f"the papers' tables are spaces of presets of the papers' sizes, and {values['preset']} is none: "
                "python -m pipelines.paper trains them at tiny ones"
            )
        found = [name for name in names if name.startswith(f"{own}-")]
        other = default or names[0].partition("-")[0]
        return {"preset": choice(found or [name for name in names if name.startswith(f"{other}-")])}

    return Space(about, (), domains, **defaults)


def stores(values: Values) -> Domains:
    """The stores in the folder that ``data.store`` names, one for each vocabulary, prepared from the same corpus.

    Raises ValueError if the folder holds fewer than two.
    """
    folder = Path(values["data.store"])
    corpus = values["data.corpus"]
    found = sorted(path for path in folder.glob("*") if (path / corpus / "train" / "manifest.json").exists())
    if len(found) < 2:
        raise ValueError(
            f"{folder} holds {len(found)} stores of {corpus}, and Table 5 compares vocabularies: prepare the corpus with several "
            f"tokenizers, each with a --store of its own below {folder}"
        )
    return {"data.store": choice([str(path) for path in found])}
