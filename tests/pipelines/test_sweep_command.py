"""A sweep's words: what is refused, what they mean for each trial, and which folder they may continue."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import UserError
from common.places import Place
from pipelines import tune
from pipelines.prepare import PrepareConfig, prepare
from pipelines.presets import PRESETS
from pipelines.reports.sweep_result import Trial
from pipelines.sweeps import run_sweep
from pipelines.sweeps.command import read_command
from pipelines.sweeps.planning import print_plan
from pipelines.sweeps.sweep import BUDGET
from tests.ray_sweeps import Make
from tests.small_runs import TINY


def test_only_the_options_limit_how_many_trials_run_at_once(here: Make) -> None:
    """Machines that join the cluster make room for more."""
    assert here("lr", "--num-cpus", "3", name="a").config.most_at_once == 3
    assert here("lr", "--num-cpus", "3", "--max-concurrent-trials", "2", name="b").config.most_at_once == 2


def test_blanks_in_a_space_make_no_other_sweep() -> None:
    written = read_command([" optim.lr=1e-4 .. 1e-2 + model.states=16, 32"])
    assert written == read_command(["optim.lr=1e-4..1e-2+model.states=16,32"])
    assert written.train.run == "small-rec-optim-lr-1e-4--1e-2-model-states-16-32"


def test_a_population_of_a_grid_counts_only_what_fits_together(here: Make) -> None:
    words = ("model.window=8,64+data.segment_length=32,128", "--search", "grid", "--baseline", "no")
    halving = ("--scheduler", "ray.tune.schedulers:HyperBandScheduler")
    assert len(here(*words, *halving, "--max-trials", "3").sweep.trials) == 3
    with pytest.raises(UserError, match="waits until all 3 trials can be compared, and --max-trials 2"):
        here(*words, *halving, "--max-trials", "2", name="fewer")


@pytest.mark.parametrize(("equal", "steps"), [("tokens", [20, 40, 10]), ("steps", [20, 20, 20])])
def test_trials_cost_the_same(here: Make, equal: str, steps: list[int]) -> None:
    trials = here("data.segment_length=32,16,64", "--search", "grid", "--equalize", equal)
    runs = [trials.sweep.run_of(trial) for trial in trials.sweep.trials.values()]
    assert [run.steps for run in runs] == steps
    wide = here("model.d_model=16,64", "--search", "grid", "--equalize", "flops", name="wide")
    small, large = (wide.sweep.run_of(trial) for trial in wide.sweep.trials.values())
    flops = [run.steps * run.tokens_per_step * wide.sweep.training_flops_per_token(run) for run in (small, large)]
    assert large.steps < small.steps and flops[1] == pytest.approx(flops[0], rel=0.5 / large.steps)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ([], "name a space first"),
        (["--num-samples", "3"], "name a space first"),
        (["lr", "--preset", "small-rek"], "unknown preset 'small-rek': did you mean 'small-rec'"),
        (
            ["lr", "--preset", "runs/one/config.json"],
            "is a path: name the preset of that run, and give its other values",
        ),
        (["lr", "--preset", "tests"], "--preset tests is a path: name the preset of that run"),
        (["lr", "--num-sampels", "3"], "unknown option --num-sampels: did you mean --num-samples"),
        (["lr", "--samples", "3"], "unknown option --samples: did you mean --num-samples?"),
        (["lr", "--concurrent=3"], "unknown option --concurrent: did you mean --max-concurrent-trials?"),
        (["lr", "--num-samples", "0"], "num_samples is 0"),
        (["lr", "--reduction", "1"], "reduction is 1: it must be at least 2"),
        (["lr", "--metric", "accuracy"], "metric"),
        (["lr", "--scheduler", "ahsa"], "scheduler is 'ahsa': did you mean 'asha'"),
        (
            ["lr", "--scheduler", "hyperband"],
            "known: asha, .*; or name a class by its import path, as in ray.tune.schedulers:HyperBandScheduler",
        ),
        (["lr", "--search", "ray.tune.search:Nothing"], "ray.tune.search:Nothing cannot be made: .*no attribute"),
        (
            ["lr", "--scheduler", "ray.tune.schedulers:ResourceChangingScheduler"],
            "no scheduler that decides by results alone: choose asha",
        ),
        (
            ["lr", "--scheduler", "ray.tune.schedulers:HyperBandForBOHB"],
            "HyperBandForBOHB works with a searcher alone: add --search bohb, or choose .*:HyperBandScheduler",
        ),
        (["lr", "--validate-every", "0"], "no trial would ever be validated"),
        (
            ["lr", "--token-budget", "500"],
            "a budget of 500 tokens ends before the first trial's first result, after 1,280 tokens",
        ),
        (["lr", "--rung-tokens", "99999"], "nothing would be stopped"),
        (["window", "--scheduler", "pbt"], "model.window cannot change in the middle of a run"),
        (["lr+states", "--scheduler", "pbt"], "model.states cannot change in the middle of a run"),
        (
            ["lr", "--scheduler", "pbt", "--num-samples", "4", "--max-trials", "2"],
            "pbt waits until all 4 trials can be compared, and --max-trials 2 leaves some out: lower --num-samples",
        ),
        (
            ["optim.lr=1e-7,1e-3,1e-2", "--search", "grid", "--scheduler", "pbt", "--max-trials", "3"],
            "pbt waits until all 4 trials can be compared, and --max-trials 3 leaves some out",
        ),
        (
            ["lr", "--validate-every", "30", "--token-budget", "2500"],
            "before the first trial's first result, after 2,560 tokens",
        ),
        (["optim.lr=-1,1e-3"], "optim.lr=-1,1e-3 cannot be searched with optim.lr -1.0: .* it must be at least 0"),
        (["optim.lr=1e-3,nan"], "with optim.lr nan: optim.lr is nan: it must be at least 0"),
        (["optim.lr=1e-3..inf"], "the space 'optim.lr=1e-3..inf' does not give values of optim.lr"),
        (
            ["model.dropout=0.1..2", "--search", "optuna"],
            "with model.dropout 2.0: .* it must be at least 0 and below 1",
        ),
        (["model.states=4,0", "--baseline", "no"], "with model.states 0: model.states is 0: it must be at least 1"),
        (
            ["model.window=3,8"],
            "with model.window 3: data.segment_length is 32, not a multiple of the model's block of 3",
        ),
        (["optim.name=adam,adamw", "--search", "grid"], "optim.name is 'adam': it must be one of adamw, adafactor"),
        (["seed=0,9223372036854775808"], "--seed is 9223372036854775808: give less than 9223372036854775808"),
        (["data.corpus=text,pg20"], "pg20"),
        (["validate_every=0,10"], "with validate_every 0: no trial would ever be validated"),
        (
            ["model.name=rec,slide"],
            "model.name cannot be varied: .* vary preset, as in preset=small-rec,small-slide",
        ),
        (["lr", "--data.corpus", "pg20"], "pg20"),
        (["lr", "--initial-weights", "nowhere"], "nowhere has no config.json, which names its model"),
        (["preset=small-rec,small-slide+model.states=4,8"], "cannot be searched with preset small-slide"),
        (["preset=tiny-walk-lstm,tiny-walk-slide", "--preset", "small-rec"], "/random-walk/train"),
        (["preset=small-rec,small-rek"], "unknown preset 'small-rek' in the space .*: did you mean 'small-rec'"),
        (
            ["data.store=a,b", "--equalize", "flops", "--data.store", "nowhere"],
            "--equalize flops counts from the preset's own store, and .*/nowhere/text is not one: choose another --equalize",
        ),
        (["steps=10,20"], "the space varies steps, which --equalize tokens chooses for each trial"),
        (["checkpoint.every=10,20"], "checkpoint.every does not change what a trial learns"),
    ],
)
def test_bad_input_is_one_sentence(command: list[str], sentence: str, store: Path, tmp_path: Path) -> None:
    rest = [*TINY[1:], "--data.store", str(store), "--root", str(tmp_path / "runs")]
    with pytest.raises(ValueError, match=sentence):
        tune.main([command[0], *rest, *command[1:]] if command and command[0][0] != "-" else command)
    assert not (tmp_path / "runs").exists()


def test_a_store_without_its_tokenizer_is_refused_before_ray_starts(store: Path, tmp_path: Path) -> None:
    shutil.rmtree(store / "text/tokenizer")
    words = ["optim.lr=1e-3", "--preset", "demo-rec", "--data.corpus", "text", "--data.store", str(store)]
    with pytest.raises(UserError, match=r"tokenizer\.json is missing: run the same prepare command again"):
        tune.main([*words, "--root", str(tmp_path / "runs"), "--tracking.backend", "none"])
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_prints_what_the_trials_cost_and_leaves_nothing(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        *TINY[1:],
        "--data.store",
        str(store),
        "--root",
        str(tmp_path / "runs"),
        "--equalize",
        "steps",
        "--dry-run",
    ]
    with pytest.raises(SystemExit) as ended:
        tune.main(["data.segment_length=32,64", "--search", "grid", *words])
    *_, own, other, total = (line.split() for line in capsys.readouterr().out.splitlines())
    assert own[:5] == ["000", "(preset)", "32", "20", "2.56k"] and other[:4] == ["001", "64", "20", "5.12k"]
    assert " ".join(total).startswith("2 of 2 trials to do, at most 7.68k tokens and ")
    assert float(total[-2]) == pytest.approx(float(own[5]) + float(other[4]), rel=0.01)
    assert not ended.value.code and not (tmp_path / "runs").exists()


def test_a_plan_counts_what_a_larger_budget_would_continue(here: Make, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = here("optim.lr=1e-3,2e-3+data.segment_length=32,64", "--search", "grid", "--baseline", "no").sweep
    first, second, third, _ = sweep.trials.values()
    first.status = "finished"
    second.status, second.reason = "stopped", f"{BUDGET} of 9 s is spent"
    third.values = dict(reversed(third.values.items()))  # as a scheduler may return them
    capsys.readouterr()
    print_plan(sweep)
    *rows, total = capsys.readouterr().out.splitlines()
    assert rows[3].split()[:3] == ["002", "0.002", "32"]
    assert total.startswith("3 of 4 trials to do")


@pytest.mark.parametrize(
    ("search", "told"),
    [
        ("random", ["2 of 4 trials to do, at most 5.12k tokens"]),
        ("optuna", ["1 of 1 trial to do", "optuna suggests 1 more"]),
    ],
)
def test_a_plan_counts_no_more_trials_than_the_budget_of_trials(
    here: Make, capsys: pytest.CaptureFixture[str], search: str, told: list[str]
) -> None:
    sweep = here("lr", "--search", search, "--num-samples", "4", "--max-trials", "2").sweep
    capsys.readouterr()
    print_plan(sweep)
    last = capsys.readouterr().out.splitlines()[-len(told) :]
    assert [line.startswith(words) for line, words in zip(last, told, strict=True)] == [True] * len(told)


def test_a_value_that_fits_beside_others_of_the_space_alone_is_kept(here: Make) -> None:
    """A window of 64 tokens needs a longer segment than the preset's 32."""
    words = ("model.window=8,64+data.segment_length=32,128", "--search", "grid", "--baseline", "no")
    sweep = here(*words).sweep
    assert [tuple(trial.values.values()) for trial in sweep.trials.values()] == [(8, 32), (8, 128), (64, 128)]
    with pytest.raises(UserError, match=r"with model\.window 64: data\.segment_length is 32"):
        here("model.window=8,64+data.segment_length=32,96", *words[1:], name="other")


@pytest.mark.parametrize("further", [["optim.lr=1e-7,2e-3,1e-2"], ["optim.lr=1e-7,1e-3,1e-2", "--baseline", "no"]])
def test_a_population_of_which_no_trial_is_left_out_is_none_to_refuse(here: Make, further: list[str]) -> None:
    """The preset itself is among the combinations, or no trial."""
    assert len(here(*further, "--search", "grid", "--scheduler", "pbt", "--max-trials", "3").sweep.trials) == 3


@pytest.mark.parametrize("space", ["rec-table-5", "rec-table-5+lr", "lr+rec-table-5"])
def test_a_space_keeps_its_defaults_beside_another(space: str) -> None:
    """Those of rec-table-5: it compares vocabularies by bytes."""
    config = read_command([space])
    assert (config.preset, config.search, config.metric) == ("pg19-rec-fixed-skip", "grid", "validation/bits_per_byte")
    assert (read_command(["lr"]).preset, read_command(["lr"]).search) == ("small-rec", "random")


def test_after_a_sweep_a_notebooks_own_tuner_is_heard(store: Path, tmp_path: Path) -> None:
    logger = logging.getLogger("ray.tune")
    before = logger.level
    try:
        logger.setLevel(logging.INFO)
        with pytest.raises(UserError, match="pg20"):
            run_sweep(["lr", *TINY[1:], "--data.store", str(store), "--root", str(tmp_path), "--data.corpus", "pg20"])
        assert logger.level == logging.INFO
    finally:
        logger.setLevel(before)


def test_every_preset_gets_what_was_typed_though_it_is_one_presets_own() -> None:
    typed = ["--data.corpus", "text", "--optim.lr=0.002"]
    config = read_command(["preset=small-rec,demo-rec", "--preset", "small-rec", *typed, "--run", "x"])
    assert config.typed == ("data.corpus", "optim.lr")
    for name in ("small-rec", "demo-rec"):
        run = config.run_with({"preset": name})
        assert (run.data.corpus, run.optim.lr) == ("text", 0.002)
    assert config.run_with({"preset": "demo-rec"}).steps == PRESETS["demo-rec"].steps != config.train.steps


@pytest.mark.parametrize("baseline", ["yes", "no"])
def test_a_larger_number_of_samples_adds_the_trials_that_it_would_have_had(here: Make, baseline: str) -> None:
    words = ("lr", "--baseline", baseline)
    few = here(*words, "--num-samples", "3").sweep.trials
    grown = here(*words, "--num-samples", "6").sweep
    whole = here(*words, "--num-samples", "6", name="whole").sweep
    assert len(few) == 3 and grown.grown and grown.trials == whole.trials
    again = here(*words, "--num-samples", "6").sweep
    assert not again.grown and again.trials == whole.trials
    with pytest.raises(UserError, match="with num_samples=6, and this command says 3"):
        here(*words, "--num-samples", "3")


@pytest.mark.parametrize("way", [("--scheduler", "pbt"), ("--search", "grid")])
def test_populations_and_grids_do_not_grow(here: Make, way: tuple[str, str]) -> None:
    words = ("optim.lr=1e-4..1e-2", *way, "--num-samples")
    here(*words, "4")
    with pytest.raises(UserError, match="with num_samples=4, and this command says 8: choose another --run"):
        here(*words, "8")


def test_a_folder_of_something_else_is_refused(
    here: Make, make_config: Callable[..., PrepareConfig], text_folder: Path, tmp_path: Path
) -> None:
    here("lr")
    (text_folder / "train/more.txt").write_text("one more document\n")
    prepare(make_config(store=str(tmp_path / "other-store")))
    with pytest.raises(UserError, match=r"holds another sweep, with store=\w+, and this command says \w+: choose"):
        here("lr", "--data.store", str(tmp_path / "other-store"))
    with pytest.raises(
        ValueError, match="runs/sweep holds another sweep, with space=lr, and this command says states: choose"
    ):
        here("states")
    with pytest.raises(ValueError, match="holds another sweep, with steps=20, and this command says 10"):
        here("lr", "--steps", "10")
    with pytest.raises(UserError, match=r"holds another sweep, with num_samples=12, and this command says 11: choose"):
        here("lr", "--num-samples", "11")
    (tmp_path / "runs" / "other" / "checkpoints").mkdir(parents=True)
    with pytest.raises(ValueError, match="other holds something else than a sweep"):
        here("lr", name="other")
    killed = tmp_path / "runs" / "killed"
    killed.mkdir()
    Path((Place.parse(killed) / "sweep.json").staged().path).write_text("{")  # killed while it wrote its plan
    assert here("lr", name="killed").sweep.trials
    path = tmp_path / "runs" / "sweep" / "sweep.json"
    saved = json.loads(path.read_text())
    for odd in ({"identity": 7}, {"plan": None}, {"plan": [{}]}, {"plan": [{"id": "x", "values": {}}]}):
        path.write_text(json.dumps(saved | odd))
        with pytest.raises(UserError, match=r"sweep\.json is damaged \(.*\): choose another --run"):
            here("lr")
    path.write_text(json.dumps({**saved, "schema": 0}))
    with pytest.raises(
        UserError, match=r"^[^(]*sweep\.json was written by another version of Throughline: choose another --run"
    ):
        here("lr")
    assert Trial("000", {}).described() == "the preset"


def test_ray_reads_the_settings_of_a_local_session_when_a_sweep_imports_it() -> None:
    """Else its ports would not be on 127.0.0.1 alone. In a process of its own, since this one has imported Ray."""
    code = """
import sys
from pipelines.sweeps import run_sweep
try:
    run_sweep(["optim.lr=1e-3,1e-2", "--preset", "small-rec", "--data.store", "nowhere"])
except Exception as error:
    assert "ray" in sys.modules, error
from ray._private import ray_constants
print(ray_constants.ENABLE_RAY_CLUSTER)
"""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.split() == ["False"], done.stderr


def test_the_first_of_listed_presets_is_the_sweeps_own() -> None:
    assert read_command(["preset=demo-rec,demo-slide"]).preset == "demo-rec"
    assert read_command(["preset=demo-rec,demo-slide", "--preset", "small-rec"]).preset == "small-rec"
