"""GPT-2, and GPT-2 with recurrence: a window's hidden states, pooled, are one more key and value of the next (Yoshida et al. 2020).

    GPT2RecConfig(pretrained="gpt2-folder", window=300, overlap=50).build(vocab_size=50_258)      # recurrent
    GPT2Config(pretrained="gpt2-folder", window=300, overlap=50).build(vocab_size=50_258)         # the baseline

Overlapped execution (section 4.2): a block is the stride, window − overlap. Its tokens are read behind the ``overlap`` tokens
before them, as one window with positions from 0, and they alone are predicted: each token once. A document's first window has
nothing before it, and is shorter than the paper's first, which predicts T tokens: from there on, windows begin ``overlap`` tokens
earlier in the document than the paper's. Where the overlap is longer than the stride, the next windows are shorter than T too.

Recurrence (section 3): z is the mean over the window's positions, the overlap's among them, of Σ w_ℓ h^(ℓ), with h^(ℓ) what layer ℓ
adds up to (the last one before the final norm), w = softmax(α) (equation 1). A feed-forward makes h_prev of z, which stands among
the inputs of layer ℓ_ins in the document's next window: normed as tokens are, a key and a value that every token sees, no query.

State: ``tokens`` [B, O], the overlap's, and ``tokens_count`` [B], how many of them there are, the last ones; with recurrence
``states`` [B, N, D], h_prev, and ``states_count`` [B], 0 before a document's second window. Weights have transformers' names.

Letters: see gpt2_layers.py; K blocks · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from recur_models.costs import Costs, attention, product, scales
from recur_models.gpt2_layers import Cache, GPT2Layer, Pooling, Prev, Recurrence
from recur_models.gpt2_stepping import GPT2Stepper
from recur_models.gpt2_weights import SMALL, folder_of, sizes_of, weights_of
from recur_models.losses import tied_output
from recur_models.protocol import ModelConfig, RecurrentModel, State, Stepper, Watched, begin_segment, reset


@dataclass(frozen=True)
class GPT2Config(ModelConfig):
    """GPT-2 over windows that overlap: the baseline."""

    name: ClassVar[str] = "gpt2"
    free: ClassVar[tuple[str, ...]] = ("window", "overlap")
    local: ClassVar[tuple[str, ...]] = ("pretrained",)

    pretrained: str = ""
    """Folder that transformers or pipelines.export wrote, or the name of a model in Hugging Face's cache: its weights are what a
    run begins with. Nothing is downloaded, and a run that goes on reads its checkpoint alone. Empty: initialised as GPT-2 is."""
    window: int = 300
    """Tokens that are read at once."""
    overlap: int = 0
    """Tokens of a window that the window before it has read too."""
    layers: int = 0
    """Transformer layers. 0, as for all sizes: those of `pretrained`; without it GPT-2 small's, 12."""
    d_model: int = 0
    """Width of the residual stream."""
    heads: int = 0
    """Attention heads."""
    mlp_dim: int = 0
    """Hidden size of the MLP."""
    positions: int = 0
    """Embeddings of positions: a window can have so many tokens."""
    dropout: float = 0.1
    """Share of activations dropped: embeddings, attention's weights, what attention and MLP add."""

    def __post_init__(self) -> None:
        if self.pretrained and Path(self.pretrained).expanduser().is_dir():
            object.__setattr__(self, "pretrained", str(folder_of(self.pretrained)))  # workers have another directory
        if self.pretrained and not all(getattr(self, name) for name in SMALL):  # not of a config that is read back
            for name, size in sizes_of(folder_of(self.pretrained)).items():
                object.__setattr__(self, name, getattr(self, name) or size)
        sizes = self.sized()
        for name, value in vars(sizes).items():
            least = 0 if name in ("overlap", "insert_layer") else 1
            if isinstance(value, int) and value < least:
                raise ValueError(f"model.{name} is {value}: it must be at least {least}")
        if self.overlap >= self.window:
            raise ValueError(f"model.overlap is {self.overlap}, but a window has {self.window} tokens: it must be less")
        if self.window > sizes.positions:
            raise ValueError(f"model.window is {self.window}: with {sizes.positions} positions it can have as many")
        if sizes.d_model % sizes.heads:
            raise ValueError(f"model.heads is {sizes.heads}: it must divide model.d_model, {sizes.d_model}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"model.dropout is {self.dropout}: it must be at least 0 and below 1")

    @property
    def block(self) -> int:
        return self.window - self.overlap

    @property
    def least_blocks(self) -> int:
        return 1

    def sized(self) -> Self:
        """The same with GPT-2 small's sizes where there are none."""
        lacking = {name: size for name, size in SMALL.items() if not getattr(self, name)}
        return replace(self, **lacking) if lacking else self

    def build(self, vocab_size: int) -> GPT2:
        return begun(GPT2(self, vocab_size))

    def costs(self, vocab_size: int) -> Costs:
        """Every token of a window passes through all layers, the overlap's again; its own alone through the output layer."""
        c, T = self.sized(), self.window
        d, f = c.d_model, c.mlp_dim
        layer = product(T, d, 3 * d) + product(T, d, d) + product(T, d, f) + product(T, f, d) + scales(9 * d + f)
        layer += attention(d, T * (T + 1) // 2, T * T)
        logits = replace(product(self.block, d, vocab_size), block=self.block)
        total = sum([layer] * c.layers, start=logits + scales(c.positions * d, 2 * d))
        return replace(total, embedding_parameters=logits.parameters)


@dataclass(frozen=True)
class GPT2RecConfig(GPT2Config):
    """GPT-2 with recurrence over windows that overlap."""

    name: ClassVar[str] = "gpt2-rec"
    learned: ClassVar[tuple[str, ...]] = ("window", "overlap")  # section 4.2: h_prev stands for another text else

    insert_layer: int = 2
    """The layer, counted from 1, that reads what the window before has left; 0: every layer."""
    pooling: Pooling = "mean"
    """How a window's positions become one vector; attention: with weights by a learned key."""
    embeddings: int = 1
    """Vectors that pass from one window to the next."""
    hidden: tuple[int, ...] = (200, 200, 200)
    """Hidden sizes of the feed-forward that makes them."""
    trained: Literal["all", "recurrence"] = "all"
    """recurrence: what is of GPT-2 stays as it is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.insert_layer > (layers := self.sized().layers):
            raise ValueError(
                f"model.insert_layer is {self.insert_layer}, but there are {layers} layers: 0 is all of them"
            )
        if any(size < 1 for size in self.hidden):
            raise ValueError(f"model.hidden is {self.hidden}: each size must be at least 1")

    @property
    def least_blocks(self) -> int:
        return 2

    @property
    def inserted(self) -> tuple[int, ...]:
        """The layers that read h_prev, counted from 0."""
        return (self.insert_layer - 1,) if self.insert_layer else tuple(range(self.sized().layers))

    def build(self, vocab_size: int) -> GPT2:
        sizes = self.sized()
        recurrence = Recurrence(sizes.layers, self.pooling, self.steps, self.embeddings)
        model = begun(GPT2(self, vocab_size, recurrence, self.inserted))
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(self.trained == "all" or name.startswith("recurrence."))
        return model

    def costs(self, vocab_size: int) -> Costs:
        """Counted as if all were trained."""
        c, d, N = self.sized(), self.sized().d_model, self.embeddings
        read = replace(product(N, d, 2 * d), parameters=0) + attention(d, N * self.window)
        made = [product(1, size, to) + scales(to) for size, to in pairwise(self.steps)]
        weights = scales(c.layers, d if self.pooling == "attention" else 0)
        return sum([read] * len(self.inserted) + made, start=super().costs(vocab_size) + weights)

    @property
    def steps(self) -> tuple[int, ...]:
        """The feed-forward's sizes, from z to h_prev."""
        d = self.sized().d_model
        return (d, *self.hidden, self.embeddings * d)


def paper_flops_per_token(config: GPT2Config) -> float:
    """By the paper's accounting (Tables 1 and 2): the layers' matrix products, attention over the causal half; neither output layer
    nor recurrence, which is negligible there. Every token of a window costs, and its own alone are divided by."""
    c = config.sized()
    layer = 8 * c.d_model**2 + 4 * c.d_model * c.mlp_dim + 4 * c.d_model * c.window / 2
    return c.layers * layer * c.window / c.block


def begun(model: GPT2) -> GPT2:
    """The model as a run begins with it. A model on `meta` has shapes and no weights: nothing is read for it."""
    config, own = model.config, model.state_dict()
    if config.pretrained and not model.embedding.weight.is_meta:
        folder = folder_of(config.pretrained)
        sizes = sizes_of(folder).items()
        if odd := [f"--model.{name.replace('_', '-')} {size}" for name, size in sizes if getattr(config, name) != size]:
            raise ValueError(f"{folder} has other sizes than the model: give {' '.join(odd)}, or 0, which takes its")
        model.load_state_dict(weights_of(folder, model.vocab_size, own))
    return model


class GPT2(RecurrentModel):
    """The stack over windows; with a ``recurrence`` one after the other, else all at once."""

    def __init__(
        self, config: GPT2Config, vocab_size: int, recurrence: Recurrence | None = None, inserted: tuple[int, ...] = ()
    ):
        super().__init__()
        self.config, self.vocab_size, self.block = config, vocab_size, config.block
        sizes, self.inserted = config.sized(), inserted
        self.embedding = nn.Embedding(vocab_size, sizes.d_model)
        self.positions = nn.Embedding(sizes.positions, sizes.d_model)
        for table in (self.embedding, self.positions):
            nn.init.normal_(table.weight, std=0.02)
        self.dropout = nn.Dropout(config.dropout)
        self.layers: Any = nn.ModuleList(
            GPT2Layer(sizes.d_model, sizes.heads, sizes.mlp_dim, sizes.layers, config.dropout)
            for _ in range(sizes.layers)
        )
        self.final_norm = nn.LayerNorm(sizes.d_model)
        self.recurrence = recurrence

    def initial_state(self, lanes: int) -> State:
        like, config, state = self.embedding.weight, self.config, {}
        count_B = torch.zeros(lanes, dtype=torch.int64, device=like.device)
        if config.overlap:
            state["tokens"] = count_B.new_zeros(lanes, config.overlap)
            state["tokens_count"] = count_B
        if self.recurrence is not None:
            state["states"] = like.new_zeros(lanes, self.recurrence.embeddings, like.shape[1])
            state["states_count"] = count_B.clone()
        return state

    def forward(
        self,
        tokens_BT: Tensor,
        state: State | None = None,
        fresh_BK: Tensor | None = None,
        targets_BT: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        state, fresh_BK = begin_segment(self, tokens_BT, state, fresh_BK)
        overlap, W, K = self.config.overlap, self.block, fresh_BK.shape[1]
        text_BS = torch.cat([state["tokens"], tokens_BT], 1) if overlap else tokens_BT
        windows_BKT = text_BS.unfold(1, overlap + W, W)
        count_BK = self.count_before(state, fresh_BK)
        targets_BKW = None if targets_BT is None else targets_BT.unflatten(1, (K, W))
        after = self.kept_tokens(text_BS, count_BK[:, -1]) if overlap else {}
        if self.recurrence is None and self.recompute != "block":
            targets = None if targets_BKW is None else targets_BKW.flatten(0, 1)
            made, _ = self.read(windows_BKT.flatten(0, 1), count_BK.flatten(), None, targets)
            return made.unflatten(0, (-1, K)).flatten(1, 2), after
        outputs, prev = [], self.prev_of(state)
        for k in range(K):
            if prev is not None:
                prev = Prev(*(reset(x, x.new_zeros(()), fresh_BK[:, k]) for x in prev))
            targets_BW = None if targets_BKW is None else targets_BKW[:, k]
            run = self.recomputed("block", self.read)
            made, states_BND = run(windows_BKT[:, k], count_BK[:, k], prev, targets_BW)
            prev = None if states_BND is None else Prev(states_BND, torch.ones_like(fresh_BK[:, k]))
            outputs.append(made)
        if prev is not None:
            after["states"] = prev.states_BND.to(state["states"].dtype)
            after["states_count"] = torch.ones_like(state["states_count"])
        return torch.cat(outputs, 1), after

    def prev_of(self, state: State) -> Prev | None:
        return None if self.recurrence is None else Prev(state["states"], state["states_count"] > 0)

    def count_before(self, state: State, fresh_BK: Tensor) -> Tensor:
        """How many tokens of its own document each block has before it in its window: int64 [B, K]."""
        block_K = torch.arange(fresh_BK.shape[1], device=fresh_BK.device)
        first_BK = torch.where(fresh_BK, block_K, -1).cummax(1).values
        before_B1 = state["tokens_count"][:, None] if self.config.overlap else 0
        tokens_BK = torch.where(first_BK < 0, before_B1 + block_K * self.block, (block_K - first_BK) * self.block)
        return tokens_BK.clamp(max=self.config.overlap)

    def kept_tokens(self, text_BS: Tensor, count_B: Tensor) -> State:
        """The State's tokens behind a text whose last block had ``count_B`` before it."""
        overlap = self.config.overlap
        count_B = (count_B + self.block).clamp(max=overlap)
        absent_BO = torch.arange(overlap, device=text_BS.device) < overlap - count_B[:, None]
        return {"tokens": text_BS[:, -overlap:].masked_fill(absent_BO, 0), "tokens_count": count_B}

    def read(
        self, tokens_BT: Tensor, count_B: Tensor, prev: Prev | None, targets_BW: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """A window: nats or logits of its block, and the h_prev that it leaves to the next one."""
        overlap = self.config.overlap
        slot_BT = torch.arange(overlap + self.block, device=tokens_BT.device).expand(len(tokens_BT), -1)
        x_BTD, sum_BTD = self.stack(tokens_BT, slot_BT, overlap + self.block, count_B, prev)
        made = tied_output(self.final_norm(x_BTD[:, overlap:]), self.embedding.weight, targets_BW)
        if self.recurrence is None or prev is None:
            return made, None
        return made, self.recurrence(prev.states_BND, sum_BTD, slot_BT >= overlap - count_B[:, None])

    def stack(
        self,
        tokens_Bn: Tensor,
        slot_Bn: Tensor,
        slots: int,
        count_B: Tensor,
        prev: Prev | None,
        caches: Sequence[Cache] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Tokens in these slots of their window, of which the first O hold ``count_B`` tokens, through all layers: what the last
        one makes, and Σ w_ℓ h^(ℓ) (equation 1; zeros without recurrence). ``slots``: those that have keys."""
        slot_m = torch.arange(slots, device=slot_Bn.device)
        missing_B1 = self.config.overlap - count_B[:, None]
        behind_Bnm = slot_Bn[..., None] - slot_m
        # In an empty slot stands something too: it sees itself alone, and nobody sees it.
        seen_Bnm = (behind_Bnm == 0) | ((behind_Bnm > 0) & (slot_m >= missing_B1)[:, None])
        with_prev_Bnm = seen_Bnm
        if prev is not None:
            has_BnN = prev.has_B[:, None, None].expand(-1, slot_Bn.shape[1], prev.states_BND.shape[1])
            with_prev_Bnm = torch.cat([has_BnN, seen_Bnm], 2)
        position_Bn = (slot_Bn - missing_B1).clamp(0, self.config.window - 1)  # from the first token that is there
        x_BnD = self.dropout(self.embedding(tokens_Bn) + self.positions(position_Bn))
        sum_BnD, weights_L = torch.zeros_like(x_BnD), None
        if self.recurrence is not None:
            weights_L = torch.softmax(self.recurrence.layer_weights_L, 0)
        for i, layer in enumerate(self.layers):
            run, cache = self.recomputed("layer", layer), None if caches is None else caches[i]
            if prev is not None and i in self.inserted:
                x_BnD = run(x_BnD, with_prev_Bnm, prev.states_BND, cache)
            else:
                x_BnD = run(x_BnD, seen_Bnm, None, cache)
            if weights_L is not None:
                sum_BnD = sum_BnD + weights_L[i] * x_BnD
        return x_BnD, sum_BnD

    def stepper(self) -> Stepper:
        return GPT2Stepper(self)

    def watched(self) -> list[Watched]:
        if self.recurrence is None:
            return []
        shares = [Watched("state_share", self.layers[i].sources, self.layers[i].prev_share) for i in self.inserted]
        return [*shares, Watched("state_change", self.recurrence, self.recurrence.change)]
