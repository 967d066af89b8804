"""Kills one of two Ray nodes under a training run, adds one again, and measures how long training takes to adapt to each.

    python -m benchmarks.lost_node                       about four minutes

`ray.cluster_utils.Cluster` starts the two nodes on this machine, each with processes of its own and room for one worker; the run
has `--num-workers 1:2`. Killing a node ends its processes without a word, as a power cut would. How soon Ray notices is a setting
of its head; here, as on a cluster that should shrink quickly, it looks every half second:
`RAY_health_check_period_ms=500 RAY_health_check_timeout_ms=1000 RAY_health_check_failure_threshold=3 ray start --head`.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.killing import MODELS, TINY, curve, make_store
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.cluster import ray_session
from pipelines.training.stopping import STOPPED_STATUS

CHECKS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}

RUN = shlex.split("""
    --steps 1000000 --validate-every 0 --num-workers 1:2 --checkpoint.every 20 --tracking.backend none --model.dropout 0
""")


def main() -> int:
    ray_session.set_environment()
    os.environ |= CHECKS
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        store = make_store(root)
        words = [*MODELS["rec fixed:skip"], *TINY, *RUN]
        words += ["--data.store", str(store), "--root", str(root), "--run", "run"]
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        node = cluster.add_node(num_cpus=1)
        with open(root / "log", "w") as log:
            command = [sys.executable, "-m", "pipelines.train", *words]
            process = subprocess.Popen(
                command, env={**os.environ, "RAY_ADDRESS": str(cluster.address)}, stdout=log, stderr=log
            )
        try:
            wait_for(root / "run", workers=2)
            cluster.remove_node(node, allow_graceful=False)
            print(
                f"a node was killed: one worker has made a checkpoint {wait_for(root / 'run', workers=1):.0f} s later"
            )
            cluster.add_node(num_cpus=1)
            print(f"it came back: two workers have made a checkpoint {wait_for(root / 'run', workers=2):.0f} s later")
            process.send_signal(signal.SIGTERM)
            status = process.wait(120)
        finally:
            process.kill()
            cluster.shutdown()
        last = RunFolder.parse(root / "run").newest_step()
        steps = [step for step, key, _ in curve(root / "run") if key == "train/bits_per_token"]
        whole = steps == list(range(1, last + 1))
        print(f"stopped with status {status} after step {last:,}; the curve has each step once: {whole}")
    return 0 if status == STOPPED_STATUS and whole else 1


def wait_for(run: Path, workers: int, seconds: float = 300) -> float:
    """Wait until the newest checkpoint is one of ``workers`` workers. Returns the seconds that it took. Raises TimeoutError."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        found = RunFolder.parse(run).complete_checkpoints()
        if found and found[0].meta["world"] == workers:
            return time.monotonic() - began
        time.sleep(0.1)
    raise TimeoutError(f"no checkpoint of {workers} workers in {seconds:.0f} s")


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0], allow_abbrev=False).parse_args()
    sys.exit(main())
