"""Your own models, corpora, metrics, search spaces and presets, in your own modules:

    THROUGHLINE_PLUGINS=my_models python -m pipelines.train gru-small
    THROUGHLINE_PLUGINS=my_models python -m pipelines.evaluate runs/gru-small

The variable names modules, with commas between them, in the working directory or wherever Python finds them. Every command imports
them before anything else, and so does every worker. Such a module puts what it defines into our tables:

    recur_models.MODELS["gru"] = GruConfig                      # a frozen ModelConfig (recur_models/protocol.py)
    data_prep.corpora.CORPORA["diary"] = Diary                  # a Corpus (data_prep/documents.py)
    tune_spaces.SPACES["width"] = Space(...)                    # (tune_spaces/spaces.py)
    pipelines.tracking.metrics.METRICS[metric.name] = metric    # (pipelines/tracking/metrics.py)
    pipelines.presets.PRESETS["gru-small"] = TrainConfig(...)   # a run (pipelines/presets/)
    pipelines.presets.GROUPS["Mine"] = {"gru-*": ""}            # how --help shows it; else under “Others”

A checkpoint names its model and not the module, for a file that is read must not choose what is run: whoever evaluates it names the
module again. A transformers program imports the module itself, before it opens an exported folder.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

from common.errors import UserError

VARIABLE = "THROUGHLINE_PLUGINS"
BUNDLED = ("studies.papers",)
"""Plug-ins that come with the engine. `pipelines.presets` imports them when it is imported, and commands without presets do not."""


def load() -> list[ModuleType]:
    """Import the modules that THROUGHLINE_PLUGINS names. Raises UserError for one that is not there."""
    names = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    if names and not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    found = []
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise UserError(
                f"{VARIABLE} names {name!r}, which is no module: write it as in an import, such as my_models"
            )
        try:
            found.append(importlib.import_module(name))
        except ModuleNotFoundError as error:
            raise UserError(
                f"{VARIABLE} names {name}, which cannot be imported ({error}): name modules in the working directory or on "
                "PYTHONPATH, with commas between them"
            ) from None
        except UserError as error:
            raise UserError(f"{VARIABLE} names {name}, which stops while it is imported: {error}") from None
    return found
