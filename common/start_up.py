"""Makes processes start and end quickly. Savings are in CPU seconds, the lowest of five runs, on two cores.

Large libraries are imported in the functions that need them, once a command has parsed its options and found its files. So `--help`
and refusals do without torch (2.1), Ray Train (1.4 more), MLflow (2.2), transformers and the models in it (4.0 more than torch),
Ray (0.5) and SQLAlchemy (0.2). A library that costs less than 0.05 is imported at the top of its file.

- `without_compiler`: 2.0 of the 4.1 that a process needs for torch and three steps of a small AdamW.
- `end`: 0.5 of the 2.5 that a process needs to import the presets and to end.

`python -m benchmarks.start_up` measures every command.
"""

from __future__ import annotations

import gc
import sys
from inspect import unwrap
from typing import Any, NoReturn, TypeVar

Class = TypeVar("Class", bound=type[Any])


def without_compiler(optimizer: Class) -> Class:
    """Decorate an optimizer class of ours that nobody compiles. Torch keeps these methods out of compiled code, and imports its
    compiler to do so even where nothing is compiled.
    """
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        setattr(optimizer, name, unwrap(getattr(optimizer, name)))
    return optimizer


def end(status: int | None) -> NoReturn:
    """Exit with this status. Python would first look through all of torch for garbage."""
    gc.freeze()
    sys.exit(status)
