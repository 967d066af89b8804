"""A data set by its name on a hub, through the package `datasets`, where that is installed and a hub can be reached.

    pip install datasets
    python -m pipelines.prepare hub --source OWNER/NAME --text-column text --tokenizer sentencepiece:32000

The hub's splits train, validation (valid, val, dev, eval) and test are kept; a document is a row. Each machine fetches the data set
once, as a whole, into the cache of `datasets` (HF_HOME), and reads rows from there: where that has no room, give a few shards at a
time to `parquet` or `jsonl`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from data_prep.corpora.encodings import text_of_cell
from data_prep.corpora.files import splits_named
from data_prep.corpora.wikitext_lines import refuse_lines
from data_prep.documents import CorpusError, Document, Skipped, Source, split_of

REMEDY = "or download the shards of the data set and give them to the corpus parquet or jsonl"
ROWS = 64
_LOADED: dict[tuple[str, ...], dict[str, Any]] = {}
"""The data set that this process opened last."""


@dataclass(frozen=True)
class Hub:
    """A data set of a hub, one document per row."""

    name: ClassVar[str] = "hub"

    source: str = ""
    """Name of the data set, OWNER/NAME."""
    subset: str = ""
    """Its configuration, where it has several."""
    revision: str = ""
    """Commit, tag or branch: name a commit, so that the text stays the same."""
    text_column: str = "text"
    """Column that holds the text."""
    split_by: Literal["file", "hash"] = "file"
    """Take the splits of the hub, or always from a hash of the row's number."""

    def options(self) -> dict[str, Any]:
        return {"text_column": self.text_column}

    def splits_by_hash(self) -> bool:
        return not any(splits_named(self._load(), self.split_by).values())

    def sources(self, split: str) -> list[Source]:
        """One source for each row of the data set. Raises CorpusError where it cannot be loaded."""
        found = []
        loaded = self._load()
        splits = splits_named(loaded, self.split_by)
        for name, rows in loaded.items():
            refuse_lines(self._texts(rows, 0, 3), f"data set {self.source}")
            named = splits[name]
            if named not in (None, split):
                continue
            for start in range(0, len(rows), ROWS):
                for number, text in enumerate(self._texts(rows, start, start + ROWS), start):
                    id = f"{name}:{number}"
                    if named or split_of(id) == split:
                        found.append(Source(id, id, split, len(str(text)), (name, number)))
        return found

    def read(self, sources: Sequence[Source]) -> Iterator[Document | Skipped]:
        """Yield each row's text as a document."""
        splits = self._load() if sources else {}
        for source in sources:
            name, number = source.place
            texts = self._texts(splits[name], number, number + 1) if name in splits else []
            if not texts:
                raise CorpusError(f"data set {self.source} has fewer rows than before: give a --revision that stays")
            text = texts.pop()
            if text is not None and not isinstance(text, (str, bytes)):
                raise CorpusError(f"data set {self.source} has no text in column {self.text_column!r}: name another")
            if text is None:
                yield Skipped(source.id, "without text")
            else:
                yield Document(source.id, source.id, text_of_cell(text, f"data set {self.source} row {source.id}"))
            del text

    def _load(self) -> dict[str, Any]:
        """The splits by name: memory-mapped, and fetched where this machine does not have them."""
        if not self.source:
            raise CorpusError("corpus hub needs a data set: give --source OWNER/NAME")
        try:
            datasets = importlib.import_module("datasets")
        except ImportError:
            raise CorpusError(f"corpus hub needs the package datasets: pip install datasets, {REMEDY}") from None
        key = (self.source, self.subset, self.revision)
        if key not in _LOADED:
            try:
                loaded = datasets.load_dataset(self.source, self.subset or None, revision=self.revision or None)
            except Exception as error:  # datasets, its HTTP client and its parsers raise types of their own
                raise self._unreachable(error) from None
            _LOADED.clear()
            _LOADED[key] = dict(loaded)
        for rows in _LOADED[key].values():
            if self.text_column not in rows.column_names:
                columns = ", ".join(rows.column_names)
                raise CorpusError(f"data set {self.source} has no column {self.text_column!r}: name one of {columns}")
        return {name: rows.select_columns([self.text_column]) for name, rows in _LOADED[key].items()}

    def _texts(self, rows: Any, start: int, stop: int) -> list[Any]:
        """The text column of some rows; rows that do not exist are left out."""
        try:
            return rows[start:stop][self.text_column]
        except Exception as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> CorpusError:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        return CorpusError(f"data set {self.source} cannot be had ({reason}): see that a hub can be reached, {REMEDY}")
