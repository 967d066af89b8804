"""Make the data of a release that later releases are tested on: stores, a run and its export, in tests/releases/<version>.

    python -m tests.releases.making v0.2.0

Run it once, from the release itself, and commit the folder. Never make the data of a release again: later code is to read what
that release wrote. `test_releases.py` finds every such folder.

    <version>/store/…                a text in bytes, and walks whose tokens have labels
    <version>/run/…                  a run of four steps with two checkpoints, without its logs
    <version>/export/…               what pipelines.export made of it
    <version>/sweep/…                a finished sweep of such runs, without their checkpoints and its report
    <version>/expected.json          what a reader must find in them
    <version>/logits.safetensors     what the export says of a text, in float64

The run is trained in HOME, because its files hold whole paths, and those of a developer's machine are not to be published.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from safetensors.torch import save_file
from torch import Tensor
from transformers.models.auto.modeling_auto import AutoModelForCausalLM
from transformers.models.auto.tokenization_auto import AutoTokenizer

import recur_models.hf  # noqa: F401  (makes the models known)
from data_prep.store import SegmentStore
from data_prep.verification import find_splits
from pipelines import evaluate, export, prepare, train, tune
from pipelines.checkpoints.checkpoint import Checkpoint
from pipelines.inference.targets import load_targets
from pipelines.sweeps.checks import read_and_check
from pipelines.sweeps.record import SweepRecord
from pipelines.sweeps.sweep import Sweep
from pipelines.tracking.metrics_file import read_records
from tests.small_corpus import words
from tune_spaces import fields

HERE = Path(__file__).parent
HOME = Path("/tmp/throughline-release")
TEXTS = {"train": (60, 25, 1, 40), "validation": (30,), "test": (50, 20)}
"""Words of each document."""
RUN = """
    small-rec --model.layers 2 --model.recurrent-layers 2 --model.d-model 8 --model.heads 2 --model.head-dim 4
    --model.mlp-dim 16 --model.window 8 --model.states 4 --model.dropout 0.1 --data.lanes 4 --data.segment-length 16
    --steps 4 --schedule.warmup-steps 2 --log-every 1 --validate-every 2 --validate-tokens 200 --checkpoint.every 2
    --tracking.system-metrics off --num-workers 0 --use-gpu no --data.corpus text
"""
SWEEP = "optim.lr=1e-7,1e-2 --search grid --rung-tokens 128 --max-concurrent-trials 1 --preset"
PROMPT = "Once é€"


def documents(store: Path) -> dict[str, list[str]]:
    """A checksum of the tokens, and of the targets where there are any, of each document; by corpus and split."""
    found: dict[str, list[str]] = {}
    for folder in find_splits(store):
        split = SegmentStore.open(folder)
        read = [split.tokens, split.targets] if split.labelled else [split.tokens]
        lengths = split.lengths.tolist()
        found[f"{split.manifest.corpus}/{split.manifest.split}"] = [
            digest({str(i): column(document, 0, length) for i, column in enumerate(read)})
            for document, length in enumerate(lengths)
        ]
    return found


def checkpoints(run: Path) -> dict[str, dict[str, str]]:
    """Checksums of everything that each checkpoint restores."""
    found = {}
    for folder in sorted((run / "checkpoints").iterdir()):
        checkpoint = Checkpoint.open(folder)
        lanes, process = checkpoint.lanes(0, checkpoint.meta["lanes"])
        optimizer = checkpoint.optimizer()
        moments = {f"{i}/{key}": value for i, entries in optimizer["state"].items() for key, value in entries.items()}
        found[folder.name] = {
            "weights": digest(checkpoint.weights()),
            "optimizer": digest(moments),
            "groups": xxhash.xxh3_64_hexdigest(json.dumps(optimizer["param_groups"], sort_keys=True).encode()),
            "lanes": digest(lanes),
            "process": digest(process or {}),
        }
    return found


def digest(arrays: Mapping[str, np.ndarray | Tensor]) -> str:
    """A checksum of arrays under their names: dtype, shape and every bit."""
    whole = xxhash.xxh3_64()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        whole.update(f"{name} {array.dtype} {array.shape}".encode())
        whole.update(array.tobytes())
    return whole.hexdigest()


def metrics(run: Path) -> list[dict[str, Any]]:
    """Each record of the run's metrics.jsonl, without its time and the machine's speed."""
    return [
        {"step": record.step, **{name: value for name, value in record.metrics.items() if "per_second" not in name}}
        for record in read_records(run / "metrics.jsonl")
    ]


def score(run: Path, store: Path, working: Path) -> dict[str, float]:
    """Bits per token of the test split, with State carried and cleared, as pipelines.evaluate reads it."""
    config = evaluate.EvaluateConfig(runs=(str(run),), store=str(store), num_workers=1)
    found = evaluate.evaluate(load_targets(config)[0], config, working)
    assert found.cleared_states and found.cleared_all
    return {
        "tokens": found.carried.tokens,
        "carried": found.carried.bits_per_token,
        "states cleared": found.cleared_states.bits_per_token,
        "all cleared": found.cleared_all.bits_per_token,
    }


def sweep_words(store: Path, root: Path) -> list[str]:
    """The words of the sweep's command."""
    own = f"--num-workers 1 --tracking.backend none --data.store {store} --root {root} --run sweep"
    return shlex.split(f"{SWEEP} {RUN} {own}")


def trials(store: Path, root: Path) -> dict[str, Any]:
    """How each trial of the sweep stands, and what was decided of it at each step, as `pipelines.tune` finds them at a start."""
    config, domains = read_and_check(sweep_words(store, root))
    sweep = Sweep(config, fields(domains))
    assert sweep.open_folder()
    record = SweepRecord(sweep)
    return {
        name: {
            **asdict(trial),
            "seconds": 0.0,
            "decided": {str(step): said for step, said in record.decisions[name].items()},
        }
        for name, trial in sweep.trials.items()
    }


def make_sweep(store: Path, output: Path) -> None:
    """Run it on Ray, and copy what is its own."""
    assert tune.main(sweep_words(store, HOME)) == 0
    left_out = shutil.ignore_patterns("checkpoints", "logs", "report", ".tune", ".lock")
    shutil.copytree(HOME / "sweep", output / "sweep", ignore=left_out)


def logits(export: Path) -> tuple[list[int], Tensor]:
    """The ids of PROMPT, and float64 [ids, vocabulary]: in float64, so that another CPU says the same."""
    tokenizer: Any = AutoTokenizer.from_pretrained(export)
    ids = tokenizer(PROMPT)["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(export).double().eval()
    with torch.no_grad():
        return ids, model(torch.tensor([ids])).logits[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("version", help="such as v0.2.0")
    output = HERE / parser.parse_args().version
    if output.exists() or HOME.exists():
        parser.error(f"{output} or {HOME} exists already: the data of a release is made once")
    torch.set_num_threads(1)
    store = HOME / "store"
    run = HOME / "run"
    for split, sizes in TEXTS.items():
        for number, size in enumerate(sizes):
            path = HOME / "text" / split / f"{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(words(f"{split}{number}", size).encode())
    into = f"--store {store} --num-workers 0"
    prepare.main(shlex.split(f"text --source {HOME}/text --tokenizer bytes {into}"))
    prepare.main(shlex.split(f"random-walk --train 3 --validation 1 --test 1 --length 20 {into}"))
    train.main(shlex.split(f"{RUN} --data.store {store} --root {HOME} --run run"))
    export.main([str(run), "--output", str(HOME / "export")])
    shutil.rmtree(run / "logs")
    for name in ("store", "run", "export"):
        shutil.copytree(HOME / name, output / name)
    make_sweep(store, output)
    ids, said = logits(output / "export")
    expected = {
        "documents": documents(store),
        "checkpoints": checkpoints(run),
        "metrics": metrics(run),
        "score": score(run, store, HOME / "score"),
        "ids": ids,
        "trials": trials(store, output),
    }
    (output / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    save_file({"logits": said}, output / "logits.safetensors")
    shutil.rmtree(HOME)
    print(f"wrote {output}")


if __name__ == "__main__":
    main()
