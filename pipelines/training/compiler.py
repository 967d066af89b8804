"""What torch needs where a model is compiled for a CPU: a C++ compiler, and a cache of compiled code that is whole."""

from __future__ import annotations

import getpass
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import UserError
from pipelines.config.run import TrainConfig
from pipelines.training.world import World

OF_TORCHS_COMPILER = ("torch._dynamo", "torch._inductor")
"""Modules of the errors that torch.compile raises. torch has no public name for them."""
CACHED_MODULES = "torch._inductor.runtime.compile_tasks"
"""The package under which torch imports Python code of its cache."""


def check_compiler(config: TrainConfig, world: World) -> None:
    """Raises UserError if the model is to be compiled for a CPU, and this machine lacks the C++ compiler that torch would call."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if config.compile != "no" and world.device.type == "cpu" and not shutil.which(compiler):
        raise UserError(
            f"--compile {config.compile} needs a C++ compiler, and there is no {compiler}: install it, name another one in the "
            "environment variable CXX, or leave out --compile"
        )


def cache() -> Path:
    """Torch's folder of compiled code."""
    given = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return Path(given) if given else Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"


@contextmanager
def whole_compiled_code() -> Iterator[None]:
    """Turn an error of torch's compiler into UserError, which tells a damaged cache from a model that cannot be compiled.

    A process that is killed while it compiles, or a machine that loses power, may leave a file in torch's cache that is cut off.
    All later runs would fail on it.
    """
    try:
        yield
    except (RuntimeError, ImportError, AttributeError) as error:
        # torch passes errors of a backward pass's code on as they are.
        of_cache = any(name in str(error) for name in (str(cache()), CACHED_MODULES))
        if not of_cache and not type(error).__module__.startswith(OF_TORCHS_COMPILER):
            raise
        first = " ".join(str(error).splitlines()[:2]).strip()  # the other lines are the compiler's
        remedy = "leave out --compile, or change the model; THROUGHLINE_DEBUG=1 shows where"
        if of_cache:
            remedy = (
                f"remove {cache()}, where a run that was killed may have left a file that is cut off, and repeat the "
                "command, or leave out --compile"
            )
        raise UserError(f"torch could not compile the model ({first}): {remedy}") from error
