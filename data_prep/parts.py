"""Writes one part of a split: the segment file of its documents, and its entry for the manifest.

    staged, result = write_part(folder, plan.part(3), tokenizer)

Documents pass through one at a time, short ones in groups, and a record batch is written as soon as it is full: a part costs
memory for one record batch and one document, whatever its size. A part is written under a staged name; its ledger entry commits
it (committing.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

import numpy as np

from common.choices import IGNORED
from common.files import seal, unseal
from common.places import Place
from data_prep.documents import SHORT_TEXT, Corpus, Document, Source, naming
from data_prep.manifest import PartEntry
from data_prep.segments import Encoded, PartWriter, arrow_schema
from data_prep.sources import reread
from data_prep.tokenizers import (
    BatchTokenizer,
    SymbolsTokenizer,
    Tokenizer,
    TokenizerError,
    concatenate,
    encode_labelled,
    folded,
    token_dtype,
)

SAMPLE_TOKENS = 2048
"""Tokens of a sampled document that are decoded again, to see whether the tokenizer is lossless."""


TOGETHER = 1 << 16
"""Characters of short documents that are encoded together."""


@dataclass(frozen=True, eq=False)
class PartPlan:
    """The documents of one part and the rows to write them in, made before any part is written."""

    corpus: Corpus
    segment_length: int
    """Tokens of a row."""
    index: int
    first_document: int
    """Index in the split's manifest of the part's first document."""
    sources: Sequence[Source]
    xxh3: np.ndarray
    """uint64 [documents]. Digests of the texts, as the scan saw them."""
    fingerprint: str
    """Digest of the documents, the tokenizer and the parameters: a committed part with another one is made anew."""
    sample_every: int
    """Sampling interval: the first tokens of one document in this many are decoded again."""

    @property
    def name(self) -> str:
        return part_name(self.index)


@dataclass(frozen=True, eq=False)
class PartResult:
    """The ledger entry of a finished part, which goes into the manifest and the table of documents."""

    fingerprint: str
    """Fingerprint of its plan."""
    part: PartEntry
    tokens: np.ndarray
    """int64 [documents]. Tokens of each."""
    batches: np.ndarray
    """int64 [documents]. Record batch that each is in."""
    rows: np.ndarray
    """int64 [documents]. First row of each in its record batch."""
    lossless: bool
    """Whether the sampled documents decode to their text, and no document holds characters that it changes (`folded`)."""
    labels: int | None = None
    """Tokens with a target, where the corpus labels its tokens itself."""

    def to_json(self) -> bytes:
        content = {"fingerprint": self.fingerprint, "lossless": self.lossless, "part": asdict(self.part)}
        content |= {} if self.labels is None else {"labels": self.labels}
        return seal({**content, "documents": [column.tolist() for column in (self.tokens, self.batches, self.rows)]})

    @staticmethod
    def from_json(data: bytes) -> PartResult:
        """Raises ValueError where a byte of it changed, or it was written by other code."""
        entry = unseal(data)
        try:
            tokens, batches, rows = (np.array(column, np.int64) for column in entry["documents"])
            part = PartEntry.from_dict(entry["part"])
            return PartResult(entry["fingerprint"], part, tokens, batches, rows, entry["lossless"], entry.get("labels"))
        except (KeyError, TypeError) as error:
            raise ValueError(f"it lacks {error}") from None


def part_name(index: int) -> str:
    """The file name of a split's part."""
    return f"part-{index:05d}.arrow"


def write_part(folder: Place, plan: PartPlan, tokenizer: Tokenizer) -> tuple[Place, PartResult]:
    """Tokenize the documents of one part and write them under a staged name. Nothing is committed.

    Raises CorpusError where a document is no longer what the scan saw, or the tokenizer cannot encode it.
    """
    staged = (folder / plan.name).staged()
    labelled = isinstance(tokenizer, SymbolsTokenizer)
    folds = [] if labelled else folded(tokenizer)
    lossless = True
    labels = 0
    index = plan.first_document
    schema = arrow_schema(token_dtype(tokenizer.vocab_size), plan.segment_length, labelled)
    with staged.open_output() as stream, PartWriter(stream, schema, plan.segment_length) as part:
        for documents in _together(reread(plan.corpus, plan.sources, plan.xxh3.tolist())):
            encoded = _encode_all(documents, index, tokenizer)
            labels += 0 if encoded.targets is None else int(np.count_nonzero(encoded.targets != IGNORED))
            samples = range(-index % plan.sample_every, len(documents), plan.sample_every)
            lossless = lossless and _are_kept(documents, encoded, tokenizer, folds, samples)
            index += len(documents)
            del documents  # before the next ones are read
            part.add(encoded)
            del encoded
    tokens_N, batches_N, rows_N = part.documents()
    entry = part.entry(plan.name)
    result = PartResult(plan.fingerprint, entry, tokens_N, batches_N, rows_N, lossless, labels if labelled else None)
    return staged, result


def _together(documents: Iterator[Document]) -> Iterator[list[Document]]:
    """Documents in groups: short ones together, each longer one alone."""
    some: list[Document] = []
    size = 0
    for document in documents:
        length = len(document.text)
        if some and length > SHORT_TEXT:
            yield some
            some = []
            size = 0
        some.append(document)
        del document  # else this name would hold it while the next one is read
        size += length
        if size > TOGETHER or length > SHORT_TEXT:
            yield some
            some = []
            size = 0
    if some:
        yield some


def _encode_all(documents: Sequence[Document], first: int, tokenizer: Tokenizer) -> Encoded:
    """Encode some documents. ``first``: index of the first one in the split's manifest."""
    if len(documents) > 1 and isinstance(tokenizer, BatchTokenizer):
        # If one cannot be encoded, all are encoded one by one below, so that the error names it.
        with suppress(TokenizerError):
            tokens, lengths_N = tokenizer.encode_batch([document.text for document in documents])
            return Encoded(first, lengths_N, tokens)
    pairs = [_encode(document, tokenizer) for document in documents]
    targets = [targets for _, targets in pairs if targets is not None]
    tokens, lengths_N = concatenate([tokens for tokens, _ in pairs])
    return Encoded(first, lengths_N, tokens, concatenate(targets)[0] if targets else None)


def _encode(document: Document, tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray | None]:
    """Tokens, and targets where they are not the next token. Raises CorpusError naming a document that cannot be encoded."""
    if isinstance(tokenizer, SymbolsTokenizer):
        return encode_labelled(document, tokenizer)
    with naming(document):
        return tokenizer.encode(document.text), None


def _are_kept(
    documents: Sequence[Document], encoded: Encoded, tokenizer: Tokenizer, folds: list[str] | None, samples: range
) -> bool:
    """Whether documents come back from their tokens.

    Args:
        encoded: the tokens of these documents.
        folds: texts that the tokenizer does not give back (`folded`), which are looked for in every document. None: the
            tokenizer may cover only certain texts, so every document is decoded as a whole.
        samples: if ``folds`` are known, the documents whose first tokens are decoded too.
    """
    for i in range(len(documents)) if folds is None else samples:
        tokens = encoded.document(i).tokens
        first = tokens if folds is None else tokens[:SAMPLE_TOKENS]
        if not begins_with(documents[i].text, tokenizer, first, len(tokens)):
            return False
    return not any(fold in document.text for fold in folds or () for document in documents)  # type: ignore[operator]


def begins_with(text: str | bytes, tokenizer: Tokenizer, tokens: np.ndarray, total: int) -> bool:
    """Whether a text's first tokens decode to its beginning, or to the whole text if there are `total` of them."""
    if isinstance(text, bytes):
        text = text[: 4 * SAMPLE_TOKENS].decode(errors="replace")
    found = tokenizer.decode(tokens)
    if len(tokens) == total:
        return found == text
    # The last token may end within a character, of at most four bytes, which then reads as U+FFFD.
    whole = found.rstrip("\ufffd")
    return text.startswith(found) or (bool(whole) and len(found) - len(whole) < 4 and text.startswith(whole))
