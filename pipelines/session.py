"""What each process of a training run does, whoever started it: open the stores and the newest checkpoint, check that they fit,
start tracking on rank 0, and call the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.manifest import MissingSplit
from data_prep.places import without_credentials
from data_prep.store import SegmentStore
from pipelines import checkpoint as checkpoints
from pipelines import loop
from pipelines.checkpoint import Checkpoint, check_fits
from pipelines.config import TrainConfig, check_resumable, flatten, to_json
from pipelines.tracking import DatasetInfo, Tracker
from pipelines.world import World


@dataclass(frozen=True)
class Run:
    """What a run reads, opened and checked."""

    train_store: SegmentStore
    validation_store: SegmentStore | None
    resume: Checkpoint | None
    warnings: list[str]
    """What is missing or was passed over, a sentence each."""


def open_run(config: TrainConfig) -> Run:
    """Open stores and the newest good checkpoint. Raises a ValueError in one sentence when they do not fit the config."""
    data = config.data
    train_store = SegmentStore.open(data.store, data.corpus, "train")
    validation_store, warnings = None, []
    if config.validate_every:
        try:
            validation_store = SegmentStore.open(data.store, data.corpus, "validation")
        except MissingSplit:
            warnings.append(
                f"{without_credentials(data.store)}/{data.corpus} has no validation split: the run goes on without validation"
            )
    if (
        validation_store
        and validation_store.manifest.tokenizer.fingerprint != train_store.manifest.tokenizer.fingerprint
    ):
        raise ValueError(
            f"{without_credentials(data.store)}/{data.corpus}: train and validation were made with different tokenizers: "
            "prepare both again"
        )
    resume, complaints = checkpoints.newest(config.folder / "checkpoints")
    if resume is not None:
        check_resumable(resume.meta["config"], config, config.folder)
        check_fits(
            resume, train_store, allow_other_store="store" in config.allow_change, override="--allow-change store"
        )
    warnings += [f"passed over a checkpoint: {complaint}" for complaint in complaints]
    return Run(train_store, validation_store, resume, warnings)


def work(config: TrainConfig, world: World, report: Callable[[dict[str, Any]], None]) -> None:
    """What each process of a run does: open, track (rank 0), train."""
    run = open_run(config)
    resume_step = run.resume.step if run.resume else 0
    if world.rank == 0:
        for warning in run.warnings:
            print(f"warning: {warning}", flush=True)
        if run.resume:
            print(f"resumes from step {resume_step:,} ({run.resume.folder.name})", flush=True)
    tracker = start_tracker(config, run, resume_step) if world.rank == 0 else None
    try:
        loop.train(
            config,
            world,
            train_store=run.train_store,
            validation_store=run.validation_store,
            resume=run.resume,
            log=tracker,
            report=report,
        )
    except BaseException:
        if tracker:
            tracker.finish("FAILED")
        raise
    if tracker:
        tracker.finish("FINISHED")


def start_tracker(config: TrainConfig, run: Run, resume_step: int) -> Tracker:
    """The run in MLflow, with its config as params and its data set as an input."""
    manifest = run.train_store.manifest
    return Tracker.start(
        config.tracking,
        root=Path(config.root).absolute(),
        run_folder=config.folder,
        run_name=config.run,
        params=flatten(to_json(config)),
        tags={
            "model": config.model.name,
            "data_fingerprint": manifest.fingerprint,
            "tokenizer": manifest.tokenizer.name,
        },
        dataset=DatasetInfo(
            name=f"{manifest.corpus}/{manifest.split}",
            digest=manifest.fingerprint,
            source=run.train_store.place.recorded,
            documents=manifest.totals.documents,
            tokens=manifest.totals.tokens,
        ),
        resume_step=resume_step,
    )
