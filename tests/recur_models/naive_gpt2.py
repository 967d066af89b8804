"""GPT-2 and Llama with recurrence restated for one document, window by window, sharing nothing with ours but the weights.

Written from the paper's sections 3.1 and 4.2, and from GPT-2's and Llama's equations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.recur_models.naive import layer_norm, norm, turned, weights_of


class NaiveGPT2:
    def __init__(self, model: Any):
        self.p = weights_of(model)
        self.config = model.config
        self.recurrent = self.config.name.endswith("-rec")

    def norm(self, name: str, x: Tensor) -> Tensor:
        return layer_norm(self.p, name, x)

    def affine(self, name: str, x: Tensor) -> Tensor:
        return x @ self.p[f"{name}.weight"] + self.p[f"{name}.bias"]

    def attend(self, i: int, x: Tensor, prev: Tensor | None) -> Tensor:
        """``prev`` stands before the tokens, and asks nothing."""
        d = x.shape[-1]
        size = x.shape[-1] // self.config.heads
        inputs = x if prev is None else torch.cat([prev, x])
        more = len(inputs) - len(x)
        q, k, v = self.affine(f"layers.{i}.attn.c_attn", self.norm(f"layers.{i}.ln_1", inputs)).split(d, -1)
        out = torch.zeros_like(x)
        for n in range(len(x)):
            for h in range(self.config.heads):
                part = slice(h * size, (h + 1) * size)
                sees = slice(0, more + n + 1)
                weights = torch.softmax(k[sees, part] @ q[more + n, part] / size**0.5, 0)
                out[n, part] = weights @ v[sees, part]
        return self.affine(f"layers.{i}.attn.c_proj", out)

    def window(self, text: Tensor, prev: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """What the last layer makes of a window, and the residual stream before each layer and after the last."""
        p = self.p
        x = p["embedding.weight"][text] + p["positions.weight"][: len(text)]
        each = [x]
        for i in range(self.config.layers):
            x = x + self.attend(i, x, self.read_by(i, prev))
            hidden = self.affine(f"layers.{i}.mlp.c_fc", self.norm(f"layers.{i}.ln_2", x))
            hidden = 0.5 * hidden * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (hidden + 0.044715 * hidden**3)))
            x = x + self.affine(f"layers.{i}.mlp.c_proj", hidden)
            each.append(x)
        return x, each

    def read_by(self, i: int, prev: Tensor | None) -> Tensor | None:
        """What layer i sees of h_prev."""
        if prev is None:
            return None
        first = self.config.insert_layer
        if self.config.source == "layer":
            n = i - max(first - 1, 0)
            return None if n < 0 else prev[n : n + 1]
        return prev if first in (0, i + 1) else None

    def feed_forward(self, name: str, z: Tensor) -> Tensor:
        last = len(self.config.hidden)
        for i in range(last + 1):
            z = self.p[f"{name}.{i}.weight"] @ z + self.p[f"{name}.{i}.bias"]
            z = z if i == last else F.gelu(z, approximate="tanh")
        return z.view(self.config.embeddings, -1)

    def left_to_each_layer(self, each: list[Tensor]) -> Tensor:
        """h_prev of a window where each layer has its own: the mean of its normed inputs, and what a feed-forward adds."""
        vectors = []
        ones = torch.ones(each[0].shape[-1])
        for n, x in enumerate(each[max(self.config.insert_layer - 1, 0) : -1]):
            z = norm(x, ones).mean(0)
            vectors.append(z + self.feed_forward(f"recurrence.steps.{n}", norm(z, ones)))
        return torch.cat(vectors)

    def left(self, each: list[Tensor]) -> Tensor:
        """h_prev [N, D] of a window (equation 1)."""
        if self.config.source == "layer":
            return self.left_to_each_layer(each)
        each = each[1:]
        weights = torch.softmax(self.p["recurrence.layer_weights_L"], 0)
        z = sum((w * x for w, x in zip(weights, each, strict=True)), torch.zeros_like(each[0]))
        if self.config.pooling == "max":
            z = z.max(0).values
        elif self.config.pooling == "mean":
            z = z.mean(0)
        else:
            key = self.p["recurrence.key_D"]
            z = torch.softmax(z @ key / len(key) ** 0.5, 0) @ z
        return self.feed_forward("recurrence.steps", z)

    def logits(self, text: Tensor) -> Tensor:
        stride = self.config.window - self.config.overlap
        output = self.p.get("output.weight", self.p["embedding.weight"])
        prev = None
        parts = []
        for start in range(0, len(text), stride):
            first = max(start - self.config.overlap, 0)
            x, each = self.window(text[first : start + stride], prev)
            parts.append(self.norm("final_norm", x[start - first :]) @ output.T)
            prev = self.left(each) if self.recurrent else None
        return torch.cat(parts)


class NaiveLlama(NaiveGPT2):
    def norm(self, name: str, x: Tensor) -> Tensor:
        return norm(x, self.p[f"{name}.weight"], self.config.norm_eps)

    def matrix(self, name: str, x: Tensor) -> Tensor:
        return x @ self.p[f"{name}.weight"].T

    def attend(self, i: int, x: Tensor, prev: Tensor | None) -> Tensor:
        size = x.shape[-1] // self.config.heads
        shared = self.config.heads // self.config.kv_heads
        base = self.config.rope_base
        inputs = self.norm(f"layers.{i}.input_layernorm", x if prev is None else torch.cat([prev, x]))
        more = len(inputs) - len(x)
        q, k, v = (self.matrix(f"layers.{i}.self_attn.{name}_proj", inputs) for name in "qkv")
        out = torch.zeros_like(x)
        for n in range(len(x)):
            for h in range(self.config.heads):
                part = slice(h * size, (h + 1) * size)
                of = slice(h // shared * size, (h // shared + 1) * size)
                query = turned(q[more + n, part], n, base)
                keys = torch.stack([turned(k[m, of], m - more, base) for m in range(more + n + 1)])
                out[n, part] = torch.softmax(keys @ query / size**0.5, 0) @ v[: more + n + 1, of]
        return self.matrix(f"layers.{i}.self_attn.o_proj", out)

    def window(self, text: Tensor, prev: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        x = self.p["embedding.weight"][text]
        each = [x]
        for i in range(self.config.layers):
            x = x + self.attend(i, x, self.read_by(i, prev))
            normed = self.norm(f"layers.{i}.post_attention_layernorm", x)
            mlp = f"layers.{i}.mlp"
            gate = self.matrix(f"{mlp}.gate_proj", normed)
            gated = gate / (1 + torch.exp(-gate)) * self.matrix(f"{mlp}.up_proj", normed)
            x = x + self.matrix(f"{mlp}.down_proj", gated)
            each.append(x)
        return x, each
