"""Compares GPT-2's ids through tiktoken with Hugging Face's, and their speed, on every whole file of some folders.

    python -m benchmarks.gpt2_ids DATA/tokenizers/gpt2 DATA/pg19 DATA/wikitext DATA/arxiv DATA/enwik8

Hugging Face's tokenizer is its byte-level BPE, made from the same vocabulary and merges. Ends with status 1 where any id differs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from tokenizers import Tokenizer, models, pre_tokenizers

from common.errors import UserError
from data_prep.tokenizers import GPT2Tokenizer
from pipelines.terminal import cli


@dataclass(frozen=True)
class BenchConfig:
    """The vocabulary and the texts to compare on."""

    vocabulary: tyro.conf.Positional[Path]
    """Folder with vocab.json and merges.txt."""
    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of text; a file that is not UTF-8 is counted and left out."""


def main(argv: list[str]) -> int:
    config = cli.parse(BenchConfig, argv, __doc__)
    texts = {folder: sorted(path for path in folder.rglob("*") if path.is_file()) for folder in config.folders}
    for folder, paths in texts.items():
        if not paths:
            raise UserError(f"{folder} has no files: name a folder of texts")
    ours = GPT2Tokenizer.from_folder(config.vocabulary)
    theirs = Tokenizer(models.BPE(vocab=ours.vocab, merges=ours.merges))
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    ours.encode("the first call builds the encoding")
    different = 0
    for folder, paths in texts.items():
        files = size = tokens = left_out = unequal = 0
        seconds = np.zeros(2)
        for path in paths:
            try:
                text = path.read_bytes().decode()
            except UnicodeDecodeError:
                left_out += 1
                continue
            start = time.perf_counter()
            ids = ours.encode(text)
            middle = time.perf_counter()
            expected = theirs.encode(text, add_special_tokens=False).ids
            seconds += (middle - start, time.perf_counter() - middle)
            files += 1
            size += len(text.encode())
            tokens += len(ids)
            if not np.array_equal(ids, expected):
                unequal += 1
                print(f"  other ids: {path}")
        different += unequal
        rates = size / 1e6 / np.maximum(seconds, 1e-9)
        print(
            f"{folder.name}: {files:,} files, {size:,} bytes, {tokens:,} tokens, {files - unequal:,} equal; "
            f"{rates[0]:.1f} MB/s, Hugging Face {rates[1]:.1f} MB/s" + (f"; {left_out} not UTF-8" if left_out else ""),
            flush=True,
        )
    return int(different > 0)


if __name__ == "__main__":
    cli.run(main)
