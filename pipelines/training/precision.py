"""The precision of a run's products: what `--precision auto` chooses on a device, for a model, and on resuming.

    machine = machine_of(torch.device("cpu"))               # Machine("cpu", "AMD EPYC, AVX512, avx512_bf16", ("avx512_bf16",))
    decide(config, vocab_size, machine)                     # Precision("bfloat16", "the CPU has avx512_bf16, and …")
    autocast = autocast_to("bfloat16", device)               # with autocast(): products in it

Autocast computes products in the precision. Parameters, optimizer and gradients stay in float32.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import torch

from common.choices import Dtype
from pipelines.checkpoints.checkpoint import Checkpoint
from pipelines.config.run import ModelSettings, TrainConfig
from pipelines.training.world import World

AMX = "amx_bf16"
"""The CPU feature of tiles that multiply bfloat16, by the kernel's name."""
AVX512 = "avx512_bf16"
"""The feature of AVX-512's dot products in bfloat16. A product takes 0.25 times float32's time on an AMD EPYC, and 1.8
times float32's time on an Intel Xeon (results/speed)."""
VENDORS = {AVX512: "AuthenticAMD"}
"""The vendor on whose CPUs a feature makes products faster, where it is not so on all."""
MIN_WIDTH = 256
"""The narrowest model that trains in bfloat16 on such a CPU: in a narrow one casts take what products gain. With avx512_bf16 a step
gains from 128 on (results/speed), but the tables of the papers at tiny scale, up to 192 wide, compare all rows in one precision."""


@dataclass(frozen=True)
class Machine:
    """The hardware of one process, as far as its results depend on it."""

    device: str
    """torch's type of device, such as "cpu"."""
    kind: str
    """The GPU's name; or the CPU's, the vector instructions that torch uses on it, and its features for bfloat16."""
    units: tuple[str, ...] = ()
    """The features by which a CPU multiplies bfloat16 faster than float32, the fastest first."""


@dataclass(frozen=True)
class Precision:
    """The chosen precision, and the machine of the process that has chosen it."""

    name: Dtype
    reason: str
    """Why it was chosen, as a clause."""
    machine: str
    """The `kind` of the machine."""

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.name == "bfloat16" else torch.float32


def machine_of(device: torch.device, cpuinfo: Path = Path("/proc/cpuinfo")) -> Machine:
    """The machine as this process sees it.

    Linux lists a feature in /proc/cpuinfo only if the kernel lets programs use it. torch.cpu.get_capabilities() does not ask the
    kernel: before Linux 5.16 it names tiles that nothing may use. Without the file no feature is known.
    """
    if device.type == "cuda":
        return Machine(device.type, torch.cuda.get_device_name(device))
    fields: dict[str, str] = {}
    if cpuinfo.exists():
        for line in cpuinfo.read_text("utf-8").splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    flags = fields.get("flags", "").split()
    features = [feature for feature in (AMX, AVX512) if feature in flags]
    vendor = fields.get("vendor_id")
    faster = tuple(feature for feature in features if VENDORS.get(feature, vendor) == vendor)
    name = fields.get("model name") or platform.machine()
    kind = ", ".join([name, torch.backends.cpu.get_cpu_capability(), *features])
    return Machine(device.type, kind, faster)


def autocast_to(name: Dtype, device: torch.device) -> Callable[[], AbstractContextManager[object]]:
    """A function that makes contexts in which products are in this precision."""
    return partial(torch.autocast, device.type, torch.bfloat16, enabled=name == "bfloat16")


def width_of(model: ModelSettings, vocab_size: int) -> int:
    """The size of a token's embedding."""
    return model.costs(vocab_size).embedding_parameters // vocab_size


def decide(config: TrainConfig, vocab_size: int, machine: Machine, begun: Dtype | None = None) -> Precision:
    """The precision of a run, and why. It depends on the arguments alone.

    Args:
        machine: that of rank 0, which decides for all.
        begun: the precision in which the run was trained before, if `auto` has chosen it.
    """
    chosen = partial(Precision, machine=machine.kind)
    if config.precision != "auto":
        return chosen(config.precision, "--precision says so")
    if begun:
        return chosen(begun, "the run began with it")
    if machine.device == "cuda":
        return chosen("bfloat16", "it trains on a GPU")
    if not machine.units:
        return chosen("float32", "the CPU multiplies bfloat16 no faster than float32")
    width = width_of(config.model, vocab_size)
    if width < MIN_WIDTH:
        return chosen("float32", f"the model's width is {width}, and auto takes bfloat16 from {MIN_WIDTH} on")
    return chosen("bfloat16", f"the CPU has {machine.units[0]}, and the model's width is {width}")


def agree(config: TrainConfig, vocab_size: int, world: World, resume: Checkpoint | None) -> Precision:
    """The precision of a run in all of its processes: rank 0's, whatever the machines of the others."""
    machine = machine_of(world.device)
    chosen = decide(config, vocab_size, machine, recorded_precision(resume) if resume else None)
    return replace(chosen, name=cast("Dtype", world.broadcast_str(chosen.name)))


def recorded_precision(resume: Checkpoint) -> Dtype | None:
    """The precision that `auto` chose when the run began; None if the run's config names one, or the checkpoint records none."""
    return resume.meta.get("precision") if resume.meta["config"]["precision"] == "auto" else None


def moved_from(resume: Checkpoint, precision: Precision) -> str:
    """A sentence if the checkpoint was written on another kind of machine than this one; empty if not, or if nothing is known."""
    before = resume.meta.get("machine", precision.machine)
    if before == precision.machine:
        return ""
    return (
        f"step {resume.step:,} was computed on another kind of machine ({before}) than this one ({precision.machine}): from here "
        "on results are not bit for bit those of a run that stayed there"
    )
