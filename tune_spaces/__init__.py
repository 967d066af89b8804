"""The search spaces, the papers' tables as named sweeps, and what Ray Tune offers for drawing from them and stopping early.

from tune_spaces import combine, grid, draw, Rule
domains = combine("lr+states", preset_values)        # {"optim.lr": tune.loguniform(…), "model.states": tune.choice([…])}
"""

from tune_spaces.drawing import Searcher, draw, expand, grid
from tune_spaces.spaces import SPACES, Space, combine
from tune_spaces.stopping import Exploit, Rule, stopper

__all__ = ["SPACES", "Exploit", "Rule", "Searcher", "Space", "combine", "draw", "expand", "grid", "stopper"]
