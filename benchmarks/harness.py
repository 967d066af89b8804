"""lm-evaluation-harness on an exported model: whether its scores equal ours.

    python -m benchmarks.harness runs/demo-rec                          benchmarks/peers.txt says how to install lm_eval

It exports the run, writes its test split as JSON lines with two task files, calls the harness as one would from a shell, and
compares its results with our own scoring:

- rolling, with a window as long as the longest document: against `score_split`, what `pipelines.evaluate` calls;
- rolling, with a window of a few blocks: against the model itself on the windows that the harness cuts. It begins all but the first
  without a begin-of-document token, and lengthens the last one to the left;
- multiple choice, in padded batches: against the model reading each context and continuation alone.

Three things to know. Rolling tasks need `add_bos_token=False`: the harness puts the begin-of-document token before a text itself,
and the tokenizer's own would be scored as text; other tasks need it left out. A recurrent model has no longest text, so pass
`max_length`, or the harness takes 2,048 tokens. All logits of a window exist at once: 4 bytes × tokens × vocabulary, three times.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from torch.nn import functional as F

from common.errors import UserError
from data_prep.store import SegmentStore
from data_prep.tokenizers import Tokenizer
from pipelines.inference.to_transformers import export
from pipelines.inference.trained import TextTokenizer, Trained, find_checkpoint, load, open_split, tokenizer_of
from pipelines.terminal import cli
from pipelines.training.scoring import score_split
from pipelines.training.world import World

ROLLING = """
task: rolling
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/documents.jsonl}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: text
metric_list: [{{metric: word_perplexity}}, {{metric: byte_perplexity}}, {{metric: bits_per_byte}}]
"""

CHOICES = """
task: choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/choices.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: context
doc_to_choice: choices
doc_to_target: answer
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""

TOLERANCE = 1e-5
"""Relative tolerance of sums of nats: both sum float32 values, in different orders."""


@dataclass(frozen=True)
class BenchConfig:
    """The run, the split and the questions to score."""

    run: tyro.conf.Positional[Path]
    """Folder of a run, or of a checkpoint."""
    split: str = "test"
    """Split to read; whole documents."""
    blocks: int = 4
    """Length of the short windows, in the model's blocks."""
    questions: int = 20
    """Multiple-choice questions: which of three texts continues a document."""
    store: str = ""
    """Store to read; by default the one that the run was trained on."""

    def __post_init__(self) -> None:
        if self.blocks < 1 or self.questions < 1:
            raise UserError(f"--blocks is {self.blocks} and --questions {self.questions}: both must be at least 1")


def harness(folder: Path, exported: Path, task: str, batch_size: int, **model_args: Any) -> tuple[dict[str, Any], Any]:
    """The task's metrics, and its samples in the order of the documents, from the harness's command line."""
    arguments = {"pretrained": exported, "trust_remote_code": True, **model_args}
    output = folder / f"{task}-{len(list(folder.iterdir()))}"
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "hf", "--device", "cpu", "--tasks", task]
    command += ["--model_args", ",".join(f"{key}={value}" for key, value in arguments.items())]
    command += ["--include_path", str(folder), "--batch_size", str(batch_size)]
    print("  " + " ".join(["lm_eval", *command[3:]]), flush=True)
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "cache")}
    command += ["--output_path", str(output), "--log_samples"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **offline})
    if done.returncode:
        raise UserError(f"lm_eval stopped with status {done.returncode}: {done.stderr[-2000:]}")
    results = json.loads(next(output.rglob("results_*.json")).read_text("utf-8"))["results"][task]
    lines = next(output.rglob("samples_*.jsonl")).read_text("utf-8").splitlines()
    samples = sorted((json.loads(line) for line in lines), key=lambda sample: sample["doc_id"])
    return {key.removesuffix(",none"): value for key, value in results.items()}, samples


@torch.no_grad()
def nats(trained: Trained, inputs: list[int], targets: list[int]) -> float:
    """Nats of ``targets``, predicted at the last positions of ``inputs``, in one pass over whole blocks from an empty State."""
    tokens_BT = torch.tensor([inputs + [0] * (-len(inputs) % trained.model.block)])
    logits_BTV, _ = trained.model(tokens_BT)
    logits_TV = logits_BTV[0, len(inputs) - len(targets) : len(inputs)]
    return F.cross_entropy(logits_TV.double(), torch.tensor(targets), reduction="sum").item()


def windowed_nats(trained: Trained, ids: list[int], length: int) -> float:
    """Nats of a document in windows of ``length`` tokens, cut as the harness cuts them."""
    text = [trained.bod_id, *ids]
    total = nats(trained, text[: min(length, len(ids))], ids[:length])
    for start in range(length, len(ids), length):
        stop = min(start + length, len(ids))
        total += nats(trained, text[stop - length : stop], ids[start:stop])
    return total


def questions_on(documents: list[str], count: int) -> list[dict[str, Any]]:
    """Questions that ask which of three texts continues a document, of many lengths, so that batches are padded.

    No context ends in a blank: the harness would move that to the choices.
    """
    questions = []
    for i in range(count):
        text, *others = (documents[(i + j) % len(documents)] for j in range(3))
        place = 20 + 37 * i % max(1, len(text) - 80)
        choices = [text[place : place + 30 + i], *(other[place // 2 :][: 20 + 3 * i] or "\n" for other in others)]
        answer = i % 3
        choices[0], choices[answer] = choices[answer], choices[0]
        questions.append({"context": text[:place].rstrip(), "choices": choices, "answer": answer})
    return questions


def choice_nats(trained: Trained, tokenizer: TextTokenizer, question: dict[str, Any]) -> list[float]:
    """Nats of each choice after the context, each read alone from a document's beginning.

    As in the harness, the context's own ids come first. The ids of context and choice together follow, without as many at their
    beginning. Where the text is cut inside a token, this is not the encoding of both together.
    """
    context = tokenizer.encode(question["context"]).tolist()
    found = []
    for choice in question["choices"]:
        continuation = tokenizer.encode(question["context"] + choice).tolist()[len(context) :]
        found.append(nats(trained, [trained.bod_id, *context, *continuation[:-1]], continuation))
    return found


def verdict(name: str, theirs: float, ours: float) -> bool:
    """Print both values, and whether they are equal within the tolerance."""
    equal = math.isclose(theirs, ours, rel_tol=TOLERANCE)
    print(f"{'equal' if equal else 'DIFFERENT':9} {name}: lm_eval {theirs:.6f}, ours {ours:.6f}", flush=True)
    return equal


def documents_of(store: SegmentStore, tokenizer: Tokenizer) -> list[str]:
    """The texts of a split's documents that have tokens. Raises UserError for a tokenizer that loses some of a text."""
    whole = [store.tokens(document, 0, int(length)) for document, length in enumerate(store.lengths) if length]
    documents = [tokenizer.decode(ids) for ids in whole]
    if bytes_of(documents) != store.manifest.totals.bytes:
        raise UserError(
            f"the tokenizer {tokenizer.name} does not give texts back as they were: nothing can be compared"
        )
    return documents


def bytes_of(documents: list[str]) -> int:
    return sum(len(text.encode()) for text in documents)


def write_tasks(folder: Path, documents: list[str], questions: list[dict[str, Any]]) -> None:
    """Write both tasks into the folder, and their texts as JSON lines."""
    for file, rows in (("documents", [{"text": text} for text in documents]), ("choices", questions)):
        (folder / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    for task, text in (("rolling", ROLLING), ("choices", CHOICES)):
        (folder / f"{task}.yaml").write_text(text.format(folder=folder), "utf-8")


def choices_agree(questions: list[dict[str, Any]], ours: list[list[float]], samples: Any, accuracy: float) -> bool:
    """Print what of the answers is equal, and each choice that is not. Returns whether all are.

    Args:
        ours: our nats of each question's choices.
        samples, accuracy: the harness's.
    """
    theirs = [[-float(answer[0]) for answer in sample["filtered_resps"]] for sample in samples]
    agree = True
    for question, ours_each, theirs_each in zip(questions, ours, theirs, strict=True):
        for pair in zip(theirs_each, ours_each, strict=True):
            if not math.isclose(*pair, rel_tol=TOLERANCE):
                agree = verdict(f"nats of a choice after {question['context'][-20:]!r}", *pair)
    name = f"nats of {len(questions)} × 3 choices, batches of 7"
    agree &= verdict(name, sum(map(sum, theirs)), sum(map(sum, ours)))
    chosen = [each.index(min(each)) for each in ours]
    right = [choice == question["answer"] for choice, question in zip(chosen, questions, strict=True)]
    agree &= verdict("accuracy", accuracy, sum(right) / len(right))
    return agree


def main(argv: list[str]) -> int:
    config = cli.parse(BenchConfig, argv, __doc__)
    checkpoint = find_checkpoint(config.run)
    store = open_split(checkpoint, config.split, config.store)
    trained = load(checkpoint.folder, config.store)  # the one that is exported, though the run may train on
    tokenizer = tokenizer_of(checkpoint, config.store)
    documents = documents_of(store, tokenizer)
    questions = questions_on(documents, config.questions)
    ids = [tokenizer.encode(text).tolist() for text in documents]
    size = bytes_of(documents)
    print(
        f"{checkpoint.folder}, {store.folder}: {len(documents)} documents, {sum(map(len, ids)):,} tokens, {size:,} bytes"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        exported = folder / "exported"
        export(checkpoint, exported, config.store)
        write_tasks(folder, documents, questions)

        # Whole documents
        longest = max(map(len, ids))
        carried, _ = harness(folder, exported, "rolling", 1, add_bos_token=False, max_length=longest)
        segment_length = checkpoint.meta["config"]["data"]["segment_length"]
        score = score_split(trained.model, store, lanes=1, segment_length=segment_length, world=World.alone())
        passed = verdict("bits per byte, whole documents", carried["bits_per_byte"], score.bits_per_byte)

        # Windows
        short = config.blocks * trained.model.block
        windows, _ = harness(folder, exported, "rolling", 3, add_bos_token=False, max_length=short)
        bits = sum(windowed_nats(trained, text, short) for text in ids) / math.log(2)
        passed &= verdict(f"bits per byte, windows of {short} tokens", windows["bits_per_byte"], bits / size)

        # Choices
        answers, samples = harness(folder, exported, "choices", 7, max_length=longest)
        nats_each = [choice_nats(trained, tokenizer, question) for question in questions]
        passed &= choices_agree(questions, nats_each, samples, answers["acc"])
    ours = math.exp(score.nats / store.manifest.totals.words)
    theirs = carried["word_perplexity"]
    print(f"word perplexity {theirs:.4g} (lm_eval), {ours:.4g} (ours, without empty words before and after a text)")
    return 0 if passed else 1


if __name__ == "__main__":
    cli.run(main)
