"""A small corpus that labels its tokens itself."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from data_prep.documents import NOTHING, Document, Source


@dataclass(frozen=True)
class Task:
    """Switches: after each third symbol, say whether the one before it was the same."""

    name: ClassVar[str] = "task"

    documents: int = 12
    """Documents of the train split; others have a third."""
    length: int = 40
    """Symbols of the longest document."""
    flaw: str = ""
    """Replaces the targets of the first document."""

    def symbols(self) -> Sequence[str]:
        return ("off", "on", "same", "other")

    def sources(self, split: str) -> Sequence[Source]:
        count = self.documents if split == "train" else self.documents // 3
        return [Source(f"{split}/{i}", f"{split} {i}", split, 4 * self.length) for i in range(count)]

    def read(self, sources: Sequence[Source]) -> Iterator[Document]:
        for source in sources:
            draw = random.Random(source.id)
            number = int(source.id.rpartition("/")[2])
            symbols = draw.choices(("off", "on"), k=self.length - 3 * (number % 4))
            said = ["same" if a == b else "other" for a, b in zip(["", *symbols], symbols, strict=False)]
            targets = " ".join(said[i] if i % 3 == 2 else NOTHING for i in range(len(symbols)))
            flawed = self.flaw and source.id == "train/0"
            yield Document(source.id, source.title, " ".join(symbols), self.flaw if flawed else targets)

    def options(self) -> dict[str, Any]:
        return {"documents": self.documents, "length": self.length}
