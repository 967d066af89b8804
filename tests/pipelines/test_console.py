"""The console command: its list, its subcommands, its completion in bash and zsh, and an installed wheel outside of this tree."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.errors import UserError
from pipelines import PACKAGES, completion
from pipelines.terminal import commands, console
from tests.small_corpus import words as text_of
from tests.small_runs import SMALLEST

ROOT = Path(__file__).parents[2]
VERSION = re.findall(r'(?m)^version = "(.+)"$', (ROOT / "pyproject.toml").read_text())[0]


@pytest.fixture(autouse=True)
def argv(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "argv", ["throughline"])
    yield


def test_help_lists_each_command_once_by_its_modules_first_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert console.main(["--help"]) == 0
    shown = capsys.readouterr().out
    scripts = {path.stem for path in (ROOT / "pipelines").glob("*.py")} - {"__init__"}
    listed = re.findall(r"(?m)^  (\w+)  +(\S.*)$", shown)
    assert sorted(name for name, _ in listed) == sorted(scripts)
    assert max(len(line) for _, line in listed) < 110
    assert ("prepare", "Prepare a corpus") in listed and ("evaluate", "Score checkpoints on a held-out split") in listed
    assert console.main([]) == 2 and capsys.readouterr().out == shown


def test_version_and_unknown_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert console.main(["--version"]) == 0 and capsys.readouterr().out == f"throughline {VERSION}\n"
    with pytest.raises(UserError, match=r"^unknown command 'trian': did you mean 'train'\?"):
        console.main(["trian"])
    with pytest.raises(UserError, match="unknown option --verison: name a command first"):
        console.main(["--verison"])


def test_a_subcommand_is_named_in_its_help_and_in_hints(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.typed("train") == "python -m pipelines.train"
    with pytest.raises(SystemExit) as done:
        console.main(["compare", "--help"])
    assert done.value.code == 0
    assert "usage: throughline compare [-h]" in capsys.readouterr().out
    with pytest.raises(UserError, match="name at least one run or sweep: throughline compare runs/demo-rec"):
        console.main(["compare"])
    assert commands.typed("train") == "throughline train"


def test_only_the_chosen_command_is_imported() -> None:
    names = [f"pipelines.{name}" for name in commands.NAMES]
    code = (
        "import sys; from pipelines.terminal import console\n"
        "try: console.main(['verify', '--help'])\n"
        f"except SystemExit: print([name for name in ['torch', *{names}] if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.splitlines()[-1] == "['pipelines.verify']"


COMPLETE = """
source {script}
COMP_WORDS=(throughline {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_throughline
echo "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    """Write a shell's completion of some commands into ``script``."""

    def write(shell: str) -> None:
        monkeypatch.setattr(completion, "NAMES", ("doctor", "tune", "completion"))  # all take seconds
        console.main(["completion", shell])
        (tmp_path / "script").write_text(capsys.readouterr().out)

    return write


def test_bash_completes_commands_presets_and_options(script: Callable[[str], None], tmp_path: Path) -> None:
    script("bash")
    for words, expected in (
        ("doc", "doctor"),
        ("completion ''", "bash zsh"),
        ("tune rec-table-3", "rec-table-3-window rec-table-3-states"),
        ("tune lr --train.sch", ""),
        ("tune lr --sch", "--scheduler --schedule.name --schedule.warmup-steps --schedule.min-lr-ratio"),
        ("doctor runs/mine --st", "--store"),
        ("doctor runs/mine runs/", ""),  # files, which bash completes by itself
    ):
        program = COMPLETE.format(script=tmp_path / "script", words=words)
        done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr) == (f"{expected}\n", ""), words


ZSH = """
zmodload zsh/zpty
TRAPEXIT() { zpty -d shell }
zpty -b shell zsh -f -i
until_shown() { local seen; zpty -r -m shell seen "*$1*" || exit 1 }
zpty -w shell 'autoload -Uz compinit; compinit -u; compdef _files other; source ./script; print "set up: $_comps[other]"'
until_shown 'set up: _files'
zpty -w shell 'shown() { zle complete-word; print -r -- "<$BUFFER>"; zle kill-whole-line }; zle -N shown; bindkey "^I" shown'
for words completed in ${(f)"$(<cases)"}; do
    zpty -n -w shell "$words"$'\t'
    until_shown "<${(b)completed}>"
done
"""
"""A zsh in a terminal of its own completes each case; ends only once it has shown all of them."""
ZSH_CASES = (
    ("throughline doc", "throughline doctor "),
    ("throughline completion z", "throughline completion zsh "),
    ("throughline tune rec-table-3-s", "throughline tune rec-table-3-states "),
    ("throughline tune lr --schedule.min", "throughline tune lr --schedule.min-lr-ratio "),
    ("throughline doctor ca", "throughline doctor cases "),  # a file
)


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_completes_the_same_and_keeps_the_completions_of_others(
    script: Callable[[str], None], tmp_path: Path
) -> None:
    script("zsh")
    (tmp_path / "cases").write_text("\n".join(itertools.chain.from_iterable(ZSH_CASES)))
    environment = {**os.environ, "HOME": str(tmp_path), "ZDOTDIR": str(tmp_path), "TERM": "dumb"}
    subprocess.run(["zsh", "-f", "-c", "autoload -Uz compinit; compinit -u"], cwd=tmp_path, env=environment, check=True)
    done = subprocess.run(
        ["zsh", "-f", "-c", ZSH], cwd=tmp_path, env=environment, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_completed_first_words_are_of_commands() -> None:
    assert all(name in commands.NAMES for name in completion.FIRST)


@pytest.mark.long
def test_an_installed_wheel_prepares_trains_and_evaluates_outside_of_this_tree(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    # An interpreter of its own, which finds libraries and nothing of this tree.
    python = tmp_path / "environment" / "bin" / "python"
    venv.create(tmp_path / "environment", symlinks=True)
    (installed,) = (tmp_path / "environment").glob("lib/python*/site-packages")
    libraries = [path for path in sys.path if Path(path).name == "site-packages"]
    (installed / "libraries.pth").write_text("\n".join(libraries))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index"]
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--target", str(installed), str(tree)], check=True)
    shutil.rmtree(tree)
    outside = tmp_path / "outside"
    outside.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["OMP_NUM_THREADS"] = "1"

    def run(*words: str) -> str:
        program = [str(installed / "bin" / "throughline"), *words]
        done = subprocess.run(program, capture_output=True, text=True, cwd=outside, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = [str(python), "-c", "import pipelines; print(pipelines.__file__)"]
    found = subprocess.run(where, capture_output=True, text=True, cwd=outside, env=environment, check=True)
    assert found.stdout.strip() == str(installed / "pipelines" / "__init__.py")
    assert run("--version") == f"throughline {VERSION}\n"
    assert "Score checkpoints on a held-out split" in run("--help")
    for split, count in (("train", 400), ("validation", 80), ("test", 80)):
        (outside / "books" / split).mkdir(parents=True)
        (outside / "books" / split / "book.txt").write_text(text_of(split, count), newline="")
    prepared = run("prepare", "text", "--source", "books", "--tokenizer", "bytes", "--num-workers", "0")
    assert "Next: throughline train PRESET --data.corpus text" in prepared
    trained = run("train", *SMALLEST, "--run", "mine", *shlex.split("--steps 2 --validate-every 2 --log-every 1"))
    (hint,) = (line for line in trained.splitlines() if "throughline evaluate" in line)
    assert hint.split() == ["evaluate", "throughline", "evaluate", "runs/mine"]
    assert trained.splitlines()[-1] == hint, "without tracking there is nothing for ui to show"
    assert "bits/byte" in run(*hint.split()[2:], "--tracking.backend", "none")
