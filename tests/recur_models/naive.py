"""The block-recurrent equations, and the kNN memory's, restated for one document on one lane, with dense masks.

Written from the paper's section 3 and the notes on the authors' code, sharing nothing with the model but its weights. The whole
document's tokens attend to each other through one T × T mask; only the states know of blocks.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def weights_of(model: Any) -> dict[str, Tensor]:
    """A model's weights and buffers by their names, cut from the graph."""
    return {name: value.detach() for name, value in model.state_dict().items()}


def norm(x: Tensor, scale: Tensor, eps: float = 1e-6) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * scale


def layer_norm(p: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    """LayerNorm [*, D] with the weight and bias of that name."""
    centred = x - x.mean(-1, keepdim=True)
    return norm(centred, p[f"{name}.weight"], 1e-5) + p[f"{name}.bias"]


def turned(x: Tensor, position: int, base: float = 10_000.0) -> Tensor:
    """Rotary embedding of a vector [E]: its pairs (i, i + E/2) as complex numbers, times exp(i position base^(−2i/E))."""
    half = len(x) // 2
    angles = torch.tensor([position * base ** (-i / half) for i in range(half)], dtype=x.dtype)
    z = torch.complex(x[:half], x[half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([z.real, z.imag])


def heads_of(x: Tensor, heads: int) -> Tensor:  # [n, H·E] → [H, n, E]
    return torch.stack(x.chunk(heads, dim=-1))


def unit(x: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def t5_bucket(distance: int) -> int:
    if distance < 16:
        return distance
    return min(31, 16 + int(math.log(distance / 16) / math.log(128 / 16) * 16))


def project(p: dict[str, Tensor], x: Tensor, heads: int, cross: bool) -> list[Tensor]:
    parts = (x @ p["kvq.weight"].T).chunk(4 if cross else 3, dim=-1)
    k, v, q, *q2 = (heads_of(part, heads) for part in parts)
    out = [unit(k), v, unit(q) * p["scale_H"].abs()[:, None, None]]
    return [*out, unit(q2[0]) * p["cross_scale_H"].abs()[:, None, None]] if cross else out


def under(p: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in p.items() if name.startswith(prefix)}


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ v


def mlp(p: dict[str, Tensor], x: Tensor, hidden_mask: Any) -> Tensor:
    hidden = torch.relu(norm(x, p["mlp_norm.scale"]) @ p["mlp.hidden.weight"].T)
    return (hidden * hidden_mask) @ p["mlp.out.weight"].T


def gate(p: dict[str, Tensor], config: Any, c: Tensor, h: Tensor) -> Tensor:
    z = h @ p["candidate.weight"].T + p.get("candidate.bias", torch.zeros(()))
    if config.equations == "paper":
        z = torch.tanh(z) if config.gate == "lstm" else z
    elif config.cell == "single":
        z = torch.tanh(z)
    if config.gate == "fixed":
        g = 1 / (1 + torch.exp(-p["bias"]))
        return c * g + z * (1 - g)
    assert config.gate == "lstm"
    i = torch.sigmoid(h @ p["input.weight"].T + p["input.bias"] - 1)
    f = torch.sigmoid(h @ p["forget.weight"].T + p["forget.bias"] + 1)
    return c * f + z * i


class Masks:
    """What dropout multiplies by, drawn in the order in which a model of one lane draws after that seed; 1 where it does not."""

    def __init__(self, config: Any, blocks: int, seed: int):
        torch.manual_seed(seed)
        W = config.window
        width = config.d_model
        layers = range(config.layers)
        p = config.dropout
        sizes = {"embedding": width, "normed": width, "attention": width, "hidden": config.mlp_dim, "mlp": width}
        usual = config.dropout_places == "usual"
        inside = ("attention", "hidden", "mlp") if usual else ("normed", "mlp")
        self.of: dict[tuple[str, int, int], Tensor] = {}

        def draw(place: str, layer: int, at: range) -> None:
            drawn = F.dropout(torch.ones(len(at), W, sizes[place]), p)
            self.of |= {(place, layer, block): mask for block, mask in zip(at, drawn, strict=True)}

        every = range(blocks)
        vanilla = config.name == "vanilla"
        if usual:
            draw("embedding", 0, every)
        feedback = getattr(config, "feedback", False)
        weights = {} if usual or vanilla else {i: F.dropout(torch.ones(config.heads, W, 2 * W), p) for i in layers}
        sharing = max(config.recurrent_layers) - 1 if feedback else 0
        for k in every if feedback else ():  # block after block, up to the input of the layer that shares its states
            for i, place in itertools.product(range(sharing), inside):
                draw(place, i, range(k, k + 1))
            if "normed" in inside:
                draw("normed", sharing, range(k, k + 1))
        for i, place in itertools.product(layers[sharing:], inside):
            if not (feedback and (place, i) == ("normed", sharing)):
                draw(place, i, every)
            if vanilla and place == "normed":
                weights[i] = F.dropout(torch.ones(config.heads, W, W), p)
        self.of |= {("weights", i, k): mask for i, mask in weights.items() for k in every}
        if not usual:
            sizes["final"] = width
            draw("final", 0, every)

    def __call__(self, place: str, layer: int, block: int) -> Any:
        return self.of.get((place, layer, block), 1.0)


class Naive:
    """Logits of one document, [n, V], by recomputing everything for the whole document; with dropout, where ``masks`` are given."""

    def __init__(self, model: Any, masks: Any = lambda *_: 1.0):
        self.masks = masks
        self.p = weights_of(model)
        self.config = model.config
        self.recurrent = [i for i in range(model.config.layers) if f"layers.{i}.states.initial_SD" in self.p]
        self.feedback = getattr(model.config, "feedback", False)

    def logits(self, tokens: Tensor) -> Tensor:
        config = self.config
        p = self.p
        W = config.window
        x_all = p["embedding.weight"][tokens]
        states = {i: p[f"layers.{i}.states.initial_SD"] for i in self.recurrent}
        keys: dict[int, Tensor] = {}
        values: dict[int, Tensor] = {}
        out = []
        for start in range(
            0, len(tokens), W
        ):  # whole stack, block by block: with or without feedback it is the same thing
            x = x_all[start : start + W] * self.masks("embedding", 0, start // W)
            before = dict(states)
            for i in range(config.layers):
                x, states = self.layer(i, x, start, keys, values, states, before)
            x = norm(x, p["final_norm.scale"]) * self.masks("final", 0, start // W)
            out.append(x @ p["embedding.weight"].T / math.sqrt(config.d_model))
        return torch.cat(out)

    def layer(self, i: int, x: Tensor, start: int, keys: Any, values: Any, states: Any, before: Any) -> Any:
        config = self.config
        H = self.config.heads
        W = self.config.window
        p = under(self.p, f"layers.{i}.tokens.")
        cross = "project.cross_scale_H" in p
        block = start // W
        normed = norm(x, p["project.norm.scale"]) * self.masks("normed", i, block)
        k, v, q, *q2 = project(under(p, "project."), normed, H, cross)
        zeros = torch.zeros(H, W, config.head_dim)
        keys[i] = torch.cat([keys.get(i, zeros), k], dim=1)  # the document so far, behind W absent tokens
        values[i] = torch.cat([values.get(i, zeros), v], dim=1)
        n = q.shape[1]
        m = keys[i].shape[1]
        logits = torch.full((H, n, m), -1e6)
        for a in range(n):
            for b in range(m):
                distance = (start + a) - (b - W)  # of positions in the document
                if 1 <= distance <= W and (config.equations == "meliad" or b >= W):
                    bias = p["position_bias.table_HN"][:, t5_bucket(distance)] if "position_bias.table_HN" in p else 0.0
                    logits[:, a, b] = (q[:, a] * keys[i][:, b]).sum(-1) + bias * p["project.scale_H"].abs()
        phantom = torch.full((H, n, 1), -1000.0)
        weights = torch.softmax(torch.cat([logits, phantom], dim=-1), dim=-1)[..., :-1]
        weights[..., -2 * W :] *= self.masks("weights", i, block)
        read = [weights @ values[i]]
        if f"layers.{i}.gate_H" in self.p:
            g = torch.sigmoid(self.p[f"layers.{i}.gate_H"])[:, None, None]
            past = slice(max(W, W + start - config.memory), W + start)  # the last M tokens before this block
            read = [read[0] * (1 - g) + self.recall(q, keys[i][:, past], values[i][:, past]) * g]
        if cross:
            source = i if i in self.recurrent else self.recurrent[-1]
            s = under(self.p, f"layers.{source}.states.")
            sk, sv, *_ = project(
                under(s, "project."), norm(before[source], s["project.norm.scale"]) + s["ids_SD"], H, True
            )
            read.append(attention(q2[0], sk, sv))
        if i in self.recurrent:
            states = {**states, i: self.update(i, states[i], keys[i], values[i], start)}
        heads = torch.cat([head for part in read for head in part], dim=-1)
        x = x + heads @ p["out.weight"].T * self.masks("attention", i, block)
        return x + mlp(p, x, self.masks("hidden", i, block)) * self.masks("mlp", i, block), states

    def recall(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        out = torch.zeros_like(q)
        for h in range(q.shape[0]):
            for a in range(q.shape[1] if keys.shape[1] else 0):
                similar = sorted(((float(q[h, a] @ keys[h, b]), b) for b in range(keys.shape[1])), reverse=True)
                top = [b for _, b in similar[: self.config.top_k]]
                out[h, a] = attention(q[h, a][None], keys[h, top], values[h, top])[0]
        return out

    def update(self, i: int, c: Tensor, keys: Tensor, values: Tensor, start: int) -> Tensor:
        config = self.config
        H = self.config.heads
        W = self.config.window
        s = under(self.p, f"layers.{i}.states.")
        k, v, q, q2 = project(under(s, "project."), norm(c, s["project.norm.scale"]) + s["ids_SD"], H, True)
        seen = slice(start + W if start == 0 and config.equations == "paper" else start, start + 2 * W)
        h = torch.cat([*attention(q, k, v), *attention(q2, keys[:, seen], values[:, seen])], dim=-1)
        if config.cell != "single":
            c = gate(under(s, "attention_gate."), config, c, h)
            h = norm(c, s["mlp_norm.scale"]) if config.cell == "dual" else h
        if config.cell != "skip":
            c = gate(under(s, "mlp_gate."), config, c, torch.relu(h @ s["mlp_hidden.weight"].T))
        return c


class NaiveVanilla:
    """The same for the transformer without memory: each block alone, a token seeing itself too."""

    def __init__(self, model: Any, masks: Any = lambda *_: 1.0):
        self.p = weights_of(model)
        self.config = model.config
        self.masks = masks

    def logits(self, tokens: Tensor) -> Tensor:
        return torch.cat([self.block(ids, k) for k, ids in enumerate(tokens.split(self.config.window))])

    def block(self, tokens: Tensor, block: int) -> Tensor:
        distance = [[a - b for b in range(len(tokens))] for a in range(len(tokens))]
        buckets = torch.tensor([[t5_bucket(max(0, n)) for n in row] for row in distance])
        seen = torch.tensor(distance) >= 0
        x = self.p["embedding.weight"][tokens] * self.masks("embedding", 0, block)
        for i in range(self.config.layers):
            p = under(self.p, f"layers.{i}.")
            normed = norm(x, p["project.norm.scale"]) * self.masks("normed", i, block)
            k, v, q = project(under(p, "project."), normed, self.config.heads, cross=False)
            bias = p["position_bias.table_HN"][:, buckets] * p["project.scale_H"].abs()[:, None, None]
            weights = torch.softmax((q @ k.transpose(-1, -2) + bias).masked_fill(~seen, -torch.inf), dim=-1)
            heads = torch.cat(list(weights * self.masks("weights", i, block) @ v), dim=-1)
            x = x + heads @ p["out.weight"].T * self.masks("attention", i, block)
            x = x + mlp(p, x, self.masks("hidden", i, block)) * self.masks("mlp", i, block)
        x = norm(x, self.p["final_norm.scale"]) * self.masks("final", 0, block)
        return x @ self.p["embedding.weight"].T / math.sqrt(self.config.d_model)
