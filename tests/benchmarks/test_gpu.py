"""The GPU benchmark, on the CPU: nothing but the device and the sizes differ."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import bare, gpu, gpu_attention, gpu_checks
from benchmarks.contenders import peer_version
from benchmarks.gpu_models import MODELS
from recur_models.window import buckets_of_window, window_bias

TINY = ["--device", "cpu", "--size", "tiny", "--steps", "1"]


@pytest.mark.slow
def test_all_models_are_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "gpu.json"
    assert gpu.main([*TINY, "--compile", "no", "--output", str(output)]) == 0
    written = json.loads(output.read_text())
    rate, config = written["matrix_flops_per_second"], gpu.BenchConfig(device="cpu", size="tiny")
    done = {measurement["model"]: measurement for measurement in written["measurements"]}
    assert [*done] == [name for name in config.models if name != "peer" or peer_version()]
    for name, measurement in done.items():
        assert 0 < measurement["fastest_seconds"] <= measurement["seconds"] <= measurement["slowest_seconds"]
        assert measurement["tokens_per_second"] == pytest.approx(2 * 64 / measurement["seconds"])
        assert measurement["mfu"] is None  # a CPU has no data sheet
        assert measurement["losses"][0] == pytest.approx(5.6, abs=1.5)  # ln 257, before anything is learned
        assert measurement["to_slide"] == pytest.approx(measurement["seconds"] / done["slide"]["seconds"])
        if name != "peer":
            share = measurement["share_of_matrix_rate"]
            assert share == pytest.approx(measurement["floor_seconds"] / measurement["seconds"]) and share < 1
            needed = config.of(name).costs(257).training_flops_per_token
            assert measurement["floor_seconds"] == pytest.approx(128 * needed / rate)
    table = output.with_suffix(".md").read_text()
    assert table == capsys.readouterr().out and table.count("| no | 2 |") == len(done)


@pytest.mark.long
def test_a_model_is_compiled_profiled_resumed_and_writes(tmp_path: Path) -> None:
    output = tmp_path / "gpu.json"
    words = [*TINY, "--backend", "aot_eager", "--output", str(output)]

    def measurements(*more: str, model: str = "slide") -> list[dict[str, Any]]:
        assert gpu.main([*words, "--models", model, *more]) == 0
        return json.loads(output.read_text())["measurements"]

    layer, whole = measurements("--compile", "layer", "model")
    assert (layer["compile"], whole["compile"]) == ("layer", "model") and not layer["failure"] + whole["failure"]
    assert layer["losses"] == pytest.approx(whole["losses"], rel=1e-5)
    (profile,) = measurements("--measure", "profile", "--compile", "no")
    assert len(profile["kernels"]) == gpu_checks.KERNELS and profile["busy_ms"] > profile["kernels"][0][1] > 0
    losses, *resumed = measurements("--measure", "precision", "--training-steps", "15", "--compile", "no")
    assert len(losses["bfloat16"]) == 15 and losses["float32"][-1] < losses["float32"][0]
    assert [each["equal"] for each in resumed] == [True, True]
    stretches = measurements("--measure", "generation", "--tokens", "40", model="rec")
    assert [each["tokens"] for each in stretches] == [4 * i for i in range(1, 11)] and stretches[0]["bytes"] > 0


def test_a_model_that_does_not_fit_gets_half_the_lanes_and_one_that_fails_stops_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = gpu.BenchConfig(device="cpu", size="tiny")

    def measured(name: str, unit: str, config: gpu.BenchConfig) -> gpu.Measurement:
        if name == "vanilla":
            raise ValueError("of its own")
        if config.most_lanes > 1:
            raise torch.OutOfMemoryError
        return gpu.Measurement(name, unit, config.most_lanes, config.length)

    monkeypatch.setattr(gpu, "measured", measured)
    fits = gpu.fitted("slide", "no", config)
    assert fits.lanes == 1 and not fits.failure
    asked = gpu.fitted("slide", "no", replace(config, lanes=8))
    assert asked.lanes == 8 and asked.failure.startswith("OutOfMemoryError")
    assert gpu.fitted("vanilla", "no", config).failure == "ValueError: of its own"


def test_memory_is_compared_with_as_many_lanes_and_nothing_with_what_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = gpu.BenchConfig(device="cpu", size="tiny", models=("rec", "peer"), compile=("no",))
    peer = gpu.Measurement("peer", "no", 32, 64, seconds=2.0, peak_bytes=4)
    rec = replace(peer, model="rec", seconds=1.0, peak_bytes=3)
    told = [
        (rec, "rec reads 2.00 × the peer's tokens/s, at 0.75 × its memory (compile no)"),
        (replace(rec, lanes=16), "rec reads 1.00 × the peer's tokens/s, 16 lanes against 32 (compile no)"),
        (replace(rec, failure="OutOfMemoryError"), ""),
    ]
    monkeypatch.setattr(gpu, "peer_version", lambda: "0")
    for found, line in told:
        done = {"rec": found, "peer": peer}
        monkeypatch.setattr(gpu, "fitted", lambda name, *_, done=done: done[name])
        report = gpu.Report(config, {"matrix_flops_per_second": 1.0, "data_sheet_flops_per_second": None})
        gpu.speed(config, report)
        report.limit.cancel()
        last = capsys.readouterr().out.splitlines()[-1]
        assert last == line if line else "rec reads" not in last


def test_a_failure_is_written_word_for_word_and_a_missing_number_as_null(tmp_path: Path) -> None:
    output = tmp_path / "gpu.json"
    config = gpu.BenchConfig(device="cpu", size="tiny", output=output)
    report = gpu.Report(config, {"matrix_flops_per_second": 1.0, "data_sheet_flops_per_second": None})
    report.limit.cancel()
    report.say("rec failed", {"failure": "the loss is NaN", "share": math.nan, "losses": (math.nan, 1.0)})
    written = json.loads(output.read_text("utf-8"))["measurements"]
    assert written == [{"failure": "the loss is NaN", "share": None, "losses": [None, 1.0]}]


def test_windowed_attention_is_the_same_in_all_ways() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 2, rows, 4, requires_grad=True) for rows in (8, 16, 16))
    bucket_WZ, unseen_WZ = buckets_of_window(torch.arange(8), 8)
    bias = window_bias(None, torch.ones(2), bucket_WZ, unseen_WZ).expand(2, -1, -1) + torch.randn(2, 8, 16)
    bias = bias.clone().requires_grad_()
    expected = gpu_attention.ours(q, k, v, bias)
    theirs = torch.autograd.grad(expected.square().sum(), (q, k, v, bias))
    flex = gpu_attention.flex(*(each.detach() for each in (q, k, v, bias)))  # on a CPU it has no backward pass
    torch.testing.assert_close(flex, expected, rtol=1e-5, atol=1e-5)
    found = gpu_attention.scaled_dot_product(q, k, v, bias)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for one, other in zip(torch.autograd.grad(found.square().sum(), (q, k, v, bias)), theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_the_sizes_are_the_papers() -> None:
    config = gpu.BenchConfig(device="cpu")
    counted = {name: config.of(name).costs(config.vocab_size) for name in MODELS}
    slide = counted["slide"]
    more = {
        "rec-lstm-dual": 1.09,
        "feedback": 1.16,
        "xl": 1.11,
        "staircase": 1.83,
        "cached-staircase": 1.14,
        "gpt2-rec": 1.08,
    }
    assert config.of("llama").costs(49_152).parameters == 134_515_008  # SmolLM2-135M's
    counted = {name: cost for name, cost in counted.items() if not name.startswith("llama")}
    for name, cost in counted.items():
        assert cost.parameters == pytest.approx(slide.parameters, rel=0.12), name
        flops = cost.training_flops_per_token / slide.training_flops_per_token
        assert flops == pytest.approx(more.get(name, 1), rel=0.05), name


BARE = """
import sys
class NotThere:
    def find_spec(name, *_):
        if name.partition(".")[0] in NAMES.split():
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, NotThere)
from benchmarks import gpu
sys.exit(gpu.main(WORDS.split()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["100", "0.001"])
def test_it_needs_little_and_ends_in_time(limit: str) -> None:
    not_there = "ray mlflow matplotlib tyro docstring_parser transformers tokenizers sentencepiece psutil"
    words = f"--device cpu --size tiny --steps 1 --models slide --compile no --limit {limit}"
    code = BARE.replace("NAMES", repr(not_there)).replace("WORDS", repr(words))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == (0 if limit == "100" else 1), done.stderr
    assert ("| slide | no | 2 |" in done.stdout) == (limit == "100")
    assert ("as --limit says" in done.stdout) == (limit != "100")


def test_the_bare_command_line_reads_what_tyros_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = [
        *TINY,
        "--models",
        "rec",
        "xl",
        "--compile",
        "layer",
        "--limit",
        "7.5",
        "--output",
        str(tmp_path / "a.json"),
    ]
    theirs = bare.parse(gpu.BenchConfig, words, "")
    monkeypatch.setattr(bare, "command_line", lambda: None)
    assert bare.parse(gpu.BenchConfig, words, "") == theirs
    assert theirs == gpu.BenchConfig(
        device="cpu",
        size="tiny",
        steps=1,
        models=("rec", "xl"),
        compile=("layer",),
        limit=7.5,
        output=tmp_path / "a.json",
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(ValueError, match=r"torch sees no GPU: .* --device cpu --size tiny"):
        gpu.main([])
