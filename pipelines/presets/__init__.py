"""What we run: every run is a named value, in a file for each paper, one for the tasks that need a state, and one for the demo.

`python -m pipelines.train NAME --optim.lr 3e-4` overrides any field of it.
"""

from __future__ import annotations

from dataclasses import replace

from pipelines.config.run import TrainConfig
from pipelines.presets.block_recurrent import PAPER_PRESETS, TINY_PRESETS
from pipelines.presets.demo import DEMO_PRESETS
from pipelines.presets.state_tracking import STATE_TRACKING_PRESETS
from pipelines.terminal.plugins import load_bundled

OF_PAPERS = {**PAPER_PRESETS, **TINY_PRESETS}
PRESETS: dict[str, TrainConfig] = {
    name: replace(config, run=name) for name, config in {**DEMO_PRESETS, **STATE_TRACKING_PRESETS, **OF_PAPERS}.items()
}

load_bundled()
