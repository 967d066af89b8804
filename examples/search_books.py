"""Embed every passage of a shelf of books with a trained model, and search for those nearest to a passage of yours.

    python -m examples.own_books                # once: it trains the model in runs/python-source
    python -m examples.search_books runs/python-source "def connect(self, host, port):"

A passage is 64 tokens. Its vector is the mean of the model's last hidden states, which know the book up to there.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.dataset

from data_prep.store import SegmentStore
from pipelines import embed
from pipelines.terminal import cli

PASSAGE = 64


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", help="folder of a trained run, such as runs/python-source")
    parser.add_argument("query", help="a passage to search for")
    parser.add_argument("--split", default="test", help="which books (default: test)")
    args = parser.parse_args(words)
    shelf = f"{args.run}/shelf-{args.split}"  # it stays there: the next search has nothing left to embed
    embed.main([args.run, "--split", args.split, "--every", str(PASSAGE), "--output", shelf])
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "query.txt").write_text(args.query, encoding="utf-8")
        embed.main([args.run, "--file", f"{folder}/query.txt", "--output", f"{folder}/query"])
        query = read(f"{folder}/query")[1].mean(axis=0)

    table, vectors = read(shelf)
    centre = vectors.mean(axis=0)  # the mean of all passages says nothing about one of them
    vectors = vectors - centre
    cosines = vectors @ (query - centre) / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query - centre)
    data = json.loads(Path(args.run, "config.json").read_text())["data"]
    books = SegmentStore.open(data["store"], data["corpus"], args.split)
    numbers = {name: number for number, name in enumerate(books.documents.texts("id"))}
    for i in np.argsort(-cosines)[:3]:
        name = table["document"][i].as_py()
        start = table["offset"][i].as_py()
        end = min(start + PASSAGE, int(books.lengths[numbers[name]]))
        text = books.tokenizer().decode(books.tokens(numbers[name], start, end).tolist())
        print(f"\n{name}, token {start:,}, cosine {cosines[i]:.3f}\n{text}")


def read(folder: str) -> tuple[pyarrow.Table, np.ndarray]:
    """The table that pipelines.embed wrote, a row for each passage, and its vectors, float32 [passages, width]."""
    table = pyarrow.dataset.dataset(folder, format="arrow").to_table()
    return table, np.array(table["embedding"].to_pylist(), dtype=np.float32)


if __name__ == "__main__":
    cli.run(main)
