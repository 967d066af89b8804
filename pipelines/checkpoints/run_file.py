"""Files that take a preset's place on the command line: a sweep's best.json, any run's config.json, or an exported folder.

presets_with(PRESETS, argv)        # the presets, and `runs/sweep/best.json` where the command line names it
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import parse_json
from common.model_folder import check_is_no_adapter
from common.places import Place
from common.uris import is_uri
from pipelines.checkpoints.exported import Exported, check_is_ours, is_exported
from pipelines.checkpoints.nearby import remedy_near
from pipelines.checkpoints.run_folder import is_sweep, root_of
from pipelines.config.parts import DataConfig
from pipelines.config.run import TrainConfig, is_run
from recur_models import model_from_json

ALWAYS = ("run", "model", "data", "optim", "schedule", "checkpoint", "tracking", "placement")
"""What the config of every release's runs has. A field that is missing otherwise came later, and has its default."""
BEST = "-best"
"""The end of the name of the run in a best.json, after the sweep's."""


def presets_with(presets: Mapping[str, TrainConfig], argv: Sequence[str]) -> Mapping[str, TrainConfig]:
    """The presets, and the run that the command line names in place of one. It may name a sweep's best.json, a run's config.json,
    or an exported folder, with whose model and weights a run begins.

    A config.json in a run's folder stands for the run in that folder, even if the folder was copied or moved. The run of a sweep's
    best.json begins beside the sweep. A run with another name (`--run`) no longer belongs to the sweep of which the file's run is
    a trial.

    Raises UserError naming what this version does not know.
    """
    name = argv[0] if argv else ""
    if name in presets or name[:1] in ("", "-"):  # no file: a missing preset is reported later
        return presets
    if not name.partition("?")[0].endswith(".json"):  # a URI's query says where its bucket is
        return {**presets, **begun_with(name)}
    config = read_run(Place.parse(name))
    if any(word.partition("=")[0] == "--run" for word in argv):
        config = dataclasses.replace(config, tracking=dataclasses.replace(config.tracking, parent=""))
    return {**presets, name: config}


def read_run(file: Place) -> TrainConfig:
    """The run in a config.json or a best.json. Raises UserError, which names the file, for one that has no run of this version."""
    if file.name == "config.json":
        check_is_ours(file.parent.text)
        if is_exported(file.parent.text):
            raise UserError(f"{file} is that of an exported folder: name the folder")
    try:
        values = parse_json(file.read_bytes())
        if isinstance(values, dict):
            values = values.get("config", values)
        check_is_run(values)
    except ValueError as error:
        raise UserError(f"{file} is not a run's config of this version ({error}): name another file") from None
    try:
        return in_its_folder(run_from_json(values), file)
    except (ValueError, TypeError) as error:
        raise UserError(f"{file}: {error}") from None


def check_is_run(values: Any) -> None:
    """Raise ValueError unless the values, from JSON, have the parts and the names of fields of a run's config."""
    if not isinstance(values, dict):
        raise ValueError("it is no JSON object")
    known = {field.name: field.default_factory for field in dataclasses.fields(TrainConfig)}
    check_names(values, known, "")
    missing = [name for name in ALWAYS if name not in values]
    if missing:
        raise ValueError(f"it lacks {missing[0]!r}")
    for name, part in known.items():
        is_part = name == "model" or dataclasses.is_dataclass(part)
        if is_part and not isinstance(values.get(name, {}), dict):
            raise ValueError(f"its {name!r} is no JSON object")
        if dataclasses.is_dataclass(part):
            check_names(values.get(name, {}), {field.name for field in dataclasses.fields(part)}, f"{name}.")
    if not isinstance(values["model"].get("name"), str):
        raise ValueError("it lacks 'model.name'")


def check_names(values: Collection[str], known: Collection[str], group: str) -> None:
    """Raise ValueError for a field's name that is not ``known``. ``group``: prefix of the names, as ``data.``."""
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ValueError(f"it has {group + unknown[0]!r}, which no run has")


def begun_with(name: str) -> dict[str, TrainConfig]:
    """If ``name`` is an exported folder: under this name a run with its model, weights, corpus, lanes and segments, and defaults
    for all else. Else empty. Raises UserError for a folder that is damaged or gone, and for an adapter alone.
    """
    check_is_no_adapter(name)
    if not is_exported(name):
        check_is_ours(name)
        if not is_uri(name):
            refuse_path(name)
        return {}
    exported = Exported.open(name)
    trained = exported.meta["config"]["data"]
    values = exported.config["model"]
    ends = tuple(index for index in exported.eos_ids if index < exported.bod_id)
    if ends and "eos_token_ids" in values:  # a tuned folder may have others than the weights that it began with
        values = {**values, "eos_token_ids": ends}
    model = model_from_json(values)
    data = DataConfig(
        lanes=trained["lanes"], segment_length=trained["segment_length"] or model.block * model.least_blocks
    )
    if trained["corpus"]:
        data = dataclasses.replace(data, corpus=trained["corpus"])
    return {name: TrainConfig(model=model, data=data, run=exported.folder.name, initial_weights=str(exported.folder))}


def refuse_path(name: str) -> None:
    """Raise UserError if ``name`` is the folder of a run, of one of its checkpoints or of a sweep, a folder that holds runs or is
    in one, or a path at which there is nothing.
    """
    folder = Path(name)
    if "/" in name and not folder.exists():
        raise UserError(
            f"{name} is neither a preset nor an existing folder: name an exported folder, or a run's config.json, which "
            "resumes without the folder that it began with"
        )
    run = folder.parent.parent if (folder / "checkpoint.json").exists() else folder
    if is_run(Place.parse(run)):
        raise UserError(
            f"{name} is trained already: train {run}/config.json to continue that run, or export {name} and train the exported "
            "folder, which begins a new run with its weights"
        )
    if (folder / "best.json").exists():
        raise UserError(f"{name} is a sweep: train {name}/best.json, the best trial as a preset")
    if folder.is_dir():
        remedy = remedy_near(Place.parse(name), "", file="/config.json")
        if remedy:
            raise UserError(f"{name} is neither a preset nor an exported folder: {remedy}")


def run_from_json(values: Mapping[str, Any]) -> TrainConfig:
    """The run that `to_json` wrote, without the credentials that its places had. `check_is_run` has passed its values.

    Raises ValueError or TypeError for a value that no run of this version has.
    """
    given = _tuples({**values, "run": str(values["run"])})
    given["model"] = model_from_json(dict(values["model"]))
    for field in dataclasses.fields(TrainConfig):
        part = field.default_factory
        if dataclasses.is_dataclass(part):
            given[field.name] = part(**_tuples(values.get(field.name, {})))
    return TrainConfig(**given)


def in_its_folder(config: TrainConfig, file: Place) -> TrainConfig:
    """The run, with the name and root that follow from the place of its config.json, if that is in a run's folder; with the root
    that follows from the place of a sweep's best.json.
    """
    folder = file.parent
    if file.name == "best.json" and is_sweep(folder):
        return dataclasses.replace(config, root=root_of(folder, config.run.removesuffix(BEST)).text)
    if file.name != "config.json" or not (folder / "checkpoints").is_dir():
        return config
    noted = config.run.split("/")
    named = folder.path.split("/")[-len(noted) :]
    if named[1:] != noted[1:]:  # a trial's folder, <sweep>/trials/<id>, that was copied out of its sweep
        named = [folder.name]
    root = folder
    for _ in named:
        root = root.parent
    return dataclasses.replace(config, run="/".join(named), root=root.text)


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with tuples in place of JSON's lists, as a config has them."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
