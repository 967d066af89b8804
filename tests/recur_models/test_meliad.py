"""The authors' weights through our model: outputs, States and gradients as their code computed them, over three segments."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from recur_models.block_recurrent import RecConfig
from recur_models.meliad import config_from_params, model_from_params, state_dict_from_params, state_from_arrays
from recur_models.sliding_window import SlideConfig, WindowedConfig, XLConfig
from tests.recur_models.naive import under
from tests.shared_data import need

ORACLES: dict[str, tuple[type[WindowedConfig], int]] = {
    "fixed_skip": (RecConfig, 8),
    "lstm_dual": (RecConfig, 8),
    "feedback_fixed_skip": (RecConfig, 8),
    "slide_norec": (SlideConfig, 8),
    "xl_norec": (XLConfig, 32),
}
"""The config, and its window in tokens; a segment is 32, so that xl's is one window long as its authors have it."""


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float(((ours - theirs).norm() / theirs.norm().clamp(min=1e-12)).detach())


@pytest.mark.real_data
@pytest.mark.parametrize("name", ORACLES)
def test_three_segments_equal_the_authors_code(name: str) -> None:
    arrays = dict(np.load(need("..", "oracles", f"oracle_{name}.npz"), allow_pickle=False))
    config, window = ORACLES[name]
    model = model_from_params(under(arrays, "params/"), window=window, baseline="xl" if config is XLConfig else "slide")
    assert type(model.config) is config
    for segment in range(3):
        seg = under(arrays, f"seg{segment}/")
        tokens = torch.from_numpy(seg["tokens"]).long()
        fresh = torch.zeros(2, 32 // window, dtype=torch.bool)
        fresh[:, 0] = torch.from_numpy(seg["start_of_sequence"])
        logits, state = model(tokens, state_from_arrays(under(seg, "state_in/"), "test"), fresh)
        assert relative(logits, torch.from_numpy(seg["logits"])) < 1e-5
        after = state_from_arrays(under(seg, "state_out/"), "test")
        assert state.keys() == after.keys()
        assert max(relative(state[key], after[key]) for key in after) < 1e-5
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())  # theirs skips the first token
        assert loss.item() == pytest.approx(float(seg["loss"]), rel=1e-5)
        model.zero_grad()
        loss.backward()
        gradients, _ = state_dict_from_params(under(seg, "grads/"), model)
        for key, parameter in model.named_parameters():
            assert parameter.grad is not None and relative(parameter.grad, gradients[key]) < 1e-4, key


def small_params() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    base = "transformer0/tbase"
    shapes = {
        "embed/embedding": (11, 6),
        "final_layernorm/scale": (6,),
        "transformer0/relative_positions/rel_embedding": (2, 32),
        f"{base}/_kvq/attention_scale": (2,),
        f"{base}/_kvq/pre_attn_layernorm/scale": (6,),
        **{f"{base}/_kvq/{name}_layer/kernel": (6, 6) for name in ("keys", "values", "queries")},
        f"{base}/post_attn_mlp/output_layer/kernel": (6, 6),
        f"{base}/pre_ffn_layernorm/scale": (6,),
        f"{base}/ffn/hidden0/kernel": (6, 8),
        f"{base}/ffn/output_layer/kernel": (8, 6),
    }
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_sizes_are_inferred_without_the_window() -> None:
    config = config_from_params(small_params(), window=4)
    assert config == SlideConfig(layers=1, d_model=6, heads=2, head_dim=3, mlp_dim=8, window=4, dropout=0.0)


def test_odd_parameter_trees_are_refused_by_name() -> None:
    params = small_params()
    with pytest.raises(ValueError, match="'transformer0/extra' has no place"):
        model_from_params({**params, "transformer0/extra": np.zeros(3)}, window=4)
    with pytest.raises(ValueError, match="not a meliad decoder"):
        model_from_params({"encoder/kernel": np.zeros(3)}, window=4)
    missing = {name: array for name, array in params.items() if "values" not in name}
    with pytest.raises(ValueError, match="lack 'transformer0/tbase/_kvq/values_layer/kernel'"):
        model_from_params(missing, window=4)
    wrong = {**params, "transformer0/tbase/post_attn_mlp/output_layer/kernel": np.zeros((5, 6), np.float32)}
    with pytest.raises(ValueError, match="has shape"):
        model_from_params(wrong, window=4)
