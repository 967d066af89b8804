"""The precision of a run: what `auto` chooses by made-up machines, that a resumed run keeps it, and what it costs in loss."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.contenders import model_configs
from common.choices import Dtype
from pipelines.checkpoints.checkpoint import Checkpoint, digest_json
from pipelines.config.run import TrainConfig
from pipelines.presets import PRESETS
from pipelines.tracking.metrics_file import read_records
from pipelines.training import precision
from pipelines.training.precision import MIN_WIDTH, Machine, agree, decide, machine_of
from pipelines.training.world import World
from recur_models import LlamaConfig

Train = Callable[..., Path]

GPU = Machine("cuda", "NVIDIA H100 80GB HBM3")
PLAIN = Machine("cpu", "an old CPU, AVX2")
AVX = Machine("cpu", "a CPU, AVX512, avx512_bf16", ("avx512_bf16",))
AMX = Machine("cpu", "a CPU, AVX512, amx_bf16, avx512_bf16", ("amx_bf16", "avx512_bf16"))

DEMO, SMALL = PRESETS["demo-rec"], PRESETS["small-rec"]
MEDIUM = replace(SMALL, model=model_configs("medium")["rec:fixed:skip"])
SMOLLM2 = replace(
    SMALL, model=LlamaConfig(layers=30, d_model=576, heads=9, kv_heads=3, mlp_dim=1536, window=128, positions=8192)
)

CPUINFO = """processor\t: 0
vendor_id\t: {vendor}
model name\t: A CPU
flags\t\t: fpu sse2 avx512_bf16{more}

processor\t: 1
model name\t: Another CPU
flags\t\t: fpu
"""


@pytest.mark.parametrize("machine", [AVX, AMX])
@pytest.mark.parametrize(
    ("config", "expected"), [(DEMO, "float32"), (SMALL, "bfloat16"), (MEDIUM, "bfloat16"), (SMOLLM2, "bfloat16")]
)
def test_a_cpu_with_units_takes_bfloat16_for_wide_models(
    machine: Machine, config: TrainConfig, expected: Dtype
) -> None:
    chosen = decide(config, 257, machine)
    assert chosen.name == expected and chosen.machine == machine.kind
    assert chosen.dtype == getattr(torch, expected)


@pytest.mark.parametrize("config", [DEMO, SMALL, MEDIUM, SMOLLM2])
def test_other_devices_are_as_ever(config: TrainConfig) -> None:
    assert decide(config, 257, GPU).name == "bfloat16"
    assert decide(config, 257, PLAIN).name == "float32"
    assert decide(config, 257, Machine("mps", "a Mac")).name == "float32"


def test_the_reason_names_the_fastest_unit_and_the_width() -> None:
    assert decide(SMALL, 257, AMX).reason == "the CPU has amx_bf16, and the model's width is 256"
    assert decide(DEMO, 257, AMX).reason == f"the model's width is 96, and auto takes bfloat16 from {MIN_WIDTH} on"
    assert decide(SMALL, 257, PLAIN).reason == "the CPU multiplies bfloat16 no faster than float32"


@pytest.mark.parametrize("machine", [GPU, PLAIN, AVX, AMX])
def test_a_named_precision_and_then_the_runs_own_come_first(machine: Machine) -> None:
    for name in ("float32", "bfloat16"):
        assert decide(replace(SMALL, precision=name), 257, machine).name == name
        assert decide(SMALL, 257, machine, begun=name).name == name
        other = "float32" if name == "bfloat16" else "bfloat16"
        assert decide(replace(SMALL, precision=name), 257, machine, begun=other).name == name


@pytest.mark.parametrize(
    ("vendor", "more", "named", "faster"),
    [
        ("AuthenticAMD", " amx_tile amx_bf16", "amx_bf16, avx512_bf16", ("amx_bf16", "avx512_bf16")),
        ("AuthenticAMD", " amx_tile avx512_bf16_of_tomorrow", "avx512_bf16", ("avx512_bf16",)),
        ("GenuineIntel", " amx_tile amx_bf16", "amx_bf16, avx512_bf16", ("amx_bf16",)),
        ("GenuineIntel", "", "avx512_bf16", ()),
    ],
)
def test_a_feature_counts_if_the_kernel_lists_it_and_it_is_faster_on_the_vendors_cpus(
    tmp_path: Path, vendor: str, more: str, named: str, faster: tuple[str, ...]
) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(CPUINFO.format(vendor=vendor, more=more))
    vector = torch.backends.cpu.get_cpu_capability()
    assert machine_of(torch.device("cpu"), path) == Machine("cpu", f"A CPU, {vector}, {named}", faster)


def test_without_the_kernels_list_no_feature_counts(tmp_path: Path) -> None:
    assert machine_of(torch.device("cpu"), tmp_path / "none").units == ()


class Second(World):
    """The second of two processes, the first of which says bfloat16."""

    def broadcast_str(self, text: str) -> str:
        return "bfloat16"


def test_rank_0_decides_for_all() -> None:
    config = replace(SMALL, precision="float32")  # as the rule on this one's machine might
    assert agree(config, 257, Second(1, 2, torch.device("cpu")), None).name == "bfloat16"


def test_the_choice_is_printed_and_recorded(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    folder = train("--steps", "5", "--precision", "bfloat16")
    assert "  precision  bfloat16: --precision says so\n" in capsys.readouterr().out
    meta = Checkpoint.open(folder / "checkpoints" / "step-00000005").meta
    assert (meta["precision"], meta["machine"]) == ("bfloat16", machine_of(torch.device("cpu")).kind)
    folder = train("--steps", "5", name="auto")
    assert "  precision  float32: the " in capsys.readouterr().out
    assert Checkpoint.open(folder / "checkpoints" / "step-00000005").meta["precision"] == "float32"


def rewrite(folder: Path, **values: object) -> None:
    """Change what the checkpoint's JSON says."""
    path = folder / "checkpoint.json"
    meta = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({**meta, "digest": digest_json(meta)}))


@pytest.mark.parametrize("resumed", ["bfloat16", "float32"])
def test_a_resumed_run_keeps_its_precision(train: Train, capsys: pytest.CaptureFixture[str], resumed: Dtype) -> None:
    folder = train("--steps", "5")
    rewrite(folder / "checkpoints" / "step-00000005", precision=resumed)
    capsys.readouterr()
    train("--steps", "6", "--allow-change", "steps")
    out = capsys.readouterr().out
    assert f"  precision  {resumed}: the run began with it\n" in out and "another kind of machine" not in out
    found = Checkpoint.open(folder / "checkpoints" / "step-00000006")
    assert found.meta["precision"] == resumed
    keys = {tensor.dtype for name, tensor in found.lanes(0, 4)[0].items() if name.endswith(".keys")}
    assert keys == {getattr(torch, resumed)}


def test_a_named_precision_that_may_change_takes_effect(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    train("--steps", "5", "--precision", "bfloat16")
    train("--steps", "6", "--allow-change", "steps", "precision")
    assert "  precision  float32: the " in capsys.readouterr().out.rpartition("training run")[2]


def test_a_run_that_moves_to_another_kind_of_machine_says_so(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    folder = train("--steps", "5")
    rewrite(folder / "checkpoints" / "step-00000005", machine="A CPU, AVX512, amx_bf16")
    capsys.readouterr()
    train("--steps", "6", "--allow-change", "steps")
    said = re.findall("note: .*", capsys.readouterr().out)
    here = machine_of(torch.device("cpu")).kind
    assert said == [
        f"note: step 5 was computed on another kind of machine (A CPU, AVX512, amx_bf16) than this one ({here}): from here "
        "on results are not bit for bit those of a run that stayed there"
    ]


def test_auto_trains_a_wide_model_in_bfloat16_bit_for_bit(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """On any CPU: as the rule has it for one with units."""
    monkeypatch.setattr(precision, "machine_of", lambda device: AMX)
    wide = ("--model.d-model", "256", "--validate-every", "0", "--steps", "10")
    whole, halves = train(*wide, name="whole"), train(*wide, name="halves")
    last = "checkpoints/step-00000010"
    for path in (halves / last).iterdir():
        path.unlink()
    (halves / last).rmdir()
    train(*wide, name="halves")
    one, other = Checkpoint.open(whole / last), Checkpoint.open(halves / last)
    assert one.meta["precision"] == other.meta["precision"] == "bfloat16"
    for name, tensor in one.weights().items():
        assert torch.equal(tensor, other.weights()[name]), name


def test_the_loss_in_bfloat16_is_that_of_float32_within_a_percent(train: Train) -> None:
    ends = []
    for name in ("float32", "bfloat16"):
        folder = train("--precision", name, "--optim.lr", "1e-2", "--steps", "60", "--model.dropout", "0", name=name)
        losses = [record.metrics.get("train/bits_per_token") for record in read_records(folder / "metrics.jsonl")]
        ends.append(np.mean([loss for loss in losses if loss is not None][-5:]))
    assert ends[1] != ends[0] and ends[1] == pytest.approx(ends[0], rel=0.01)


def test_every_preset_has_a_width() -> None:
    """The rule reads the width off the embeddings; only a plug-in may leave it out."""
    for name, config in PRESETS.items():
        width = config.model.costs(257).embedding_parameters // 257
        assert width > 0 and width == (config.model.to_json().get("d_model") or width), name
