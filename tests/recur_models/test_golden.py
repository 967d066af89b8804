"""Golden losses: 20 steps of AdamW for every small config. A refactor leaves them untouched; an intended change makes them
again, and its commit says why:

    python -m tests.recur_models.test_golden

In float64, so that another CPU or another order of summation gives the same losses.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from recur_models import IGNORED, ModelConfig, detach
from recur_models.sliding_window import SlideConfig
from tests.recur_models.conftest import small_configs

FOLDER = Path(__file__).parent / "golden"
VOCAB = 31
LANES = 2
BLOCKS = 3
STEPS = 20
TOLERANCE = 1e-5


EPS = {"llama_rec-layers": 1e-4}
"""AdamW's eps where it is not 1e-8. This model has layers behind an output that begins at zero. Their first gradients are near
1e-9, which is the rounding of the losses, in float32. With an eps of 1e-8 AdamW turns that rounding into full steps, and the losses
differ between CPUs."""


def losses(config: ModelConfig, eps: float = 1e-8) -> list[float]:
    """Nats per token at each step: State carried, documents that begin inside a segment, positions without a target."""
    torch.manual_seed(0)
    model = config.build(VOCAB).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), eps=eps, weight_decay=0.1)
    tokens = torch.Generator().manual_seed(1)
    state = model.initial_state(LANES)
    found = []
    for step in range(STEPS):
        text_BT = torch.randint(VOCAB, (LANES, BLOCKS * model.block + 1), generator=tokens)
        text_BT[:, 1::2] = (text_BT[:, :-1:2] * 3 + 1) % VOCAB  # something to learn: every other token follows
        targets_BT = text_BT[:, 1:].clone()
        fresh_BK = torch.zeros(LANES, BLOCKS, dtype=torch.bool)
        if step % 5 == 0:
            fresh_BK[0, 0] = fresh_BK[1, 1] = True
            targets_BT[1, model.block - 1] = IGNORED
        nats_BT, state = model(text_BT[:, :-1], state, fresh_BK, targets_BT)
        loss = nats_BT.sum() / (targets_BT != IGNORED).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        state = detach(state)
        found.append(loss.item())
    return found


def path_of(name: str) -> Path:
    """One file for each family: ``rec.json`` holds rec-fixed-skip-meliad and the others."""
    return FOLDER / f"{name.partition('-')[0]}.json"


@pytest.mark.parametrize("name", small_configs())
def test_losses_are_the_committed_ones(name: str) -> None:
    committed = json.loads(path_of(name).read_text())[name]
    assert losses(small_configs()[name], EPS.get(name, 1e-8)) == pytest.approx(committed, rel=TOLERANCE)


def test_nothing_else_is_committed() -> None:
    committed = [name for path in sorted(FOLDER.iterdir()) for name in json.loads(path.read_text())]
    assert sorted(committed) == sorted(small_configs())


def test_only_losses_that_no_longer_hold_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another CPU rounds otherwise, and one model's new losses should not change those of the others."""
    config = SlideConfig(layers=1, d_model=8, heads=2, head_dim=4, mlp_dim=8, window=4)
    monkeypatch.setattr(f"{__name__}.FOLDER", tmp_path)
    configs = dict.fromkeys(("slide-one", "slide-two", "slide-new"), config)
    monkeypatch.setattr(f"{__name__}.small_configs", lambda: configs)
    exact = losses(config)
    rounded_otherwise = [loss * (1 + 1e-7) for loss in exact]
    path = tmp_path / "slide.json"
    path.write_text(json.dumps({"slide-one": rounded_otherwise, "slide-two": [loss + 1 for loss in exact]}))
    main()
    assert capsys.readouterr().out == "wrote new losses of slide-two, slide-new\n"
    found = json.loads(path.read_text())
    assert found["slide-one"] == rounded_otherwise
    assert found["slide-two"] == found["slide-new"] == pytest.approx(exact, abs=1e-9)


def main() -> None:
    """Write the losses of models that are new or changed. Committed losses that still hold stay, digit for digit."""
    torch.set_num_threads(1)
    families: dict[Path, dict[str, list[float]]] = {}
    changed = []
    for name, config in small_configs().items():
        path = path_of(name)
        committed = json.loads(path.read_text()) if path.exists() else {}
        found = [round(loss, 9) for loss in losses(config, EPS.get(name, 1e-8))]
        holds = name in committed and found == pytest.approx(committed[name], rel=TOLERANCE)
        families.setdefault(path, {})[name] = committed[name] if holds else found
        if not holds:
            changed.append(name)
    for path, family in families.items():
        rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(values)}" for name, values in family.items())
        path.write_text(f"{{\n{rows}\n}}\n")
    print(f"wrote new losses of {', '.join(changed) or 'no model'}")


if __name__ == "__main__":
    main()
