"""A sweep's folder as `pipelines.tune` writes it, with invented curves: bits fall as tokens grow, by learning rate and states."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

FIELDS = ("optim.lr", "model.states", "model.window", "model.gate")


BEGAN = 1_767_225_600_000
"""Milliseconds at which the first two trials begin."""


def small_sweep(
    folder: Path, trials: int = 12, *, fields: tuple[str, ...] = FIELDS, metric: str = "validation/bits_per_token"
) -> Path:
    """Trials in two lanes of time, a third of them stopped early, one failed; the first is the preset itself."""
    folder.mkdir(parents=True)
    written = [write_trial(folder, number, trials, fields, metric) for number in range(trials)]
    sweep = {
        "name": folder.name,
        "space": "lr+states+window+gate",
        "preset": "small-rec",
        "seed": 0,
        "num_samples": trials,
        "search": "random",
        "scheduler": "asha",
        "metric": metric,
        "mode": "min",
        "fields": list(fields),
        "command": "python -m pipelines.tune lr+states+window+gate --preset small-rec",
    }
    (folder / "sweep.json").write_text(json.dumps(sweep))
    best = min((trial for trial in written if trial["last"]), key=lambda trial: trial["last"][metric])
    words = " ".join(f"--{key} {value}" for key, value in best["values"].items())
    winner = {
        "trial": best["id"],
        "values": best["values"],
        "step": best["last"]["step"],
        metric: best["last"][metric],
        "command": f"python -m pipelines.train small-rec {words}",
    }
    (folder / "best.json").write_text(json.dumps(winner))
    return folder


def write_trial(folder: Path, number: int, trials: int, fields: tuple[str, ...], metric: str) -> dict[str, Any]:
    """Write a trial's curve and its trial.json. Returns what the latter holds."""
    lr = 10 ** (-4 + 2.5 * ((number * 7) % trials) / max(1, trials - 1))
    drawn = {
        "optim.lr": lr,
        "model.states": (16, 32, 64)[number % 3],
        "model.window": (32, 64)[(number // 2) % 2],
        "model.gate": ("fixed", "lstm")[(number // 3) % 2],
    }
    status = "stopped" if number % 3 == 2 else "finished"
    if number == 7:
        status = "failed"
    steps = {"failed": 100, "stopped": 200, "finished": 600}[status]
    floor = 5.2 + 0.25 * (math.log10(lr) + 2.6) ** 2 - 0.0012 * drawn["model.states"] + 0.01 * (number % 2)
    place = folder / "trials" / f"{number:03d}"
    place.mkdir(parents=True)
    last = write_curve(place, floor, steps, metric if status != "failed" else "", BEGAN + (number // 2) * 190_000)
    reasons = {"failed": "the loss became nan by step 100: lower optim.lr", "stopped": "not among the best third"}
    trial = {
        "id": f"{number:03d}",
        "values": {key: value for key, value in drawn.items() if key in fields},
        "status": status,
        "reason": reasons.get(status, ""),
        "steps": steps,
        "tokens": steps * 1024,
        "flops": steps * 1.5e10,
        "seconds": 0.3 * steps,
        "best": last,
        "last": last,
        "exploited": [],
        "baseline": number == 0,
    }
    (place / "trial.json").write_text(json.dumps(trial))
    return trial


def write_curve(place: Path, floor: float, steps: int, metric: str, began: int) -> dict[str, Any] | None:
    """Write metrics.jsonl: bits that fall to ``floor``, and ``metric``, if it is named, every 100 steps. Returns its last point."""
    lines = []
    last = None
    for step in range(10, steps + 1, 10):
        metrics = {"train/tokens": float(step * 1024), "train/bits_per_token": floor + 6 * math.exp(-step / 120)}
        if step % 100 == 0 and metric:
            metrics[metric] = floor + 0.1 + 6 * math.exp(-step / 130)
            last = {"step": step, metric: metrics[metric]}
        lines.append(json.dumps({"step": step, "time": began + 300 * step, "metrics": metrics}) + "\n")
    (place / "metrics.jsonl").write_text("".join(lines))
    return last
