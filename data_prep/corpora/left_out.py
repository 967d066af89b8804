"""Items that cannot be documents, counted by reason while a corpus is listed or read.

left_out = LeftOut()
left_out.add("too large")
sources += left_out.sources("a.jsonl", "train")          # Source("a.jsonl: too large", …)
skipped_of(sources[-1])                                  # Skipped("a.jsonl: too large", "too large", 1); None for a document's
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from data_prep.documents import Skipped, Source
from data_prep.sources import NumberedSources

LEFT_OUT = "left out: "
"""Begins the place of a source that stands for items that were left out; their number follows."""


class LeftOut:
    """Counts items that cannot be documents, by reason."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, reason: str, count: int = 1) -> None:
        if count:
            self._counts[reason] += count

    def sources(self, archive: str, split: str) -> list[Source]:
        """While a corpus is listed: a source for each reason, which stands for all items of that reason in an archive."""
        return [
            Source(f"{archive}: {reason}", reason, split, 0, f"{LEFT_OUT}{count}")
            for reason, count in sorted(self._counts.items())
        ]

    def skipped(self, id: str) -> Iterator[Skipped]:
        """While a document is read: a Skipped for each reason."""
        for reason, count in sorted(self._counts.items()):
            yield Skipped(id, reason, count)


def skipped_of(source: Source) -> Skipped | None:
    """The Skipped for which a source of `LeftOut.sources` stands; None for another source."""
    if not isinstance(source.place, str) or not source.place.startswith(LEFT_OUT):
        return None
    return Skipped(source.id, source.title, int(source.place.removeprefix(LEFT_OUT)))


def count_items(sources: Sequence[Source]) -> int:
    """The number of sources that stand for one item each, and not for items that were left out."""
    candidates = sources.others if isinstance(sources, NumberedSources) else sources
    return len(sources) - sum(skipped_of(source) is not None for source in candidates)
