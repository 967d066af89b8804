"""The message where torch cannot compile a model. tests/pipelines/test_train.py has a compiled run."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from common.errors import UserError
from pipelines.training.compiler import cache, whole_compiled_code


class Doubling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def test_code_that_is_cut_off_is_named_with_the_folder_to_remove(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/somewhere/cache")

    def cut_off(*_: object) -> object:
        raise ImportError("/somewhere/cache/main.so: file too short")

    layer = Doubling()
    layer.compile(backend=cut_off)
    message = "main.so: file too short\\): remove /somewhere/cache,.* repeat the command, or leave out --compile$"
    with pytest.raises(UserError, match=message), whole_compiled_code():
        layer(torch.ones(2))


def test_other_errors_of_a_compiled_model_stay_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="ours"), whole_compiled_code():
        raise RuntimeError("ours")


def test_torchs_folder_is_the_one_that_torch_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    assert str(cache()) == default_cache_dir()
