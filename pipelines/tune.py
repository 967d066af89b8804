"""Search over a preset: trials on Ray Train, several at once, bad ones stopped early. Repeating the command resumes the sweep.

    python -m pipelines.tune lr --preset demo-rec --num-workers 1
    python -m pipelines.tune lr+states+window+gate --preset small-rec --samples 12 --num-workers 1 --data.store runs/store
    python -m pipelines.tune optim.lr=1e-3,3e-3+model.states=32,64 --search grid --scheduler none --num-workers 1
    python -m pipelines.tune optim.lr=1e-4..1e-2 --scheduler pbt --samples 4 --num-workers 1
    python -m pipelines.train runs/small-rec-lr/best.json --run again           # what the sweep found, as a preset

`python -m pipelines.tune --help` lists the spaces. Any field of the preset can be set: `--steps 500 --data.corpus pg19`. The
sweep's folder, `<root>/<run>`, is described in pipelines/sweep.py: it is all that a resume needs.

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
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from data_prep.store import SegmentStore
from pipelines import cli
from pipelines.conducting import Conductor, Job, Outcome, baseline_values, newest_step
from pipelines.config import TrainConfig, flatten, to_json
from pipelines.dotted import as_preset, words
from pipelines.lock import hold
from pipelines.population import check_perturbable
from pipelines.presets import PRESETS
from pipelines.progress import messages_into, worker_log
from pipelines.registering import register_winner
from pipelines.session import Run, start_tracker, work
from pipelines.stopping import STOPPED_STATUS, Stop, Stopped
from pipelines.sweep import BUDGET, FREE, Sweep, SweepConfig, Trial, open_folder, write_json
from pipelines.sweep_report import report_sweep
from pipelines.tracking import Tracker
from pipelines.world import World
from tune_spaces import SPACES, combine
from tune_spaces.drawing import Searcher, fields

USER_ERRORS = (ValueError, OSError)
"""Errors that training again would only repeat."""
POLL_SECONDS = 0.1
LAST_STEP = 1 << 60
PARENT_SECONDS = 60.0
"""How long the start waits for MLflow to make the sweep's run. Where it is silent, trials are put below it at their end."""


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
    error: list[BaseException] = field(default_factory=list)


class Crew:
    """The slots of a sweep."""

    def __init__(self, folder: Path, workers: int, use_gpu: bool, reuse: bool) -> None:
        import ray

        self._get, self._folder, self._workers, self._use_gpu, self._reuse = ray.get, folder, workers, use_gpu, reuse
        self._post: Any = ray.remote(num_cpus=0)(Post).remote()
        self._slots: dict[int, Slot] = {}
        self._numbers = itertools.count()
        shutil.rmtree(folder, ignore_errors=True)

    @property
    def busy(self) -> list[Slot]:
        return [slot for slot in self._slots.values() if slot.job]

    def give(self, job: Job) -> None:
        """Have a trial trained, by workers that wait for one, or by new ones."""
        slot = next((slot for slot in self._slots.values() if slot.job is None and self._lives(slot)), None)
        if slot is None:
            slot = Slot(next(self._numbers))
            slot.thread = threading.Thread(target=self._fit, args=(slot,), daemon=True)
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
                error = slot.error[0] if slot.error else RuntimeError("its workers ended without a word")
                outcome: Outcome = "failed" if isinstance(error, USER_ERRORS) else "died"
                said = cli.sentence(error) if outcome == "failed" else f"a worker died ({_first_line(error)})"
                found.append((slot.job, outcome, said, time.monotonic() - slot.began))
        return found

    def close(self) -> None:
        """Let all workers go."""
        for slot in list(self._slots.values()):
            if slot.job is None and self._lives(slot):
                self._dismiss(slot)
        for slot in self._slots.values():
            if slot.thread:
                slot.thread.join(60 if slot.job is None else 0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _dismiss(self, slot: Slot) -> None:
        slot.turn += 1
        self._get(self._post.give.remote(slot.number, slot.turn, None))
        slot.job = None

    def _lives(self, slot: Slot) -> bool:
        return slot.thread is not None and slot.thread.is_alive()

    def _fit(self, slot: Slot) -> None:
        from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        try:
            TorchTrainer(
                serve,
                train_loop_config={"post": self._post, "slot": slot.number},
                scaling_config=ScalingConfig(num_workers=self._workers, use_gpu=self._use_gpu),
                run_config=RunConfig(
                    name=f"slot-{slot.number}",
                    storage_path=str(self._folder),
                    failure_config=FailureConfig(max_failures=0),
                    logging_config=LoggingConfig(log_level="ERROR"),
                ),
            ).fit()
        except BaseException as error:
            causes = getattr(error, "worker_failures", {}).values()
            told = (getattr(failure, "cause", failure) for failure in causes)
            slot.error.append(next((cause for cause in told if isinstance(cause, USER_ERRORS)), error))


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
    asked = Stop(config.folder).asked
    if until < config.steps:
        asked = Until(asked, until - newest_step(config))
    with messages_into(worker_log(config.folder, world.rank)):
        try:
            work(config, world, lambda figures: None, asked)
        except Stopped:
            return "stopped", ""
        except USER_ERRORS as error:
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


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.endswith(":")]
    return lines[0] if lines else type(error).__name__


# Before the sweep


def read_command(argv: Sequence[str]) -> SweepConfig:
    """The command line as a sweep. Raises UsageError."""
    if argv and argv[0] in ("-h", "--help"):
        listed = "\n".join(f"  {name:20}{space.about}" for name, space in SPACES.items())
        print(
            f"usage: {cli.program()} SPACE [options]\n\n{(__doc__ or '').partition(chr(10))[0]}\n\nspace (joined by +):\n{listed}"
        )
        print(
            f"  FIELD=a,b,c         any field of the preset\n  FIELD=low..high     on a logarithmic scale\n\n{cli.program()} SPACE"
        )
        print(f"{cli.program()} SPACE --help lists the options; --preset NAME --help those of that preset.")
        sys.exit(0)
    if not argv or argv[0].startswith("-"):
        raise cli.UsageError(f"name a space first: {cli.program()} lr (known: {', '.join(SPACES)})")
    space = argv[0]
    preset = _option(argv, "--preset") or ("pg19-rec-fixed-skip" if space.startswith("rec-table") else "small-rec")
    if preset not in PRESETS:
        raise cli.UsageError(f"unknown preset {preset!r}: {cli.nearest(preset, PRESETS)}")
    metric: Any = (
        "validation/bits_per_byte" if "data.store" in space or space == "rec-table-5" else "validation/bits_per_token"
    )
    search: Any = "grid" if space.startswith("rec-table") else "random"
    default = SweepConfig(space, replace(PRESETS[preset], run=""), preset, metric=metric, search=search)
    config = cli.parse(SweepConfig, argv[1:], (__doc__ or "").partition("\n")[0], default=default)
    name = config.train.run or f"{preset}-{space}".translate(str.maketrans({c: "-" for c in "+=,./"}))
    numbers = config.train.workers
    if numbers in ([0], [1]) or len(numbers) > 1:  # a trial's workers are its own throughout
        config = replace(config, train=replace(config.train, num_workers=max(1, numbers[0])))
    return replace(config, train=replace(config.train, run=name).located())


def _option(argv: Sequence[str], name: str) -> str:
    for i, word in enumerate(argv):
        if word == name and i + 1 < len(argv):
            return argv[i + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return ""


def check(config: SweepConfig, domains: dict[str, Any]) -> None:
    """Raise ValueError, in a sentence, for a sweep that could only fail."""
    run, every = config.train, config.train.validate_every
    if config.metric.startswith("validation/") and not 0 < every <= run.steps:
        raise ValueError(
            f"validate_every is {every} and steps {run.steps}, so that no trial would ever be validated: choose --validate-every "
            f"{max(1, run.steps // 9)}"
        )
    if config.metric.endswith("states_cleared") and "model.states" not in flatten(to_json(run)):
        raise ValueError(
            f"{config.preset} has no states, so that {config.metric} is never logged: choose another --metric"
        )
    first = (every or run.log_every) * run.tokens_per_step
    if 0 < config.tokens < first:
        raise ValueError(
            f"a budget of {config.tokens:,} tokens ends before the first trial's first figure, after {first:,} tokens: raise "
            "--tokens, or lower --validate-every"
        )
    if config.rung_tokens >= config.whole:
        raise ValueError(
            f"rung_tokens is {config.rung_tokens:,}, and a whole trial has {config.whole:,}: nothing would be stopped"
        )
    for name in fields(domains):
        if any(name == free or name.startswith(f"{free}.") for free in FREE):
            raise ValueError(f"{name} does not change what a trial learns: vary something else")
        if name == "steps" and config.equal != "steps":
            raise ValueError(
                f"the space varies steps, which --equal {config.equal} chooses for each trial: add --equal steps"
            )
    if config.scheduler == "pbt":
        check_perturbable(fields(domains))
        if config.search not in ("random", "grid"):
            raise ValueError(f"pbt chooses by itself as it goes on: with --search {config.search} use --scheduler asha")
        if every >= run.steps:
            raise ValueError(
                f"pbt compares trials at each validation, and the first is at step {every} of {run.steps}: lower it"
            )
        if config.metric.startswith("train/"):
            raise ValueError(f"pbt compares trials where they are validated, and {config.metric} is no such figure")
    if config.search in ("optuna", "bohb"):
        Searcher(config.search, domains, run.seed)
    if "data.store" not in fields(domains):
        for split in ("train", "validation") if every else ("train",):
            SegmentStore.open(run.data.store, run.data.corpus, split)


def fit(config: SweepConfig) -> tuple[int, bool]:
    """How many trials fit at once, and whether they use GPUs. Raises ValueError when not even one does."""
    import ray

    total, workers = ray.cluster_resources(), config.train.workers[0]
    cpus, gpus = int(total.get("CPU", 0)), int(total.get("GPU", 0))
    cpus = min(cpus, config.num_cpus or cpus)
    use_gpu = config.train.use_gpu == "yes" or (config.train.use_gpu == "auto" and gpus >= workers)
    has, kind = (min(cpus, gpus), "CPUs with a GPU each") if use_gpu else (cpus, "CPUs" if cpus != 1 else "CPU")
    if has < workers:
        raise ValueError(
            f"a trial takes {workers} CPU{'s' if workers > 1 else ''}{' and as many GPUs' if use_gpu else ''}, one for each of its "
            f"workers, and there {'is' if has == 1 else 'are'} {has}: it could never start; lower --num-workers"
        )
    most = has // workers
    at_once = min(most, config.concurrent or most)
    each = f"{workers} worker{'s' if workers > 1 else ''} each"
    print(f"  at once {at_once} trial{'s' if at_once > 1 else ''} of {each}: {has} {kind} hold {most}", flush=True)
    return at_once, use_gpu


# The sweep


def main(argv: list[str]) -> int:
    config = read_command(argv)
    flat = {"preset": config.preset, **flatten(to_json(config.train))}
    domains = combine(config.space, flat)
    check(config, domains)
    sweep = Sweep(config, fields(domains))
    baseline = baseline_values(sweep, flat)
    sweep.run_of(Trial("", baseline or {}))  # raises here what every trial would
    command = shlex.join(["python", "-m", "pipelines.tune", *argv])
    with hold_folder(sweep):
        known = (sweep.folder / "sweep.json").exists()
        print(
            f"sweep {config.train.run}: {config.space} around {config.preset}, {config.search} search, {config.scheduler}\n"
            f"  metric  {config.metric}, the lower the better; a trial is {config.whole:,} tokens",
            flush=True,
        )
        from pipelines import ray_session

        ray_session.start(num_cpus=config.num_cpus or None, log_to_driver=False)
        at_once, use_gpu = fit(config)
        open_folder(sweep, command, baseline or {})
        conductor = Conductor(sweep, domains, say=lambda line: print(line, flush=True))
        if not sweep.trials:
            for line in conductor.plan(baseline):
                print(f"  note    {line}", flush=True)
        conductor.save_plan()
        return conduct(sweep, conductor, at_once, use_gpu, command, known)


def hold_folder(sweep: Sweep) -> Any:
    """Only this process works on the sweep. A folder of something else is left as it is."""
    folder = sweep.folder
    new = not folder.exists()
    guard = hold(folder, "another process of this sweep")

    class Guard:
        def __enter__(self) -> None:
            guard.__enter__()

        def __exit__(self, *error: Any) -> None:
            guard.__exit__(*error)
            if new and not any(folder.iterdir()):  # it was refused
                folder.rmdir()

    return Guard()


def conduct(sweep: Sweep, conductor: Conductor, at_once: int, use_gpu: bool, command: str, known: bool) -> int:
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
        notebook.close("FINISHED")
        return finish(sweep, conductor)
    crew = Crew(sweep.folder / ".ray", config.train.workers[0], use_gpu, config.workers == "reuse")
    status, kept = "FAILED", 0.0
    try:
        with stop.on_signals():
            while True:
                for slot in crew.busy:
                    if slot.job:
                        conductor.watch(slot.job.trial)
                for job, outcome, said, seconds in crew.ended():
                    conductor.ended(job.trial, outcome, said, seconds)
                    show(job.trial, conductor)
                if stop.asked():
                    conductor.interrupt()
                while len(crew.busy) < at_once and (job := conductor.next()):
                    notebook.place(job)
                    if job.trial.steps == 0:
                        print(f"trial {job.trial.id} begins: {job.trial.told()}", flush=True)
                    crew.give(replace(job, run=notebook.below(job.run)))
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
        notebook.close(status)
        asked = stop.asked()
        stop.clear()
    if asked:
        print("stopped; all that was trained is saved: the same command goes on from here")
        return STOPPED_STATUS
    return finish(sweep, conductor)


class Notebook:
    """The sweep's run in MLflow, and of its trials what their own processes could not say: why they were stopped, or what a worker
    that was killed had not yet sent.
    """

    def __init__(self, sweep: Sweep, command: str) -> None:
        config = sweep.config
        self._sweep, self._tracking = sweep, config.train.tracking
        self._root = Path(config.train.root).absolute()
        self._ends = sum(trial.over for trial in sweep.trials.values())
        params = {key: value for key, value in to_json_sweep(config).items()}
        self._tracker = Tracker.start(
            replace(self._tracking, system_metrics="off"),
            root=self._root,
            run_folder=sweep.folder,
            run_name=config.train.run,
            params=params,
            tags={"sweep": config.train.run, "command": command, "fields": ", ".join(sweep.fields)},
            resume_step=self._ends,
        )
        self._pool, self._silent = ThreadPoolExecutor(1), False
        self.run_id = ""
        deadline = time.monotonic() + PARENT_SECONDS
        while self._tracking.backend == "mlflow" and not self.run_id and time.monotonic() < deadline:
            self.run_id = self._tracker.run_id or ""
            time.sleep(0.05)

    def below(self, run: TrainConfig) -> TrainConfig:
        """The same run, as a child of the sweep's."""
        self.run_id = self.run_id or self._tracker.run_id or ""
        models = "figures" if run.tracking.models == "best" else run.tracking.models  # the sweep registers its winner
        return replace(run, tracking=replace(run.tracking, parent=self.run_id, models=models))

    def place(self, job: Job) -> None:
        """The trial's config.json, as every run has it."""
        write_json(job.run.folder / "config.json", to_json(job.run))

    def again(self) -> None:
        """Send what an MLflow that was silent, or an earlier start that was killed, has left unsaid."""
        for trial in self._sweep.trials.values():
            if trial.over and not trial.recorded:
                self._pool.submit(self._tell, trial)

    def end(self, trial: Trial) -> None:
        """Note how a trial ended."""
        self._ends += 1
        best = self._sweep.best()
        if best and best.best:
            self._tracker.log({"sweep/best": best.best["bits_per_token"]}, self._ends)
        self._pool.submit(self._tell, trial)

    def _tell(self, trial: Trial) -> None:
        if self._silent or trial.recorded or not trial.over:
            return
        statuses: dict[str, Any] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
        run = self.below(self._sweep.run_of(trial))
        run = replace(run, tracking=replace(run.tracking, system_metrics="off", on_failure="continue"))
        store = SegmentStore.open(run.data.store, run.data.corpus, "train")
        tracker = start_tracker(run, Run(store, None, None, []), resume_step=LAST_STEP)
        tags = {
            "sweep": self._sweep.config.train.run,
            "trial": trial.id,
            "trial.status": trial.status,
            "trial.reason": trial.reason,
        }
        if trial.exploited:
            tags["trial.exploited"] = "; ".join(
                f"from {each['from']} at step {each['step']}" for each in trial.exploited
            )
        for key, value in tags.items():
            if value:
                tracker.set_tag(key, value)
        trial.recorded = tracker.finish(statuses[trial.status])
        self._silent = not trial.recorded
        self._sweep.save(trial)
        self._report(final=False)

    def _report(self, final: bool) -> None:
        """The table and charts of the trials, into the sweep's folder and its run. They cost no sweep its end."""
        try:
            report_sweep(self._sweep.folder, self._tracker, final=final)
        except (ValueError, OSError) as error:
            print(f"warning: no report of the sweep: {error}", file=sys.stderr, flush=True)

    def close(self, status: Any) -> None:
        self._pool.shutdown()
        best = self._sweep.best()
        if best:
            self._tracker.set_tag("best.trial", best.id)
            self._tracker.set_tag("best.command", winner_command(self._sweep, best))
            write_best(self._sweep, best)
        if self._sweep.trials:
            self._report(final=True)
        self._tracker.finish(status)
        if status == "FINISHED":
            register_winner(self._sweep.folder, self._tracking, self._root)


def to_json_sweep(config: SweepConfig) -> dict[str, Any]:
    """The sweep's own fields."""
    values = vars(config)
    return {key: value for key, value in values.items() if key != "train"}


# After the sweep


def show(trial: Trial, conductor: Conductor) -> None:
    """A line on a trial that has ended."""
    if trial.over:
        figure = f"{trial.last['bits_per_token']:.4f} at step {trial.last['step']}" if trial.last else "no figure"
        print(f"trial {trial.id} {trial.status}: {figure}{', ' + trial.reason if trial.reason else ''}", flush=True)


def winner_command(sweep: Sweep, best: Trial) -> str:
    """The command that trains the winner again."""
    run = sweep.run_of(best)
    preset = best.values.get("preset", sweep.config.preset)
    name = f"{sweep.config.train.run}-best"
    run = replace(run, run=name, allow_change=(), root=cli.shown(run.root) or ".")
    base = replace(PRESETS[preset], run="")
    return shlex.join(["python", "-m", "pipelines.train", preset, *words(run, base)])


def write_best(sweep: Sweep, best: Trial) -> None:
    """best.json: the best trial so far."""
    command = winner_command(sweep, best)
    values = {"trial": best.id, "values": best.values, **(best.best or {})}
    config = as_preset(replace(sweep.run_of(best), run=f"{sweep.config.train.run}-best", allow_change=()))
    rest = {"metric": sweep.config.metric, "command": command, "exploited": best.exploited, "config": config}
    write_json(sweep.folder / "best.json", values | rest)


def finish(sweep: Sweep, conductor: Conductor) -> int:
    """Say what was found and what to do next."""
    best = sweep.best()
    print_table(sweep, best)
    left = [trial for trial in sweep.trials.values() if not trial.over or trial.reason.startswith(BUDGET)]
    if spent := conductor.out_of_budget():
        print(f"{spent}: {len(left)} trials are not done; the same command with a larger budget goes on with them")
    if best is None or best.best is None:
        print("no trial has a figure: trial.json and logs/ in each trial's folder say why", file=sys.stderr)
        return 1
    command = winner_command(sweep, best)
    print(f"best: trial {best.id}, {best.best['bits_per_token']:.4f} at step {best.best['step']} ({best.told()})")
    print(against_baseline(sweep, best))
    print(
        f"  again   {command}\n"
        f"  or      python -m pipelines.train {cli.shown(sweep.folder / 'best.json')}\n"
        f"  test    python -m pipelines.evaluate {cli.shown(sweep.place(best))}\n"
        f"  look    make ui"
    )
    return 0


def against_baseline(sweep: Sweep, best: Trial) -> str:
    """Whether the best trial beats the preset."""
    baseline = next((trial for trial in sweep.trials.values() if trial.baseline), None)
    if baseline is None:
        return "the preset itself was not among the trials"
    if baseline.best is None or best.best is None:
        return f"trial {baseline.id}, which is {sweep.config.preset} itself, has no figure to compare with"
    if best is baseline:
        return f"no trial beats {sweep.config.preset} itself (trial {baseline.id})"
    gain = baseline.best["bits_per_token"] - best.best["bits_per_token"]
    return f"it beats {sweep.config.preset} itself (trial {baseline.id}, {baseline.best['bits_per_token']:.4f}) by {gain:.4f}"


def print_table(sweep: Sweep, best: Trial | None) -> None:
    """All trials, the best first."""
    names = [name for name in sweep.fields if any(name in trial.values for trial in sweep.trials.values())]
    table = Table(title=f"{sweep.config.train.run}: {sweep.config.metric}")
    for title in (
        "trial",
        *(name.rpartition(".")[2] for name in names),
        "status",
        "steps",
        "tokens",
        "best",
        "at step",
    ):
        table.add_column(title, justify="left" if title in ("trial", "status") else "right", no_wrap=True)

    def order(trial: Trial) -> tuple[float, str]:
        return (trial.best["bits_per_token"] if trial.best else float("inf")), trial.id

    for trial in sorted(sweep.trials.values(), key=order):
        figures = (f"{trial.best['bits_per_token']:.4f}", str(trial.best["step"])) if trial.best else ("–", "–")
        mark = " (preset)" if trial.baseline else ""
        values = (str(trial.values.get(name, "–")) for name in names)
        style = "bold" if trial is best else None
        table.add_row(
            trial.id + mark, *values, trial.status, f"{trial.steps:,}", f"{trial.tokens:,}", *figures, style=style
        )
    console = Console()
    console = console if console.is_terminal else Console(width=160)
    console.print(table)


if __name__ == "__main__":
    cli.run(main)
