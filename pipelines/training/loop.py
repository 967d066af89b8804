"""The training loop: one function, read from top to bottom. It knows neither Ray nor MLflow: it runs the same under Ray Train,
under torchrun and in one plain process.

Every process owns a range of lanes of the global batch and their State. Letters: B own lanes · T tokens · K blocks.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from common.choices import IGNORED
from common.errors import UserError, given_by_user
from data_prep.lanes import TrainingLanes, read_batch
from data_prep.store import SegmentStore
from pipelines.checkpoints.checkpoint import Checkpoint
from pipelines.checkpoints.exported import Exported
from pipelines.checkpoints.saving import Saver
from pipelines.config.run import OptimConfig, TrainConfig
from pipelines.tracking import Tracker
from pipelines.tracking.metrics import training_metrics, validation_metrics
from pipelines.training.forward import predict, tensors
from pipelines.training.optim import build_optimizer, learning_rate
from pipelines.training.precision import Precision, autocast_to
from pipelines.training.restoring import (
    digest_lanes,
    lanes_unchanged,
    random_state,
    restore_lanes,
    restore_optimizer,
    seed_dropout,
)
from pipelines.training.scoring import has_states, score_split
from pipelines.training.stopping import Stopped
from pipelines.training.train_state import TrainState
from pipelines.training.utilisation import Speed, collected_by_hand, fastest_tokens
from pipelines.training.watchdog import Heartbeat
from pipelines.training.world import World
from recur_models import RecurrentModel, State, detach
from recur_models.compiling import compile_model
from recur_models.health import Health, watch
from recur_models.protocol import concat_lanes, select_lanes


@dataclass(frozen=True)
class TrainInputs:
    """The inputs of a run, opened and checked."""

    train_store: SegmentStore
    validation_store: SegmentStore | None
    """None for a run without validation."""
    resume: Checkpoint | None
    """The checkpoint from which training continues; None for a new run."""
    warnings: list[str]
    """Sentences about inputs that are missing or were skipped."""
    initial: Exported | None
    """Weights that a new run begins with, where they are not its own."""
    precision: Precision
    """Precision of the products, the same on every process."""

    @property
    def first_step(self) -> int:
        """The step from which training continues; 0 for a new run."""
        return self.resume.step if self.resume else 0


@collected_by_hand()
def train(
    config: TrainConfig,
    run: TrainInputs,
    world: World,
    tracker: Tracker | None,
    asked_to_stop: Callable[[], bool],
    saver: Saver,
    heart: Heartbeat,
) -> None:
    """Train up to ``config.steps``, from the run's checkpoint if there is one.

    Args:
        run: the opened inputs.
        world: this process and its peers, which divide the lanes among them.
        tracker: sends the metrics, on rank 0; None on the other ranks.
        asked_to_stop: whether this process was asked to stop. If one was, all processes save the same step, and raise Stopped.
        saver: writes checkpoints.
        heart: notices a run that hangs, from the time of its last step.

    Raises Diverged when the loss, the gradient or a weight is not finite; SaveError when a checkpoint cannot be written.
    """
    # Data
    store = run.train_store
    labelled = store.labelled
    first_lane, end_lane = world.lanes(config.data.lanes)
    lanes = end_lane - first_lane
    schedule = TrainingLanes(
        store.lengths,
        lanes=config.data.lanes,
        segment_length=config.data.segment_length,
        block=config.model.block,
        seed=config.seed,
        fingerprint=store.manifest.fingerprint,
        order=config.data.order,
    )

    # Model: the same seed, and so the same weights, on every process; then dropout of its own for each
    resume = run.resume
    torch.manual_seed(config.seed)
    vocab_size = store.vocab_size
    trained = resume or run.initial
    with given_by_user(ValueError, RuntimeError):  # from weights that do not fit the model
        built = config.model.restore(vocab_size, trained.weights()) if trained else config.model.build(vocab_size)
    model: RecurrentModel = built.to(world.device)
    model.recompute = config.recompute
    compile_model(model, config.compile)
    optimizer = build_optimizer(model, config.optim)
    seed_dropout(config.seed, world)

    # Lanes and progress: as the checkpoint has them
    state = model.initial_state(lanes)
    digest_B = torch.zeros(lanes, dtype=torch.int64)  # of all that each lane has read
    # Sums over own lanes since the last log: nats; for a labelled store nats, errors and labels.
    sums = torch.zeros(3 if labelled else (), dtype=torch.float64, device=world.device)
    first_step = run.first_step
    progress = TrainState.of(resume)
    if resume is not None:
        restore_optimizer(optimizer, model, config.optim, resume)
        same_lanes = lanes_unchanged(resume, config, schedule, store)
        restored = restore_lanes(resume, config, world, state, sums) if same_lanes else None
        if restored is not None:
            state, digest_B, sums = restored
        else:  # --allow-change permitted a change after which the lanes no longer fit their State
            change = "the model's State has another shape" if same_lanes else "the lanes are laid out otherwise"
            progress.logged = first_step
            if world.rank == 0:
                print(f"{change} than before: State begins anew on each of them", flush=True)

    # Machine
    wrapped = world.wrap(model)
    autocast = autocast_to(run.precision.name, world.device)
    fastest = fastest_tokens(config, world, model.vocab_size, run.precision.dtype) if tracker else {}
    speed = Speed(world.device, fastest, schedule.tokens_before(first_step))
    model.train()

    for step in range(first_step, config.steps):
        saver.check()
        heart.beat(step)
        done = step + 1
        last = done == config.steps
        logging = last or done % config.log_every == 0

        # Batch: own lanes of the global one
        batch = read_batch(store, schedule, step, first_lane, end_lane)
        digest_B = digest_lanes(digest_B, batch)
        tokens_BT, targets_BT, fresh_BK = tensors(batch, world.device)
        if labelled:
            labels = int(np.count_nonzero(batch.targets_BT != IGNORED))
            sums[2] += labels
            target_count = max(world.all_reduce_int(labels), 1)  # over all lanes, of which none may have a label
        else:
            target_count = schedule.valid_tokens(step)  # over all lanes: every process knows their schedule

        # Forward and backward: nats over the *global* number of targets; DDP averages, hence times the number of processes
        health = Health()
        states_after: list[State] = []
        for rows in groups_of(lanes, config.micro_lanes):
            given = tokens_BT[rows], select_lanes(rows, state), fresh_BK[rows], targets_BT[rows]
            with world.gradient_sync(wrapped, now=rows.stop == lanes):  # the last rows sum up all gradients
                with autocast(), watch(model if tracker and logging else None, *given, health=health):
                    nats_BT, wrong_BT, state_after = predict(wrapped, *given, labelled)
                loss = nats_BT.sum() * (world.size / target_count)
                loss.backward()
            states_after.append(detach(state_after))  # truncated BPTT: gradients end here, State is carried on
            nats = nats_BT.detach().sum()
            if wrong_BT is None:
                sums += nats
            else:
                sums[:2] += torch.stack([nats, wrong_BT.sum()])
        state = concat_lanes(states_after)

        # Update
        rate = learning_rate(step, config.steps, config.optim, config.schedule)
        for group in optimizer.param_groups:
            group["lr"] = rate * group.get("lr_scale", 1.0)
        gradient_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.optim.max_grad_norm or math.inf)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

        # Log
        if logging:
            tokens = schedule.tokens_before(done)
            since_logged = tokens - schedule.tokens_before(progress.logged)
            losses = training_metrics(world.sum(sums).flatten().tolist(), since_logged)
            loss = losses.get("train/bits_per_token", 0.0)  # missing if no label was read
            check_finite("the loss", loss, done, saver, config.optim)
            speeds = speed.metrics(tokens)
            if tracker:
                metrics = {
                    **losses,
                    "train/learning_rate": rate,
                    "train/gradient_norm": float(gradient_norm),
                    "train/tokens": float(tokens),
                    "train/epoch": schedule.epoch(done),
                    **{f"train/{name}": value for name, value in speeds.items()},
                    **{f"recurrence/{name}": value for name, value in health.metrics().items()},
                }
                tracker.log(metrics, done)
                if done > config.schedule.warmup_steps:
                    progress.warn_of_unused_state(health, tracker, done)
            sums = torch.zeros_like(sums)
            progress.logged = done
            gc.collect(1)  # young objects, in a millisecond; checkpoints collect all

        # Validate
        if run.validation_store and (last or done % config.validate_every == 0):
            with speed.paused():
                metrics = validate(model, run.validation_store, config, world, autocast, heart.beat)
            progress.note_validation(metrics, done, config, run.validation_store, world)
            if tracker:
                tracker.log({**metrics, "train/tokens": float(schedule.tokens_before(done))}, done)

        # Save
        leaving = world.any(asked_to_stop()) and not last
        if leaving or last or done % config.checkpoint.every == 0:
            weight_norm = torch.nn.utils.get_total_norm(model.parameters())  # after this step
            for name, value in (("the loss", sums.sum()), ("the gradient", gradient_norm), ("a weight", weight_norm)):
                check_finite(name, value.item(), done, saver, config.optim)
            with speed.paused():
                gc.collect()
                saver.save(
                    done,
                    model=model,
                    optimizer=optimizer,
                    per_lane={"digest": digest_B, **{f"state/{name}": tensor for name, tensor in state.items()}},
                    per_process={"nats": sums, **random_state(world)},
                    meta=progress.meta(done, config, schedule, store, tracker, run.precision),
                )
        if leaving:
            saver.close()
            raise Stopped(done)
    saver.close()


def groups_of(lanes: int, size: int) -> list[slice]:
    """Slices of own lanes that go through the model together: ``size`` lanes each, or all of them where ``size`` is 0."""
    size = size or lanes
    return [slice(first, min(first + size, lanes)) for first in range(0, lanes, size)]


def validate(
    model: RecurrentModel,
    store: SegmentStore,
    config: TrainConfig,
    world: World,
    autocast: Callable[[], AbstractContextManager[object]],
    progress: Callable[[], object],
) -> dict[str, float]:
    """Metrics on the validation split, which is read with a State of its own.

    A model with recurrent states reads the split a second time, and clears these states at every segment. The increase in bits is
    the worth of the states. It is not measured where most tokens are in the first segment of their document.
    """
    score = partial(
        score_split,
        model,
        store,
        lanes=config.data.lanes,
        segment_length=config.data.segment_length,
        world=world,
        limit_tokens=config.validate_tokens or None,
        autocast=autocast,
        progress=progress,
    )
    carried = score(clearing="nothing")
    metrics = validation_metrics(carried)
    if has_states(model) and carried.shows_worth:
        cleared = score(clearing="states").bits_per_token
        metrics["validation/bits_per_token_states_cleared"] = cleared
        metrics["validation/worth_of_states_bits"] = cleared - carried.bits_per_token
    return metrics


class Diverged(UserError):
    """The loss, the gradient or a weight is not finite. The arguments: what was found, and how a run continues."""

    def __str__(self) -> str:
        return "; ".join(self.args)


def check_finite(name: str, value: float, step: int, saver: Saver, optim: OptimConfig) -> None:
    """Raise Diverged unless ``value``, the loss or a norm of what ``name`` says, is finite. Training on would be of no use, and a
    checkpoint must not hold such weights.
    """
    if not math.isfinite(value):
        saved = saver.newest_step()
        then = "no checkpoint was saved, so the same --run begins anew"
        if saved != 0:
            newest = f"the checkpoint of step {saved}" if saved else "the newest checkpoint"
            then = f"with --allow-change for that field, the run resumes from {newest}"
        clipping = "or" if optim.max_grad_norm else "or set"
        raise Diverged(f"{name} became {value} by step {step}: lower optim.lr {clipping} optim.max_grad_norm", then)
