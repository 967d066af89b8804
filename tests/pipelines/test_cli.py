"""What a user types, right and wrong, against nested configs like those of train and evaluate."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import tyro

from common.errors import UserError
from pipelines.config.dotted import option_words, words_of
from pipelines.terminal import cli, options
from pipelines.tracking import TrackingError


@dataclass(frozen=True)
class Big:
    width: int = 512
    """Width of the model."""


@dataclass(frozen=True)
class Deep:
    depth: int = 12
    """Layers of the model."""


@dataclass(frozen=True)
class Optim:
    lr: float = 1e-3
    """Learning rate."""
    name: Literal["adamw", "adafactor"] = "adamw"
    """Which optimizer."""


@dataclass(frozen=True)
class Train:
    model: tyro.conf.AvoidSubcommands[Big | Deep]
    optim: Optim = field(default_factory=Optim)
    steps: int = 10
    """Steps in all; of machines that were given more by
    `start --resources=3`."""
    patient: bool = True
    """Whether it waits."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps is {self.steps}: it must be at least 1")


@dataclass(frozen=True)
class Evaluate:
    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs."""
    tokens: int | None = None
    """Tokens to read."""
    span: tuple[float, float] = (0.0, 1.0)
    """Part of each run."""


PRESETS = {"small": Train(Big(64)), "paper": Train(Deep(), Optim(lr=1.0), steps=500_000)}


def train(words: str) -> Train:
    return cli.parse_preset(PRESETS, words.split(), "Train a model.")


def test_preset_and_dotted_fields() -> None:
    assert train("small") == PRESETS["small"]
    assert train("paper --optim.lr 3e-4 --steps 7") == Train(Deep(), Optim(lr=3e-4), 7)
    assert train("paper --model.depth=3") == Train(Deep(3), Optim(lr=1.0), 500_000)
    assert train("small --optim.name adafactor") == Train(Big(64), Optim(name="adafactor"))


def test_positional() -> None:
    parsed = cli.parse(Evaluate, ["a", "b", "--tokens", "5"], "Evaluate runs.")
    assert parsed == Evaluate((Path("a"), Path("b")), 5)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "name a preset first"),
        ("--steps 3", "name a preset first"),
        (
            "smal",
            "unknown preset 'smal': did you mean 'small'? (known: small, paper); if a plug-in has it, name its module in",
        ),
        ("small --optim.lrr 3", "unknown option --optim.lrr: did you mean --optim.lr?"),
        ("small --optim.lrr=3", "unknown option --optim.lrr: did you mean --optim.lr?"),
        ("small --lr 3", "unknown option --lr: did you mean --optim.lr?"),
        ("small --learning-rate 3", "unknown option --learning-rate: did you mean --optim.lr?"),  # other programs' word
        ("small --optim.learning-rate 3", "unknown option --optim.learning-rate: did you mean --optim.lr?"),
        ("small --model.lr 3", "unknown option --model.lr: did you mean --optim.lr?"),  # of another group
        ("small -optim.lr 3", "unknown option -optim.lr: did you mean --optim.lr?"),
        ("small --wid 3", "unknown option --wid: did you mean --model.width?"),
        ("small --optim 3", "unknown option --optim: did you mean --optim.lr?"),  # a group of options is none
        ("small --model.depth 3", "unknown option --model.depth: small lacks it; paper has it"),
        ("small --model.wide 3", "unknown option --model.wide: did you mean --model.width?"),
        ("small --resources 3", "unknown option --resources: --help lists the options"),  # another program's
        (
            "small --resume_from x",
            "unknown option --resume_from: trainings, sweeps, preparations and tables resume when their command",
        ),
        ("small --no-wait", "unknown option --no-wait: did you mean --no-patient?"),
        (
            "small --model.name deep",
            "unknown option --model.name: another model has other fields, which its presets set",
        ),
        ("small --zzzzzzz 3", "unknown option --zzzzzzz: --help lists the options"),
        ("small 3", "unexpected argument '3': options begin with --"),
        ("small --steps abc", "--steps is 'abc': write a whole number in digits, such as 1000"),
        ("small --steps 1e3", "--steps is '1e3': write a whole number in digits, such as 1000"),
        ("small --optim.lr x", "--optim.lr is 'x': write a number, such as 0.5 or 1e-3"),
        ("small --steps 0", "steps is 0: it must be at least 1"),
        ("small --steps 99999999999999999999", "--steps is 99999999999999999999: give less than 9007199254740992"),
        ("small --optim.lr nan", "--optim.lr is nan: give a number"),
        ("small --steps", "--steps has no value: give one after the option"),
        ("small --steps --optim.lr 3", "--steps has no value: give one after the option"),
        ("small --optim.name -x", "--optim.name has no value: write --optim.name=-x if -x is meant"),
        ("small --optim.name adm", "invalid choice 'adm' for argument '--optim.name'. Expected one of"),
    ],
)
def test_wrong_words(words: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # where --help has several columns
    with pytest.raises(UserError) as caught:
        train(words)
    assert str(caught.value).startswith(sentence) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("a --tokens 1.5", "--tokens is '1.5': write a whole number in digits, such as 1000"),
        ("a --tokens -9007199254740992", "--tokens is -9007199254740992: give more than -9007199254740992"),
        ("a --span 1 x", "--span is ['1', 'x'], which it cannot take: --help shows the type of each value"),
    ],
)
def test_a_value_of_another_type(words: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        cli.parse(Evaluate, words.split(), "Evaluate runs.")
    assert str(caught.value) == sentence


def test_a_uri_is_taken_for_no_path() -> None:
    with pytest.raises(UserError, match="s3:/bucket/run, a URI: give a file or folder of this machine"):
        cli.parse(Evaluate, ["a", "s3://bucket/run"], "Evaluate runs.")
    with pytest.raises(UserError, match="--runs is s3:/bucket/run, a URI"):
        cli.parse(Evaluate, ["a", "s3://KEY:SECRET@bucket/run"], "Evaluate runs.")
    assert cli.parse(Evaluate, ["a:/b"], "Evaluate runs.").runs == (Path("a:/b"),)


@dataclass(frozen=True)
class Export:
    run: tyro.conf.Positional[str]
    """Folder of a run."""
    output: str
    """Folder that is written."""
    also: tuple[str, ...] = ()
    """Further runs."""
    prompt: str = field(default="", metadata={options.TEXT: True})
    """A text."""
    folder: Path = Path("runs")
    """Folder of all runs."""


def test_a_value_may_begin_with_a_dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["a", "--output", "x", "--prompt", "--x y"]
    with pytest.raises(UserError, match=r"^--prompt has no value: write --prompt='--x y' if --x y is meant$"):
        cli.parse(Export, words, "Export a run.")
    for value in ("-x", "-5", "--x y"):
        for typed in (option_words("--prompt", value), words_of("prompt", value)):
            assert cli.parse(Export, [*words[:3], *typed], "Export a run.").prompt == value
    monkeypatch.chdir(tmp_path)
    assert [cli.shown(tmp_path / name) for name in ("-x", "x")] == ["./-x", "x"]


@pytest.mark.parametrize("control", ["\n", "\r", "\t", "\x1b", "\x7f", "\u2028", "\u202e"])
def test_names_with_control_characters_are_refused(control: str) -> None:
    name = f"a{control}b"
    wrong = (
        ("run", [name, "--output", "x"]),
        ("output", ["a", "--output", name]),
        ("also", ["a", "--output", "x", "--also", "c", name]),
        ("folder", ["a", "--output", "x", "--folder", name]),
    )
    for option, words in wrong:
        with pytest.raises(UserError) as caught:
            cli.parse(Export, words, "Export a run.")
        assert str(caught.value) == f"--{option} is {name!r}: leave out the control character {control!r}"
    for text in (name, "grün 'é' 書"):
        assert cli.parse(Export, ["書", "--output", "ü b", "--prompt", text], "Export a run.").prompt == text


def test_an_option_that_is_missing_for_it_is_misspelt() -> None:
    for words, sentence in (
        ("a", "missing: --output; --help lists the options"),
        ("a --ouput x", "unknown option --ouput: did you mean --output?"),
    ):
        with pytest.raises(UserError) as caught:
            cli.parse(Export, words.split(), "Export a run.")
        assert str(caught.value) == sentence


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words, shown in (
        ("--help", "paper"),
        ("small --help", "Learning rate. (default: 0.001)"),
        ("small -h", "--steps"),
    ):
        with pytest.raises(SystemExit) as exit:
            train(words)
        assert exit.value.code == 0 and shown in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (UserError("steps is 0:\n give more"), "error: steps is 0: give more\n"),
        (
            FileNotFoundError(2, "No such file or directory", "x/y"),
            "error: x/y: No such file or directory: check the path\n",
        ),
        (
            FileExistsError(17, "File exists", "x/y"),
            "error: x/y: File exists: move it away, or choose another name\n",
        ),
        (
            NotADirectoryError(20, "Not a directory", "x/y"),
            "error: x/y: Not a directory: a part of the path is a file, so choose another path\n",
        ),
        (OSError(36, "File name too long", "x/y"), "error: x/y: File name too long: choose a shorter name\n"),
        (OSError(28, "No space left on device"), "error: [Errno 28] No space left on device\n"),
        (
            OSError(28, "No space left on device", "x/y"),
            "error: x/y: No space left on device: make room there, or choose another place, and repeat the command\n",
        ),
        (
            OSError(30, "Read-only file system", "x"),
            "error: x: Read-only file system: choose a place that can be written\n",
        ),
        (TrackingError("MLflow does not answer"), "error: MLflow does not answer\n"),
        (OSError("AWS Error ACCESS_DENIED during PutObject"), "error: AWS Error ACCESS_DENIED during PutObject\n"),
        (UserError(), "error: UserError\n"),
        (IsADirectoryError(21, "Is a directory", "x.1.tmp", None, "x"), "error: x: Is a directory: name a file\n"),
        (MemoryError("24 GiB"), "error: not enough memory (24 GiB): ask for fewer or smaller things at once\n"),
    ],
)
def test_run_prints_one_sentence_for_what_a_user_can_mend(
    error: Exception, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def main(argv: list[str]) -> None:
        raise error

    with pytest.raises(SystemExit) as exit:
        cli.run(main)
    assert exit.value.code == 2 and capsys.readouterr().err == line
    monkeypatch.setenv("THROUGHLINE_DEBUG", "1")
    with pytest.raises(type(error)):
        cli.run(main)


FAILS = "from pipelines.terminal import cli\ndef main(argv):\n    raise {error}\ncli.run(main)"


@pytest.mark.parametrize(
    "error", ["ValueError('ours')", "OSError(5, 'one network error')", "ConnectionError('the other side')"]
)
def test_what_nobody_is_to_blame_for_shows_its_traceback_and_ends_with_1(error: str) -> None:
    done = subprocess.run([sys.executable, "-c", FAILS.format(error=error)], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("Traceback") and "in main" in done.stderr


PRINTS = """
import sys, time
from pipelines.terminal import cli

def main(words):
    for i in range(50):
        print(i, flush=True)
        time.sleep(0.01)
    return 0

cli.run(main)
"""


def test_a_reader_that_goes_and_an_output_that_is_closed() -> None:
    words = [sys.executable, "-c", PRINTS]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == "0\n"
        process.stdout.close()
        assert process.stderr.read() == "" and process.wait() == 128 + signal.SIGPIPE
    closed = subprocess.run([*words], preexec_fn=partial(os.close, 1), stderr=subprocess.PIPE, text=True)
    assert (closed.returncode, closed.stderr) == (0, "")


@pytest.mark.parametrize(
    ("lines", "unbuffered"), [("print('a', flush=True)", ""), ("print('a')", ""), ("print('a')", "1")]
)
def test_an_output_that_is_full_is_named(lines: str, unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    program = f"from pipelines.terminal import cli\ndef main(argv):\n    {lines}\ncli.run(main)"
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-c", program]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, env=environment)
    assert done.stderr == "error: standard output cannot be written: No space left on device\n"
    assert done.returncode == 2


def test_names_of_files_are_short_and_do_not_collide() -> None:
    long = [cli.file_name("é" * 200 + end) for end in "ab"]
    assert all(len(name.encode()) < 160 for name in long) and long[0] != long[1]
    assert cli.file_name("rec-vs-sweep/trials/003") == "rec-vs-sweep-trials-003"


def test_run_passes_words_and_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["program", "a", "b"])
    for status in (0, 3):
        with pytest.raises(SystemExit) as exit:
            cli.run(lambda argv, status=status: status if argv == ["a", "b"] else 9)
        assert exit.value.code == status
