"""Makes a scheduler, searcher or stopper, Ray Tune's or your own, from its import path and arguments.

    Named.parse("ray.tune.schedulers:ASHAScheduler(reduction_factor=4)").make(metric="value", mode="min")

Arguments are plain values, written as in Python; no code in them is run.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ray.tune import TuneError
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher
from ray.tune.stopper import Stopper, TimeoutStopper

BASES = (TrialScheduler, Searcher, Stopper)


@dataclass(frozen=True)
class Named:
    """A class, and the arguments that are written with its import path."""

    text: str
    """As it was written."""
    kind: Any
    given: dict[str, Any]

    @staticmethod
    def parse(text: str) -> Named:
        """The class that a text names. Raises ValueError if the text is malformed or names none."""
        module, _, written = text.partition(":")
        try:
            tree = ast.parse(written, mode="eval").body
            call = tree if isinstance(tree, ast.Call) else ast.Call(tree, [], [])
            if not isinstance(call.func, ast.Name) or call.args or not all(word.arg for word in call.keywords):
                raise ValueError("not of the form module:Name(field=value, …)")
            given = {str(word.arg): _plain(word) for word in call.keywords}
            home = importlib.import_module(module)
            name = call.func.id
            if not hasattr(home, name):  # such as PB2, which is in ray.tune.schedulers.pb2
                with contextlib.suppress(ImportError):
                    home = importlib.import_module(f"{module}.{name.lower()}")
            kind = getattr(home, name)
            if not isinstance(kind, type) or kind in BASES:
                raise ValueError(f"{name} is {'only what others are made of' if kind in BASES else 'no class'}")
        except (SyntaxError, ValueError, TypeError, ImportError, AttributeError) as error:
            raise _cannot(text, error) from None
        if given.get("mode", "min") != "min" or "metric" in given:
            raise ValueError(
                f"{text}: leave metric and mode out; the sweep's --metric is compared, and lower is better"
            )
        return Named(text, kind, given)

    @property
    def parameters(self) -> Collection[str]:
        """Names of the arguments that the class takes."""
        return inspect.signature(self.kind).parameters.keys()

    @property
    def is_exact(self) -> bool:
        """Whether the class is Ray Tune's own and decides by results alone."""
        return self.kind.__module__.startswith("ray.") and not issubclass(self.kind, TimeoutStopper)

    def make(self, base: type = object, instead: str = "", **offered: Any) -> Any:
        """Make the object, from the given arguments and those ``offered`` that the class takes beside them.

        Raises ValueError if that fails or the object is not a ``base``; ``instead`` says what to choose.
        """
        try:
            taken = self.parameters
            made = self.kind(**{key: value for key, value in offered.items() if key in taken} | self.given)
        except (ValueError, TypeError, ImportError, AttributeError, AssertionError, RuntimeError, TuneError) as error:
            raise _cannot(self.text, error) from None
        if not isinstance(made, base):
            raise ValueError(f"{self.text} is no {base.__name__.lower()} of Ray Tune's: {instead}")
        return made


def _plain(word: ast.keyword) -> Any:
    """The value of an argument. Raises ValueError where it is more than a plain value."""
    try:
        return ast.literal_eval(word.value)
    except ValueError:
        raise ValueError(f"{word.arg}={ast.unparse(word.value)} is no plain value") from None


def _cannot(text: str, error: Exception) -> ValueError:
    why = (str(error) or type(error).__name__).rstrip(".")  # Tune asserts that a package is there
    return ValueError(
        f"{text} cannot be made: {why}; write module:Name(field=value, …), as in "
        "ray.tune.schedulers:MedianStoppingRule(min_samples_required=3)"
    )
