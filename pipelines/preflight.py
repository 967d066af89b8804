"""Check whether a run can start on this cluster: a sentence for each thing that would go wrong, and exit status 2.

    python -m pipelines.preflight small-rec --data.store runs/store --num-workers 2
    python -m pipelines.preflight --here --ports 6379 8265          # before `ray start`: this machine alone

Takes the options of pipelines.train, which does the same by itself on a cluster of more than one machine;
pipelines/cluster/readiness.py lists what is compared. The second form asks whether ports are free on this machine: no Ray needed.
"""

from __future__ import annotations

import contextlib
import math
import socket
import sys
from collections.abc import Sequence

import psutil

from common.errors import UserError
from pipelines.checkpoints.run_file import presets_with
from pipelines.cluster import ray_session, readiness
from pipelines.presets import PRESETS
from pipelines.presets.catalogue import overview, search
from pipelines.terminal import cli

HERE = "--here"


def main(argv: list[str]) -> int:
    """Check all machines of the cluster for a run. Returns 2 where something would keep it from training."""
    if HERE in argv or not argv:
        complaints = taken_ports(socket.gethostname(), ports_of(argv))
        otherwise = "the ports are free"
    else:
        config = cli.parse_preset(presets_with(PRESETS, argv), argv, __doc__, names=overview, search=search).located()
        ray_session.start(num_cpus=math.ceil(config.workers[-1] * config.placement.cpus) or 1)
        nodes = ray_session.nodes()
        print(f"{len(nodes)} machine{'s' * (len(nodes) > 1)}: {', '.join(map(readiness.label, nodes))}", flush=True)
        complaints = readiness.check(config, nodes)
        otherwise = f"{config.run} can be trained here"
    for complaint in complaints:
        print(f"wrong: {complaint}", file=sys.stderr, flush=True)
    if not complaints:
        print(otherwise)
    return 2 if complaints else 0


def taken_ports(machine: str, ports: Sequence[int]) -> list[str]:
    """A sentence for each port that another program of this machine listens at, on whichever of its addresses."""
    open_ports = (c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN)
    listening = {c.laddr.port: c.pid for c in open_ports if c.laddr}
    complaints = []
    for port in ports:
        if port in listening:
            owner = ""
            process = listening[port]
            if process:  # None if we may not see whose it is
                with contextlib.suppress(psutil.Error):
                    owner = f" by {psutil.Process(process).name()} (process {process})"
            complaints.append(f"port {port} of {machine} is taken{owner}: end that program, or choose another port")
    return complaints


def ports_of(argv: list[str]) -> list[int]:
    words = [word for word in argv if word not in (HERE, "--ports")]
    if HERE not in argv or "--ports" not in argv or not words or not all(word.isdecimal() for word in words):
        raise UserError(
            f"name a preset, as for pipelines.train: {cli.program()} small-rec; or ports of this machine: "
            f"{cli.program()} {HERE} --ports 6379 8265"
        )
    ports = list(map(int, words))
    wrong = [port for port in ports if not 0 < port < 1 << 16]
    if wrong:
        raise UserError(f"--ports {wrong[0]}: give ports from 1 to 65535")
    return ports


if __name__ == "__main__":
    cli.run(main)
