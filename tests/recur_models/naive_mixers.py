"""The mixers' equations restated for one document, a token at a time; shares nothing with the models but their weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.recur_models.naive import heads_of, norm, project, t5_bucket, turned, under, weights_of


class NaiveMixers:
    def __init__(self, model: Any):
        self.config = model.config
        self.p = weights_of(model)

    def logits(self, tokens: Tensor) -> Tensor:
        x = F.embedding(tokens, self.p["embedding.weight"])
        for i, name in enumerate(self.config.layers):
            p = under(self.p, f"layers.{i}.mixer.")
            x = x + getattr(self, name)(p, x)
            m = under(self.p, f"layers.{i}.mlp.")
            if not m:
                continue
            gate, value = (norm(x, m["norm.scale"]) @ m["hidden.weight"].T).chunk(2, -1)
            x = x + (F.silu(gate) * value) @ m["out.weight"].T
        x = norm(x, self.p["final_norm.scale"])
        if self.config.output == "own":
            return x @ self.p["output.weight"].T
        return x / self.config.d_model**0.5 @ self.p["embedding.weight"].T

    def convolved(self, p: dict[str, Tensor], x: Tensor) -> Tensor:
        taps = self.config.conv
        bias = p.get("convolution.bias", torch.zeros(x.shape[1]))
        outputs = []
        for t in range(len(x)):
            sum_Z = bias
            for j in range(taps):
                if t - j >= 0:
                    sum_Z = sum_Z + p["convolution.weight"][:, taps - 1 - j] * x[t - j]
            outputs.append(F.silu(sum_Z))
        return torch.stack(outputs)

    def delta(self, p: dict[str, Tensor], x: Tensor) -> Tensor:
        config = self.config
        H = config.heads
        E = config.key_dim
        V = config.value_dim
        R = config.householders
        x = norm(x, p["norm.scale"])
        mixed = self.convolved(p, x @ p["qkv.weight"].T)
        gate = F.silu(x @ p["gate.weight"].T) if config.output_gate else 1.0
        betas = torch.sigmoid(x @ p["beta.weight"].T) * (2 if config.negative_eigenvalues else 1)
        outputs = []
        for h in range(H):
            S = torch.zeros(E, V)
            heads = []
            for t in range(len(x)):
                q = mixed[t, h * E : (h + 1) * E]
                if config.decays:
                    step = F.softplus(x[t] @ p["decay.weight"][h] + p["decay_bias_H"][h])
                    S = S * torch.exp(-torch.exp(p["log_rate_H"][h]) * step)
                for r in range(R):
                    key = H * E + (r * H + h) * E
                    value = H * E * (1 + R) + (r * H + h) * V
                    k = mixed[t, key : key + E]
                    k = k / torch.sqrt((k * k).sum() + 1e-6)
                    v = mixed[t, value : value + V]
                    S = S + betas[t, r * H + h] * torch.outer(k, v - S.T @ k)
                heads.append(S.T @ (q / torch.sqrt((q * q).sum() + 1e-6)) / E**0.5)
            outputs.append(norm(torch.stack(heads), p["head_norm.scale"]) if config.head_norm else torch.stack(heads))
        return (torch.cat(outputs, -1) * gate) @ p["out.weight"].T

    def retention(self, p: dict[str, Tensor], x: Tensor) -> Tensor:
        config = self.config
        H = config.heads
        E = config.key_dim
        V = config.value_dim
        x = norm(x, p["norm.scale"])
        q, k, v, gate = (x @ p["qkvg.weight"].T).split([H * E, H * E, H * V, H * V], -1)
        outputs = []
        for h, (qh, kh, vh) in enumerate(zip(heads_of(q, H), heads_of(k, H), heads_of(v, H), strict=True)):
            S = torch.zeros(E, V)
            heads = []
            for t in range(len(x)):
                key = turned(kh[t], t) if config.rotary else kh[t]
                query = turned(qh[t], t) if config.rotary else qh[t]
                S = (1 - 2.0 ** (-5 - h)) * S + torch.outer(key, vh[t])
                heads.append(S.T @ query / E**0.5)
            outputs.append(norm(torch.stack(heads), p["head_norm.scale"]))
        return (torch.cat(outputs, -1) * F.silu(gate)) @ p["out.weight"].T

    def mlstm(self, p: dict[str, Tensor], x: Tensor) -> Tensor:
        config = self.config
        H = config.heads
        E = config.key_dim
        V = config.value_dim
        x = norm(x, p["norm.scale"])
        q, k, v, gate = (x @ p["qkvo.weight"].T).split([H * E, H * E, H * V, H * V], -1)
        gates = 15 * torch.tanh((x @ p["gates.weight"].T + p["gates.bias"]) / 15)
        outputs = []
        for h, (qh, kh, vh) in enumerate(zip(heads_of(q, H), heads_of(k, H), heads_of(v, H), strict=True)):
            C = torch.zeros(E, V)
            n = torch.zeros(E)
            heads = []
            for t in range(len(x)):
                written = torch.exp(gates[t, h])
                kept = torch.sigmoid(gates[t, H + h])
                C = kept * C + written * torch.outer(kh[t], vh[t])
                n = kept * n + written * kh[t]
                query = qh[t] / E**0.5
                heads.append(C.T @ query / torch.clamp((n @ query).abs(), min=1.0))
            outputs.append(norm(torch.stack(heads), p["head_norm.scale"]))
        return (torch.cat(outputs, -1) * torch.sigmoid(gate)) @ p["out.weight"].T

    def mamba2(self, p: dict[str, Tensor], x: Tensor, eps: float = 1e-6) -> Tensor:
        config = self.config
        H = config.heads
        E = config.key_dim
        V = config.value_dim
        G = getattr(config, "groups", 1)
        x = norm(x, p["norm.scale"], eps)
        inward = x @ p["inward.weight"].T + p.get("inward.bias", 0.0)
        z, raw, step = inward.split([H * V, H * V + 2 * G * E, H], -1)
        u, B, C = self.convolved(p, raw).split([H * V, G * E, G * E], -1)
        steps = F.softplus(step + p["step_bias_H"])
        limit = getattr(config, "step_limit", (0.0,))
        steps = torch.clamp(steps, *limit)
        outputs = []
        for h, uh in enumerate(heads_of(u, H)):
            S = torch.zeros(E, V)
            heads = []
            shared = slice(h * G // H * E, (h * G // H + 1) * E)
            for t in range(len(x)):
                S = torch.exp(-torch.exp(p["log_rate_H"][h]) * steps[t, h]) * S
                S = S + steps[t, h] * torch.outer(B[t, shared], uh[t])
                heads.append(S.T @ C[t, shared] + p["skip_H"][h] * uh[t])
            outputs.append(torch.stack(heads))
        gated = (torch.cat(outputs, -1) * F.silu(z)).chunk(G, -1)
        scales = p["inner_norm.scale"].chunk(G)
        normed = torch.cat([norm(part, scale, eps) for part, scale in zip(gated, scales, strict=True)], -1)
        return normed @ p["out.weight"].T + p.get("out.bias", 0.0)

    def rwkv7(self, p: dict[str, Tensor], x: Tensor) -> Tensor:
        config = self.config
        H = config.heads
        E = config.key_dim
        V = config.value_dim
        x = norm(x, p["norm.scale"])
        before = torch.cat([torch.zeros_like(x[:1]), x[:-1]])
        xr, xw, xk, xv, xa, xg = (x * (1 - mu) + before * mu for mu in (p[f"shift.share_D.{i}"] for i in range(6)))
        r = xr @ p["q.weight"].T
        k = xk @ p["k.weight"].T
        v = xv @ p["v.weight"].T
        low_w = torch.tanh(xw @ p["decay.first_DR"]) @ p["decay.second_RZ"]
        w = torch.exp(-torch.exp(torch.tensor(-0.5)) * torch.sigmoid(p["decay.bias_Z"] + low_w))
        a = torch.sigmoid(p["rate.bias_Z"] + xa @ p["rate.first_DR"] @ p["rate.second_RZ"])
        g = torch.sigmoid(xg @ p["gate.first_DR"]) @ p["gate.second_RZ"]
        kk = k * p["taken_Z"]
        put = k * (1 + (a - 1) * p["rate_in_key_Z"])
        outputs = []
        for h in range(H):
            keys = slice(h * E, (h + 1) * E)
            values = slice(h * V, (h + 1) * V)
            S = torch.zeros(V, E)
            for t in range(len(x)):
                found = kk[t, keys] / torch.sqrt((kk[t, keys] ** 2).sum() + 1e-6)
                scale = 2 if config.negative_eigenvalues else 1
                change = torch.diag(w[t, keys]) - torch.outer(found, scale * a[t, keys] * found)
                S = S @ change + torch.outer(v[t, values], put[t, keys])
                o = S @ r[t, keys]
                o = (o - o.mean()) / torch.sqrt(o.var(correction=0) + 64e-5)
                o = o * p["norm_scale_Z"][values] + p["norm_bias_Z"][values]
                own = (r[t, keys] * p["own_Z"][keys] * put[t, keys]).sum()
                outputs.append((o + own * v[t, values]) * g[t, values])
        y = torch.stack(outputs).unflatten(0, (H, len(x))).movedim(0, 1).flatten(1)
        return y @ p["out.weight"].T

    def slstm(self, p: dict[str, Tensor], x: Tensor) -> Tensor:
        H = self.config.heads
        V = self.config.value_dim
        x = norm(x, p["norm.scale"])
        from_token = x @ p["inward.weight"].T + p["inward.bias"]
        from_convolved = self.convolved(p, x) @ p["gates.weight"].T + p["gates.bias"]
        outputs = []
        for head in range(H):
            zo = from_token[:, head * 2 * V : (head + 1) * 2 * V]
            gates = from_convolved[:, head * 2 * V : (head + 1) * 2 * V]
            c = torch.zeros(V)
            n = torch.zeros(V)
            h = torch.zeros(V)
            heads = []
            for t in range(len(x)):
                mixed = h @ p["recurrent_HVZ"][head]
                z = torch.tanh(zo[t, :V] + mixed[:V])
                o = torch.sigmoid(zo[t, V:] + mixed[V : 2 * V])
                i = torch.exp(gates[t, :V] + mixed[2 * V : 3 * V])
                f = torch.sigmoid(gates[t, V:] + mixed[3 * V :])
                c = f * c + i * z
                n = f * n + i
                h = o * c / n
                heads.append(h)
            outputs.append(norm(torch.stack(heads), p["head_norm.scale"]))
        return torch.cat(outputs, -1) @ p["out.weight"].T

    def window(self, p: dict[str, Tensor], x: Tensor) -> Tensor:
        W = self.config.window
        part = under(p, "project.")
        k, v, q = project(part, norm(x, part["norm.scale"]), self.config.heads, cross=False)
        outputs = []
        for h in range(self.config.heads):
            rows = []
            for t in range(len(x)):
                logits = []
                values = []
                for j in range(t - W, t):
                    bias = p["position_bias.table_HN"][h, t5_bucket(t - j)] * part["scale_H"][h].abs()
                    inside = j >= (t // W - 1) * W
                    if inside:  # before the document there are zeros, which are attended to
                        logits.append((q[h, t] @ k[h, j] if j >= 0 else torch.zeros(())) + bias)
                        values.append(v[h, j] if j >= 0 else torch.zeros(v.shape[-1]))
                rows.append(torch.softmax(torch.stack(logits), 0) @ torch.stack(values))
            outputs.append(torch.stack(rows))
        return torch.cat(outputs, -1) @ p["out.weight"].T


class NaiveMamba2(NaiveMixers):
    def __init__(self, model: Any):
        super().__init__(model)
        self.config = model.config.sized()

    def logits(self, tokens: Tensor) -> Tensor:
        eps = self.config.norm_eps
        x = F.embedding(tokens, self.p["embedding.weight"])
        for i in range(self.config.layers):
            x = x + self.mamba2(under(self.p, f"layers.{i}.mixer."), x, eps)
        output = self.p.get("output.weight", self.p["embedding.weight"])
        return norm(x, self.p["final_norm.weight"], eps) @ output.T
