"""Whether the machines of a cluster can train a run together: a sentence for each thing that is wrong, naming machine and remedy.

    complaints = readiness.check(config, nodes)         # nodes: ray_session.nodes()

It compares versions of Python, of the libraries that matter and of our own code; the clocks; whether every machine sees the
run's folder and the store, and what the others write there; whether machines reach each other; room on the disks; memory for the
model. The functions of machine.py run on the machines.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rich.filesize import decimal

from common.places import Place
from data_prep.manifest import StoreError
from data_prep.store import SegmentStore
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.cluster.machine import Facts, attempt, connect, facts_here, free_bytes, leave_file, listen, visible_files

if TYPE_CHECKING:  # the functions that run on machines need neither
    from pipelines.cluster.ray_session import Node
    from pipelines.config.run import TrainConfig

T = TypeVar("T")
LIBRARIES = ("torch", "ray", "numpy", "pyarrow", "safetensors", "sentencepiece", "tokenizers", "tiktoken")
CLOCK_SECONDS = 2.0
"""Largest allowed difference between two clocks."""
NODE_BYTES = 1 << 30
"""Bytes that Ray's own folder needs on each machine."""


def needs(config: TrainConfig, vocab_size: int) -> tuple[int, int]:
    """Bytes that a run needs, computed from the model's shapes without memory for it. Activations are not counted.

    Returns the bytes of one checkpoint (weights, optimizer, State of all lanes), and of one worker's memory (weights, gradients,
    optimizer, and its lanes' State).
    """
    import torch

    with torch.device("meta"):
        model = config.model.build(vocab_size)
        state = sum(tensor.nbytes for tensor in model.initial_state(1).values())
    weights = 4 * config.model.costs(vocab_size).parameters
    lanes = config.data.lanes
    trained = 4 * sum(each.numel() for each in model.parameters() if each.requires_grad)
    # adafactor keeps one momentum; its moments of rows and columns are small
    optimizer = trained * (2 if config.optim.name == "adamw" else 1)
    worker = weights + trained + optimizer + state * -(-lanes // max(config.workers[0], 1))
    return weights + optimizer + state * lanes, worker


def check(config: TrainConfig, nodes: Sequence[Node], *, check_room: bool = True) -> list[str]:
    """Everything that is wrong, a sentence each; an empty list says that the run can begin.

    ``nodes``: the head first. ``check_room``: whether they must have room for the run's least number of workers.
    """
    facts = on_each(nodes, facts_here, LIBRARIES)
    complaints = [
        *differing_versions(nodes, facts),
        *differing_clocks(nodes),
        *not_shared(nodes, Place.parse(config.root)),
        *store_not_seen(nodes, config),
        *not_reached(nodes),
        *no_disk_for_ray(nodes, facts),
    ]
    with contextlib.suppress(StoreError):  # store_not_seen reports it
        vocab_size = SegmentStore.open(config.data.store, config.data.corpus, "train").vocab_size
        checkpoint, worker = needs(config, vocab_size)
        complaints += no_disk_for_checkpoints(config, nodes[0], checkpoint)
        complaints += no_memory_for_workers(config, nodes, facts, worker)
        if check_room:
            complaints += no_room(config, nodes)
    return complaints


def on_each(nodes: Sequence[Node], function: Callable[..., T], *arguments: Any) -> list[T]:
    """The result of a function on each machine; all call it at the same time."""
    return [wait() for wait in [node.begin(function, *arguments) for node in nodes]]


# What is compared


def different(nodes: Sequence[Node], answers: Sequence[T]) -> tuple[T, list[tuple[Node, T]]]:
    """The answer of most machines (if several tie, the first), and the machines that answer otherwise."""
    usual = max(answers, key=answers.count)
    return usual, [(node, answer) for node, answer in zip(nodes, answers, strict=True) if answer != usual]


def differing_versions(nodes: Sequence[Node], facts: Sequence[Facts]) -> list[str]:
    """A sentence for each machine whose Python, library or code differs from most others'."""
    complaints = []
    for name in facts[0].versions:
        remedy = "set the machine up again (clusters/setup_node.sh)"
        if name == "our code":
            remedy = "`ray rsync-up cluster.yaml` or `ray up --no-restart` brings your folder to it"
        usual, others = different(nodes, [own.versions[name] for own in facts])
        complaints += [f"{label(node)} has {name} {other}, the others have {usual}: {remedy}" for node, other in others]
    return complaints


def differing_clocks(nodes: Sequence[Node]) -> list[str]:
    """A sentence for each machine whose clock is off by more than `CLOCK_SECONDS`."""
    complaints = []
    for node in nodes:
        before = time.time()
        there = node.begin(time.time)()
        after = time.time()
        skew = there - (before + after) / 2
        if abs(skew) > CLOCK_SECONDS + (after - before) / 2:
            complaints.append(
                f"the clock of {label(node)} is {abs(skew):.0f} s {'ahead' if skew > 0 else 'behind'}: heartbeats and MLflow "
                "compare times of different machines; have it follow a time server (chrony)"
            )
    return complaints


def not_shared(nodes: Sequence[Node], root: Place) -> list[str]:
    """A sentence for each machine that does not share the run's root. Each writes a file there, and lists the files of all."""
    folder = root / f".preflight-{secrets.token_hex(6)}"
    try:
        answers = on_each(nodes, attempt, leave_file, folder)
        refused = [
            f"{label(node)} cannot write to {root}: {why}; mount it there, with write permission"
            for node, (_, why) in zip(nodes, answers, strict=True)
            if why
        ]
        if refused:
            return refused
        _, others = different(nodes, on_each(nodes, visible_files, folder, [name for name, _ in answers]))
        return [
            f"{root} on {label(node)} is a folder of its own: the other machines do not see what it writes there; mount the shared "
            "storage, or give --root a folder (or bucket) that all machines share"
            for node, _ in others
        ]
    finally:
        on_each(nodes, attempt, folder.delete)


def store_not_seen(nodes: Sequence[Node], config: TrainConfig) -> list[str]:
    """A sentence for each machine that cannot read the store, or reads another one."""
    manifest = Place.parse(config.data.store) / config.data.corpus / "train" / "manifest.json"
    answers = on_each(nodes, attempt, manifest.xxh3)
    readers = [(node, found) for node, (found, _) in zip(nodes, answers, strict=True) if found]
    unread = [
        f"{label(node)} cannot read {manifest} ({why}): mount the store there, or prepare it in a folder that all machines share"
        for node, (found, why) in zip(nodes, answers, strict=True)
        if not found
    ]
    others = [
        f"{manifest} on {label(node)} is another one than on {label(readers[0][0])}: mount the same store"
        for node, found in readers
        if found != readers[0][1]
    ]
    return unread + others


def not_reached(nodes: Sequence[Node]) -> list[str]:
    """A sentence for each failed connection. Each machine opens a port, and its neighbours connect, as gloo, NCCL and Ray need."""
    complaints = []
    for i, listener in enumerate(nodes):
        for caller in {nodes[i - 1], nodes[(i + 1) % len(nodes)]} - {listener}:
            port = listener.begin(listen, listener.address)()
            _, why = caller.begin(attempt, connect, listener.address, port)()
            if why:
                complaints.append(
                    f"{label(caller)} does not reach port {port} of {label(listener)} ({why}): open all ports between the machines "
                    "of the cluster"
                )
    return complaints


def no_disk_for_ray(nodes: Sequence[Node], facts: Sequence[Facts]) -> list[str]:
    """A sentence for each machine whose disk has less than `NODE_BYTES` for Ray's own files."""
    return [
        f"{label(node)} has {decimal(own.disk)} free for Ray's own files, and {decimal(NODE_BYTES)} are needed: make room in "
        "/tmp/ray, or start Ray with RAY_TMPDIR on another disk"
        for node, own in zip(nodes, facts, strict=True)
        if own.disk < NODE_BYTES
    ]


def no_disk_for_checkpoints(config: TrainConfig, head: Node, checkpoint: int) -> list[str]:
    """A list with a sentence if the run's checkpoints need more than is free where they are kept. ``checkpoint``: bytes of one."""
    root = Place.parse(config.root)
    if not root.is_local:
        return []
    kept = config.checkpoint.keep + config.checkpoint.keep_best + 1  # and the one that is being written
    kept = max(kept - len(RunFolder.of(config).checkpoint_names()), 1)  # a run that resumes has some
    free = head.begin(free_bytes, root.path)()
    if free >= kept * checkpoint:
        return []
    return [
        f"{root} has {decimal(free)} free, and {kept} checkpoints of {decimal(checkpoint)} need "
        f"{decimal(kept * checkpoint)}: make room, give --root another disk, or keep fewer (--checkpoint.keep)"
    ]


def no_memory_for_workers(config: TrainConfig, nodes: Sequence[Node], facts: Sequence[Facts], worker: int) -> list[str]:
    """A sentence for each machine whose GPUs or memory are too small. ``worker``: bytes that one worker needs."""
    complaints = []
    use_gpu = uses_gpu(config, nodes)
    for node, own in zip(nodes, facts, strict=True):
        fits = config.placement.fits(node.resources, use_gpu)
        if fits and use_gpu and own.gpu_memory * min(config.placement.gpus, 1) < worker:
            complaints.append(
                f"{label(node)} has GPUs of {decimal(own.gpu_memory)}, and weights, gradients and optimizer of a worker need "
                f"{decimal(worker)}, activations not counted: take a larger GPU or a smaller model"
            )
        together = 1 if use_gpu else min(fits, config.workers[-1])
        if fits and own.memory < together * worker:
            complaints.append(
                f"{label(node)} has {decimal(own.memory)} of memory free, and {together} worker{'s' * (together > 1)} of "
                f"{decimal(worker)} would stand there, activations not counted: give workers more CPUs (--placement.cpus) so "
                "that fewer stand on a machine, or take a smaller model"
            )
    return complaints


def no_room(config: TrainConfig, nodes: Sequence[Node]) -> list[str]:
    """A list with a sentence if the machines cannot hold the run's least number of workers; else empty."""
    use_gpu = uses_gpu(config, nodes)
    most = sum(config.placement.fits(node.resources, use_gpu) for node in nodes)
    if most >= config.workers[0]:
        return []
    return [
        f"the machines have room for {most} workers of {worker_resources(config, use_gpu)}, and the run needs {config.workers[0]}: "
        f"add machines, or give --num-workers {most or 1}"
    ]


def uses_gpu(config: TrainConfig, nodes: Sequence[Node]) -> bool:
    """Whether the run's workers train on GPUs: by Ray's count of them, as in training."""
    return config.uses_gpu(sum(node.resources.get("GPU", 0) for node in nodes))


def worker_resources(config: TrainConfig, use_gpu: bool) -> str:
    """The resources and placement of workers: "1 CPU, 1 GPU (pack)"."""
    each = ", ".join(f"{amount:g} {name}" for name, amount in config.placement.worker(use_gpu).items())
    return f"{each} ({config.placement.strategy})"


def label(node: Node) -> str:
    """A machine in a sentence: its name and address."""
    return f"{node.name} ({node.address})"
