"""Contextual embeddings of whole documents with a trained model, State carried from their first token to their last.

    python -m pipelines.embed runs/demo-rec --output embedded/test
    python -m pipelines.embed runs/demo-rec --split validation --documents json/decoder --every 64 --output embedded/json
    python -m pipelines.embed exported/demo-rec --file story.txt --dtype float16 --output embedded/story

A token's embedding is the model's last hidden state after it was read, as its output layer reads it. The result is a folder of
Arrow files with the columns document, offset and embedding. A command that was killed goes on when it is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from common.errors import UserError
from common.lock import hold
from common.places import Place
from data_prep.store import SegmentStore
from pipelines.checkpoints.checkpoint import check_fits
from pipelines.inference.trained import Trained, load, read_text
from pipelines.terminal import cli
from pipelines.terminal.output import pass_progress

LANES = 8
SEGMENT = 1024
"""Of an exported model, which does not say how it was trained."""
SAMPLE = 4096
"""So many tokens of a store are compared with what the tokenizer of an exported model makes of their text."""


@dataclass(frozen=True)
class EmbedConfig:
    """What is embedded, by which model."""

    run: tyro.conf.Positional[str]
    """Folder or URI of a run, of a checkpoint, or one that pipelines.export made."""
    output: str
    """Folder or URI to write to: a new one, or that of the same command before it was stopped."""
    checkpoint: Literal["best", "newest"] = "best"
    """Of a run: the best of those that were validated, or the newest."""
    split: str = "test"
    """Split of the store."""
    documents: tuple[str, ...] = ()
    """Ids of documents of the split; by default all."""
    file: Path | None = None
    """A text file (UTF-8), instead of a store."""
    store: str = ""
    """Store to read; by default the one that the run was trained on. For a file: where its tokenizer is."""
    corpus: str = ""
    """Corpus in the store; by default the one that the run was trained on."""
    every: int = 1
    """One vector for every so many tokens of a document: their mean."""
    dtype: Literal["float32", "float16"] = "float32"
    """Of the embeddings in the files. They are computed in float32."""
    lanes: int = 0
    """Documents that are read side by side; 0 takes the run's number of lanes. It changes the speed, not the embeddings."""
    segment_length: int = 0
    """Tokens that are read at once; 0 takes the run's. It changes the speed, not the embeddings."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UserError(f"--every is {self.every}: it must be at least 1")
        if self.file is not None and self.documents:
            raise UserError("--file and --documents are both given: choose a text file, or documents of a store")


def open_split(trained: Trained, config: EmbedConfig) -> SegmentStore:
    """The split to read. Raises UserError where it is not there, or has other tokens than the model."""
    checkpoint = trained.checkpoint
    place = config.store
    corpus = config.corpus
    cache = ""
    if checkpoint is not None:
        data = checkpoint.meta["config"]["data"]
        place = place or data["store"]
        corpus = corpus or data["corpus"]
        cache = data["cache"]
    if not (place and corpus):
        raise UserError(
            f"{trained.place} does not say which text it was trained on: give --store and --corpus, or --file"
        )
    store = SegmentStore.open(place, corpus, config.split, cache=cache)
    if checkpoint is not None:
        check_fits(checkpoint, store, "")
    elif (sizes := (trained.model.vocab_size, trained.bod_id)) != (store.vocab_size, store.bod_id):
        raise UserError(
            f"{trained.place} has {sizes[0]:,} ids and {store.folder} {store.vocab_size:,}: prepare it with the model's tokenizer"
        )
    else:  # an export does not say by its digest which tokenizer it has
        document = int(store.lengths.argmax()) if len(store.lengths) else 0
        ids = store.tokens(document, 0, min(int(store.lengths[document]), SAMPLE)) if store.lengths.any() else []
        text = (tokenizer := store.tokenizer()).decode(ids)
        if tokenizer.encode(text).tolist() != trained.tokenizer.encode(text).tolist():
            raise UserError(
                f"{trained.place} gives a text of {store.folder} other ids than that has: prepare it with the model's tokenizer"
            )
    return store


def main(argv: list[str]) -> None:
    config = cli.parse(EmbedConfig, argv, description=(__doc__ or "").split("\n\n")[0])
    output = Place.parse(config.output)
    text = read_text(config.file) if config.file else ""
    trained = load(config.run, config.store, config.corpus, best=config.checkpoint == "best")
    # With torch, which takes seconds: not before there is something to embed.
    from pipelines.inference.embedding import Embeddings, texts_of_ids, texts_of_store, width_of
    from pipelines.training.reading import Reading, Share

    if config.file:
        texts = texts_of_ids(config.file.name, trained.tokenizer.encode(text), trained.bod_id, trained.labels)
    else:
        texts = texts_of_store(open_split(trained, config), config.documents)
    model = trained.model
    checkpoint = trained.checkpoint
    data = {"lanes": LANES, "segment_length": -(-SEGMENT // model.block) * model.block}
    if checkpoint is not None:
        data = checkpoint.meta["config"]["data"]
    weights = checkpoint.meta["digest"] if checkpoint else (Place.parse(config.run) / "model.safetensors").xxh3()
    embeddings = Embeddings(output, texts, width_of(model), weights, config.every, config.dtype)
    lanes = config.lanes or data["lanes"]
    segment_length = config.segment_length or data["segment_length"]
    counts = f"{len(texts.ids):,} documents, {int(texts.lengths.sum()):,} tokens"
    print(f"embedding {counts} with {cli.shown(trained.place)}", flush=True)
    with pass_progress("embedding") as update, hold(output, "another pipelines.embed"):
        shares = [
            Share(name, part, part.lengths + part.before, min(lanes, len(part.ids)), segment_length)
            for name, part in embeddings.missing()
        ]
        reading = Reading(lambda: model, shares, embeddings.sink, hidden=True)
        total = int((texts.lengths + texts.before).sum())
        update(total=total, completed=total - reading.tokens)
        reading.read(1, lambda tokens: update(advance=tokens))
        rows = embeddings.finish()
    print(f"{rows:,} embeddings of {embeddings.width} {config.dtype} in {cli.shown(output.recorded)}")
    print(f'  read them  pyarrow.dataset.dataset("{cli.shown(output.recorded)}", format="arrow").to_table()')


if __name__ == "__main__":
    cli.run(main)
