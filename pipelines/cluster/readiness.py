"""Whether the machines of a cluster can train a run together: a sentence for each thing that is wrong, naming machine and remedy.

    complaints = readiness.check(config, nodes)         # nodes: ray_session.nodes()

What is compared: versions of Python, of the libraries that matter and of our own code; the clocks; whether every machine sees the
run's folder and the store, and what the others write there; whether machines reach each other; room on the disks; memory for the
model. The functions below it are called on the machines themselves.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import platform
import secrets
import shutil
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psutil
import xxhash

from data_prep.places import Place
from pipelines.config.run import TrainConfig

T = TypeVar("T")
LIBRARIES = ("torch", "ray", "numpy", "pyarrow", "safetensors", "sentencepiece", "tokenizers", "tiktoken")
CLOCK_SECONDS = 2.0
"""By how much two clocks may differ."""
NODE_BYTES = 1 << 30
"""What Ray's own folder needs on each machine."""
CONNECT_SECONDS = 5.0


class Node(Protocol):
    """A machine on which functions can be called; ray_session.Node is one."""

    name: str
    address: str
    resources: dict[str, float]

    def begin(self, function: Callable[..., T], *arguments: Any) -> Callable[[], T]: ...


@dataclass(frozen=True)
class Facts:
    """What a machine says of itself."""

    versions: dict[str, str]
    memory: int
    """Bytes that are free for programs."""
    disk: int
    """Bytes that are free where Ray keeps its files."""
    gpu_memory: int
    """Bytes of the smallest GPU; 0 without one."""


@dataclass(frozen=True)
class Needs:
    """What a run asks of machines, in bytes: floors, counted from the model's sizes."""

    checkpoint: int
    """One checkpoint: weights, optimizer, State of all lanes."""
    worker: int
    """Weights, gradients and optimizer of one worker, and its lanes' State."""


def needs(config: TrainConfig, vocab_size: int) -> Needs:
    """Counted as the model would be built: nothing is built."""
    import torch

    with torch.device("meta"):
        model = config.model.build(vocab_size)
        state = sum(tensor.numel() * tensor.element_size() for tensor in model.initial_state(1).values())
    weights = 4 * config.model.costs(vocab_size).parameters
    optimizer = weights * (
        2 if config.optim.name == "adamw" else 1
    )  # adafactor: a momentum; its rows and columns are small
    lanes = config.data.lanes
    worker = 2 * weights + optimizer + state * -(-lanes // max(config.workers[0], 1))
    return Needs(weights + optimizer + state * lanes, worker)


def check(config: TrainConfig, nodes: Sequence[Node], vocab_size: int | None, *, room: bool = True) -> list[str]:
    """Everything that is wrong, a sentence each; an empty list says that the run can begin.

    Args:
        nodes: the head first.
        vocab_size: of the store; None leaves memory and checkpoints out.
        room: whether these machines must hold all of the workers.
    """
    waiting = [node.begin(facts, LIBRARIES) for node in nodes]
    found = [wait() for wait in waiting]
    root = Place.parse(config.root)
    complaints = [
        *differing_versions(nodes, found),
        *differing_clocks(nodes),
        *not_shared(nodes, root),
        *store_not_seen(nodes, config),
        *not_reached(nodes),
        *small_disks(nodes, found),
    ]
    if vocab_size is not None:
        complaints += too_small(config, nodes, found, needs(config, vocab_size), root, room)
    return complaints


# What is compared


def differing_versions(nodes: Sequence[Node], found: Sequence[Facts]) -> list[str]:
    complaints = []
    for name in found[0].versions:
        versions = [facts.versions[name] for facts in found]
        usual = Counter(versions).most_common(1)[0][0]
        usual = versions[0] if versions.count(versions[0]) == versions.count(usual) else usual
        for node, version in zip(nodes, versions, strict=True):
            if version != usual:
                remedy = (
                    "`ray rsync-up cluster.yaml` or `ray up --no-restart` brings your folder to it"
                    if name == "our code"
                    else "set the machine up again (clusters/setup_node.sh)"
                )
                complaints.append(f"{told(node)} has {name} {version}, the others have {usual}: {remedy}")
    return complaints


def differing_clocks(nodes: Sequence[Node]) -> list[str]:
    complaints = []
    for node in nodes:
        skew, doubt = 0.0, float("inf")
        for _ in range(3):
            before = time.time()
            there = node.begin(time.time)()
            after = time.time()
            if after - before < doubt:
                skew, doubt = there - (before + after) / 2, after - before
        if abs(skew) - doubt / 2 > CLOCK_SECONDS:
            complaints.append(
                f"the clock of {told(node)} is {abs(skew):.0f} s {'ahead' if skew > 0 else 'behind'}: heartbeats and MLflow "
                "compare times of different machines; have it follow a time server (chrony)"
            )
    return complaints


def not_shared(nodes: Sequence[Node], root: Place) -> list[str]:
    """Every machine writes a file into the run's root, and looks for those of the others."""
    folder = root / f".preflight-{secrets.token_hex(6)}"
    names = [f"machine-{i}" for i in range(len(nodes))]
    try:
        waiting = [node.begin(leave, folder, name) for node, name in zip(nodes, names, strict=True)]
        refused = [wait() for wait in waiting]
        if any(refused):
            return [
                f"{told(node)} cannot write to {root}: {why}; mount it there, with write permission"
                for node, why in zip(nodes, refused, strict=True)
                if why
            ]
        waiting = [node.begin(absent, folder, tuple(names)) for node in nodes]
        unseen = [wait() for wait in waiting]
        alone = [
            i
            for i in range(len(nodes))
            if all(names[i] in lost for j, lost in enumerate(unseen) if j != i) and nodes[1:]
        ]
        if alone and any(unseen):
            who = alone[1:] if len(alone) == len(nodes) else alone  # all differ: from the first, which is the head
            return [
                f"{root} on {told(nodes[i])} is a folder of its own: the other machines do not see what it writes there; "
                "mount the shared storage, or give --root a folder (or bucket) that all machines share"
                for i in who
            ]
        return [
            f"{told(node)} does not see in {root} what {told(nodes[names.index(lost[0])])} wrote there: mount the same "
            "shared storage"
            for node, lost in zip(nodes, unseen, strict=True)
            if lost
        ]
    finally:
        for node in nodes:
            node.begin(sweep, folder)()


def store_not_seen(nodes: Sequence[Node], config: TrainConfig) -> list[str]:
    manifest = Place.parse(config.data.store) / config.data.corpus / "train" / "manifest.json"
    waiting = [node.begin(digest, manifest) for node in nodes]
    digests = [wait() for wait in waiting]
    usual = next((text for text in digests if not text.startswith("cannot")), "")
    complaints = []
    for node, text in zip(nodes, digests, strict=True):
        if text.startswith("cannot"):
            complaints.append(
                f"{told(node)} {text}: mount the store there, or prepare it in a folder that all machines share"
            )
        elif text != usual:
            complaints.append(
                f"{manifest} on {told(node)} is another one than on {told(nodes[0])}: mount the same store"
            )
    return complaints


def not_reached(nodes: Sequence[Node]) -> list[str]:
    """Each machine connects to a port that the next one opens, and the other way round: what gloo, NCCL and Ray need."""
    complaints = []
    for i, node in enumerate(nodes if nodes[1:] else ()):
        other = nodes[(i + 1) % len(nodes)]
        for listener, caller in ((node, other), (other, node)) if len(nodes) > 2 or i == 0 else ():
            port = listener.begin(listen, listener.address)()
            why = caller.begin(connect, listener.address, port)()
            if why:
                complaints.append(
                    f"{told(caller)} does not reach port {port} of {told(listener)} ({why}): open all ports between the machines "
                    "of the cluster"
                )
    return complaints


def small_disks(nodes: Sequence[Node], found: Sequence[Facts]) -> list[str]:
    return [
        f"{told(node)} has {size(facts.disk)} free for Ray's own files, and {size(NODE_BYTES)} are needed: make room in "
        "/tmp/ray, or start Ray with RAY_TMPDIR on another disk"
        for node, facts in zip(nodes, found, strict=True)
        if facts.disk < NODE_BYTES
    ]


def too_small(
    config: TrainConfig, nodes: Sequence[Node], found: Sequence[Facts], needs: Needs, root: Place, room: bool = True
) -> list[str]:
    """Room for the checkpoints that are kept, and memory for the workers that a machine would hold."""
    complaints = []
    kept = config.checkpoint.keep + config.checkpoint.keep_best + 1  # and the one that is being written
    if root.is_local:
        free = nodes[0].begin(free_bytes, root.path)()
        if free < kept * needs.checkpoint:
            complaints.append(
                f"{root} has {size(free)} free, and {kept} checkpoints of {size(needs.checkpoint)} need "
                f"{size(kept * needs.checkpoint)}: make room, give --root another disk, or keep fewer (--checkpoint.keep)"
            )
    use_gpu = config.use_gpu == "yes" or (config.use_gpu == "auto" and any(facts.gpu_memory for facts in found))
    worker = config.placement.worker(use_gpu)
    most = 0
    for node, facts in zip(nodes, found, strict=True):
        fits = int(min(node.resources.get(name, 0) / amount for name, amount in worker.items()))
        fits = min(fits, 1) if config.placement.strategy == "strict-spread" else fits
        most += fits
        if fits and use_gpu and facts.gpu_memory * min(config.placement.gpus, 1) < needs.worker:
            complaints.append(
                f"{told(node)} has GPUs of {size(facts.gpu_memory)}, and weights, gradients and optimizer of a worker need "
                f"{size(needs.worker)}, activations not counted: take a larger GPU or a smaller model"
            )
        together = 1 if use_gpu else min(fits, config.workers[-1])
        if fits and facts.memory < together * needs.worker:
            complaints.append(
                f"{told(node)} has {size(facts.memory)} of memory free, and {together} worker{'s' * (together > 1)} of "
                f"{size(needs.worker)} would stand there, activations not counted: give workers more CPUs (--placement.cpus) so "
                "that fewer stand on a machine, or take a smaller model"
            )
    if room and most < config.workers[0]:
        asked = ", ".join(f"{amount:g} {name}" for name, amount in worker.items())
        complaints.append(
            f"the machines have room for {most} workers of {asked} ({config.placement.strategy}), and the run needs "
            f"{config.workers[0]}: add machines, or give --num-workers {most or 1}"
        )
    return complaints


# What is called on the machines


def facts(libraries: Sequence[str]) -> Facts:
    versions = {"Python": platform.python_version()}
    for library in libraries:
        try:
            versions[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            versions[library] = "(not installed)"
    versions["our code"] = code_digest()
    temporary = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    return Facts(versions, psutil.virtual_memory().available, free_bytes(temporary), smallest_gpu())


@functools.cache
def code_digest() -> str:
    """A digest of the Python files of our packages, as this process would import them."""
    total = xxhash.xxh3_64()
    for package in ("data_prep", "recur_models", "tune_spaces", "pipelines"):
        folder = Path(str(importlib.import_module(package).__file__)).parent
        for path in sorted(folder.rglob("*.py")):
            total.update(f"{package}/{path.relative_to(folder)}".encode())
            total.update(path.read_bytes())
    return total.hexdigest()[:12]


def smallest_gpu() -> int:
    if not shutil.which("nvidia-smi"):
        return 0
    import torch

    count = torch.cuda.device_count()
    return min((torch.cuda.get_device_properties(i).total_memory for i in range(count)), default=0)


def free_bytes(path: str) -> int:
    """Of the disk on which a folder is, or would be."""
    folder = Path(path)
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def leave(folder: Place, name: str) -> str:
    """Write a file; why it cannot be done, or nothing."""
    try:
        folder.make_folder()
        (folder / name).write_atomically(name.encode())
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", "") or error)
    return ""


def absent(folder: Place, names: Sequence[str]) -> list[str]:
    """Those of some files that are not there, after a moment's patience: network file systems remember folders for a while."""
    missing: list[str] = []
    for _ in range(20):
        missing = [name for name in names if not (folder / name).exists()]
        if not missing:
            break
        time.sleep(0.1)
    return missing


def sweep(folder: Place) -> None:
    with contextlib.suppress(OSError, ValueError):
        folder.delete()


def digest(file: Place) -> str:
    try:
        return xxhash.xxh3_64_hexdigest(file.read_bytes())
    except (OSError, ValueError) as error:
        return f"cannot read {file} ({getattr(error, 'strerror', None) or error})"


_open: list[socket.socket] = []


def listen(address: str) -> int:
    listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    _open.append(listener)
    return listener.getsockname()[1]


def connect(address: str, port: int) -> str:
    try:
        socket.create_connection((address, port), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        return str(error.strerror or error)
    return ""


def taken_ports(machine: str, ports: Sequence[int]) -> list[str]:
    """A sentence for each port that another program of this machine listens at, on whichever of its addresses."""
    listening: dict[int, int | None] = {}
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr:
            listening[connection.laddr.port] = connection.pid
    complaints = []
    for port in ports:
        if port in listening:
            owner = ""
            with contextlib.suppress(psutil.Error, TypeError):
                process = psutil.Process(listening[port])
                owner = f" by {process.name()} (process {process.pid})"
            complaints.append(f"port {port} of {machine} is taken{owner}: end that program, or choose another port")
    return complaints


def told(node: Node) -> str:
    return f"{node.name} ({node.address})"


def size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
