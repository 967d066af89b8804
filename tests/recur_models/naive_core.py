"""The staircase paper's models restated for one document, with plain loops, sharing nothing with ours but the weights.

Written from the paper's sections 3.1 to 3.3 and the notes on the authors' code. Tokens that a document has not got yet stand before
its first as zero vectors, in every layer; whether they are attended to is said by ``absent``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.recur_models.naive import layer_norm, weights_of


class NaiveCore:
    sees_itself = False
    """Whether a token attends to itself."""

    def __init__(self, model: Any):
        self.p = weights_of(model)
        self.config = model.config

    def attend(
        self, i: int, x: Tensor, context: Tensor, distance: Tensor, absent: Tensor, shared: int | None = None
    ) -> Tensor:
        """Layer i over x [n, D], whose tokens look at ``context`` [m, D]. ``distance`` [n, m], below 0 where a token may not look;
        ``absent`` [m]. ``shared``: the layer that makes keys and values."""
        w = self.config.width
        heads = self.config.heads
        q = layer_norm(self.p, f"layers.{i}.norm", x) @ self.p[f"layers.{i}.qkv.weight"][:w].T
        j = i if shared is None else shared
        k, v = (layer_norm(self.p, f"layers.{j}.norm", context) @ self.p[f"layers.{j}.qkv.weight"][w:].T).chunk(2, -1)
        # Where distance 0 has its column, or would have it.
        nearest = self.p["distances_EP"].shape[1] - int(self.sees_itself)
        masked = absent & (self.config.absent == "masked")
        out = torch.zeros(len(x), w)
        for n in range(len(x)):
            sees = [m for m in range(len(context)) if distance[n, m] >= 0 and not masked[m]]
            for h in range(heads if sees else 0):
                part = slice(h * self.config.head_dim, (h + 1) * self.config.head_dim)
                columns = [int(nearest - distance[n, m]) for m in sees]
                keys = k[sees][:, part] + self.p["distances_EP"][:, columns].T
                weights = torch.softmax(keys @ q[n, part] / self.config.head_dim**0.5, 0)
                out[n, part] = weights @ v[sees][:, part]
        return out @ self.p[f"layers.{i}.out.weight"].T

    def mlp(self, i: int, x: Tensor) -> Tensor:
        p = self.p
        normed = layer_norm(p, f"layers.{i}.mlp_norm", x)
        hidden = torch.relu(normed @ p[f"layers.{i}.hidden.weight"].T + p[f"layers.{i}.hidden.bias"])
        return hidden @ p[f"layers.{i}.mlp_out.weight"].T + p[f"layers.{i}.mlp_out.bias"]

    def read_out(self, x: Tensor) -> Tensor:
        return layer_norm(self.p, "final_norm", x) @ self.p["output.weight"].T + self.p["output.bias"]


class NaiveStaircase(NaiveCore):
    sees_itself = True

    def logits(self, tokens: Tensor) -> Tensor:
        config = self.config
        x = F.embedding(tokens, self.p["embedding.weight"])
        N = config.in_step
        M = config.passes
        C = config.chunk
        chunks: dict[int, Tensor] = dict(enumerate(x.split(C)))
        total = len(chunks)
        done = {}
        passed = dict.fromkeys(range(len(chunks)), 0)
        for step in range(total + M - 1):
            window = range(step - N + 1, step + 1)
            present = [i for i in window if 0 <= i < total]
            moving = [i for i in present if passed[i] < M]
            now = {i: chunks[i] for i in present}
            for layer in range(config.layers):
                context = torch.cat([now.get(i, torch.zeros(C, config.d_model)) for i in window])
                absent = torch.tensor([i not in now for i in window for _ in range(C)])
                where = torch.arange(window.start * C, window.stop * C)
                after = {}
                for i in moving:
                    distance = torch.arange(i * C, (i + 1) * C)[:, None] - where
                    y = now[i] + self.attend(layer, now[i], context, distance, absent)
                    after[i] = y + self.mlp(layer, y)
                now |= after
            for i in moving:
                chunks[i] = now[i]
                passed[i] = passed[i] + 1
                if passed[i] == M:
                    done[i] = now[i]
        return self.read_out(torch.cat([done[i] for i in range(total)]))


class NaiveXL(NaiveCore):
    def logits(self, tokens: Tensor) -> Tensor:
        x = F.embedding(tokens, self.p["embedding.weight"])
        span = self.config.span
        where = torch.arange(-span, len(tokens))
        distance = torch.arange(len(tokens))[:, None] - where
        distance = torch.where((distance >= 1) & (distance <= span), distance, -1)
        for i in range(self.config.depth):
            layer = i % self.config.layers
            context = torch.cat([torch.zeros(span, x.shape[1]), x])
            x = x + self.attend(layer, x, context, distance, where < 0)
            x = x + self.mlp(layer, x)
        return self.read_out(x)


class NaiveFeedback(NaiveCore):
    def logits(self, tokens: Tensor) -> Tensor:
        span = self.config.span
        weights = torch.softmax(self.p["memory_weights_L"], 0)
        memory = torch.zeros(span, self.config.d_model)
        outputs = []
        for t, x in enumerate(F.embedding(tokens, self.p["embedding.weight"])[:, None]):
            made = weights[0] * x
            for i in range(self.config.layers):
                shared = 0 if self.config.keys == "shared" else None
                distance = torch.arange(span, 0, -1)[None]
                x = x + self.attend(i, x, memory[-span:], distance, torch.arange(t, t + span) < span, shared)
                x = x + self.mlp(i, x)
                made = made + weights[i + 1] * x
            memory = torch.cat([memory, made])
            outputs.append(x)
        return self.read_out(torch.cat(outputs))


class NaiveLSTM:
    def __init__(self, model: Any):
        self.p = weights_of(model)
        self.layers = model.config.layers

    def logits(self, tokens: Tensor) -> Tensor:
        x = F.embedding(tokens, self.p["embedding.weight"])
        for i in range(self.layers):
            weights = [
                self.p[f"layers.{i}.lstm.{name}_l0"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            ]
            h = c = torch.zeros(x.shape[1])
            outputs = []
            for x_t in x:
                gates = weights[0] @ x_t + weights[1] @ h + weights[2] + weights[3]
                enter, forget, new, show = gates.chunk(4)
                c = torch.sigmoid(forget) * c + torch.sigmoid(enter) * torch.tanh(new)
                h = torch.sigmoid(show) * torch.tanh(c)
                outputs.append(h)
            x = torch.stack(outputs)
        return x @ self.p["output.weight"].T + self.p["output.bias"]
