"""Checks of a corpus and its scanned splits, and remarks on them: why one has no document, which hold more text
than train, and which share texts.

empty_split(scans["test"])                # "no document with text (skipped 3 PDF only), left out; to have one, add documents"
held_out_warnings(scans)                  # ["3 of 40 documents of validation stand in train too, byte for byte: …"]
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from common.places import Place
from common.uris import PlaceError
from data_prep.corpora.files import is_hidden
from data_prep.corpora.github import GitHub
from data_prep.corpora.jsonl import JsonLines
from data_prep.corpora.tasks import Task
from data_prep.corpora.text import Text
from data_prep.corpora.wikitext import WikiText
from data_prep.documents import SPLITS, Corpus, SplitsByHash, naming
from data_prep.manifest import StoreError
from data_prep.scanning import SplitScan
from data_prep.store import SegmentStore
from data_prep.tokenizers import SymbolsTokenizer, Tokenizer, folded


def check_outside(corpus: Corpus, folder: Place) -> None:
    """Raises StoreError if preparing would remove a corpus's texts, since its folder in a store is theirs or one of its splits
    holds them; or if its folder in a store lies in the folder of its texts, and its files would be read as texts.
    """
    source = getattr(corpus, "source", "")
    if not source:
        return
    try:
        root = Place.parse(source)
    except PlaceError:  # a plug-in's corpus may read from elsewhere
        return
    if root.root != folder.root:
        return
    texts = _resolved(root)
    own = _resolved(folder)
    splits = [_resolved(folder / split) for split in SPLITS]
    beside_splits = isinstance(corpus, WikiText)  # its files may lie in the folder that gets the splits
    if (texts == own and not beside_splits) or not {texts, *texts.parents}.isdisjoint(splits):
        raise StoreError(f"{folder} is where {root} lies, and preparing would replace it: give --store another place")
    if not (isinstance(corpus, Text | JsonLines) and folder.is_local and texts in own.parents):
        return
    files = [file.name for file in folder.list(recursive=True)] or ["tokenizer/tokenizer.json"]
    read = next(filter(corpus.takes, files), None)
    if read and not is_hidden(os.path.relpath(folder.path, root.path)):
        raise StoreError(f"{folder} lies in {root}, and {read} would be read as a text: give --store another place")


def _resolved(place: Place) -> Path:
    """The path of a place in its file system, without links where it is local."""
    return Path(os.path.realpath(place.path) if place.is_local else place.path)


def check_documents(scans: Sequence[SplitScan], each: bool) -> None:
    """Raises StoreError where no split of a corpus has a document.

    Args:
        scans: of one split or more.
        each: raise also if one of the splits has none, since the user named the splits.
    """
    corpus = scans[0].corpus
    empty = [scan for scan in scans if not scan.documents]
    if empty and each:
        what = f"split {empty[0].split} of {corpus.name} holds {_without_text(empty[:1])}"
        raise StoreError(f"{what}: leave it out of --splits")
    if len(empty) == len(scans):
        what = f"{corpus.name} holds {_without_text(scans)}"
        remedy = "give another --source"
        if isinstance(corpus, Task):
            remedy = "ask for documents"
        elif any("too large" in scan.skipped for scan in scans):
            remedy = "give a larger --max-document-bytes, or another --source"
        elif isinstance(corpus, GitHub):
            remedy = "give the --endings of its files, or as --source the folder that holds the repositories"
        raise StoreError(f"{what}: {remedy}")


def check_encodes(tokenizer: Tokenizer, scans: Sequence[SplitScan]) -> None:
    """Encode every document if the vocabulary may not cover all texts, so that errors come before splits are replaced.

    Raises CorpusError naming the first document that it cannot encode.
    """
    if isinstance(tokenizer, SymbolsTokenizer) or folded(tokenizer) is not None:
        return
    for scan in scans:
        for document in scan.reread(np.arange(len(scan.documents))):
            with naming(document):
                tokenizer.encode(document.text)


def empty_split(scan: SplitScan) -> str:
    """The message on a split without documents. It does not name the split."""
    remedy = (
        "add documents, or call a folder or file train, validation or test if this corpus takes its splits from names"
    )
    corpus = scan.corpus
    if isinstance(corpus, Task):
        remedy = f"give --{scan.split} 1 or more"
    elif isinstance(corpus, SplitsByHash) and "split_by" in vars(corpus) and not corpus.splits_by_hash():
        remedy += ", or give --split-by hash to take some documents of each"
    return f"{_without_text([scan])}, left out; to have one, {remedy}"


def _without_text(scans: Sequence[SplitScan]) -> str:
    """The words for splits without documents, with the reasons for which their items were skipped."""
    skipped: Counter[str] = Counter()
    for scan in scans:
        skipped.update(scan.skipped)
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(skipped.items()))
    return "no document with text" + (f" (skipped {reasons})" if reasons else "")


def difference_of_standing(store: SegmentStore, scans: Mapping[str, SplitScan]) -> str:
    """Why a split that stays in a store does not fit newly scanned ones, in words; "" if it fits."""
    texts = np.array([int(digest, 16) for digest in store.documents.texts("xxh3")], np.uint64)
    shared = {split: int(np.isin(scan.documents.group.xxh3, texts).sum()) for split, scan in scans.items()}
    both = " and ".join(f"{count:,} of {split}" for split, count in shared.items() if count)
    if both:
        return f"it holds texts that stand in other splits too ({both})"
    options = store.manifest.inputs["corpus"]["options"]
    return "with other corpus options" if any(scan.corpus.options() != options for scan in scans.values()) else ""


def held_out_warnings(scans: Mapping[str, SplitScan]) -> list[str]:
    """Sentences on held-out splits: if hashes gave one more text than train, and for each that shares texts with train."""
    if "train" not in scans:
        return []
    train = scans["train"]
    sentences = []
    largest = max(scans.values(), key=lambda scan: scan.bytes)
    corpus = train.corpus
    if largest.bytes > train.bytes and isinstance(corpus, SplitsByHash) and corpus.splits_by_hash():
        sentences.append(
            f"{largest.split} has {largest.bytes:,} bytes of text and train only {train.bytes:,}, since a hash of its id gives "
            "each document its split, however long it is: cut long documents up, or call folders or files train, validation and "
            "test if this corpus takes its splits from names"
        )
    for split, scan in scans.items():
        if split == "train":
            continue
        texts = scan.documents.group.xxh3
        shared = int(np.isin(texts, train.documents.group.xxh3).sum())
        if shared:
            sentences.append(
                f"{shared:,} of {len(texts):,} documents of {split} stand in train too, byte for byte: a model may know them by "
                "heart; remove duplicates from the corpus first"
            )
    return sentences
