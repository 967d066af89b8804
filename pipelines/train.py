"""Train a model on a prepared corpus: on Ray Train workers, or in this process. Repeating the command resumes the run.

    python -m pipelines.train demo-rec
    torchrun --nproc-per-node 2 -m -- pipelines.train demo-rec --num-workers 0 --run mine
    python -m pipelines.train small-rec --data.corpus text --data.store runs/store --run mine --num-workers 2
    python -m pipelines.train runs/sweep/best.json        # what a sweep found, or any run's config.json, in place of a preset
    python -m pipelines.train exported/tuned --run more   # begins with an exported folder's model and weights

Everything of a run is in `<root>/<run>`: config.json, metrics.jsonl, checkpoints/, logs/. The curves are in MLflow (`make ui`).
Exit status: 0 trained; 1 failed, with a traceback; 2 a user's error; 70 hung, and ended by itself; 75 asked to stop (by a signal
or a file `stop` in the run's folder) and saved: rerun the command to resume.
"""

from __future__ import annotations

import contextlib
import os
import shlex

import torch
import torch.distributed as dist

from common.errors import UserError
from common.lock import file_lock
from common.places import Place, remove_temporary
from data_prep.store import SegmentStore, splits_of
from data_prep.tokenizers import CHAT_FILE, TOKENIZER_FOLDER
from pipelines.checkpoints.checkpoint import Checkpoint
from pipelines.checkpoints.retention import tidy
from pipelines.checkpoints.run_file import presets_with
from pipelines.checkpoints.run_folder import RECORDS, RunFolder, is_sweep, root_of
from pipelines.cluster.ray_session import RayLost
from pipelines.config.run import CheckpointConfig, TrainConfig
from pipelines.inference.registering import register_best
from pipelines.presets import PRESETS
from pipelines.presets.catalogue import overview, search
from pipelines.terminal import cli
from pipelines.terminal.commands import typed
from pipelines.terminal.tables import counted, short
from pipelines.tracking.client import check_tracking
from pipelines.training.beginning import other_tokenizer, weights_folder
from pipelines.training.progress import show_progress
from pipelines.training.stopping import STOPPED_STATUS, Stop, Stopped
from pipelines.training.worker import TrainInputs, open_run, start_tracker, train_as_worker
from pipelines.training.world import Launched, World, join

MANY_EPOCHS = 20
"""Epochs above which the announcement of a run notes that its text is small for its steps."""


def main(argv: list[str]) -> int:
    """Train the run of a command line, or resume it. Raises UserError for bad input."""
    config = cli.parse_preset(presets_with(PRESETS, argv), argv, __doc__, names=overview, search=search).located()
    if config.num_workers == 0 and Launched.by_environment().rank > 0:
        return train_beside(config)
    if config.num_workers != 0 and "TORCHELASTIC_RUN_ID" in os.environ:
        refuse_several_starts(config)
    run_folder = RunFolder.of(config)
    if is_sweep(run_folder.place):
        raise UserError(f"{_shown(config)} is a sweep: choose another --run")
    # Opened here to refuse what does not fit and to print the plan. Each worker opens the run again, and agrees on a checkpoint.
    run = open_run(config, World.alone())
    check_tracking(config.tracking, root_of(run_folder.folder, config.run))
    parameters = config.model.costs(run.train_store.vocab_size).parameters
    print(describe(config, run, parameters), flush=True)
    if run.resume and run.resume.step >= config.steps:
        if Place.parse(run_folder.folder).is_writable():  # a run of another user is left as it is
            with file_lock(run_folder.folder, "another training run"):
                complete(config, run.train_store, run.resume)
        print(f"nothing to do: {_shown(config)} has been trained to step {run.resume.step:,}\n{_next(config)}")
        return 0
    stop = Stop(run_folder.place)
    try:
        with file_lock(run_folder.folder, "another training run"):
            remove_temporary(Place.parse(run_folder.folder))
            train_with_progress(config, run, stop)
    except Stopped as stopped:
        saved = f"after step {stopped.step:,} of {config.steps:,}, which is saved: the same command resumes there"
        print(f"stopped {saved if stopped.step else 'before any step was saved: the same command begins anew'}")
        return STOPPED_STATUS
    except RayLost as lost:
        from pipelines.cluster import elastic

        elastic.end_without_ray(config, lost, stop.signalled)
    print(f"trained {config.run} ({short(parameters)} parameters) to step {config.steps:,}\n{_next(config)}")
    return 0


def train_with_progress(config: TrainConfig, run: TrainInputs, stop: Stop) -> None:
    """Train in this process or on Ray, showing progress."""
    stop.clear()
    with show_progress(RunFolder.of(config).place, run.first_step, config.steps):
        try:
            if config.num_workers == 0:
                train_here(config, stop)
            else:
                from pipelines.cluster import elastic

                elastic.train_on_ray(config, stop, register_best, run.first_step)
        finally:
            with contextlib.suppress(OSError):  # the next start clears it too; its error must not hide another
                stop.clear()


def train_here(config: TrainConfig, stop: Stop) -> None:
    """Train in this process, or in those that torchrun has started."""
    launched = Launched.by_environment()
    use_gpu = config.use_gpu != "no" and torch.cuda.device_count() >= launched.local_size
    if config.use_gpu == "yes" and not use_gpu:
        raise UserError(
            "use_gpu is yes, and torch cannot use a GPU for each process: choose --use-gpu auto, or fix the CUDA installation"
        )
    if launched.size > config.data.lanes:
        raise UserError(
            f"data.lanes is {config.data.lanes}, and torchrun has started more processes: each needs a lane of its own"
        )
    device = torch.device(f"cuda:{launched.local_rank}" if use_gpu else "cpu")
    if launched.size > 1 and not dist.is_initialized():
        join(device)
    with stop.on_signals():
        train_as_worker(config, World.current(device), stop.asked, register_best)


def train_beside(config: TrainConfig) -> int:
    """Train in one of torchrun's processes beside rank 0, which alone prints and locks the run. Returns the exit status."""
    run = open_run(config, World.alone())
    if run.first_step < config.steps:
        try:
            train_here(config, Stop(RunFolder.of(config).place))
        except Stopped:
            return STOPPED_STATUS
    return 0


def describe(config: TrainConfig, run: TrainInputs, parameters: int) -> str:
    """What will be trained, in lines: a model of so many parameters."""
    totals = run.train_store.manifest.totals
    tokens = config.steps * config.tokens_per_step
    epochs = tokens / max(totals.tokens, 1)
    workers = " to ".join(str(number) for number in dict.fromkeys((config.workers[0], config.workers[-1])))
    where = "in this process" if config.num_workers == 0 else f"on {workers} Ray Train workers"
    lines = [
        f"training {config.run}: {config.model.name}, {short(parameters)} parameters, {where}",
        f"  data    {cli.shown(run.train_store.folder)}: {counted(totals.documents, 'document')}, {totals.tokens:,} tokens, "
        f"vocabulary {run.train_store.vocab_size:,}",
        f"  steps   {config.steps:,} of {config.data.lanes} lanes × {config.data.segment_length:,} tokens "
        f"= {tokens:,} tokens, {epochs:,.2f} epochs",
    ]
    begins_with = "" if run.resume else weights_folder(config, run.initial)
    if begins_with:
        lines.append(f"  begins  with the weights in {cli.shown(begins_with)}")
    if run.resume and run.resume.step < config.steps:
        left = config.steps - run.resume.step
        lines.append(f"  resumes from step {run.resume.step:,} ({run.resume.folder.name}): {left:,} steps are left")
    lines.append(f"  into    {_shown(config)}")
    complaint = "" if run.resume else other_tokenizer(config.model, run.train_store)
    if complaint:
        lines.append(f"  warning {complaint}")
    if epochs > MANY_EPOCHS:
        lines.append(
            f"  note    the steps read the train split {epochs:,.0f} times, and the model may learn it by heart: give fewer "
            "--steps, or more text"
        )
    if config.schedule.warmup_steps > config.steps:
        lines.append(
            f"  note    the warm-up has {config.schedule.warmup_steps:,} steps, so the learning rate stays below --optim.lr: give "
            "more --steps, or fewer --schedule.warmup-steps"
        )
    if (run.train_store.place.parent / TOKENIZER_FOLDER / CHAT_FILE).exists():
        lines.append(
            "  chat    the tokenizer has a chat template, which an export takes over: `generate --chat` prompts with it, and "
            "documents hold the names of its special tokens as text"
        )
    run_folder = RunFolder.of(config)
    if not run_folder.is_local and config.tracking.in_own_file:
        lines.append(
            f"  MLflow  stays on the machine of rank 0, in {run_folder.folder.parent}: --tracking.uri names a server"
        )
    return "\n".join(lines)


def complete(config: TrainConfig, store: SegmentStore, last: Checkpoint) -> None:
    """Finish a run whose training is over, in case the command that ended it was killed: remove checkpoints that need not be kept,
    send MLflow what it missed, and register the best model. ``last``: the checkpoint of the last step.
    """
    run_folder = RunFolder.of(config)
    # With the settings of the training: this command trains nothing, so its own do not count.
    tidy(run_folder, last.folder.name, CheckpointConfig(**last.meta["config"]["checkpoint"]))
    run_folder.fetch(*RECORDS)
    tracker = start_tracker(config, store, last)
    register_best(config, tracker)
    tracker.finish()
    run_folder.publish(*RECORDS)


def refuse_several_starts(config: TrainConfig) -> None:
    """Raise UserError if torchrun has started several processes, each of which would start Ray."""
    size = Launched.by_environment().size
    if size > 1:
        raise UserError(
            f"num_workers is {config.num_workers}, and torchrun has started {size} processes, each of which would start Ray: "
            "add --num-workers 0 to train in them"
        )


def _shown(config: TrainConfig) -> str:
    return cli.shown(RunFolder.of(config).place.recorded)


def _next(config: TrainConfig) -> str:
    run = RunFolder.of(config)
    look = f"\n  look      {cli.typed_ui(root_of(run.folder, config.run))}" if config.tracking.in_own_file else ""
    found = []
    with contextlib.suppress(OSError):  # a store that does not answer ends no finished run
        found = splits_of(Place.parse(config.data.store) / config.data.corpus)
    scored = next((name for name in ("test", "validation", "train") if name in found), "test")
    split = "" if scored == "test" else f" --split {scored}"
    return (
        f"  result    {cli.shown(run.checkpoints.recorded)}\n"
        f"  evaluate  {typed('evaluate')} {shlex.quote(_shown(config))}{split}{look}"
    )


if __name__ == "__main__":
    cli.run(main)
