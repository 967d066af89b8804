"""Restores what a checkpoint holds besides the weights when a run resumes: the optimizer's moments, the lanes' State, digests of
the tokens that they have read, and the states of the random generators.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import xxhash

from common.errors import UserError, given_by_user
from data_prep.lanes import Batch, TrainingLanes
from data_prep.store import SegmentStore
from pipelines.checkpoints.checkpoint import Checkpoint, shapes_in
from pipelines.config.run import OptimConfig, TrainConfig, flatten, to_json
from pipelines.training.optim import build_optimizer
from pipelines.training.world import World
from recur_models import RecurrentModel, State


def restore_optimizer(
    optimizer: torch.optim.Optimizer, model: RecurrentModel, config: OptimConfig, resume: Checkpoint
) -> None:
    """Restore the optimizer's moments. Its settings are those of the config, which --allow-change may have changed."""
    scale = float(resume.meta["config"]["optim"]["recurrent_lr_scale"])
    as_begun = build_optimizer(model, replace(config, recurrent_lr_scale=scale))  # parameters in its groups' order
    with given_by_user(ValueError):  # moments of another optimizer
        as_begun.load_state_dict(resume.optimizer())
    optimizer.state.update(as_begun.state)


def restore_lanes(
    resume: Checkpoint, config: TrainConfig, world: World, initial: State, sums: torch.Tensor
) -> tuple[State, torch.Tensor, torch.Tensor] | None:
    """Restore this process's lanes. Returns their State, their digests [B], and the sums since the last log.

    The random generators are restored too, unless the number of processes has changed: lanes then move to their new owners, and
    dropout draws anew. Restores nothing and returns None if the checkpoint's State has other shapes than the ``initial`` one:
    --allow-change may have permitted another model.

    State keeps the dtype that it was carried in: under autocast keys and values are bfloat16, where ``initial`` has float32.
    """
    lanes, own = resume.lanes(*world.lanes(config.data.lanes))
    if any(f"state/{k}" not in lanes or lanes[f"state/{k}"].shape != value.shape for k, value in initial.items()):
        return None
    state = {name: lanes[f"state/{name}"].to(world.device) for name in initial}
    if own is None or resume.meta["world"] != world.size:  # among another number, one may have owned the same lanes
        seed_dropout(config.seed, world, resume.step)
        # Only the total over the processes is logged: rank 0 takes all of it.
        return state, lanes["digest"], (resume.total("nats").to(sums) if world.rank == 0 else torch.zeros_like(sums))
    torch.set_rng_state(own["rng/cpu"])
    if world.device.type == "cuda" and "rng/cuda" in own:
        torch.cuda.set_rng_state(own["rng/cuda"], world.device)
    return state, lanes["digest"], own["nats"].to(sums)


def lanes_unchanged(resume: Checkpoint, config: TrainConfig, schedule: TrainingLanes, store: SegmentStore) -> bool:
    """Whether each lane continues at its place in its document.

    A change that --allow-change permitted may have moved a lane to another place, even if by chance it has read as much as before.
    """
    before = resume.meta["config"]
    schedule_before = (before["seed"], before["data"]["order"], resume.meta["store"])
    same_schedule = schedule_before == (config.seed, config.data.order, store.manifest.fingerprint)
    return same_schedule and resume.meta["cursor"] == schedule.cursor(resume.step).tolist()


def digest_lanes(digest_B: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Digests of all that each lane has read, with one more segment: int64 [B]. If they are equal, two runs have read the same, on
    however many processes.
    """
    rows = zip(digest_B.tolist(), batch.tokens_BT, batch.targets_BT, batch.fresh_BK, strict=True)
    digests = []
    for before, *arrays in rows:
        digest = xxhash.xxh3_64(before.to_bytes(8, "little", signed=True))
        for array in arrays:
            digest.update(array.tobytes())
        digests.append(digest.intdigest() - (1 << 63))  # from uint64 into the range of int64
    return torch.tensor(digests, dtype=torch.int64)


def seed_dropout(seed: int, world: World, step: int = 0) -> None:
    """Seed torch's generators for dropout, differently on each process; ``step``: the one from which lanes have new owners."""
    # In one run, steps and ranks give different sums, up to 1,009 processes.
    torch.manual_seed((seed * 1_000_003 + step * 1_009 + world.rank + 1) % (1 << 64))


def random_state(world: World) -> dict[str, torch.Tensor]:
    """The state of the generators that dropout draws from."""
    states = {"rng/cpu": torch.get_rng_state()}
    if world.device.type == "cuda":
        states["rng/cuda"] = torch.cuda.get_rng_state(world.device)
    return states


def check_shapes(resume: Checkpoint, config: TrainConfig, place: object) -> None:
    """Raise UserError naming the fields that --allow-change let through although the checkpoint's weights, or the optimizer's
    moments, do not fit them.
    """
    before = flatten(resume.meta["config"])
    now = flatten(to_json(config))
    if before["optim.name"] != config.optim.name:
        raise UserError(_does_not_fit(place, "the moments of its optimizer", ["optim.name"], before, now))
    changed = [key for key in now if key.startswith("model.") and before.get(key) != now[key]]
    if not changed or _fits(resume, config.model):
        return
    if "model.name" in changed:
        at_fault = ["model.name"]
    else:
        begun = config.model.from_json(resume.meta["config"]["model"])
        at_fault = [key for key in changed if not _fits(resume, begun, **_field(config.model, key))] or changed
    raise UserError(_does_not_fit(place, "its weights", at_fault, before, now))


def _field(model: Any, key: str) -> dict[str, Any]:
    name = key.removeprefix("model.")
    return {name: getattr(model, name)}


def _fits(resume: Checkpoint, model: Any, **fields: Any) -> bool:
    """Whether a model of this config, with these fields set, takes the checkpoint's weights and trains as many of them."""
    try:
        with torch.device("meta"):
            built = replace(model, **fields).build(resume.meta["vocab_size"])
    except ValueError:  # these fields are valid only with certain others
        return False
    shapes = {name: list(tensor.shape) for name, tensor in built.state_dict().items()}
    trained = sum(parameter.requires_grad for parameter in built.parameters())
    moments = sum(len(group["params"]) for group in resume.meta["optimizer"]["groups"])
    return shapes == shapes_in(resume.folder / "model.safetensors") and trained == moments


def _does_not_fit(place: object, what: str, fields: list[str], before: dict[str, Any], now: dict[str, Any]) -> str:
    begun = ", ".join(f"{key}={before.get(key)}" for key in fields)
    asked = ", ".join(f"{key}={now.get(key)}" for key in fields)
    return (
        f"{place} was begun with {begun}, and {what} cannot be used with {asked}: --allow-change does not help; return to {begun}, "
        "or choose another --run, which begins anew"
    )
