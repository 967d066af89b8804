"""Parameters of other authors' code, as a mapping of their names to numpy arrays: for meliad.py and transformer_sequential.py."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

Arrays = Mapping[str, np.ndarray]


def parameter(params: Arrays, name: str) -> np.ndarray:
    """The parameter of this name. Raises ValueError if it is missing."""
    if name not in params:
        raise ValueError(f"these parameters lack {name!r}")
    return params[name]
