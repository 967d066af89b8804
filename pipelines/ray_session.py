"""Start the Ray session of an entry script: a local one, or the cluster that RAY_ADDRESS names.

Importing this module sets the environment that keeps Ray quiet and offline, so import it before ray. What the user has set
already stays.

    from pipelines import ray_session
    ray_session.start(num_cpus=2)
"""

from __future__ import annotations

import logging
import os
from typing import Any

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # else a train worker's lines appear twice
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",  # `report` waits for the controller's poll: 2 s by default
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "OMP_WAIT_POLICY": "passive",  # threads that spin starve each other on a shared CPU
    "KMP_BLOCKTIME": "0",
}

LOOPBACK = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # a session for this machine alone, as on those systems: all its ports on 127.0.0.1
    "GLOO_SOCKET_IFNAME": "lo",
}
"""For a session of our own; a cluster's ports must be reached from its other machines. Ray reads it when it is imported."""

for _name, _value in (QUIET if os.environ.get("RAY_ADDRESS") else QUIET | LOOPBACK).items():
    os.environ.setdefault(_name, _value)


def start(num_cpus: int | None = None, **options: Any) -> None:
    """Connect to the cluster of RAY_ADDRESS, or start a local session that ends with this process.

    Does nothing where this process has a session already, as in a test or under another entry script.

    Args:
        num_cpus: of a local session; all by default. A cluster has what it has.
        options: further arguments of `ray.init`, `include_dashboard=True` for instance.
    """
    import ray

    if ray.is_initialized():
        return
    options = {"include_dashboard": False, "logging_level": logging.ERROR, **options}
    if os.environ.get("RAY_ADDRESS"):
        options.pop("include_dashboard")
        ray.init(**options)
        return
    # Without an address ray.init would join any session that it finds on this machine.
    ray.init(address="local", num_cpus=num_cpus, **options)


def stop() -> None:
    """Leave the session; a local one ends."""
    import ray

    ray.shutdown()
