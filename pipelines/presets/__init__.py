"""Presets: every run is a named value. Plug-ins add theirs, such as the papers' in `studies/papers/`.

`python -m pipelines.train NAME --optim.lr 3e-4` overrides any field of it; `--presets WORD…` in place of NAME searches them.
"""

from __future__ import annotations

import importlib
from dataclasses import replace

from pipelines.config.run import TrainConfig
from pipelines.presets.demo import DEMO_GROUPS, DEMO_PRESETS
from pipelines.terminal.plugins import BUNDLED

PRESETS: dict[str, TrainConfig] = {name: replace(config, run=name) for name, config in DEMO_PRESETS.items()}
GROUPS: dict[str, dict[str, str]] = {**DEMO_GROUPS}
"""How `--help` shows the presets: by heading, patterns of names with a line for all that match. Where the line is empty, each
preset stands by itself, with its model's line. The longest pattern that matches a name counts (catalogue.py)."""

for name in BUNDLED:
    importlib.import_module(name)
