"""Compares two or more passes over one split token by token: where, and at which words, one model is better than another.

comparison.facts, comparison.rows, comparison.distance_rows      # the metrics, the words of the largest gains, the distances

Letters: M passes · G groups of the text (`chance.edges_of`) · T tokens of a document · N words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from pipelines.terminal.tables import counted
from pipelines.tracking.chance import edges_of, paired
from studies.words import Words, around, by_distance, rare, tokens_of, top, where

HUNDREDTHS = 100
"""Number of parts into which a document is cut, to take the mean of each."""
WRITTEN = 1000
"""Number of documents whose means are written: the longest ones."""
COLUMNS = ("document", "token", "word", "gain", "last_seen", "where", "name", "text", "from", "to", "words")
"""Columns of the tables besides the models' own: no model can have one of these names."""


@dataclass(frozen=True)
class TokenComparison:
    """Two or more passes over one split."""

    names: tuple[str, ...]
    """Names of the passes: first the one to compare with, last the one to look at. Those between join the study of distances."""
    split: str
    titles: Sequence[str]
    """The documents' titles."""
    lengths: Sequence[int]
    """Tokens of each document."""
    tokens: Callable[[int], np.ndarray]
    """Ids [T] of a document."""
    nats: Callable[[int], Sequence[np.ndarray]]
    """Losses of each pass over a document, float32 [T]."""
    write: Callable[[Sequence[int]], str]
    words: Words
    window: int
    """Tokens that the last model sees without recurrence; 0 where it attends to none."""
    segment: int
    """Tokens of a segment, after which State is cleared in a pass that clears it."""
    cut: int
    """Token of a document before which State is cleared instead; 0 clears at segments."""
    shown: int
    """Number of the document whose text is on the page."""
    shown_tokens: int
    """Tokens of this text on the page, at most."""
    count: int = 40
    """Words in the table, unless ``of_each`` is set."""
    of_each: int = 0
    """Words of each document in the table; 0 uses ``count``."""
    by: Literal["word", "token"] = "word"
    """Whether the table has words, or tokens of words."""
    common: int = 1000
    """The most frequent words of the split, which the distances leave out."""

    @property
    def pair(self) -> tuple[str, str]:
        """The pass to compare with, then the pass to look at."""
        return self.names[0], self.names[-1]

    def both(self, document: int) -> tuple[np.ndarray, np.ndarray]:
        """Losses of the pair over a document, in nats, float32 [T] each."""
        nats = self.nats(document)
        return nats[0], nats[-1]

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Metrics over all documents, from all losses: bits per token of each pass, and shares among the top words."""
        starts = np.concatenate([[0], np.cumsum(self.lengths)])
        edges = edges_of(starts)
        sums_MG = np.zeros((len(self.names), len(edges) - 1))
        for document, (start, stop) in enumerate(pairwise(starts.tolist())):
            group_T = np.searchsorted(edges, np.arange(start, stop), "right") - 1
            for sums_G, nats_T in zip(sums_MG, self.nats(document), strict=True):
                sums_G += np.bincount(group_T, nats_T, len(sums_G))
        tokens = int(starts[-1])
        best = self.best  # fewer where fewer have a gain
        names_N = np.concatenate([found.name_N for found in self.ranked])
        places = [self.place(*pair) for pair in zip(best.before_N.tolist(), best.offset_N.tolist(), strict=True)]
        return {
            "tokens": tokens,
            "top": len(best),
            "bits_per_token": (sums_MG.sum(1) / math.log(2) / tokens).tolist(),
            "difference": paired(sums_MG[0], sums_MG[-1], np.diff(edges)),
            "names_among_top": float(best.name_N.mean()) if len(best) else math.nan,
            "names_among_all": float(names_N.mean()) if len(names_N) else math.nan,
            "top_places": {place: places.count(place) for place in sorted(set(places))},
        }

    @cached_property
    def ranked(self) -> list[Words]:
        """For each document its words, or their tokens: the candidates for the largest gains."""
        bounds = np.searchsorted(self.words.document_N, np.arange(len(self.titles) + 1))
        documents = [self.words.at(np.arange(start, stop)) for start, stop in pairwise(bounds)]
        if self.by == "word":
            return documents
        return [tokens_of(words, self.nats(document)) for document, words in enumerate(documents)]

    @cached_property
    def best(self) -> Words:
        """Words that the last pass predicts better than the first, the largest gain first; ``of_each``: at most so many a
        document."""
        most = self.of_each or self.count
        joined = Words.join([top(found, most) for found in self.ranked])
        return top(joined, len(joined) if self.of_each else self.count)

    def gains(self, document: int) -> tuple[np.ndarray, np.ndarray]:
        """Bounds of a document's hundredths, int64 [P + 1], and the mean gain of the last pass in each, in nats [P]. A document of
        fewer than 100 tokens has one for each token."""
        first, second = self.both(document)
        bounds = np.linspace(0, len(first), min(len(first), HUNDREDTHS) + 1).astype(np.int64)
        gain = first.astype(np.float64) - second
        means = np.add.reduceat(gain, bounds[:-1]) / np.diff(bounds) if len(gain) else gain
        return bounds, means

    def longest(self, count: int) -> list[int]:
        """Numbers of the ``count`` longest documents, in ascending order."""
        return sorted(np.argsort(self.lengths, kind="stable")[::-1][:count].tolist())

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Rows of the words in ``best``, the largest gain first."""
        best = self.best
        (base, better) = self.pair
        rows = []
        for number in range(len(best)):
            columns = (best.document_N, best.offset_N, best.tokens_N, best.before_N)
            document, offset, count, before = (int(column[number]) for column in columns)
            left, word, right = around(self.write, self.tokens(document), offset, count)
            first, *_, second = best.nats_MN[:, number].tolist()
            rows.append(
                {
                    "document": self.titles[document],
                    "token": offset,
                    "word": best.text_N[number],
                    "gain": first - second,
                    base: first,
                    better: second,
                    "last_seen": before,
                    "where": self.place(before, offset),
                    "name": bool(best.name_N[number]),
                    "text": (left, word, right),
                }
            )
        return rows

    @cached_property
    def distance_rows(self) -> list[dict[str, Any]]:
        """The cost of rare words over the distance to their last occurrence."""
        return by_distance(self.words.at(rare(self.words, self.common)))

    def place(self, before: int, offset: int) -> str:
        """The place where a word stood last, in the words of `where`."""
        begins = 0
        if not self.cut:
            begins = offset // self.segment * self.segment
        elif offset >= self.cut:
            begins = self.cut
        return where(before, self.window, begins, offset)

    def positions(self) -> list[dict[str, Any]]:
        """The means of `gains`, a row for each hundredth of each of the longest documents."""
        rows = []
        for document in self.longest(WRITTEN):
            bounds, means = self.gains(document)
            about = {"document": document, "title": self.titles[document]}
            for (start, stop), gain in zip(pairwise(bounds.tolist()), means.tolist(), strict=True):
                rows.append({**about, "from": start, "to": stop, "gain": gain})
        return rows

    def difference(self) -> str:
        """Bits per token of the last pass less the first's, and whether that is more than chance, as text."""
        first, *_, last = self.facts["bits_per_token"]
        found = self.facts["difference"]
        told = f"{last - first:+.4f}"
        if found is None:
            return f"{told}: too little text to tell this from chance"
        margin = f"± {found.margin / math.log(2):.4f}"
        return f"{told} {margin}" if found.beyond_chance else f"{told}, within chance: {margin}"

    def share_of_names(self) -> str:
        """The share of names among the words with most gain, in a sentence."""
        facts = self.facts
        (base, better) = self.pair
        if not facts["top"]:
            return f"No {self.by} costs {better} less than {base}."
        kind = "are names" if self.by == "word" else "are of names"
        shares = f"{facts['names_among_top']:.0%} {kind}, of all {self.by}s {facts['names_among_all']:.0%}."
        each = f", at most {self.of_each} of each document" if self.of_each else ""
        return f"Among the {counted(facts['top'], self.by)} that {better} predicts better by most{each}, {shares}"
