"""Train a model on a prepared corpus: on Ray Train workers, or in this process. Repeating the command resumes the run.

    python -m pipelines.train demo-rec
    torchrun --nproc-per-node 2 -m pipelines.train demo-rec --num-workers 0
    python -m pipelines.train small-rec --data.corpus text --data.store runs/store --run mine --num-workers 2

Everything of a run is in `<root>/<run>`: config.json, metrics.jsonl, checkpoints/. The curves are in MLflow (`make ui`).
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from typing import Any

import torch

from data_prep.manifest import write_atomically
from pipelines import cli
from pipelines.config import TrainConfig, to_json
from pipelines.lock import hold
from pipelines.presets import PRESETS
from pipelines.progress import messages_into, show_progress, worker_log
from pipelines.session import Run, open_run, start_tracker, work
from pipelines.world import World, join_torchrun

USER_ERRORS = (ValueError, OSError)
"""Errors that starting the workers again would only repeat."""


def describe(config: TrainConfig, run: Run) -> int:
    """Say what will be done. Returns the number of parameters."""
    totals, data = run.train_store.manifest.totals, config.data
    with torch.device("meta"):
        parameters = sum(p.numel() for p in config.model.build(run.train_store.vocab_size).parameters())
    tokens = config.steps * config.tokens_per_step
    where = "in this process" if config.num_workers == 0 else f"on {config.num_workers} Ray Train workers"
    print(
        f"training {config.run}: {config.model.name}, {parameters / 1e6:.2f}M parameters, {where}\n"
        f"  data    {cli.shown(run.train_store.folder)}: {totals.documents:,} documents, {totals.tokens:,} tokens, "
        f"vocabulary {run.train_store.vocab_size:,}\n"
        f"  steps   {config.steps:,} of {data.lanes} lanes × {data.segment_length:,} tokens "
        f"= {tokens:,} tokens, {tokens / max(totals.tokens, 1):.2f} epochs\n"
        f"  into    {cli.shown(config.folder)}",
        flush=True,
    )
    return parameters


def train_on_ray(config: TrainConfig) -> None:
    """Run `work` on Ray Train workers; when one dies, start them again from the newest checkpoint."""
    from pipelines import ray_session

    ray_session.start(num_cpus=config.num_workers, log_to_driver=False)
    import ray
    from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig, WorkerGroupError
    from ray.train.torch import TorchTrainer

    def worker(arguments: dict[str, Any]) -> None:
        import ray.train
        from ray.train.torch import get_device

        logging.disable(logging.INFO)  # Ray says every report; what we say is printed
        config: TrainConfig = arguments["config"]
        world = World.current(get_device())
        with messages_into(worker_log(config.folder, world.rank)):
            work(config, world, ray.train.report)

    scratch = config.folder / ".ray"  # Ray Train's own notes; our checkpoints are beside it and do not need them
    shutil.rmtree(scratch, ignore_errors=True)
    gpus = ray.cluster_resources().get("GPU", 0)
    use_gpu = config.use_gpu == "yes" or (config.use_gpu == "auto" and gpus >= config.num_workers)
    for attempt in range(config.max_failures + 1):
        trainer = TorchTrainer(
            worker,
            train_loop_config={"config": config},
            scaling_config=ScalingConfig(num_workers=config.num_workers, use_gpu=use_gpu),
            run_config=RunConfig(
                name=f"{config.run}-{attempt}",
                storage_path=str(scratch),
                failure_config=FailureConfig(max_failures=0),
                logging_config=LoggingConfig(log_level="ERROR"),
            ),
        )
        try:
            trainer.fit()
            shutil.rmtree(scratch, ignore_errors=True)
            return
        except WorkerGroupError as error:
            for failure in error.worker_failures.values():
                cause = getattr(failure, "cause", failure)
                if isinstance(cause, USER_ERRORS):
                    raise cause from None
            if attempt == config.max_failures:
                raise
            print(
                f"a worker died ({_first_line(error)}): starting again from the newest checkpoint",
                file=sys.stderr,
                flush=True,
            )


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0]


def main(argv: list[str]) -> None:
    config = cli.parse_preset(PRESETS, argv, description=(__doc__ or "").split("\n\n")[0]).located()
    if config.num_workers == 0 and int(os.environ.get("RANK", "0")) > 0:
        train_here(config)  # torchrun's other processes: the first one speaks for all
        return
    run = open_run(config)
    parameters = describe(config, run)
    if run.resume and run.resume.step >= config.steps:
        start_tracker(config, run, run.resume.step).finish()  # sends what an MLflow that was silent then has not got
        print(
            f"nothing to do: {cli.shown(config.folder)} has been trained to step {run.resume.step:,}\n{_next(config)}"
        )
        return
    with hold(config.folder, "another training run"):
        start(config, run)
    print(f"trained {config.run} ({parameters / 1e6:.2f}M parameters) to step {config.steps:,}\n{_next(config)}")


def start(config: TrainConfig, run: Run) -> None:
    """Train in this process or on Ray, showing progress."""
    write_atomically(config.folder / "config.json", json.dumps(to_json(config), indent=1).encode())
    resume_step = run.resume.step if run.resume else 0
    with show_progress(config.folder, resume_step, config.steps):
        if config.num_workers == 0:
            train_here(config)
        else:
            train_on_ray(config)


def train_here(config: TrainConfig) -> None:
    """Run `work` in this process, or in those that torchrun has started."""
    use_gpu = config.use_gpu != "no" and torch.cuda.is_available()
    join_torchrun()
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if use_gpu else "cpu")
    work(config, World.current(device), lambda figures: None)


def _next(config: TrainConfig) -> str:
    return (
        f"  result    {cli.shown(config.folder / 'checkpoints')}\n"
        f"  evaluate  python -m pipelines.evaluate {cli.shown(config.folder)}\n"
        f"  look      make ui"
    )


if __name__ == "__main__":
    cli.run(main)
