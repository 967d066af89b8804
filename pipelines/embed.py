"""Embed whole documents with a trained model: contextual vectors, State carried from the first token to the last.

    python -m pipelines.embed runs/demo-rec --output embedded/test
    python -m pipelines.embed runs/demo-rec --split validation --documents json/decoder --every 64 --output embedded/json
    python -m pipelines.embed exported/demo-rec --file story.txt --dtype float16 --output embedded/story

A token's embedding is the model's last hidden state after it was read, as its output layer reads it. The result is a folder of
Arrow files with the columns document, offset and embedding. Repeat the command after a crash: it resumes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from common.checks import check_options
from common.errors import UserError
from common.files import read_text
from common.lock import file_lock
from common.places import Place
from data_prep.documents import check_split
from pipelines.inference.trained import load, open_split, useful_segment_length
from pipelines.terminal import cli
from pipelines.terminal.output import pass_progress
from pipelines.terminal.tables import counted

SEGMENT = 1024
"""Tokens that are read at once by a model that does not say how it was trained."""


@dataclass(frozen=True)
class EmbedConfig:
    """Texts to embed, and the model."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Folder or URI of a run, of a checkpoint, or one that pipelines.export made."""
    output: str
    """Folder or URI to write to: a new one, or that of the same command before it was stopped."""
    checkpoint: Literal["best", "newest"] = "best"
    """Which checkpoint of a run: the best of those that were validated, or the newest."""
    split: str = "test"
    """Split of the store; a text file has none."""
    documents: tuple[str, ...] = ()
    """Ids of documents of the split; by default all."""
    file: Path | None = None
    """A text file (UTF-8, or as its byte-order mark says), instead of a store; - reads the standard input."""
    store: str = ""
    """Store to read; by default the one that the run was trained on. For a file: where its tokenizer is."""
    corpus: str = ""
    """Corpus in the store; by default the one that the run was trained on."""
    every: int = 1
    """Tokens per vector: each vector is the mean over this number of a document's tokens."""
    dtype: Literal["float32", "float16"] = "float32"
    """Type of the embeddings in the files. They are computed in float32."""
    lanes: int = 0
    """Documents that are read side by side; 0 takes the run's lanes. It changes the speed, and the last bits of a value."""
    segment_length: int = 0
    """Tokens that are read at once; 0 takes the run's. It changes the speed, and the last bits of a value."""

    def __post_init__(self) -> None:
        check_options(self, every=1, lanes=0, segment_length=0)
        if self.file is not None and self.documents:
            raise UserError("--file and --documents are both given: choose a text file, or documents of a store")
        if self.file is None:
            check_split(self.split)


def main(argv: list[str]) -> None:
    """Embed documents, resuming where an earlier start was killed. Raises UserError for bad input."""
    config = cli.parse(EmbedConfig, argv, __doc__)
    output = Place.parse(config.output)
    text = read_text(config.file, "convert it first") if config.file else ""
    trained = load(config.run, config.store, config.corpus, best=config.checkpoint == "best")
    checkpoint = trained.checkpoint
    assert checkpoint is not None, "load says where it found the model"
    # With torch, which takes seconds: not before there is something to embed.
    from pipelines.inference.embedding import Embeddings, texts_of_ids, texts_of_store, width_of
    from pipelines.training.reading import DocumentPass, Shard

    if config.file:
        texts = texts_of_ids(config.file.name, trained.tokenizer.encode(text), trained.bod_id, trained.labels)
    else:
        split = open_split(checkpoint, config.split, config.store, config.corpus)
        texts = texts_of_store(split, config.documents)
    model = trained.model
    data = checkpoint.meta["config"]["data"]
    embeddings = Embeddings(output, texts, width_of(model), checkpoint.digest, config.every, config.dtype)
    lanes = config.lanes or data["lanes"]
    trained_length = data["segment_length"] or -(-SEGMENT // model.block) * model.block
    longest = int((texts.lengths + texts.before).max())
    segment_length = useful_segment_length(config.segment_length, trained_length, longest, model.block)
    counts = f"{counted(len(texts.ids), 'document')}, {counted(int(texts.lengths.sum()), 'token')}"
    print(f"embedding {counts} with {cli.shown(trained.place)}", flush=True)
    with pass_progress("embedding") as update, file_lock(output, "another pipelines.embed"):
        shards = [
            Shard(name, part, part.lengths + part.before, min(lanes, len(part.ids)), segment_length)
            for name, part in embeddings.missing()
        ]
        reading = DocumentPass(lambda: model, shards, embeddings.sink, hidden=True)
        total = int((texts.lengths + texts.before).sum())
        update(total=total, completed=total - reading.tokens)
        reading.read(1, lambda tokens: update(advance=tokens))
        rows = embeddings.finish()
    print(f"{rows:,} embeddings of {embeddings.width} {config.dtype} in {cli.shown(output.recorded)}")
    quoted = json.dumps(cli.shown(output.recorded), ensure_ascii=False)
    print(f'  read them  pyarrow.dataset.dataset({quoted}, format="arrow").to_table()')


if __name__ == "__main__":
    cli.run(main)
