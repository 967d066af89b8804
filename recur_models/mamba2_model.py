"""The published Mamba-2: a stack of its mixers, whose weights may be those of transformers' Mamba2ForCausalLM.

    Mamba2Config(pretrained="mamba2-130m-folder").build(vocab_size=50_278)
    Mamba2Config(layers=4, d_model=256, heads=8).build(vocab_size=257)              # untrained

A layer is x + mixer(norm(x)), without an MLP. The residual stream stays in float32, and logits are not divided by √d. Documents
begin at blocks of ``window`` tokens. The State is carried between segments, so their length does not change the result.

State: that of the mixers (mamba2.py), under ``layers.i``. Letters: see mixer.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from common.errors import UserError
from recur_models.costs import Costs, scales, tied_logits
from recur_models.layers import upcast
from recur_models.losses import tied_or_untied_output
from recur_models.mamba2 import Mamba2, Variant
from recur_models.mixer import Sizes, check_block
from recur_models.mixer_stack import StackLayer, StackModel
from recur_models.pretrained_config import PretrainedConfig
from recur_models.pretrained_weights import Family

BIASES = {
    "convolution": (False, True),
    "projections": (True, False),
    "both": (True, True),
    "none": (False, False),
}
"""Whether the projections and the convolution have biases, config.json's ``use_bias`` and ``use_conv_bias``, by our name."""


def from_config_json(values: dict[str, Any]) -> dict[str, Any]:
    """config.json's values with its choices under our names, and the limits of a step as `step_limit` has them."""
    biases = (bool(values.get("use_bias", False)), bool(values.get("use_conv_bias", True)))
    return {
        **values,
        "step_limit": step_limit(values.get("time_step_limit")),
        "biases": next(name for name, have in BIASES.items() if have == biases),
        "output": "tied" if values.get("tie_word_embeddings") else "own",
    }


def step_limit(limit: Any) -> Any:
    """config.json's ``time_step_limit`` as ours: the least step, and the largest if it is finite.

    transformers writes infinity as a number or as ``{"__float__": "Infinity"}``. Anything but two numbers becomes a string, which
    `pretrained_weights.sizes_of` refuses.
    """
    if limit is None:
        return (0.0,)
    ends = limit if isinstance(limit, (list, tuple)) else []
    numbers = [math.inf if end == {"__float__": "Infinity"} else end for end in ends]
    if len(numbers) != 2 or not all(isinstance(number, (int, float)) for number in numbers):
        return str(limit)
    return tuple(float(number) for number in numbers if number != math.inf)


def to_config_json(values: dict[str, Any]) -> dict[str, Any]:
    """Undo `from_config_json`: the choices under transformers' names, with ``expand``, which transformers does not derive."""
    output = values.pop("output")
    limit = values.pop("step_limit")
    projection_bias, conv_bias = BIASES[values.pop("biases")]
    values.pop("dropout")  # transformers' Mamba-2 has none
    return {
        **values,
        "use_bias": projection_bias,
        "use_conv_bias": conv_bias,
        "time_step_limit": (*limit, math.inf)[:2],
        "tie_word_embeddings": output == "tied",
        "expand": values["num_heads"] * values["head_dim"] // values["hidden_size"],
    }


SMALL: dict[str, Any] = {
    "layers": 24,
    "d_model": 768,
    "heads": 24,
    "key_dim": 128,
    "value_dim": 64,
    "groups": 1,
    "conv": 4,
    "norm_eps": 1e-5,
    "step_limit": (0.0,),
    "biases": "convolution",
    "output": "tied",
}
"""mamba2-130m's sizes."""
MAMBA2 = Family(
    kind="mamba2",
    article="a Mamba-2",
    saver="Mamba2ForCausalLM",
    small=SMALL,
    names={
        "layers": "num_hidden_layers",
        "d_model": "hidden_size",
        "heads": "num_heads",
        "key_dim": "state_size",
        "value_dim": "head_dim",
        "groups": "n_groups",
        "conv": "conv_kernel",
        "norm_eps": "layer_norm_epsilon",
        "step_limit": "step_limit",
        "biases": "biases",
        "output": "output",
    },
    required={"hidden_act": "silu", "rms_norm": True},
    modules={"embeddings": "embedding", "norm_f": "final_norm", "lm_head": "output"},
    parts={
        "norm.weight": "mixer.norm.scale",
        "mixer.in_proj.weight": "mixer.inward.weight",
        "mixer.in_proj.bias": "mixer.inward.bias",
        "mixer.conv1d.weight": "mixer.convolution.weight",
        "mixer.conv1d.bias": "mixer.convolution.bias",
        "mixer.dt_bias": "mixer.step_bias_H",
        "mixer.A_log": "mixer.log_rate_H",
        "mixer.D": "mixer.skip_H",
        "mixer.norm.weight": "mixer.inner_norm.scale",
        "mixer.out_proj.weight": "mixer.out.weight",
        "mixer.out_proj.bias": "mixer.out.bias",
    },
    squeezed=("mixer.conv1d.weight",),
    padded=True,
    document_token="bos_token_id",
    from_config_json=from_config_json,
    to_config_json=to_config_json,
    prefix="backbone.",
)


@dataclass(frozen=True)
class Mamba2Config(PretrainedConfig):
    """Mamba-2, pretrained or untrained, with its State carried through documents."""

    name: ClassVar[str] = "mamba2"
    family: ClassVar[Family] = MAMBA2
    reading_fields: ClassVar[tuple[str, ...]] = ("window", "chunk")

    window: int = 64
    """Tokens in a block: documents begin at its multiples. Within a document it changes no result."""
    chunk: int = 64
    """Tokens that are computed at once; of a window that they do not divide, their greatest common divisor. It changes speed and
    memory, and no result."""
    layers: int = 0
    """Layers. 0, as for all sizes: those of `pretrained`; without it a small published model's."""
    d_model: int = 0
    """Width of the residual stream."""
    heads: int = 0
    """Heads of a mixer, each with a state of its own."""
    key_dim: int = 0
    """Size N of a head's state: that of B and C."""
    value_dim: int = 0
    """Size P of a head. All heads together are a multiple of the width, usually twice as wide."""
    groups: int = 0
    """Groups of heads that share B and C, and are normed together."""
    conv: int = 0
    """Tokens that the short convolution sees."""
    norm_eps: float = 0.0
    """Added to the mean square in a norm."""
    step_limit: tuple[float, ...] = ()
    """The least step Δ, and the largest where there is one. Empty: as `pretrained` has them, else 0 alone."""
    biases: Literal["", "convolution", "projections", "both", "none"] = ""
    """Which parts of a mixer have biases; empty: as `pretrained` has them, else the convolution."""
    output: Literal["", "tied", "own"] = ""
    """Whether the output layer is the embedding, or has a matrix of its own; empty: as `pretrained` has it, else tied."""
    dropout: float = 0.0
    """Share of the embeddings, and of what each mixer adds to the residual stream, that is dropped in training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = self.sized()
        check_block(sizes.window, 1, sizes.conv)
        inner = sizes.heads * sizes.value_dim
        if sizes.heads % sizes.groups:
            raise UserError(f"model.groups is {sizes.groups}: it must divide model.heads, {sizes.heads}")
        if inner % sizes.d_model:
            raise UserError(
                f"model.heads {sizes.heads} × model.value_dim {sizes.value_dim} is {inner}: it must be a multiple of "
                f"model.d_model, {sizes.d_model}"
            )
        if sizes.norm_eps <= 0:
            raise UserError(f"model.norm_eps is {sizes.norm_eps}: it must be above 0")
        limit = sizes.step_limit
        if len(limit) > 2 or not all(0 <= end < math.inf for end in limit) or list(limit) != sorted(limit):
            raise UserError(f"model.step_limit is {limit}: give the least step, from 0, and the largest or none")

    @property
    def block(self) -> int:
        return self.window

    @property
    def sizes(self) -> Sizes:
        """The sizes of its mixers."""
        c = self.sized()
        return Sizes(
            d_model=c.d_model,
            heads=c.heads,
            key_dim=c.key_dim,
            value_dim=c.value_dim,
            window=c.window,
            chunk=math.gcd(c.chunk, c.window),
            conv=c.conv,
        )

    @property
    def variant(self) -> Variant:
        """The options of its mixers."""
        c = self.sized()
        projection_bias, conv_bias = BIASES[c.biases]
        return Variant(
            groups=c.groups,
            norm_eps=c.norm_eps,
            projection_bias=projection_bias,
            conv_bias=conv_bias,
            step_limit=c.step_limit,
        )

    @property
    def plain_note(self) -> str:
        return (
            "Its logits are those of training. transformers carries State within one text, and begins each text without any: "
            "texts that\n  are read in parts need its cache."
        )

    def build(self, vocab_size: int) -> Mamba2Model:
        return self.load_pretrained(Mamba2Model(self, vocab_size))

    def costs(self, vocab_size: int) -> Costs:
        c = self.sized()
        total = tied_logits(self.window, c.d_model, vocab_size) + scales(c.d_model)
        if c.output == "own":
            total += scales(vocab_size * c.d_model)
        return total + Mamba2.costs(self.sizes, self.variant) * c.layers


class Mamba2Layer(StackLayer):
    """A mixer whose output is added to the residual stream."""

    def __init__(self, c: Mamba2Config):
        mixer = Mamba2(c.sizes, c.variant)
        super().__init__(mixer)
        self.dropout = nn.Dropout(c.dropout)
        nn.init.kaiming_uniform_(mixer.inward.weight, a=math.sqrt(5))
        nn.init.kaiming_uniform_(mixer.out.weight, a=math.sqrt(5))
        with torch.no_grad():
            mixer.out.weight /= math.sqrt(c.layers)  # so that the residual stream does not grow with the depth

    def finish(self, x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
        return x_BTD + self.dropout(y_BTD)


class Mamba2Model(StackModel):
    """Embeddings, mixers, a final norm, and an output layer that may be the embedding."""

    def __init__(self, config: Mamba2Config, vocab_size: int):
        super().__init__()
        sizes = config.sized()
        self.config = config
        self.vocab_size = vocab_size
        self.block = config.block
        self.embedding = nn.Embedding(vocab_size, sizes.d_model)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(Mamba2Layer(sizes) for _ in range(sizes.layers))
        self.final_norm = nn.RMSNorm(sizes.d_model, eps=sizes.norm_eps)
        self.output = nn.Linear(sizes.d_model, vocab_size, bias=False) if sizes.output == "own" else None

    def embed(self, tokens_Bn: Tensor) -> Tensor:
        return upcast(self.dropout(self.embedding(tokens_Bn)))

    def head(self, x_BnD: Tensor, targets_Bn: Tensor | None) -> Tensor:
        x_BnD = self.final_norm(x_BnD.to(self.final_norm.weight.dtype))
        return tied_or_untied_output(x_BnD, self.embedding, self.output, targets_Bn)
