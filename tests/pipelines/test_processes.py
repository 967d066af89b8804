"""Training in several real processes: asked to stop, killed, hung, and resumed with another number of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import kills
from benchmarks.killing import MODELS, TINY, Group, Trap, curve, final_tensors, make_store
from pipelines.checkpoints.checkpoint import Checkpoint
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.config.parts import DataConfig
from pipelines.config.run import TrainConfig
from pipelines.presets import PRESETS
from pipelines.train import main
from pipelines.training.restoring import restore_lanes
from pipelines.training.stopping import NOTICES, Stop
from pipelines.training.world import World

pytestmark = pytest.mark.slow
Start = Callable[..., Group]
FAMILY = [*MODELS][[*MODELS].index("staircase") :]
"""The others stand for one another: what moves is what the protocol calls State."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("store"))


def command(made: Path, root: Path) -> list[str]:
    """Words that train rec for 60 steps; the name of the run is to be added."""
    untracked = ["--data.store", str(made), "--root", str(root), "--tracking.backend", "none"]
    return [*MODELS["rec fixed:skip"], *TINY, *untracked]


@pytest.fixture
def words(made: Path, tmp_path: Path) -> list[str]:
    return command(made, tmp_path)


@pytest.fixture(scope="module")
def calm(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing disturbs, on two processes."""
    root = tmp_path_factory.mktemp("calm")
    with Group([*command(made, root), "--run", "calm"], 2, root / "log") as group:
        assert group.wait() == [0, 0], group.said()
    return root / "calm"


def until(run: Path, step: int, group: Group) -> None:
    """Wait for the checkpoint of a step, or a later one."""
    deadline = time.monotonic() + 300
    while RunFolder.parse(run).newest_step() < step:
        assert time.monotonic() < deadline and any(p.is_alive() for p in group.processes), group.said()
        time.sleep(0.02)


def test_lanes_in_groups_are_averaged_over_the_processes_once(words: list[str], tmp_path: Path) -> None:
    """Two processes of two lanes, read one by one, make the gradients that one process makes of all four."""
    short = [*words, "--steps", "3", "--validate-every", "0", "--model.dropout", "0", "--optim.lr", "1e-15"]
    main([*short, "--run", "whole"])
    with Group([*short, "--run", "groups", "--micro-lanes", "1"], 2, tmp_path / "log") as group:
        assert group.wait() == [0, 0], group.said()
    whole, groups = (
        Checkpoint.open(tmp_path / run / "checkpoints" / "step-00000003").optimizer()["state"]
        for run in ("whole", "groups")
    )
    for parameter, moments in whole.items():
        scale = moments["exp_avg"].abs().max().item()
        torch.testing.assert_close(groups[parameter]["exp_avg"], moments["exp_avg"], rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize("ways", [("SIGTERM to all", "file"), ("Ctrl-C", "SIGTERM to one")], ids=" and ".join)
def test_asked_to_stop_it_saves_and_the_same_command_goes_on(
    words: list[str], calm: Path, tmp_path: Path, ways: tuple[str, ...]
) -> None:
    run, log = tmp_path / "asked", tmp_path / "asked.log"
    asked = [*words, "--run", "asked", "--checkpoint.every", "13"]
    saved = 0
    for how in ways:
        with Group(asked, 2, log) as group:
            until(run, saved + 1, group)
            there = RunFolder.parse(run).newest_step()
            if how == "file":
                (run / "stop").touch()
            else:
                number = signal.SIGINT if how == "Ctrl-C" else signal.SIGTERM
                group.signal(number, 1 if how == "SIGTERM to one" else None)
            assert group.wait() == [75, 75], group.said()
        stopped = re.findall(r"stopped after step (\d+) of 60, which is saved", log.read_text())
        found, _ = RunFolder.parse(run).newest()
        assert stopped and found and found.step == int(stopped[-1]) > there  # not the checkpoint that was there
        assert curve(run)[-1][0] == found.step and not (run / "stop").exists()
        assert not saved or f"resumes from step {saved}" in log.read_text()
        saved = found.step
    with Group(asked, 2, log) as group:
        assert group.wait() == [0, 0], group.said()
    assert f"resumes from step {saved}" in log.read_text()
    assert final_tensors(run, 60) == final_tensors(calm, 60) and curve(run) == curve(calm)


def test_in_a_finished_run_there_is_nothing_to_do_for_any_process(made: Path, calm: Path, tmp_path: Path) -> None:
    with Group([*command(made, calm.parent), "--run", "calm"], 2, tmp_path / "log") as group:
        assert group.wait() == [0, 0]
    assert "nothing to do" in group.said()


def test_in_one_process_too(words: list[str], tmp_path: Path) -> None:
    mine, run = [*words, "--run", "alone"], tmp_path / "alone"
    with Group(mine, 1, tmp_path / "alone.log") as group:
        until(run, 6, group)
        group.signal(signal.SIGUSR1)  # Slurm's, ahead of a time limit
        group.signal(signal.SIGHUP)  # a terminal that closes
        assert group.wait() == [75]
    with Group(mine, 1, tmp_path / "alone.log") as group:
        assert group.wait() == [0]
    assert [step for step, key, _ in curve(run) if key == "train/bits_per_token"] == list(range(1, 61))


@pytest.mark.parametrize("number", NOTICES)
def test_a_notice_asks_however_often_it_comes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int) -> None:
    monkeypatch.setattr("pipelines.training.stopping.AGAIN_SECONDS", 0.0)
    before = signal.signal(number, signal.SIG_DFL)  # nohup may have the tests ignore it
    try:
        stop = Stop(tmp_path)
        with stop.on_signals():
            assert not stop.asked()
            signal.raise_signal(number)
            signal.raise_signal(number)
            assert stop.asked()
    finally:
        signal.signal(number, before)


def test_under_nohup_a_terminal_that_closes_asks_nothing(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop = Stop(tmp_path)
        with stop.on_signals():
            signal.raise_signal(signal.SIGHUP)
            assert not stop.asked()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.long
def test_a_process_that_stands_still_is_named_and_ended(words: list[str], calm: Path, tmp_path: Path) -> None:
    run, log = tmp_path / "hung", tmp_path / "hung.log"
    mine = [*words, "--run", "hung", "--hang-seconds", "6"]
    with Group(mine, 2, log) as group:
        until(run, 9, group)
        group.signal(signal.SIGSTOP, 1)
        victim, began = group.processes[1].pid, time.monotonic()
        assert group.wait() == [70, -9]
        assert time.monotonic() - began < 120
    told = (run / "logs" / "hang.txt").read_text()
    assert re.match(
        rf"nothing has moved for 6 s: rank 1 \(process {victim} on \S+\) after step \d+ .*no sign of life", told
    )
    assert re.search(r"; rank 0 .* after step \d+ at loop.py:\d+ `", told)
    assert told in log.read_text() and "Thread 0x" in log.read_text()  # the stacks of rank 0
    with Group(mine, 2, log) as group:
        assert group.wait() == [0, 0]
    assert final_tensors(run, 60) == final_tensors(calm, 60)


def test_a_process_without_a_heartbeat_hides_no_other_ones(tmp_path: Path) -> None:
    """As on a full disk, or where a machine died before its first heartbeat had reached the shared folder."""
    stand_still = """
import dataclasses, sys, time
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.training.watchdog import Heartbeat
from pipelines.training.world import World
world = dataclasses.replace(World.alone(), size=2)
with Heartbeat(RunFolder.parse(sys.argv[1]), world, seconds=1) as heart:
    heart.beat(3)
    time.sleep(600)
"""
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "heartbeat-1.json").touch()
    command = [sys.executable, "-c", stand_still, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    told = (logs / "hang.txt").read_text()
    assert ended.returncode == 70 and told in ended.stderr
    assert "rank 1 has written no heartbeat; rank 0 (" in told
    assert "after step 3 in <string>:<module>" in told


@pytest.mark.long
def test_a_process_that_was_suspended_as_a_whole_goes_on(words: list[str], tmp_path: Path) -> None:
    """Ctrl-Z and fg, or a laptop that slept: nobody hung."""
    with Group([*words, "--run", "slept", "--hang-seconds", "4"], 1, tmp_path / "log") as group:
        until(tmp_path / "slept", 6, group)
        group.signal(signal.SIGSTOP)
        time.sleep(9)
        group.signal(signal.SIGCONT)
        assert group.wait() == [0], group.said()


@pytest.mark.long
def test_kills_change_no_bit(words: list[str], made: Path, tmp_path: Path) -> None:
    """Two of the kills of benchmarks/kills.py, whose results are in results/reliability."""
    kills.random.seed(5)
    tracked = [*MODELS["rec lstm:dual"], *TINY, "--data.store", str(made), "--root", str(tmp_path / "root")]
    tracked += ["--checkpoint.every", "6"]  # each costs MLflow a tenth of a second
    differences, moments = kills.compare(tracked, tmp_path / "root", kills=2)
    assert not differences and moments.total() == 2


def test_two_one_four_and_two_processes_read_and_learn_the_same(words: list[str], tmp_path: Path) -> None:
    mine = [*words, "--model.dropout", "0", "--steps", "32"]
    with Group([*mine, "--run", "steady"], 2, tmp_path / "steady.log") as group:
        assert group.wait() == [0, 0]
    run = tmp_path / "moved"
    moved = in_turns(mine, run, ((2, 8, 1), (1, 16, 4), (4, 24, 1), (2, 32, 1)))
    steady = Checkpoint.open(tmp_path / "steady/checkpoints/step-00000032")
    assert torch.equal(steady.lanes(0, 4)[0]["digest"], moved.lanes(0, 4)[0]["digest"])  # of every token of every lane
    expected, got = losses(tmp_path / "steady"), losses(run)
    assert len(got) == 32
    np.testing.assert_allclose(got, expected, rtol=1e-4)


@pytest.mark.parametrize("model", FAMILY)
def test_two_one_and_three_processes_move_the_state_of_every_model(model: str, made: Path, tmp_path: Path) -> None:
    """Killed between them; metrics and tensors are those of one process."""
    untracked = ["--data.store", str(made), "--root", str(tmp_path), "--tracking.backend", "none"]
    mine = [*MODELS[model], *TINY, *untracked, "--model.dropout", "0", "--steps", "12", "--validate-every", "12"]
    mine += ["--data.segment-length", "16"]  # the feedback transformer reads token by token
    mine += ["--checkpoint.every", "1"]  # a save ends before the next one begins: some are there when it is killed
    assert main([*mine, "--run", "steady"]) == 0
    found = in_turns(mine, tmp_path / "moved", ((2, 4, 1), (1, 8, 3), (3, 12, 2)))
    steady = Checkpoint.open(tmp_path / "steady/checkpoints/step-00000012")
    before, after = ({**each.weights(), **each.lanes(0, 4)[0]} for each in (steady, found))
    assert before.keys() == after.keys() and torch.equal(before["digest"], after["digest"])
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=1e-3, atol=1e-4, msg=name)
    np.testing.assert_allclose(losses(tmp_path / "moved"), losses(tmp_path / "steady"), rtol=1e-4)


def test_lanes_are_shared_unevenly_and_their_sums_move_with_them(words: list[str], tmp_path: Path) -> None:
    """Two, three and four processes with 4 lanes. Between two points of the curve a sum of losses waits in each process, and some
    processes keep their lanes while the others' move.
    """
    mine = [*words, "--model.dropout", "0", "--steps", "32", "--log-every", "8", "--validate-every", "0"]
    with Group([*mine, "--run", "steady"], 2, tmp_path / "steady.log") as group:
        assert group.wait() == [0, 0], group.said()
    run = tmp_path / "moved"
    found = in_turns(mine, run, ((2, 12, 4), (3, 20, 4), (4, 28, 3), (3, 32, 4)))
    steady = Checkpoint.open(tmp_path / "steady/checkpoints/step-00000032")
    assert torch.equal(steady.lanes(0, 4)[0]["digest"], found.lanes(0, 4)[0]["digest"])
    assert len(losses(run)) == 4
    np.testing.assert_allclose(losses(run), losses(tmp_path / "steady"), rtol=1e-4)


def test_in_bfloat16_a_kill_changes_no_bit_and_lanes_move_with_theirs(words: list[str], tmp_path: Path) -> None:
    mine = [*words, "--steps", "20", "--precision", "bfloat16"]
    with Group([*mine, "--run", "steady"], 2, tmp_path / "steady.log") as group:
        assert group.wait() == [0, 0], group.said()
    for trap, statuses in (({0: Trap("forward", 11, 0), 1: Trap("forward", 11, 0)}, [-9, -9]), ({}, [0, 0])):
        with Group([*mine, "--run", "killed"], 2, tmp_path / "killed.log", trap) as group:
            assert group.wait() == statuses, group.said()
    assert final_tensors(tmp_path / "killed", 20) == final_tensors(tmp_path / "steady", 20)
    for workers in (1, 4):
        check_the_move(Checkpoint.open(tmp_path / "killed/checkpoints/step-00000020"), workers)


class WithGpu(Trap):
    """No trap, but a GPU on the machine, as far as torch says."""

    def lay(self) -> None:
        torch.cuda.is_available = lambda: True


def test_processes_without_gpus_speak_gloo_on_a_machine_that_has_some(words: list[str], tmp_path: Path) -> None:
    machine: dict[int, Trap] = dict.fromkeys(range(2), WithGpu("", 0, 0))
    with Group([*words, "--run", "on-cpu", "--steps", "3"], 2, tmp_path / "log", machine) as group:
        assert group.wait() == [0, 0], group.said()


def in_turns(mine: list[str], run: Path, turns: Sequence[tuple[int, int, int]]) -> Checkpoint:
    """Train with a number of processes to a step, all killed there, and then with the next number, to the end. What a turn saves is
    checked for its third value, another number of processes. Returns the last checkpoint.
    """
    last = turns[-1][1]
    for workers, step, next_workers in turns:
        trap = {rank: Trap("forward", step, 0) for rank in range(workers)} if step < last else {}
        with Group([*mine, "--run", run.name], workers, run.with_suffix(".log"), trap) as group:
            if trap:
                group.wait_until_killed(range(workers))
            else:
                assert group.wait() == [0] * workers, group.said()
        found, _ = RunFolder.parse(run).newest()
        assert found and found.meta["world"] == workers
        check_the_move(found, next_workers)
    return found


def check_the_move(checkpoint: Checkpoint, next_workers: int) -> None:
    """What each of another number of processes restores is, lane for lane and bit for bit, what was saved."""
    whole: dict[str, torch.Tensor] = {}
    for start, stop, _ in checkpoint._ranges():
        for name, value in checkpoint.lanes(start, stop)[0].items():
            whole[name] = torch.cat([whole[name], value]) if name in whole else value
    assert len(whole) > 1 and all(len(value) == 4 for value in whole.values())
    config: TrainConfig = PRESETS["small-rec"]
    config = replace(config, data=DataConfig(lanes=4))
    for rank in range(next_workers):
        start, stop = 4 * rank // next_workers, 4 * (rank + 1) // next_workers
        fresh = {
            name.removeprefix("state/"): torch.zeros(
                value[start:stop].shape
            )  # as a model begins, whatever it computes in
            for name, value in whole.items()
            if name.startswith("state/")
        }
        before = torch.get_rng_state()
        world = World(rank, next_workers, torch.device("cpu"))
        restored = restore_lanes(checkpoint, config, world, fresh, torch.zeros((), dtype=torch.float64))
        assert restored
        state, digests, _ = restored
        torch.set_rng_state(before)
        assert torch.equal(digests, whole["digest"][start:stop])
        for name, value in state.items():
            was = whole[f"state/{name}"][start:stop]
            assert value.dtype == was.dtype and torch.equal(value, was), name
    assert not torch.equal(whole["digest"][0], whole["digest"][1])  # a swap would be seen


def losses(run: Path) -> list[float]:
    return [value for _, key, value in curve(run) if key == "train/bits_per_token"]


def test_a_start_waits_for_a_process_of_an_earlier_one(words: list[str], tmp_path: Path) -> None:
    """Its driver was killed, and it is still alive: it must not write beside the new one."""
    from common.lock import file_lock

    run = tmp_path / "fenced"
    holder = file_lock(run / "checkpoints", "an earlier start")
    with Group([*words, "--run", "fenced", "--steps", "6"], 1, tmp_path / "log") as group, holder:
        time.sleep(3)
        assert group.processes[0].is_alive() and not RunFolder.parse(run).checkpoint_names()
        holder.__exit__(None, None, None)
        assert group.wait() == [0]


@pytest.mark.parametrize(
    ("workers", "lanes", "expected"),
    [("2", 8, [2]), ("1:4", 8, [1, 2, 3, 4]), ("3", 8, [3]), ("2:6", 3, [2, 3]), ("1:1", 3, [1]), ("0", 3, [0])],
)
def test_numbers_of_workers(workers: str, lanes: int, expected: list[int]) -> None:
    data = DataConfig(lanes=lanes, segment_length=256)
    assert list(replace(PRESETS["demo-rec"], data=data, num_workers=workers).workers) == expected


@pytest.mark.parametrize("workers", ["17", "17:20", "4:2", "0:4", "1:", "one", "-1", "1:2:3"])
def test_numbers_of_workers_that_are_refused(workers: str) -> None:
    with pytest.raises(ValueError, match=r"num_workers is|workers cannot share: each needs a lane"):
        main(["demo-rec", "--num-workers", workers])


def test_the_exit_status_of_a_run_that_was_stopped_is_its_own() -> None:
    from pipelines.training.stopping import STOPPED_STATUS
    from pipelines.training.watchdog import HUNG_STATUS

    assert len({0, 1, 2, 130, 128 + signal.SIGTERM, os.EX_OK, HUNG_STATUS, STOPPED_STATUS}) == 7


def test_the_same_signal_right_behind_ends_nothing_and_one_later_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stop = Stop(tmp_path)
    with stop.on_signals():
        try:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)  # from a launcher, which sends it to all of its processes
        except KeyboardInterrupt:
            pytest.fail("a signal that came twice at once has ended the process")
        assert stop.asked()
        monkeypatch.setattr("pipelines.training.stopping.AGAIN_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
