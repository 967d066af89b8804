"""A run as a file that takes a preset's place on the command line: a sweep's best.json, or any run's config.json.

presets_with(PRESETS, argv)        # the presets, and `runs/sweep/best.json` where the command line names it
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from common.errors import UserError, given_by_user
from common.places import Place
from pipelines.config.run import TrainConfig
from recur_models import model_from_json


def presets_with(presets: Mapping[str, TrainConfig], argv: Sequence[str]) -> Mapping[str, TrainConfig]:
    """The presets, and the file that the command line names in place of one: a sweep's best.json, or a run's config.json.

    A config.json in a run's folder is of the run in that folder, also where the folder was copied or moved. A run that is given
    another name (`--run`) is no trial of the sweep that the file's run is a trial of.

    Raises UserError naming what this version does not know.
    """
    if not argv or not argv[0].partition("?")[0].endswith(".json"):  # what follows in a URI says where its bucket is
        return presets
    path = Place.parse(argv[0])
    try:
        values = json.loads(path.read_bytes())
        with given_by_user(ValueError):
            config = in_its_folder(run_from_json(values.get("config", values)), path)
        if any(word.partition("=")[0] == "--run" for word in argv):
            config = dataclasses.replace(config, tracking=dataclasses.replace(config.tracking, parent=""))
        return {**presets, argv[0]: config}
    except UserError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is not a run's config of this version ({error}): name another file") from None


def run_from_json(values: Mapping[str, Any]) -> TrainConfig:
    """The run that `to_json` wrote, without the credentials that its places had.

    Raises ValueError, KeyError or TypeError where it is none of this version.
    """
    given = _tuples({**values, "run": str(values["run"])})
    given["model"] = model_from_json(dict(values["model"]))
    for field in dataclasses.fields(TrainConfig):
        part = field.default_factory
        if dataclasses.is_dataclass(part):
            given[field.name] = part(**_tuples(values.get(field.name, {})))
    return TrainConfig(**given)


def in_its_folder(config: TrainConfig, file: Place) -> TrainConfig:
    """The run with the name and root that follow from where its config.json is, if that is in a run's folder."""
    folder = file.parent
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
    """Where JSON has lists, a config has tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
