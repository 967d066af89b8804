"""Suggests a run where a command was given a folder above or below one.

remedy_near(Place.parse("runs"), "train the run first")     # "did you mean /home/me/runs/demo-rec?"
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice

from common.places import Place
from pipelines.config.run import is_run

MOST = 3
"""Runs that a suggestion names."""
LOOKED_AT = 200
"""Folders that are searched for runs, so that a large folder costs no time; a tenth of them in a bucket."""


def remedy_near(place: Place, otherwise: str, file: str = "") -> str:
    """The end of an error message about a folder that is no run's: the run that it is in, else runs in it, else ``otherwise``.

    Args:
        file: path in a run's folder, such as /config.json, where the command takes that file and not the folder.
    """
    with contextlib.suppress(OSError):
        for above in (place.parent, place.parent.parent):
            if is_run(above):
                return f"did you mean {above}{file}?"
        found = [f"{run}{file}" for run in islice(_runs_below(place), MOST + 1)]
        if len(found) == 1:
            return f"did you mean {found[0]}?"
        if found:
            more = ", …" if len(found) > MOST else ""
            return f"name one of its runs: {', '.join(found[:MOST])}{more}"
    return otherwise


def _runs_below(place: Place) -> Iterator[Place]:
    """The runs in a folder, and those in its folders. One that may not be read is passed over."""
    most = LOOKED_AT if place.is_local else LOOKED_AT // 10
    folders = list(islice(_folders_in(place), most))
    others = []
    for folder in folders:
        if is_run(folder):
            yield folder
        else:
            others.append(folder)
    below = (folder for other in others for folder in _folders_in(other))
    yield from filter(is_run, islice(below, most))


def _folders_in(place: Place) -> list[Place]:
    with contextlib.suppress(PermissionError):
        return [file.place for file in place.list() if file.is_dir and not file.name.startswith(".")]
    return []
