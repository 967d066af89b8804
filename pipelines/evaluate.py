"""Score checkpoints on a held-out split: every document once, State carried from its first token to its last.

    python -m pipelines.evaluate runs/demo-rec runs/demo-slide
    python -m pipelines.evaluate runs/mine/checkpoints/step-00002000 --split validation
    python -m pipelines.evaluate runs/gpt2 --overlap 0 10 50             # the same weights over other windows
    python -m pipelines.evaluate runs/gpt2 --checkpoint best             # early stopping: the best on validation
    python -m pipelines.evaluate runs/mine --precision bfloat16          # faster where the hardware has units for it
    python -m pipelines.evaluate exported/tuned --store runs/store       # an exported folder, tuned by others or not

Bits per token, bits per byte and word-level perplexity; the same with the recurrent states, and with the whole State, cleared at
each segment, every so many blocks (`--clear-every`) or at one place (`--clear-at`); and the cumulative cross-entropy over position
(block-recurrent paper, Figure 6). With several checkpoints, one table.

Several processes share the documents (`--num-workers`). Repeat the command after a crash: it resumes.

The metrics go into the run's own metrics.jsonl and MLflow run, and of a run in a bucket into MLflow alone. A lone checkpoint, an
exported folder and a read-only run stay as they are: their report is in `runs/reports` of the working directory.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from common.lock import file_lock
from common.places import Place, remove_temporary
from pipelines.checkpoints.cloning import kept_weights
from pipelines.checkpoints.errors import retry_if_removed
from pipelines.checkpoints.run_folder import RECORDS, RunFolder
from pipelines.config.run import TrackingConfig, config_hash_without_seed
from pipelines.inference.report_folder import PARTIAL, output_for
from pipelines.inference.targets import (
    EvaluationTarget,
    TargetsConfig,
    load_targets,
    suffix_of,
    tracking_of,
)
from pipelines.inference.trained import weights_damaged
from pipelines.reports.evaluation import PICTURES, evaluation_rows, evaluation_table, seeds_of, write_report
from pipelines.reports.evaluation_findings import leads, remarks
from pipelines.reports.index import refresh_index
from pipelines.reports.split_text import characters_of, unigram_bits_per_byte
from pipelines.terminal import cli
from pipelines.terminal.output import pass_progress, print_wide
from pipelines.terminal.tables import counted
from pipelines.tracking import DatasetInfo, Tracker
from pipelines.tracking.client import check_tracking
from pipelines.tracking.identity import EVALUATED
from pipelines.tracking.score import Evaluation, architecture_of, windows_of

if TYPE_CHECKING:
    from pipelines.training.reading import StateMode

LABELS: dict[Literal["states", "everything"], str] = {"states": "states cleared", "everything": "all State cleared"}


@dataclass(frozen=True)
class EvaluateConfig(TargetsConfig):
    """Models to score, and the text."""

    clear: tuple[Literal["states", "everything"], ...] = ("states", "everything")
    """More passes besides the one with State carried: with the recurrent states cleared, with the whole State cleared."""
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    @property
    def fewer_passes(self) -> str:
        """Part of the report's name: the passes if not all, so that this report does not replace the one with all."""
        chosen = [mode for mode in LABELS if mode in self.clear]
        return "" if chosen == list(LABELS) else f"-passes-{'-'.join(['carried', *chosen])}"


def evaluate(target: EvaluationTarget, config: EvaluateConfig, folder: Path) -> Evaluation:
    """Score one checkpoint, with State carried and cleared. Partial results are kept in ``folder``.

    Raises UserError for a loss that is not a number.
    """
    import torch  # seconds, and not before there is something to evaluate

    from pipelines.training.reading import StateReset, workers_for
    from pipelines.training.scoring import Scoring, has_states
    from recur_models.protocol import RECURRENT, kind_of

    store = target.store
    meta = target.checkpoint.meta
    costs = target.model.costs(meta["vocab_size"])
    with torch.device("meta"):  # its sizes and its State suffice
        model = target.model.build(meta["vocab_size"])

    # Which State is cleared: none, and what is asked for of the State that the model has
    kinds = {kind_of(name) for name in model.initial_state(0)}
    clearable = {"states": has_states(model), "everything": bool(kinds)}
    cleared = [mode for mode in LABELS if mode in config.clear and clearable[mode]]
    clears_all = "everything" in cleared
    if len(cleared) > 1 and kinds <= set(RECURRENT):
        cleared.remove("everything")  # the recurrent states are all the State, so one pass gives both results
    state_modes: tuple[StateMode, ...] = ("nothing", *cleared)
    title = ", ".join([target.name, "State carried", *(LABELS[mode] for mode in cleared)])

    # Score
    workers = workers_for(config.num_workers, costs.flops_per_token * int(store.lengths.sum()) * len(state_modes))
    scoring = Scoring(
        target.checkpoint,
        target.model,
        store,
        state_modes,
        reset=StateReset(config.clear_every, config.clear_at),
        lanes=target.lanes,
        segment_length=target.segment_length,
        shards=max(workers, 1),
        folder=folder,
        precision=target.precision,
    )
    with pass_progress(title, scoring.reading.tokens) as update:
        scores = dict(zip(state_modes, scoring.scores(workers, lambda tokens: update(advance=tokens)), strict=True))
    if not all(math.isfinite(score.nats) for score in scores.values()):
        raise weights_damaged(f"{target.name}: its loss on {store.folder} is not a number")
    read_otherwise = {**target.changed, **dict.fromkeys(target.differences, True)}
    return Evaluation(
        name=target.name,
        model=architecture_of(target.model.to_json()),
        parameters=sum(p.numel() for p in model.parameters()),
        step=target.checkpoint.step,
        train_tokens=meta["tokens"],
        checkpoint=str(target.checkpoint.folder),
        split=f"{store.manifest.corpus}/{store.manifest.split}",
        store_fingerprint=store.manifest.fingerprint,
        carried=scores["nothing"],
        cleared_states=scores.get("states"),
        cleared_all=scores.get("everything", scores.get("states") if clears_all else None),
        flops_per_token=costs.flops_per_token,
        windows=windows_of(target.model.to_json()),
        characters=characters_of(store),
        seed=meta["config"]["seed"],
        cleared_at=config.cleared,
        config_hash=config_hash_without_seed({**meta["config"], "read": read_otherwise}),
    )


def main(argv: list[str]) -> None:
    """Evaluate checkpoints and write their report. Raises UserError for bad input."""
    evaluate_all(cli.parse(EvaluateConfig, argv, __doc__))


@retry_if_removed
def evaluate_all(config: EvaluateConfig) -> None:
    """Find the checkpoints, evaluate them and write their report. Raises UserError for bad input."""
    targets = load_targets(config)
    name = (
        "-vs-".join(target.name for target in targets)
        + config.cleared
        + config.fewer_passes
        + suffix_of(targets, config)
    )
    output = output_for(config.output, targets[0].run, name, config.split)
    for target in targets:
        check_tracking(*tracking_of(target.checkpoint, target.run, config.tracking))
        totals = target.store.manifest.totals
        counts = f"{counted(totals.documents, 'document')}, {totals.tokens:,} tokens"
        at = f"{target.name}, step {target.checkpoint.step:,}"
        at += "" if target.precision == "float32" else f", in {target.precision}"
        print(f"evaluating {at}, on {cli.shown(target.store.folder)}: {counts}")

    report_folder = RunFolder(output)  # for a bucket it is written in a working folder first
    partial = report_folder.folder / PARTIAL
    with file_lock(partial, "another pipelines.evaluate"):
        remove_temporary(Place.parse(report_folder.folder))
        # All of them, before the first is scored: that may take hours, in which the runs of the others train on.
        with kept_weights([target.checkpoint for target in targets], partial / "weights") as kept:
            targets = [replace(target, checkpoint=each) for target, each in zip(targets, kept, strict=True)]
            evaluations = [evaluate(target, config, partial) for target in targets]
        paths = report(config, targets, evaluations, report_folder)
        shutil.rmtree(partial)
    first, *others = [path for path in paths if path.suffix == ".png"] or paths[1:]  # without pictures: the table
    look = ", ".join([str(cli.shown(first)), *(path.name for path in others)])
    tracking, root = tracking_of(targets[0].checkpoint, targets[0].run, config.tracking)
    ui = f", or {cli.typed_ui(root)}" if tracking.in_own_file else ""
    print(f"  report    {cli.shown(output.recorded)}\n  look      {look}{ui}")
    refresh_index(report_folder.folder)


def report(
    config: EvaluateConfig, targets: list[EvaluationTarget], evaluations: list[Evaluation], report_folder: RunFolder
) -> list[Path]:
    """Print the table, write the report, and log it. Returns the report's files."""
    by_store = {target.store.manifest.fingerprint: target for target in targets}
    found = {fingerprint: unigram_of(target) for fingerprint, target in by_store.items()}
    unigrams = {fingerprint: bits for fingerprint, bits in found.items() if bits is not None}
    print_wide(evaluation_table(evaluations, unigrams), 130)
    several = seeds_of(evaluations)
    if several:
        print_wide(several, 130)
    for evaluation in evaluations:
        for remark in remarks(evaluation, unigrams.get(evaluation.store_fingerprint)):
            print(f"{evaluation.name}: {remark}", flush=True)
    for line in leads(evaluations):
        print(line, flush=True)
    paths = write_report(evaluations, report_folder.folder, unigrams)
    report_folder.publish_report(paths, PICTURES)
    track(config, targets, evaluations, paths)
    return paths


def unigram_of(target: EvaluationTarget) -> float | None:
    """Bits per byte of the unigram reference in the target's tokens; None for labels, and without a train split."""
    return unigram_bits_per_byte(target.train, target.store) if target.train and not target.store.labelled else None


def metric_prefix(target: EvaluationTarget, config: EvaluateConfig) -> str:
    """Prefix of an evaluation's metrics. It names all differences from training: two evaluations of a step differ in it."""
    changed = (f"{field}_{value}" for field, value in target.changed.items())
    return "_".join([f"whole_{target.store.manifest.split}{config.cleared}", *target.differences, *changed])


def track(
    config: EvaluateConfig, targets: list[EvaluationTarget], evaluations: list[Evaluation], paths: Sequence[Path]
) -> None:
    """Log the metrics to each model's own MLflow run, and table and plot to a run of their own."""
    evaluated: dict[str, str] = {}
    for i, (target, evaluation) in enumerate(zip(targets, evaluations, strict=True)):
        run_id = log_to_run(config, target, target.run, evaluation) if target.run else ""
        evaluated |= {
            f"{EVALUATED}{i}": evaluation.name,
            f"{EVALUATED}{i}.checkpoint": evaluation.checkpoint,
            f"{EVALUATED}{i}.run_id": run_id,
        }
    first = evaluations[0]
    tracker = Tracker.start(
        *tracking_of(targets[0].checkpoint, targets[0].run, config.tracking),
        run_folder=paths[0].parent,
        run_name="evaluate " + " ".join(evaluation.name for evaluation in evaluations),
        params={},
        tags={"stage": "evaluate", "data_fingerprint": first.store_fingerprint, **evaluated},
        dataset=DatasetInfo(
            name=first.split,
            digest=first.store_fingerprint,
            source=targets[0].store.place.recorded,
            documents=first.carried.documents,
            tokens=first.carried.tokens,
            context="evaluation",
        ),
    )
    tracker.log_artifacts(*paths)
    tracker.finish()


def log_to_run(config: EvaluateConfig, target: EvaluationTarget, run: RunFolder, evaluation: Evaluation) -> str:
    """Log an evaluation's metrics to the run of its model, unless the run's folder cannot be written. Returns MLflow's id of the
    run that got them, or "".
    """
    run.fetch(*RECORDS)
    folder = Place.parse(run.folder)
    if not (folder.is_writable() and (folder / "metrics.jsonl").is_writable()):
        print(f"note: {run.place} cannot be written: its metrics are in the report alone", flush=True)
        return ""
    row = evaluation_rows([evaluation])[0]
    prefix = metric_prefix(target, config)
    metrics = {f"{prefix}/{key}": value for key, value in row.items() if isinstance(value, float)}
    tracker = Tracker.attach(*tracking_of(target.checkpoint, run, config.tracking), run.folder, run.place)
    tracker.log(metrics, evaluation.step)
    tracker.finish()  # metrics.jsonl is not copied back to a bucket: the run may be training
    return tracker.run_id or ""


if __name__ == "__main__":
    cli.run(main)
