"""The message where torch cannot compile a model. tests/pipelines/test_train.py has a compiled run."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd

from common.errors import UserError
from pipelines.training.compiler import cache, whole_compiled_code


class Doubling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_code_that_is_cut_off_is_named_with_the_folder_to_remove(
    direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/somewhere/cache")

    def cut_off(*_: object) -> object:
        raise ImportError("/somewhere/cache/main.so: file too short")

    def whole(graph: Any, _: object) -> object:
        return make_boxed_func(graph.forward)

    layer = Doubling()
    compilers = {"fw_compiler": whole, "bw_compiler": cut_off}
    layer.compile(backend=cut_off if direction == "forward" else aot_autograd(**compilers))
    message = "main.so: file too short\\): remove /somewhere/cache,.* repeat the command, or leave out --compile$"
    with pytest.raises(UserError, match=message), whole_compiled_code():
        layer(torch.ones(2, requires_grad=True)).sum().backward()


def test_python_code_that_is_empty_is_named_too() -> None:
    error = AttributeError("module 'torch._inductor.runtime.compile_tasks.cab' has no attribute 'call'")
    with pytest.raises(UserError, match=re.escape(f"remove {cache()},")), whole_compiled_code():
        raise error


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x if x.sum().item() > 0 else x


def test_a_model_that_cannot_be_compiled_is_not_blamed_on_the_cache() -> None:
    layer = Branching()
    layer.compile(backend="eager", fullgraph=True)
    message = r"data-dependent.*\): leave out --compile, or change the model; THROUGHLINE_DEBUG=1 shows where$"
    with pytest.raises(UserError, match=message), whole_compiled_code():
        layer(torch.ones(2))


@pytest.mark.parametrize("error", [RuntimeError("ours"), ImportError("ours"), AttributeError("ours")])
def test_other_errors_of_a_compiled_model_stay_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error), match="ours"), whole_compiled_code():
        raise error


def test_torchs_folder_is_the_one_that_torch_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    assert str(cache()) == default_cache_dir()
