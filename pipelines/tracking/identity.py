"""`<run>/mlflow_run.json` records which run in MLflow belongs to a folder.

    {"key": "0badc0de…", "run_id": "0123…", "place": "/data/runs/mine", "starts": ["1f0c2d3e…"], "uri": …, "experiment": …}

A copy of the folder has a copy of this file, and two folders would write to one run. So each start of a run writes a name of its
own into this file before it asks MLflow, and then into MLflow (tags `throughline.start`, `throughline.place`). Signs of a copy:

- The file names another place, and the run is still there, with the same key and without this start. A folder that was moved is
  gone from its old place. The same folder under another path or URI has this start there too.
- A start that the file does not list has continued MLflow's run: it ran in a folder that cannot be seen from here.

A copy becomes a new run in MLflow, whose tags `origin` and `origin.run_id` name the original. Its curve begins with its copy of
metrics.jsonl, so it is whole.

MLflow's points never change. If a start trains steps again that MLflow already has, with other fields, the folder becomes a new run
in the same way, and the old run is ended.

MLflow's params never change, but a run's fields may (`--allow-change`). So the file keeps the present fields (`params`), and each
change with its step (`changes`). MLflow gets the changes as tags: `changed.optim.lr` is `step 10: 0.002 → 0.1`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.credentials import without_credentials
from common.errors import UserError
from common.files import parse_json, write_atomically
from common.places import Place
from common.uris import is_uri
from pipelines.config.run import may_change

RECORD = "mlflow_run.json"
PARAM_LENGTH = 6000
TAG_LENGTH = 5000
"""MLflow's limits: characters of a param and of a tag."""
KEY = "throughline.run_key"
"""Tag that finds a run that MLflow made, but whose id we could not note: we were killed, or got no answer."""
CHANGED = "changed."
"""Prefix of the tags, one for each field, that record a change after the run had begun, as in `step 10: 0.002 → 0.1`."""
WHERE = re.compile(r"run|root|allow_change|tracking\..*")
"""Fields for a run's place and tracking, which do not affect its training."""
EVALUATED = "evaluated."
"""Prefix of the tags that say which checkpoints an evaluation is of."""
FAILURE = "throughline.failure"
"""Tag that says why a run failed, until it is started again."""
START = "throughline.start"
PLACE = "throughline.place"
"""Tags of a run: which start of it was the last one to write to it, and where its folder was then."""


def saved_run(run_folder: Path) -> dict[str, Any]:
    """The contents of mlflow_run.json, which name the folder's run in MLflow; empty without it. Raises UserError if damaged."""
    path = run_folder / RECORD
    try:
        saved = parse_json(path.read_bytes())
        if not isinstance(saved, dict):
            raise ValueError("it holds no object")
        for key, kind in {"starts": list, "params": dict, "changes": list}.items():
            if not isinstance(saved.get(key, kind()), kind):
                raise ValueError(f"{key} has another type")
        return saved
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(
            f"{path} is damaged ({error}): remove it; the newest checkpoint then names the run in MLflow, or else a new one begins"
        ) from None


def save_run(run_folder: Path, values: Mapping[str, Any]) -> None:
    """Write mlflow_run.json, whole or not at all."""
    write_atomically(run_folder / RECORD, json.dumps(values, indent=1).encode())


def begin_run(
    run_folder: Path,
    place: Place,
    step: int,
    recorded: Mapping[str, Any] | None = None,
    publish: Callable[[], None] = lambda: None,
    params: Mapping[str, Any] | None = None,
    abandoned: bool = False,
) -> str:
    """Note a start of the run. By the run's key, a later start finds the run whose id MLflow was too slow to send.

    Args:
        run_folder: where this machine's processes write the run's files.
        place: where the run is: this folder, or the place in a bucket that the folder is a working copy of.
        step: the step from which the run continues.
        recorded: a checkpoint's record of the run (`run_id`, `place`, `starts`), if the folder has no mlflow_run.json.
        publish: copies mlflow_run.json to the place.
        params: the fields that the run is trained with from this step on; None: it is not trained.
        abandoned: whether an earlier start had recorded metrics of later steps.

    Returns a note if the folder becomes a new run in MLflow: it is a copy of another run's, or MLflow has points of later steps
    that were trained otherwise. Else empty.
    """
    start = uuid.uuid4().hex[:16]
    known = saved_run(run_folder) or dict(recorded or {})
    saved: dict[str, Any] = {"key": uuid.uuid4().hex, "place": place.recorded, **known}
    saved["starts"] = [*saved.get("starts", []), start]
    retrained: list[str] = []
    if params is not None:
        retrained = unlike(saved.get("params", {}), params) if abandoned else []
        saved |= with_changes(saved, params, step)
    save_run(run_folder, saved)
    publish()  # before the other place is read: if it is this one, it must show the new start

    before = str(saved["place"])
    note = ""
    if before != place.recorded and is_elsewhere(saved, start):
        note = copy_note(place.recorded, before)
        saved = forked(saved, before, step)
    elif retrained:
        note = (
            f"the steps after {step:,} were trained before with another {', '.join(retrained)}: it continues as a new run in "
            "MLflow, which begins with the curve up to there"
        )
        left = {"run_id": saved.get("run_id"), "starts": saved["starts"]}
        saved = {**forked(saved, before, step), "abandoned": left}
    elif before == place.recorded:
        return ""  # the run continues where it was
    save_run(run_folder, {**saved, "place": place.recorded})
    publish()
    return note


def is_elsewhere(saved: Mapping[str, Any], start: str) -> bool:
    """Whether the place in a run's record still has that run in another folder, which does not know this start."""
    # Nothing is there, or it cannot be seen from here.
    with contextlib.suppress(OSError, ValueError, KeyError, AttributeError):
        other = parse_json((Place.parse(saved["place"]) / RECORD).read_bytes())
        same = other.get("key") == saved["key"] or (other.get("run_id") or "") == saved.get("run_id")
        return same and start not in other.get("starts", [])
    return False


def copied_from(run_folder: Path, place: Place) -> str:
    """The place of the run that this folder is a copy of, as far as can be told without writing to it; empty where it is none."""
    saved = saved_run(run_folder)
    before = str(saved.get("place") or place.recorded)
    if before == place.recorded or not is_elsewhere(saved, ""):
        return ""
    other = Place.parse(before)
    if place.is_local != other.is_local:  # a bucket may be mounted as a folder
        return ""
    same = os.path.samefile(place.path, other.path) if place.is_local else place.path == other.path
    return "" if same else before


def forked(saved: Mapping[str, Any], place: str, step: int) -> dict[str, Any]:
    """The record of a new run that begins with another one's curve, up to a step."""
    origin = {"place": place, "step": step, "run_id": saved.get("run_id", "")}
    kept = {key: saved[key] for key in ("place", "params", "changes") if key in saved}
    return {"key": uuid.uuid4().hex, "starts": saved["starts"][-1:], **kept, "origin": origin}


def unlike(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The fields that differ between two trainings and affect their metrics."""
    return [key for key in now if as_param(before.get(key, now[key])) != as_param(now[key]) and not may_change(key)]


def with_changes(saved: Mapping[str, Any], params: Mapping[str, Any], step: int) -> dict[str, Any]:
    """The fields that the run is trained with from a step on, and the changes that led to them, for its record.

    A start that was killed before its first checkpoint is repeated from the same step; one whose checkpoints are damaged, from an
    earlier one. So the changes from that step on are undone first, and each is listed once.
    """
    now = {key: as_param(value) for key, value in params.items() if not WHERE.fullmatch(key)}
    before = {key: as_param(value) for key, value in saved.get("params", {}).items()}
    changes: list[dict[str, Any]] = saved.get("changes", [])
    for change in reversed(changes):
        if change["step"] >= step:
            before[change["field"]] = change["before"]
    changed = [key for key, value in now.items() if before.get(key, value) != value]
    made = [{"step": step, "field": key, "before": before[key], "now": now[key]} for key in changed]
    return {"params": now, "changes": [change for change in changes if change["step"] < step] + made}


def as_param(value: object) -> str:
    """A value as text for a param in MLflow: without credentials, and cut to the limit."""
    return without_credentials(value)[:PARAM_LENGTH]


def changes_as_tags(changes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """A tag for each field that was changed: `step 10: 0.002 → 0.1; step 20: 0.1 → 0.05`. A long one loses its beginning."""
    told: dict[str, list[str]] = {}
    for change in changes:
        line = f"step {change['step']}: {change['before']} → {change['now']}"
        told.setdefault(CHANGED + change["field"], []).append(line)
    tags = {key: "; ".join(lines) for key, lines in told.items()}
    return {key: tag if len(tag) <= TAG_LENGTH else f"…{tag[1 - TAG_LENGTH :]}" for key, tag in tags.items()}


def changed_by_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """The newest value of each field that changed, by a run's tags."""
    changed = {key: tag for key, tag in tags.items() if key.startswith(CHANGED)}
    return {key.removeprefix(CHANGED): tag.rpartition(" → ")[2] for key, tag in changed.items()}


def copy_note(place: str, of: str) -> str:
    """The message that one recorded place is a copy of another."""
    told = "it becomes a run of its own in MLflow, which begins with the curve that was copied"
    return f"{shown(place)} is a copy of {shown(of)}: {told}"


def shown(place: str) -> str:
    """A recorded place for people: the path, or the URI without its query."""
    return place.partition("?")[0] if is_uri(place) else place


def tags_of(saved: Mapping[str, Any]) -> dict[str, str]:
    """A run's tags in MLflow: its last start and place, by which folder and run are compared, the origin of a copy, and changes
    after the run had begun.
    """
    tags = {START: saved["starts"][-1], PLACE: saved["place"], **changes_as_tags(saved.get("changes", []))}
    origin = saved.get("origin")
    if origin:
        tags |= {"origin": f"{shown(origin['place'])}, step {origin['step']}", "origin.run_id": origin["run_id"]}
    return tags
