"""The search spaces, the papers' tables as named sweeps, and what Ray Tune offers for drawing from them and stopping early.

from tune_spaces import combine, grid, draw, Rule
domains = combine("lr+states", preset_values)        # {"optim.lr": tune.loguniform(…), "model.states": tune.choice([…])}

What needs Ray Tune is imported with the first of its names: spaces are listed, and refused, without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tune_spaces.spaces import SPACES, Space, combine

if TYPE_CHECKING:
    from tune_spaces.drawing import Searcher, draw, expand, grid
    from tune_spaces.stopping import Exploit, Rule, stopper

__all__ = ["SPACES", "Exploit", "Rule", "Searcher", "Space", "combine", "draw", "expand", "grid", "stopper"]


LATER = {name: "stopping" if name in ("Exploit", "Rule", "stopper") else "drawing" for name in __all__[1:]}
"""The modules of what is imported when it is asked for."""


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{LATER[name]}"), name)
