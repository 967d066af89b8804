"""The papers, a module for each: its rows, and the tables, presets and search spaces that are made from them.

A plug-in (pipelines/terminal/plugins.py): importing it adds its presets, with their groups, and its spaces to those of the engine;
also the state-tracking tasks and the recall of names, which the papers' tables use.
"""

from dataclasses import replace

from pipelines.presets import GROUPS, PRESETS
from studies.names import NAMES_GROUPS, NAMES_PRESETS
from studies.papers import block_recurrent, gpt2, groups, staircase, today
from studies.state_tracking import STATE_TRACKING_GROUPS, STATE_TRACKING_PRESETS
from tune_spaces import SPACES

PAPERS = {
    "block-recurrent": block_recurrent.TABLES,
    "gpt2": gpt2.TABLES,
    "staircase": staircase.TABLES,
    "today": today.TABLES,
}
"""Tables by paper and by name."""

TASK_PRESETS = STATE_TRACKING_PRESETS | NAMES_PRESETS
for presets in (TASK_PRESETS, *(paper.PRESETS for paper in (block_recurrent, staircase, gpt2, today))):
    PRESETS.update({name: replace(config, run=name) for name, config in presets.items()})
for paper in (block_recurrent, staircase, gpt2):
    SPACES.update(paper.SPACES)
for heading, patterns in (STATE_TRACKING_GROUPS | NAMES_GROUPS | groups.GROUPS).items():
    GROUPS[heading] = GROUPS.get(heading, {}) | patterns
