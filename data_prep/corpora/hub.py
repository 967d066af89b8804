"""A data set by its name on a hub, streamed through the package `datasets`, where that is installed and a hub can be reached.

    pip install datasets
    python -m pipelines.prepare hub --source OWNER/NAME --text-column text --tokenizer sentencepiece:32000

The hub's splits train, validation (valid, val, dev) and test are ours; a document is a row. Every row is fetched three times (to
list, to scan, to write): for a large data set download the shards and give them to `parquet` or `jsonl`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from data_prep.corpora.streams import split_named
from data_prep.documents import CorpusError, Document, Skipped, Source, split_of

REMEDY = (
    "see that a hub can be reached, or download the shards of the data set and give them to the corpus parquet or jsonl"
)


@dataclass(frozen=True)
class Hub:
    """A data set of a hub, a document a row."""

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
        return self.split_by == "hash" or not any(map(split_named, self._load()))

    def sources(self, split: str) -> list[Source]:
        found = []
        for name, rows in self._load().items():
            named = split_named(name) if self.split_by == "file" else None
            if named not in (None, split):
                continue
            for number, row in enumerate(self._rows(rows)):
                id = f"{name}:{number}"
                if named or split_of(id) == split:
                    found.append(Source(id, id, split, len(str(row.get(self.text_column))), f"{name}\t{number}"))
        return found

    def read(self, sources: Sequence[Source]) -> Iterator[Document | Skipped]:
        splits = self._load() if sources else {}
        opened, rows, number = "", iter(()), 0
        for source in sources:
            name, wanted = source.place.rsplit("\t", 1)
            if name != opened:
                opened, number = name, int(wanted)
                rows = self._rows(splits[name].skip(number))
            row: dict[str, Any] | None = None
            while number <= int(wanted):
                row = next(rows, None)
                number += 1
            if row is None:
                raise CorpusError(f"data set {self.source} has fewer rows than before: give a --revision that stays")
            text = row.get(self.text_column)
            if text is not None and not isinstance(text, str):
                columns = ", ".join(map(str, row))
                raise CorpusError(f"data set {self.source} has no text in column {self.text_column!r} ({columns})")
            yield Skipped(source.id, "without text") if text is None else Document(source.id, source.id, text)

    def _load(self) -> dict[str, Any]:
        """The streamed splits by name."""
        if not self.source:
            raise CorpusError("corpus hub needs a data set: give --source OWNER/NAME")
        try:
            datasets = importlib.import_module("datasets")
        except ImportError:
            raise CorpusError(
                "corpus hub needs the package datasets: pip install datasets, or download the shards of the data set and give "
                "them to the corpus parquet or jsonl"
            ) from None
        try:
            loaded = datasets.load_dataset(
                self.source, self.subset or None, revision=self.revision or None, streaming=True
            )
        except Exception as error:  # datasets, its HTTP client and its parsers raise types of their own
            raise self._unreachable(error) from None
        return dict(loaded)

    def _rows(self, rows: Any) -> Iterator[dict[str, Any]]:
        iterator = iter(rows)
        first = True
        while True:
            try:
                row = next(iterator)
            except StopIteration:
                return
            except Exception as error:
                raise self._unreachable(error) from None
            if first and self.text_column not in row:
                columns = ", ".join(map(str, row))
                raise CorpusError(f"data set {self.source} has no column {self.text_column!r}: name one of {columns}")
            first = False
            yield row

    def _unreachable(self, error: Exception) -> CorpusError:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        return CorpusError(f"data set {self.source} cannot be had ({reason}): {REMEDY}")
