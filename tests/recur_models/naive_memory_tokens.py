"""RMT and ARMT restated for one document, a token, a key and a block at a time; shares nothing with the models but their weights.

Written from the papers (arXiv 2207.06881, section 3; arXiv 2407.04841, section 2). The weights may have gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.recur_models.naive import norm, project, t5_bucket, under


class NaiveMemoryTokens:
    def __init__(self, model: Any):
        self.config = model.config
        self.p: dict[str, Tensor] = dict(model.named_parameters())

    def logits(self, tokens: Tensor) -> Tensor:
        W = self.config.window
        self.begin()
        outputs = [self.block([self.p["embedding.weight"][t] for t in part]) for part in tokens.split(W)]
        hidden = torch.cat(outputs) / self.config.d_model**0.5
        return hidden @ self.p["embedding.weight"].T

    def begin(self) -> None:
        raise NotImplementedError

    def block(self, x: list[Tensor]) -> Tensor:
        raise NotImplementedError

    def memory_tokens(self) -> list[Tensor]:
        return list(self.p["initial_SD"])

    def final(self, x: list[Tensor]) -> Tensor:
        return norm(torch.stack(x), self.p["final_norm.scale"])

    def layer(self, i: int, x: list[Tensor], kinds: str) -> list[Tensor]:
        """Each token of a row, whose kind is r (memory that is read), x (the block's) or w (memory that is written)."""
        p = under(self.p, f"layers.{i}.tokens.")
        part = under(p, "project.")
        H = self.config.heads
        k, v, q = project(part, norm(torch.stack(x), part["norm.scale"]), H, cross=False)
        outputs = []
        for t in range(len(x)):
            seen = [j for j in range(len(x)) if j <= t or (kinds[j] == kinds[t] and kinds[t] in "rw")]
            heads = []
            for h in range(H):
                logits = []
                for j in seen:
                    bias = p["position_bias.table_HN"][h, t5_bucket(max(t - j, 0))]
                    logits.append(q[h, t] @ k[h, j] + bias * part["scale_H"][h].abs())
                weights = torch.softmax(torch.stack(logits), 0)
                heads.append(sum(weights[n] * v[h, j] for n, j in enumerate(seen)))
            y = x[t] + p["out.weight"] @ torch.cat(heads)  # type: ignore[arg-type]
            hidden = torch.relu(p["mlp.hidden.weight"] @ norm(y, p["mlp_norm.scale"]))
            outputs.append(y + p["mlp.out.weight"] @ hidden)
        return outputs


class NaiveRMT(NaiveMemoryTokens):
    def begin(self) -> None:
        self.memory = self.memory_tokens()

    def block(self, x: list[Tensor]) -> Tensor:
        M = len(self.memory)
        row = [*self.memory, *x, *self.memory]
        for i in range(self.config.layers):
            row = self.layer(i, row, "r" * M + "x" * len(x) + "w" * M)
        self.memory = list(self.final(row[M + len(x) :]))
        return self.final(row[M : M + len(x)])


class NaiveARMT(NaiveMemoryTokens):
    def begin(self) -> None:
        config = self.config
        self.A = [torch.zeros(config.d_model, 6 * config.memory_dim) for _ in range(config.layers)]
        self.z = [torch.zeros(6 * config.memory_dim) for _ in range(config.layers)]

    def block(self, x: list[Tensor]) -> Tensor:
        row = [*x, *self.memory_tokens()]
        for i in range(self.config.layers):
            row = [token + self.found(i, self.features(self.weight(i, "query") @ token)) for token in row]
            row = self.layer(i, row, "x" * len(x) + "w" * self.config.memory_tokens)
            self.write(i, row[len(x) :])
        return self.final(row[: len(x)])

    def weight(self, i: int, name: str) -> Tensor:
        return self.p[f"layers.{i}.association.{name}.weight"]

    def features(self, x: Tensor) -> Tensor:
        phi = features(x)
        return phi / (phi @ phi).sqrt() if self.config.unit_keys else phi

    def found(self, i: int, phi: Tensor) -> Tensor:
        return self.A[i] @ phi / (self.z[i] @ phi + 1e-5)

    def write(self, i: int, memory: list[Tensor]) -> None:
        A = self.A[i]
        z = self.z[i]
        for m in memory:
            *key, strength = self.p[f"layers.{i}.association.key_strength.weight"] @ m
            phi = self.features(torch.stack(key))
            beta = torch.sigmoid(strength + self.p[f"layers.{i}.association.strength_bias"][0])
            change = beta * (self.weight(i, "value") @ m - self.found(i, phi))
            known = (self.z[i] @ phi / (phi @ phi + 1e-5)).item()
            gamma = min(max(1 - known, 0.0), 1.0)
            A = A + torch.outer(change, phi)
            z = z + gamma * phi
        self.A[i] = A
        self.z[i] = z


def features(x: Tensor) -> Tensor:
    """DPFP-3."""
    r = [torch.relu(number) for number in (*x, *(-x))]
    return torch.stack([r[j] * r[(j + move) % len(r)] for move in (1, 2, 3) for j in range(len(r))])
