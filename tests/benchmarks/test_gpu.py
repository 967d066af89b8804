"""The GPU benchmark, on the CPU: nothing but the device and the sizes differ."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu


@pytest.mark.slow
def test_all_models_are_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "gpu.json"
    words = ["--device", "cpu", "--size", "tiny", "--steps", "1", "--compile", "no", "--output", str(output)]
    assert gpu.main(words) == 0
    written = json.loads(output.read_text())
    rate = written["matrix_flops_per_second"]
    assert [figures["model"] for figures in written["figures"]] == list(gpu.MODELS)
    for figures in written["figures"]:
        assert 0 < figures["fastest_seconds"] <= figures["seconds"] <= figures["slowest_seconds"]
        assert figures["tokens_per_second"] == pytest.approx(2 * 64 / figures["seconds"])
        share = figures["share_of_matrix_rate"]
        assert share == pytest.approx(figures["floor_seconds"] / figures["seconds"]) and share < 1
        assert figures["mfu"] is None  # a CPU has no data sheet
        model = gpu.sized(gpu.MODELS[figures["model"]], gpu.BenchConfig(device="cpu", size="tiny"))
        assert figures["floor_seconds"] == pytest.approx(128 * model.costs(257).training_flops_per_token / rate)
        assert sum(share for *_, share in figures["where"]) <= 1 + 1e-9
        assert figures["losses"][0] == pytest.approx(5.6, abs=1.0)  # ln 257, before anything is learned
    slide = written["figures"][1]["seconds"]
    assert [f["to_slide"] and f["to_slide"] * slide for f in written["figures"]][1:] == pytest.approx(
        [f["seconds"] for f in written["figures"]][1:]
    )
    out = capsys.readouterr().out
    assert out.count("where a step of") == 4 and "floor:" in out


def test_the_sizes_are_the_papers() -> None:
    config = gpu.BenchConfig(device="cpu")
    counted = {name: gpu.sized(model, config).costs(gpu.VOCAB_SIZE) for name, model in gpu.MODELS.items()}
    slide = counted["slide"]
    for name, cost in counted.items():
        assert cost.parameters == pytest.approx(slide.parameters, rel=0.12), name
        assert cost.flops == pytest.approx({"feedback": 1.16}.get(name, 1) * slide.flops, rel=0.05), name


@pytest.mark.slow
def test_it_needs_neither_ray_nor_mlflow() -> None:
    code = """
import sys
sys.modules.update(dict.fromkeys(("ray", "mlflow", "matplotlib")))  # importing them fails
from benchmarks import gpu
sys.exit(gpu.main("--device cpu --size tiny --steps 1 --models slide --compile no".split()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(ValueError, match=r"torch sees no GPU: .* --device cpu --size tiny"):
        gpu.main([])
