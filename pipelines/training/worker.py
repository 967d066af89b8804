"""One process of a training run, whoever started it: opens the stores and the newest checkpoint, checks that they fit, starts
tracking on rank 0, and calls the loop.

Rank 0 chooses the checkpoint, and holds a lock on the folder of checkpoints: a process of an earlier start that is still alive (its
driver was killed, say) has to end before another one writes there.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from common.credentials import without_credentials
from common.errors import UserError, first_cause, given_by_user
from common.files import write_atomically
from common.lock import file_lock
from common.places import Place
from data_prep.manifest import MissingSplit
from data_prep.store import SegmentStore
from pipelines.checkpoints.checkpoint import Checkpoint, check_fits
from pipelines.checkpoints.errors import CheckpointError
from pipelines.checkpoints.exported import Exported
from pipelines.checkpoints.run_folder import RECORDS, RunFolder, root_of
from pipelines.checkpoints.saving import Saver
from pipelines.config.run import TrainConfig, check_resumable, flatten, to_json
from pipelines.terminal import plugins
from pipelines.tracking import DatasetInfo, Tracker
from pipelines.tracking.identity import FAILURE, TAG_LENGTH
from pipelines.tracking.metrics import check_compared
from pipelines.training import loop
from pipelines.training.beginning import open_initial
from pipelines.training.compiler import check_compiler, whole_compiled_code
from pipelines.training.loop import TrainInputs
from pipelines.training.precision import agree, moved_from
from pipelines.training.restoring import check_shapes
from pipelines.training.scoring import check_logged
from pipelines.training.stopping import Stopped
from pipelines.training.watchdog import Heartbeat
from pipelines.training.world import World

ZOMBIE_SECONDS = 60.0
"""How long a start waits for a process of an earlier one to end."""


def train_as_worker(
    config: TrainConfig,
    world: World,
    asked_to_stop: Callable[[], bool],
    on_trained: Callable[[TrainConfig, Tracker], None] = lambda config, tracker: None,
) -> None:
    """Run one process of a training run: open the inputs, start tracking on rank 0, and train.

    Args:
        world: this process and its peers.
        asked_to_stop: called at each step; if it is True in any process, all of them save the step and stop.
        on_trained: called by rank 0 after the last step, with its tracker still open.

    Raises Stopped when the run was asked to stop, and its step is saved.
    """
    plugins.load()
    run_folder = RunFolder.of(config)
    records = RECORDS if world.rank == 0 else ()
    with ExitStack() as stack:
        if world.rank == 0:
            folder = run_folder.folder / "checkpoints"
            stack.enter_context(file_lock(folder, "an earlier start of this run", ZOMBIE_SECONDS))
        run_folder.fetch(*records)  # before anything is published: a bucket may have newer ones than this machine
        stack.enter_context(run_folder.published(*records, f"logs/worker-{world.rank}.log"))
        if world.rank == 0:
            write_atomically(run_folder.folder / "config.json", json.dumps(to_json(config), indent=1).encode())
            run_folder.publish("config.json")
        run = open_run(config, world)
        with tracked(config, run, world) as tracker:
            on_disk = partial(note_checkpoint, tracker, config) if tracker else None
            saver = Saver(run_folder, config.checkpoint, world, config.data.lanes, on_disk)
            try:
                with Heartbeat(run_folder, world, config.hang_seconds) as heart, whole_compiled_code():
                    loop.train(config, run, world, tracker, asked_to_stop, saver, heart)
            finally:
                saver.abandon()
            if tracker:
                on_trained(config, tracker)


def open_run(config: TrainConfig, world: World) -> TrainInputs:
    """Open the stores, and the newest good checkpoint that rank 0 has found.

    Raises UserError when they do not fit the config.
    """
    check_compared("checkpoint.best_by", config.checkpoint.best_by, of="validation/")
    train_store, validation_store = open_stores(config)
    warnings = list[str]()
    if validation_store:
        check_logged("--checkpoint.best-by", config.checkpoint.best_by, config, validation_store)
    elif config.validate_every:
        shown = f"{without_credentials(config.data.store)}/{config.data.corpus}"
        warnings.append(f"{shown} has no validation split: the run continues without validation")
    run_folder = RunFolder.of(config)
    resume, complaints = agreed_checkpoint(run_folder, world)
    warnings += [f"passed over a checkpoint: {complaint}" for complaint in complaints]
    initial = None
    if resume is None:
        with given_by_user(ValueError):
            config.model.check_new()
        initial = open_initial(config, train_store)
    else:
        check_resumable(resume.meta["config"], config, run_folder.place)
        check_shapes(resume, config, run_folder.place)
        check_fits(resume, train_store, "" if "store" in config.allow_change else "--allow-change store")
    check_compiler(config, world)
    precision = agree(config, train_store.vocab_size, world, resume)
    return TrainInputs(train_store, validation_store, resume, warnings, initial, precision)


def open_stores(config: TrainConfig) -> tuple[SegmentStore, SegmentStore | None]:
    """The train split, and the validation split where the run reads it and the corpus has one.

    Raises UserError when a split has no token, their tokenizers differ, or the tokenizer is missing.
    """
    data = config.data
    train_store = SegmentStore.open(data.store, data.corpus, "train", cache=data.cache)
    train_store.check_tokenizer()  # training does not read it, but everything after it does
    validation_store = None
    if config.validate_every:
        with contextlib.suppress(MissingSplit):
            validation_store = SegmentStore.open(data.store, data.corpus, "validation", cache=data.cache)
    stores = [store for store in (train_store, validation_store) if store]
    for store in stores:
        if not store.lengths.any():
            raise UserError(f"{store.folder} has no document with any token: prepare it again with another tokenizer")
    if len({store.manifest.tokenizer.fingerprint for store in stores}) > 1:
        shown = f"{without_credentials(data.store)}/{data.corpus}"
        raise UserError(f"{shown}: train and validation were made with different tokenizers: prepare both again")
    return train_store, validation_store


def agreed_checkpoint(run_folder: RunFolder, world: World) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint that rank 0 resumes from, opened by this process too; None where the run has none. On rank 0 also a sentence
    for each newer one that cannot be used.
    """
    if world.rank == 0:
        resume, complaints = run_folder.newest()
        world.broadcast_str(resume.folder.name if resume else "")
        return resume, complaints
    name = world.broadcast_str("")
    try:
        return (run_folder.open_checkpoint(name) if name else None), []
    except CheckpointError as error:
        raise CheckpointError(
            f"rank 0 resumes from {name}, but {error}: is {run_folder.place} shared by all workers?"
        ) from None


@contextmanager
def tracked(config: TrainConfig, run: TrainInputs, world: World) -> Iterator[Tracker | None]:
    """Give rank 0 a tracker, and the other ranks None. When the block ends, the tracker logs how.

    Rank 0 first prints the run's warnings, the step from which it resumes, the precision, and what is compiled.
    """
    if world.rank > 0:
        yield None
        return
    for warning in run.warnings:
        print(f"warning: {warning}", flush=True)
    # In one process `pipelines.train` has printed it; workers may have been restarted.
    if run.resume and config.num_workers != 0:
        print(f"resumes from step {run.first_step:,} ({run.resume.folder.name})", flush=True)
    print(f"  precision  {run.precision.name}: {run.precision.reason}", flush=True)
    if config.compile != "no":
        unit = "each layer" if config.compile == "layer" else "the whole model"
        print(f"  compile  {unit}, in the first step, which takes a minute or more longer", flush=True)
    moved = moved_from(run.resume, run.precision) if run.resume else ""
    if moved:
        print(f"note: {moved}", flush=True)
    tracker = start_tracker(config, run.train_store, run.resume, run.initial)
    tracker.set_tag("precision", run.precision.name)
    tracker.set_tag("machine", run.precision.machine)
    status = "FAILED"
    try:
        yield tracker
        status = "FINISHED"
    except Stopped:
        status = "KILLED"
        raise
    except Exception as error:
        tracker.set_tag(FAILURE, first_cause(error, most=TAG_LENGTH))
        raise
    finally:
        tracker.finish(status)


def note_checkpoint(tracker: Tracker, config: TrainConfig, step: int, meta: Mapping[str, Any], place: str) -> None:
    """Log a complete checkpoint to MLflow, with its place."""
    tracker.log_checkpoint(step, {"checkpoint": place, "tokens": meta["tokens"], "model": config.model.name})


def start_tracker(
    config: TrainConfig,
    store: SegmentStore,
    resume: Checkpoint | None = None,
    initial: Exported | None = None,
    over: bool = False,
) -> Tracker:
    """Start tracking a run, with its config as params and its train split as an input.

    Args:
        resume: the checkpoint from which the run continues; None for a new run.
        initial: the weights that a new run begins with, where they are not its own.
        over: whether the run is over, at whatever step, and only its end is noted.
    """
    manifest = store.manifest
    run_folder = RunFolder.of(config)
    step = resume.step if resume else 0
    values = to_json(config)
    if resume and step >= config.steps:  # the run is over: nothing is trained with the command's values
        values = resume.meta["config"]
    tags = {
        "model": config.model.name,
        "data_fingerprint": manifest.fingerprint,
        "tokenizer": manifest.tokenizer.name,
        "tokenizer_fingerprint": manifest.tokenizer.fingerprint,
        "vocab_size": str(manifest.tokenizer.vocab_size),
        "parameters": str(config.model.costs(manifest.tokenizer.vocab_size).parameters),
        "mlflow.parentRunId": config.tracking.parent,
    }
    if initial:
        tags["initial_weights"] = f"{initial.folder.name} {initial.digest}"
    tracker = Tracker.start(
        config.tracking,
        root=root_of(run_folder.folder, config.run),
        run_folder=run_folder.folder,
        run_name=config.run,
        params=flatten(values),
        tags=tags,
        dataset=DatasetInfo(
            name=f"{manifest.corpus}/{manifest.split}",
            digest=manifest.fingerprint,
            source=store.place.recorded,
            documents=manifest.totals.documents,
            tokens=manifest.totals.tokens,
        ),
        resume_step=None if over else step,
        place=run_folder.place,
        publish=partial(run_folder.publish, "mlflow_run.json"),
        recorded=mlflow_record(resume, config.run) if resume else None,
    )
    if resume or over:
        note_earlier_checkpoints(tracker, config, run_folder, None if over else step)
    return tracker


def note_earlier_checkpoints(tracker: Tracker, config: TrainConfig, run_folder: RunFolder, last: int | None) -> None:
    """Log the complete checkpoints up to the step ``last``, or all: some were not logged before the run was killed."""
    for checkpoint in reversed(run_folder.complete_checkpoints()):
        if last is None or checkpoint.step <= last:
            stands = run_folder.checkpoints / checkpoint.folder.name
            note_checkpoint(tracker, config, checkpoint.step, checkpoint.meta, stands.recorded)


def mlflow_record(checkpoint: Checkpoint, run: str) -> dict[str, Any]:
    """A checkpoint's record of its run in MLflow, for a folder of this run without mlflow_run.json. A checkpoint that was
    copied to begin another run names the origin of that one.
    """
    run_id = checkpoint.meta.get("mlflow_run")
    before = checkpoint.meta["config"]
    if not run_id:
        return {}
    place = (Place.parse(before["root"]) / before["run"]).recorded
    params = {**flatten(before), "store": checkpoint.meta["store"]}
    if before["run"] != run:
        return {"origin": {"place": place, "step": checkpoint.step, "run_id": run_id}, "params": params}
    return {"run_id": run_id, "place": place, "starts": [checkpoint.meta["mlflow_start"]], "params": params}
