"""Search over a preset: trials on Ray Train, several at once, bad ones stopped early. Repeating the command resumes the sweep.

    python -m pipelines.tune lr --preset demo-rec --num-workers 1
    python -m pipelines.tune lr+states+window+gate --preset small-rec --samples 12 --num-workers 1 --data.store runs/store
    python -m pipelines.tune optim.lr=1e-3,3e-3+model.states=32,64 --search grid --scheduler none --num-workers 1
    python -m pipelines.tune optim.lr=1e-4..1e-2 --scheduler pbt --samples 4 --num-workers 1
    python -m pipelines.train runs/small-rec-lr/best.json --run again           # what the sweep found, as a preset

`python -m pipelines.tune --help` lists the spaces. Any field of the preset can be set: `--steps 500 --data.corpus pg19`. The
sweep's folder, `<root>/<run>`, is described in pipelines/sweeps/sweep.py: it is all that a resume needs.

Ray Tune draws and decides (tune_spaces); the trials are run from here. Ray's Tuner would give each trial a process for its driver
beside those of Ray Train, kill a stopped trial's workers without a checkpoint, and resume from a pickled snapshot that lags behind.
Here a trial's driver is a thread, which holds no CPU, so that no number of CPUs can deadlock; workers that are done take the next
trial; a stopped trial saves first.

Exit status: 0 the sweep is over; 1 it is, and no trial has a figure; 2 a user's error; 75 asked to stop, and saved: the same
command goes on.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import shlex
import shutil
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data_prep.credentials import without_credentials
from data_prep.errors import UserError, given_by_user
from data_prep.places import Place
from pipelines.checkpoints.lock import hold
from pipelines.checkpoints.run_place import RunPlace
from pipelines.cluster.ray_train import first_line, run_workers
from pipelines.config.run import TrainConfig, flatten, to_json
from pipelines.sweeps.command import check, read_command
from pipelines.sweeps.notebook import Notebook
from pipelines.sweeps.room import room_for_trials
from pipelines.sweeps.scheduler import Conductor, Job, Outcome, baseline_values
from pipelines.sweeps.sweep import Sweep, Trial, open_folder, write_json
from pipelines.sweeps.winner import conclude, write_best
from pipelines.terminal import cli
from pipelines.training.progress import messages_into, worker_log
from pipelines.training.stopping import STOPPED_STATUS, Stop, Stopped
from pipelines.training.worker import train_as_worker
from pipelines.training.world import World
from tune_spaces import combine
from tune_spaces.drawing import fields

POLL_SECONDS = 0.1


# Trials on Ray


class Post:
    """An actor between the sweep and its workers: what they train next, and what came of it. Holds no CPU."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[int, int], Any] = {}
        self._ended: list[tuple[int, int, Outcome, str]] = []
        self._came = asyncio.Event()

    async def give(self, slot: int, turn: int, job: tuple[TrainConfig, int] | None) -> None:
        self._jobs[slot, turn] = job
        self._came.set()
        self._came = asyncio.Event()

    async def take(self, slot: int, turn: int) -> tuple[TrainConfig, int] | None:
        """What a slot trains in its turn, as soon as that is known; None: nothing more."""
        while (slot, turn) not in self._jobs:
            await self._came.wait()
        return self._jobs[slot, turn]

    async def end(self, slot: int, turn: int, outcome: Outcome, said: str) -> None:
        self._ended.append((slot, turn, outcome, said))

    async def ended(self) -> list[tuple[int, int, Outcome, str]]:
        """What has ended since the last call."""
        found, self._ended = self._ended, []
        return found


@dataclass
class Slot:
    """The workers of one Ray Train run, which train one trial after another."""

    number: int
    thread: threading.Thread | None = None
    turn: int = -1
    job: Job | None = None
    began: float = 0.0
    leaving: bool = False
    error: BaseException | None = None


class Crew:
    """The slots of a sweep."""

    def __init__(self, folder: Path, config: TrainConfig, use_gpu: bool, reuse: bool) -> None:
        import ray

        self._get, self._folder, self._use_gpu, self._reuse = ray.get, folder, use_gpu, reuse
        self._workers, self._placement = config.workers[0], config.placement
        self._post: Any = ray.remote(num_cpus=0)(Post).remote()
        self._slots: dict[int, Slot] = {}
        self._numbers = itertools.count()
        shutil.rmtree(folder, ignore_errors=True)

    @property
    def busy(self) -> list[Slot]:
        return [slot for slot in self._slots.values() if slot.job]

    def give(self, job: Job) -> None:
        """Have a trial trained, by workers that wait for one, or by new ones."""
        slot = next((slot for slot in self._slots.values() if slot.job is None and self._takes(slot)), None)
        if slot is None:
            slot = Slot(next(self._numbers))
            slot.thread = threading.Thread(target=self._run_workers, args=(slot,), daemon=True)
            self._slots[slot.number] = slot
            slot.thread.start()
        slot.turn, slot.job, slot.began = slot.turn + 1, job, time.monotonic()
        self._get(self._post.give.remote(slot.number, slot.turn, (job.run, job.until)))

    def ended(self) -> list[tuple[Job, Outcome, str, float]]:
        """Trials that their workers have let go of: how, a sentence, and the seconds that it took."""
        dead = [slot for slot in self._slots.values() if not self._lives(slot)]
        found = []
        for number, turn, outcome, said in self._get(self._post.ended.remote()):
            slot = self._slots.get(number)
            if slot and slot.job and slot.turn == turn:
                found.append((slot.job, outcome, said, time.monotonic() - slot.began))
                slot.job = None
                if not self._reuse:
                    self._dismiss(slot)
        for slot in dead:
            del self._slots[slot.number]
            if slot.job:
                error = slot.error or RuntimeError("its workers ended without a word")
                outcome: Outcome = "failed" if isinstance(error, UserError) else "died"
                said = cli.sentence(error) if outcome == "failed" else f"a worker died ({first_line(error)})"
                found.append((slot.job, outcome, said, time.monotonic() - slot.began))
        return found

    def close(self) -> None:
        """Let all workers go."""
        for slot in list(self._slots.values()):
            if slot.job is None and self._takes(slot):
                self._dismiss(slot)
        for slot in self._slots.values():
            if slot.thread:
                slot.thread.join(60 if slot.job is None else 0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _dismiss(self, slot: Slot) -> None:
        slot.turn, slot.leaving = slot.turn + 1, True
        self._get(self._post.give.remote(slot.number, slot.turn, None))

    def _takes(self, slot: Slot) -> bool:
        return self._lives(slot) and not slot.leaving

    def _lives(self, slot: Slot) -> bool:
        return slot.thread is not None and slot.thread.is_alive()

    def _run_workers(self, slot: Slot) -> None:
        arguments, name = {"post": self._post, "slot": slot.number}, f"slot-{slot.number}"
        notes = Place.parse(self._folder)
        slot.error = run_workers(serve, arguments, self._workers, self._placement, self._use_gpu, notes, name)


def serve(arguments: dict[str, Any]) -> None:
    """What each worker of a slot does: train one trial after another."""
    import ray
    import torch
    from ray.train.torch import get_device

    logging.disable(logging.INFO)
    post, slot = arguments["post"], arguments["slot"]
    for turn in itertools.count():
        job = ray.get(post.take.remote(slot, turn))
        if job is None:
            return
        config, until = job
        world = World.current(get_device())
        outcome, said = train_trial(config, until, world)
        if world.rank == 0:
            ray.get(post.end.remote(slot, turn, outcome, said))
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def train_trial(config: TrainConfig, until: int, world: World) -> tuple[Outcome, str]:
    """Train one trial up to a step. Where several workers train it, an error of one ends them all."""
    asked = Stop(RunPlace.of(config).folder).asked
    if until < config.steps:
        asked = Until(asked, until - RunPlace.of(config).newest_step())
    with messages_into(worker_log(RunPlace.of(config).folder, world.rank)):
        try:
            train_as_worker(config, world, asked)
        except Stopped:
            return "stopped", ""
        except UserError as error:
            if world.size > 1:
                raise
            return "failed", cli.sentence(error)
    return "finished", ""


class Until:
    """Asks to stop after so many steps: the loop asks it once in each."""

    def __init__(self, asked: Any, steps: int) -> None:
        self._asked, self._left = asked, steps

    def __call__(self) -> bool:
        self._left -= 1
        return self._left <= 0 or self._asked()


# The sweep


def main(argv: list[str]) -> int:
    config = read_command(argv)
    flat = {"preset": config.preset, **flatten(to_json(config.train))}
    with given_by_user(ValueError):
        domains = combine(config.space, flat)
        check(config, domains)
    sweep = Sweep(config, fields(domains))
    baseline = baseline_values(sweep, flat)
    sweep.run_of(Trial("", baseline or {}))  # raises here what every trial would
    command = shlex.join(["python", "-m", "pipelines.tune", *map(without_credentials, argv)])
    with hold(sweep.folder, "another process of this sweep"):
        print(
            f"sweep {config.train.run}: {config.space} around {config.preset}, {config.search} search, {config.scheduler}\n"
            f"  metric  {config.metric}, the lower the better; a trial is {config.whole:,} tokens",
            flush=True,
        )
        from pipelines.cluster import ray_session

        ray_session.start(num_cpus=config.num_cpus or None, log_to_driver=False)
        at_once, use_gpu = room_for_trials(config)
        open_folder(sweep, command, baseline or {})
        conductor = Conductor(sweep, domains, say=lambda line: print(line, flush=True))
        if not sweep.trials:
            for line in conductor.plan(baseline):
                print(f"  note    {line}", flush=True)
        conductor.save_plan()
        return conduct(sweep, conductor, at_once, use_gpu, command)


def conduct(sweep: Sweep, conductor: Conductor, at_once: int, use_gpu: bool, command: str) -> int:
    """Run the trials to their ends. Returns the exit status."""
    config = sweep.config
    stop = Stop(sweep.folder)
    stop.clear()
    notebook = Notebook(sweep, command)
    conductor.on_end = notebook.end
    conductor.restore()
    notebook.again()
    over = sum(trial.over for trial in sweep.trials.values())
    count = config.samples if config.search in ("optuna", "bohb") else len(sweep.trials)
    begun = f", of which {over} are over" if over else ""
    print(f"  trials  {count}{begun}\n  into    {cli.shown(sweep.folder)}", flush=True)
    if not conductor.waiting():
        settle(sweep, notebook, "FINISHED")
        return conclude(sweep, conductor.out_of_budget())
    crew = Crew(sweep.folder / ".ray", config.train, use_gpu, config.workers == "reuse")
    status, kept = "FAILED", 0.0
    try:
        with stop.on_signals():
            while True:
                for slot in crew.busy:
                    if slot.job:
                        conductor.watch(slot.job.trial)
                for job, outcome, said, seconds in crew.ended():
                    conductor.ended(job.trial, outcome, said, seconds)
                    show(job.trial)
                if stop.asked():
                    conductor.interrupt()
                while len(crew.busy) < at_once and (job := conductor.next()):
                    job = replace(job, run=notebook.below(job.run))
                    write_json(RunPlace.of(job.run).folder / "config.json", to_json(job.run))
                    if job.trial.steps == 0:
                        print(f"trial {job.trial.id} begins: {job.trial.told()}", flush=True)
                    crew.give(job)
                if not crew.busy:
                    break
                if time.monotonic() - kept > 2:
                    conductor.keep_time()
                    kept = time.monotonic()
                time.sleep(POLL_SECONDS)
            conductor.keep_time()
        status = "KILLED" if stop.asked() else "FINISHED"
    finally:
        conductor.interrupt()
        crew.close()
        settle(sweep, notebook, status)
        asked = stop.asked()
        stop.clear()
    if asked:
        print("stopped; all that was trained is saved: the same command goes on from here")
        return STOPPED_STATUS
    return conclude(sweep, conductor.out_of_budget())


def settle(sweep: Sweep, notebook: Notebook, status: str) -> None:
    """Write down what was found, in the folder and in MLflow."""
    if best := sweep.best():
        write_best(sweep, best)
    notebook.close(status)


def show(trial: Trial) -> None:
    """A line on a trial that has ended."""
    if trial.over:
        figure = f"{trial.last.value:.4f} at step {trial.last.step}" if trial.last else "no figure"
        print(f"trial {trial.id} {trial.status}: {figure}{', ' + trial.reason if trial.reason else ''}", flush=True)


if __name__ == "__main__":
    cli.run(main)
