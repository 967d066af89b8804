"""The documents: the programs that they name take their words, their links lead somewhere, and one chain of their commands runs."""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from PIL import Image

from docs import conf, rooms
from pipelines import PACKAGES, preflight, prepare
from pipelines import run as whole
from pipelines.config.dotted import flatten
from pipelines.config.run import to_json
from pipelines.presets import PRESETS
from pipelines.sweeps.command import read_command
from pipelines.terminal import cli
from pipelines.terminal.commands import CONSOLE, NAMES
from recur_models.hf import ThroughlineForCausalLM
from recur_models.hf_config import ThroughlineConfig
from tests.small_corpus import words as text_of
from tests.small_runs import TINY as SMALL_REC
from tune_spaces import combine

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in DOCUMENTS}

PROGRAMS = {CONSOLE, "python", "ray", "mlflow", "torchrun", "make"}
"""Programs whose words are checked here."""
PLACEHOLDERS = ("…", "CORPUS", "NAME", "runs/<", "TINY")
"""What stands for something else: a line with one is no command, but the form of some."""


class Command(NamedTuple):
    place: str
    words: tuple[str, ...]
    whole: bool
    """Whether it stands on a line of its own; between backticks its name alone, or a part of it, may stand."""

    @property
    def program(self) -> str:
        return Path(self.words[0]).name


def code(text: str) -> Iterator[tuple[int, str, bool]]:
    """The lines of indented and fenced blocks, continued lines joined, and what stands between backticks: number, text and whether
    it is a line.
    """
    fenced, joined = False, ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    ") or joined:
            joined = f"{joined} {line.strip().removesuffix(chr(92)).strip()}"
            if not line.endswith("\\"):
                yield number, joined.strip(), True
                joined = ""
        else:
            yield from ((number, span, False) for span in re.findall(r"`([^`]+)`", line))


def read_commands() -> list[Command]:
    """Every command once, with the first place where it stands. What begins with $ was printed, and is no command to repeat."""
    found: dict[tuple[str, ...], Command] = {}
    for name, text in TEXTS.items():
        for number, line, is_line in code(text):
            if line.startswith("$") or any(placeholder in line for placeholder in PLACEHOLDERS):
                continue
            try:
                parts = [list(shlex.split(part, comments=True)) for part in line.split(" && ")]
            except ValueError:
                continue  # an apostrophe: a sentence
            for words in parts:
                while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                    words = words[1:]
                words = words[: words.index(">")] if ">" in words else words
                if len(words) > 1 and Path(words[0]).name in PROGRAMS:
                    found.setdefault(tuple(words), Command(f"{name}:{number}", tuple(words), is_line))
    return list(found.values())


COMMANDS = read_commands()


class Parsed(Exception):
    """Stops a command once it has read its words."""


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, list[str]], Any]:
    """Give words to a command of ours as its `main` reads them, with the command's own parser. Returns the config."""
    real = cli.parse

    def parse(*args: Any, **kwargs: Any) -> None:
        raise Parsed(real(*args, **kwargs))

    monkeypatch.setattr(cli, "parse", parse)
    monkeypatch.chdir(tmp_path)

    def read(module: str, words: list[str]) -> Any:
        if words[0].endswith(".json"):  # a sweep's best.json is read before the words are
            file = tmp_path / words[0]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(to_json(PRESETS["small-rec"])))
        if module == "pipelines.train" and words[0].startswith("exported/"):
            model: Any = PRESETS["small-rec"].model
            config = ThroughlineConfig.of(model, vocab_size=257)
            ThroughlineForCausalLM(config).save_pretrained(tmp_path / words[0])
        if "--model.pretrained" in words:
            folder = tmp_path / words[words.index("--model.pretrained") + 1]
            folder.mkdir()
            pretrained: Any = PRESETS[words[0]].model
            family = pretrained.family
            told = {theirs: family.small[ours] for ours, theirs in family.names.items()}
            told |= {"tie_word_embeddings": True}
            (folder / "config.json").write_text(json.dumps({"model_type": family.kind, **told}))
        try:
            importlib.import_module(module).main(words)
        except Parsed as done:
            return done.args[0]
        except SystemExit as done:
            assert done.code == 0 and {"--help", "--presets"} & {*words}, f"{module} ends with status {done.code}"
            return None
        raise AssertionError(f"{module} has read no words")

    return read


def of_ours(words: tuple[str, ...]) -> tuple[str, list[str]] | None:
    """The module of ours that a command runs, wherever it runs, and that module's words."""
    if words[0] == CONSOLE and words[1] in NAMES:
        return f"pipelines.{words[1]}", list(words[2:])
    for i, word in enumerate(words):
        if word == "-m" and words[i + 1].startswith(("pipelines.", "benchmarks.")):
            return words[i + 1], list(words[i + 2 :])
        if word.startswith("pipelines/") and words[i + 1 : i + 2] == ("--",):
            return word.removesuffix(".py").replace("/", "."), list(words[i + 2 :])
    return None


@pytest.mark.parametrize("command", [c for c in COMMANDS if of_ours(c.words)], ids=lambda c: c.place)
def test_a_command_of_ours_takes_its_words(
    command: Command, parsed: Callable[[str, list[str]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, words = of_ours(command.words) or ("", [])
    if module == "pipelines.tune":
        monkeypatch.undo()
        config = read_command(words)
        assert combine(config.space, {"preset": config.preset, **flatten(to_json(config.train))})
    elif module == "pipelines.preflight" and words[0] == preflight.HERE:
        assert preflight.ports_of(words)
    elif module == "pipelines.run":
        for stage in whole.stages(parsed(module, words).located()):
            parsed(f"pipelines.{stage.module}", list(stage.words))
    elif words or command.whole:
        parsed(module, words)


@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if c.program in ("ray", "mlflow", "torchrun")], ids=lambda c: c.place
)
def test_a_command_of_others_takes_its_words(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    name, *words = command.words
    if command.program == "torchrun":
        from torch.distributed.run import get_args_parser

        assert get_args_parser().parse_args(words).module
        return
    module = {"ray": "ray.scripts.scripts", "mlflow": "mlflow.cli"}[command.program]  # seconds
    entry: click.Command = importlib.import_module(module).cli
    while isinstance(entry, click.Group):
        name, *words = words
        found = entry.get_command(click.Context(entry), name)
        assert found, f"{command.place}: {command.program} has no command {name}"
        entry = found
    try:
        entry.make_context(name, words)
    except click.MissingParameter:
        assert not command.whole
    for word in words:
        assert not word.endswith(".yaml") or (ROOT / word).exists(), f"{command.place}: {word}"


def test_what_make_is_asked_for_is_in_the_makefile_and_what_python_runs_is_in_the_tree() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = {word for c in COMMANDS if c.program == "make" for word in c.words[1:] if "=" not in word}
    assert {"demo", "test"} <= asked <= targets
    for command in COMMANDS:
        if command.program == "python" and command.words[1] not in ("-m", "-c"):
            assert (ROOT / command.words[1]).exists(), command.place


def test_the_readme_names_every_command_and_the_map_every_room() -> None:
    scripts = {p.stem for p in (ROOT / "pipelines").glob("*.py")} - {"__init__"}
    section = TEXTS["README.md"].partition("## The commands")[2].partition("\n## ")[0]
    assert scripts == set(re.findall(r"`(?:throughline )?(\w+)`", section)) & scripts
    rooms = {p.parent.name for p in (ROOT / "pipelines").glob("*/__init__.py")}
    assert rooms == set(re.findall(r"^\| `(\w+)/` \|", TEXTS["docs/architecture.md"], re.MULTILINE))


def anchors(text: str) -> set[str]:
    """Names of a page's headings as the common forges make them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    results = [ROOT / "RESULTS.md", *sorted((ROOT / "results").rglob("*.md"))]
    for name, text in [*TEXTS.items(), *((str(path.relative_to(ROOT)), path.read_text("utf-8")) for path in results)]:
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            path, _, anchor = target.partition("#")
            file = (ROOT / name).parent / path if path else ROOT / name
            assert "://" in target or file.exists(), f"{name}: {target}"
            assert not anchor or anchor in anchors(file.read_text("utf-8")), f"{name}: {target}"


def test_every_page_is_found_from_the_readme_or_in_the_site() -> None:
    listed = re.findall(r"^(?:\.\./)?([\w-]+)$", TEXTS["docs/index.md"], re.MULTILINE)
    for name in TEXTS.keys() - {"README.md", "docs/index.md"}:
        assert f"]({name}" in TEXTS["README.md"] or Path(name).stem in listed, name


def test_paths_in_the_tree_are_there() -> None:
    folders = "|".join(p.name for p in ROOT.iterdir() if p.is_dir() and not p.name.startswith(".") and p.name != "runs")
    for name, text in TEXTS.items():
        for path in re.findall(rf"`((?:{folders})/[\w./-]*)`", text):
            assert (ROOT / path).exists(), f"{name}: {path}"


def test_the_picture_of_the_rooms_is_of_these_imports() -> None:
    drawn = Image.open(ROOT / "docs" / "rooms.png").info["Description"]
    assert drawn == rooms.told(rooms.read()), "the rooms have changed: python docs/rooms.py draws them anew"


@pytest.mark.parametrize("what", ["attribute", "data", "property"])
def test_the_site_keeps_what_stands_before_a_docstrings_colon(what: str) -> None:
    lines = ["Tokens in a block: documents begin at its multiples."]
    conf.as_restructured_text(None, what, "block", None, None, lines)
    by_napoleon = ["documents begin at its multiples.", "", ":type: Tokens in a block"]
    conf.keep_attributes(None, what, "block", None, None, by_napoleon)
    assert by_napoleon == lines


DIFFS = re.findall(r"^```diff\n(.*?)^```", TEXTS["CONTRIBUTING.md"], re.MULTILINE | re.DOTALL)
ADDED = """
from pathlib import Path
from data_prep.corpora import CORPORA
from data_prep.documents import SPLITS
from pipelines.presets import PRESETS
from pipelines.tracking.metrics import METRICS, further
from recur_models import MODELS
from tune_spaces import combine
import torch

assert PRESETS["small-average"].model.costs(300).parameters > 0
model = MODELS["average"](d_model=8, window=4).build(300)
tokens = torch.arange(24).view(2, 12)
whole, state = model(tokens)
first, carried = model(tokens[:, :4])
assert torch.allclose(torch.cat([first, model(tokens[:, 4:], carried)[0]], 1), whole, atol=1e-6)
film = Path("films/old/one.srt")
film.parent.mkdir(parents=True)
film.write_bytes(b"1\\r\\n00:00:01,000 --> 00:00:02,000\\r\\nHello\\r\\n")
films = CORPORA["subtitles"](source="films")
(source,) = [source for split in SPLITS for source in films.sources(split)]
assert [document.text.strip() for document in films.read([source])] == ["Hello"]
assert films.options() == {} and METRICS["validation/perplexity"] in further()
assert list(combine("decay", {"optim.weight_decay": 0.1})) == ["optim.weight_decay"]
"""
"""What the examples of CONTRIBUTING.md make."""


def test_the_examples_of_contributing_are_whole_changes(tmp_path: Path) -> None:
    for package in (*PACKAGES, "benchmarks", "tests"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    for diff in DIFFS:
        done = subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=diff, capture_output=True, text=True)
        assert done.returncode == 0, f"{done.stderr}{diff[:200]}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), os.environ["PYTHONPATH"]))}
    for words in (("-c", ADDED), ("-m", "pytest", "-q", "tests/pipelines/test_catalogue.py")):
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


CHAIN = """
    prepare text --source my_books --tokenizer sentencepiece:8192 --store runs/store
    inspect runs/store/text/train
    verify runs/store
    vocabulary text --source my_books --tokenizers bytes sentencepiece:4000 gpt2:FOLDER
    train small-rec --run mine --data.corpus text --data.store runs/store --model.gate lstm --data.lanes 16
    doctor runs/mine
    evaluate runs/mine
    generate runs/mine --file beginning.txt --max-new-tokens 500 --temperature 0.8
    export runs/mine --output exported/mine
    tune lr+states+window+gate --preset small-rec --num-samples 12 --num-workers 1 --data.store runs/store
    train runs/small-rec-lr-states-window-gate/best.json --run again
    compare runs/mine runs/small-rec-lr-states-window-gate
"""
"""Commands as the documents have them, in the order in which a person comes to them."""
SMALLER = {"sentencepiece:8192": "sentencepiece:300", "sentencepiece:4000": "sentencepiece:300", "gpt2:FOLDER": "bytes"}
TINY = f"{shlex.join(SMALL_REC[1:])} --steps 4 --schedule.warmup-steps 1 --validate-every 2 --checkpoint.every 2"
MORE = {
    "prepare": "--num-workers 0",
    "train": "--num-workers 0",
    "small-rec": TINY,
    "tune": f"--num-samples 1 --max-trials 1 {TINY}",
    "generate": "--max-new-tokens 20",
    **dict.fromkeys(("evaluate", "compare", "vocabulary"), "--tracking.backend none"),
}
"""What makes them small. Words that come later count."""


def python_of(page: str) -> list[str]:
    """The blocks of Python on a page."""
    return re.findall(r"^```python\n(.*?)^```", TEXTS[page], re.MULTILINE | re.DOTALL)


@pytest.mark.long
@pytest.mark.usefixtures("ray_session")
def test_a_chain_of_commands_runs(
    text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text_folder.rename("my_books")
    Path("beginning.txt").write_text(text_of("beginning", 20))
    known = {c.words[2:] for c in COMMANDS if c.words[1:2] == ("-m",)}
    for line in CHAIN.strip().splitlines():
        name, *words = line.split()
        assert (f"pipelines.{name}", *words) in known, f"no document has {line.strip()!r}"
        small = [SMALLER.get(word, word) for word in words]
        more = [word for key in (name, words[0]) for word in shlex.split(MORE.get(key, ""))]
        status = importlib.import_module(f"pipelines.{name}").main([*small, *more])
        said = capsys.readouterr()
        assert not status, f"{line.strip()}: {said.out}{said.err}"
    assert (tmp_path / "exported/mine/model.safetensors").exists() and (tmp_path / "runs/again/checkpoints").exists()
    [block] = python_of("docs/start-laptop.md")
    exec(block, {})
    assert capsys.readouterr().out.startswith("Once upon a time")


def test_the_loop_of_the_python_interface_learns(
    text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    where = ["--source", str(text_folder), "--store", "runs/store"]
    prepare.main(["text", *where, "--tokenizer", "bytes", "--num-workers", "0"])
    [block] = [block for block in python_of("docs/api.md") if "store" in block]
    made: dict[str, Any] = {}
    exec(block, made)
    assert made["loss"].item() < 0.8 * math.log(257)
    assert not any(tensor.requires_grad for tensor in made["state"].values())


@pytest.mark.parametrize("name", ["README.md", "docs/start-notebook.md"])
def test_the_first_python_of_a_page_runs(name: str) -> None:
    """It carries State over two segments, as its comments say."""
    [block, *_] = python_of(name)
    made: dict[str, Any] = {}
    exec(block, made)
    assert made["nats"].shape[1] == 512
    assert not any(tensor.requires_grad for tensor in made["state"].values())
