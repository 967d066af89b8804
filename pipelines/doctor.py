"""Check a run: which checkpoints it has, whether they are whole, what each holds, and from which one it would resume.

    python -m pipelines.doctor runs/mine

Every byte is read and compared with its checksum. Exit status: 0 when every checkpoint is whole and the newest one fits the store
and this code; 2 when one is not, with a sentence for each thing that is wrong. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from common.errors import sentence
from pipelines.checkpoints.checkpoint import Checkpoint, shapes_in
from pipelines.checkpoints.errors import CheckpointError, PickledError
from pipelines.checkpoints.exported import is_saved_model
from pipelines.checkpoints.retention import best
from pipelines.checkpoints.run_folder import RunFolder, find_run
from pipelines.inference.trained import open_split
from pipelines.terminal import cli
from pipelines.terminal.output import lines
from pipelines.terminal.tables import plain_table


@dataclass(frozen=True)
class DoctorConfig:
    """The run to check."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Folder of a run, or its URI."""
    store: str = ""
    """Store that it was trained on, if it has moved."""


COLUMNS = ("checkpoint", "state", "step", "tokens", "workers", "lanes", "MB", "validation", "")
BLANK = ("",) * (len(COLUMNS) - 2)
"""The columns after `state` of a checkpoint that cannot be used."""


def main(argv: list[str]) -> int:
    """Verify all checkpoints of a run. Returns 2 where one is damaged, or belongs to another store or code."""
    config = cli.parse(DoctorConfig, argv, __doc__)
    if is_saved_model(config.run):
        raise CheckpointError(f"{config.run} is a saved model, which has no checkpoints: name the folder of its run")
    run, checkpoint_name = find_run(config.run)
    if checkpoint_name:
        raise CheckpointError(f"{config.run} is a checkpoint: name the folder of its run")
    found = open_all(run)
    whole = [checkpoint for checkpoint in found.values() if isinstance(checkpoint, Checkpoint)]
    complaints = [sentence(error) for error in found.values() if isinstance(error, Exception)]
    unfinished = [(left.name, "unfinished", *BLANK) for left in run.unfinished()]
    rows = rows_of(found, whole) + unfinished
    if rows:
        lines().print(plain_table(COLUMNS, rows))
    if whole:
        newest = whole[0]
        complaints += [*unfit_code(newest), *unfit_store(newest, config.store)]
        if is_met_first(newest, found):
            print(f"{cli.shown(run.place.shown)} would resume from step {newest.step:,}")
    else:
        complaints.append(
            f"{run.checkpoints} holds no checkpoint that can be used: train the run first, or restore one"
        )
    for complaint in complaints:
        print(f"wrong: {complaint}")
    return 2 if complaints else 0


def open_all(run: RunFolder) -> dict[str, Checkpoint | Exception]:
    """The checkpoints of a run by name, the newest first: each opened and verified, or the error that says why it is not usable."""
    found: dict[str, Checkpoint | Exception] = {}
    for name in run.checkpoint_names():
        try:
            found[name] = run.open_checkpoint(name)
        except (CheckpointError, PermissionError) as error:
            if name in run.checkpoint_names():  # else a run that is training has just taken it away
                found[name] = error
    return found


def is_met_first(newest: Checkpoint, found: Mapping[str, Checkpoint | Exception]) -> bool:
    """Whether a run that resumes finds the newest whole checkpoint before one of those at which it ends. It passes over others."""
    ends = (PickledError, PermissionError)
    return next(one for one in found.values() if one is newest or isinstance(one, ends)) is newest


def rows_of(found: Mapping[str, Checkpoint | Exception], whole: Sequence[Checkpoint]) -> list[tuple[str, ...]]:
    """The table's rows. The newest and the best of those that are ``whole``, the newest first, are marked."""
    marked = {"newest": next(iter(whole), None), "best": next(iter(best(whole)), None)}
    rows = list[tuple[str, ...]]()
    for name, checkpoint in found.items():
        if isinstance(checkpoint, Checkpoint):
            marks = [mark for mark, one in marked.items() if one is checkpoint]
            rows.append((name, "whole", *columns_of(checkpoint), ", ".join(marks)))
        else:
            rows.append((name, "not readable" if isinstance(checkpoint, PermissionError) else "damaged", *BLANK))
    return rows


def columns_of(checkpoint: Checkpoint) -> tuple[str, ...]:
    """A checkpoint's columns from `step` to `validation`."""
    meta = checkpoint.meta
    megabytes = sum(file["bytes"] for file in meta["files"].values()) / 1e6
    validation = meta.get("validation")
    told = f"{validation['bits_per_token']:.4f}" if validation else "–"
    if validation and validation["step"] != checkpoint.step:
        told += f" at {validation['step']:,}"
    numbers = (f"{checkpoint.step:,}", f"{meta['tokens']:,}", str(meta["world"]), str(meta["lanes"]))
    return (*numbers, f"{megabytes:,.1f}", told)


def unfit_code(checkpoint: Checkpoint) -> list[str]:
    """Complaints if this code does not build the saved model with the same shape of every tensor."""
    import torch  # not before there is a run to look at

    from recur_models import model_from_json

    try:
        with torch.device("meta"):
            model = model_from_json(checkpoint.meta["config"]["model"]).build(checkpoint.meta["vocab_size"])
            state = model.initial_state(checkpoint.meta["lanes"])
    except (ValueError, TypeError, KeyError) as error:
        return [f"this code cannot build the model of {checkpoint.folder}: {sentence(error)}"]
    weights = shapes_in(checkpoint.folder / "model.safetensors")
    told = differing("weights", {name: list(value.shape) for name, value in model.state_dict().items()}, weights)
    for path in sorted(checkpoint.folder.glob("lanes-*.safetensors")):
        saved = {name: shape[1:] for name, shape in shapes_in(path).items() if name.startswith("lanes/state/")}
        expected = {f"lanes/state/{name}": list(value.shape[1:]) for name, value in state.items()}
        told += differing(f"State in {path.name}", expected, saved)
    return [f"{checkpoint.folder} does not fit this code's {model.__class__.__name__}: {text}" for text in told]


def differing(what: str, expected: dict[str, list[int]], found: dict[str, list[int]]) -> list[str]:
    """A complaint if tensors that should be there, by name and shape, are not those that are."""
    odd = [name for name in sorted(expected.keys() | found.keys()) if expected.get(name) != found.get(name)]
    return [f"its {what} differ in {odd[0]} ({len(odd)} in all)"] if odd else []


def unfit_store(checkpoint: Checkpoint, place: str) -> list[str]:
    """A complaint if the store is not the one that the checkpoint was trained on."""
    try:
        open_split(checkpoint, "train", place, override="--allow-change store when training")
    except (ValueError, OSError) as error:
        return [sentence(error)]
    return []


if __name__ == "__main__":
    cli.run(main)
