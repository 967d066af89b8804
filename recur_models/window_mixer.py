"""The mixer `window`: the sliding window of `slide` as a layer among other mixers. Letters: see mixer.py and layers.py."""

from __future__ import annotations

import torch
from torch import Tensor

from recur_models.costs import Costs, attention, product, scales
from recur_models.layers import PositionBias, linear, merge_heads
from recur_models.mixer import Mixer, Sizes
from recur_models.protocol import Places, Probe, State, with_dtypes_of
from recur_models.sliding_window import SlideConfig
from recur_models.stepping import append, attend_parts, logit_bias
from recur_models.token_layer import Projector, empty_cache, last_block, projector_costs
from recur_models.window import Window, buckets_of_window, window_bias, windowed_attention, with_previous


class WindowMixer(Mixer):
    """Each token attends to the W tokens before it. State: ``keys`` and ``values`` [B, H, W, E] of the last block."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        config = windowed(sizes)
        self.config = config
        self.project = Projector(config, cross=False)
        self.position_bias = PositionBias(config.heads)
        self.out = linear(config.width, config.d_model)

    def initial_state(self, lanes: int) -> State:
        return empty_cache(self.config, lanes, self.project.scale_H)

    def forward(self, x_BTD: Tensor, state: State, fresh_BK: Tensor) -> tuple[Tensor, State]:
        tokens = self.project(x_BTD.unflatten(1, (fresh_BK.shape[1], -1)))
        k_BKHZE = with_previous(tokens.k, state["keys"], fresh_BK)
        v_BKHZE = with_previous(tokens.v, state["values"], fresh_BK)
        window = self.config.window
        bucket_WZ, unseen_WZ = buckets_of_window(torch.arange(window, device=x_BTD.device), window)
        bias_HWZ = window_bias(self.position_bias, self.project.scale_H, bucket_WZ, unseen_WZ)
        heads_BKHWE = windowed_attention(tokens.q_self, k_BKHZE, v_BKHZE, Window(bias_HWZ, None))
        return self.out(merge_heads(heads_BKHWE)).flatten(1, 2), with_dtypes_of(last_block(tokens), state)

    def open(self, state: State) -> State:
        return {name: torch.zeros_like(tensor) for name, tensor in state.items()}

    def extend(self, x_BnD: Tensor, places: Places, state: State, block: State) -> tuple[Tensor, State]:
        tokens = self.project(x_BnD)
        after = append(places, tokens.k, tokens.v, block)
        bucket_BnZ, unseen_BnZ = buckets_of_window(places.of_tokens_Bn, self.config.window)
        bias_BHnZ = logit_bias(self.position_bias, self.project.scale_H, bucket_BnZ, unseen_BnZ)
        parts = [(each["keys"], each["values"]) for each in (state, after)]
        heads_BHnE = attend_parts(tokens.q_self, parts, bias_BHnZ)
        return self.out(merge_heads(heads_BHnE)), after

    def probes(self) -> list[Probe]:
        return []

    @staticmethod
    def costs(sizes: Sizes) -> Costs:
        """As `Mixer.costs`: each token sees W keys, and 2W are multiplied."""
        config = windowed(sizes)
        W = config.window
        return (
            projector_costs(config, W, cross=False)
            + scales(PositionBias.BUCKETS * config.heads)
            + attention(config.width, W * W, 2 * W * W)
            + product(W, config.width, config.d_model)
        )


def windowed(sizes: Sizes) -> SlideConfig:
    """The config of `slide` with the sizes of one layer's window."""
    return SlideConfig(
        layers=1,
        d_model=sizes.d_model,
        heads=sizes.heads,
        head_dim=sizes.key_dim,
        window=sizes.window,
        dropout=0.0,
    )
