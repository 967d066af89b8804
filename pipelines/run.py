"""Run all stages as one command: prepare → train, or tune and train → evaluate → compare. Repeating it does what is not done yet.

    python -m pipelines.run demo-rec --also demo-slide --tokenizer bytes
    python -m pipelines.run small-rec --source my_books --corpus text --tokenizer sentencepiece:8192 --set steps=500 optim.lr=1e-3
    ray job submit --working-dir . -- python -m pipelines.run small-rec --source my_books --corpus text --tune lr

Each stage is a command of its own, which is printed. `<root>/pipelines/<name>.json` keeps for each finished one a fingerprint of
its words, of what it read and of what it wrote: a stage whose fingerprint is still the same is skipped. One that fails is tried
again, unless it was a user's error; when it fails for good, later ones do not start and its exit status is passed on. 75: asked to
stop, and saved.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated

import tyro

from common.checks import check_options
from common.credentials import without_credentials
from common.errors import UserError, given_by_user, nearest
from common.places import Place
from common.uris import is_uri
from data_prep.corpora import check_corpus
from data_prep.documents import SPLITS, check_split
from pipelines.config.dotted import option_words, words_of
from pipelines.config.run import REPORTS, flatten, to_json
from pipelines.terminal import cli
from pipelines.terminal.commands import typed
from pipelines.training.jobs import Job, JobRecord, run_jobs
from tune_spaces import combine, fields

OWN = ("run", "root", "preset", "data.store", "data.corpus")
"""Fields that all stages share; `set` and `tune_set` cannot change them."""


@dataclass(frozen=True)
class PipelineConfig:
    """The stages of a pipeline: a corpus to prepare, and models to train and compare."""

    preset: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PRESET")]
    """Preset to train: a name of pipelines/presets/. Its run has the same name."""
    also: tuple[str, ...] = ()
    """More presets to train on the same data, one after the other, and to compare."""
    corpus: str = ""
    """Name of the corpus for pipelines.prepare; by default the preset's."""
    source: str = ""
    """Path of the corpus, for corpora that need it."""
    tokenizer: str = ""
    """Tokenizer, as for pipelines.prepare."""
    store: str = ""
    """Segment store; by default the preset's."""
    root: str = ""
    """Folder of all runs; by default the preset's."""
    set: tuple[str, ...] = ()
    """Fields of every preset, as steps=500 optim.lr=1e-3 data.lanes=4."""
    tune: str = ""
    """A space of tune_spaces, such as lr, to search first; its winner is then trained."""
    tune_set: tuple[str, ...] = ()
    """Fields of the sweep, as num_samples=12 steps=200; those of `set` hold there too. Its winner is trained without them."""
    split: str = "test"
    """Split to evaluate."""
    name: str = ""
    """Name of this pipeline, put before the names of its runs; by default they have the presets' own."""
    retries: int = 1
    """Retries of a failed stage."""

    def __post_init__(self) -> None:
        from pipelines.presets import PRESETS  # imports torch, which --help does without

        many = f"{typed('train')} --presets lists them"
        for name in self.presets:
            if name not in PRESETS:
                raise UserError(f"unknown preset {name!r}: {nearest(name, PRESETS, many)}")
            if self.presets.count(name) > 1:
                raise UserError(f"--also {name}: each preset is trained once; name another one, or leave it out")
        check_split(self.split)
        for option, pairs in (("--set", self.set), ("--tune-set", self.tune_set)):
            for pair in pairs:
                field, equals, value = pair.partition("=")
                if not (field and equals and value):
                    raise UserError(
                        f"{option} {pair}: write a field and its value, as in {option} steps=500 optim.lr=1e-3"
                    )
                if field in OWN:
                    raise UserError(
                        f"{option} {pair}: the stages agree on that; see --name, --root, --store and --corpus"
                    )
        if self.tune_set and not self.tune:
            raise UserError(
                f"--tune-set {self.tune_set[0]} is given without --tune: add a space, such as --tune lr, or use --set"
            )
        if self.corpus:
            check_corpus(self.corpus)
        check_options(self, retries=0)

    @property
    def presets(self) -> tuple[str, ...]:
        """The presets to train, in order."""
        return (self.preset, *self.also)

    @property
    def runs(self) -> tuple[str, ...]:
        """The names of their runs."""
        return tuple(map(self.run_of, self.presets))

    def run_of(self, preset: str) -> str:
        """The name of a preset's run."""
        return f"{self.name}-{preset}" if self.name else preset

    def located(self) -> PipelineConfig:
        """The config with the preset's corpus, store and root where none was given."""
        from pipelines.presets import PRESETS

        preset = PRESETS[self.preset]
        data = preset.data
        root = self.root or preset.root
        return replace(self, corpus=self.corpus or data.corpus, store=self.store or data.store, root=root)


def stages(config: PipelineConfig) -> list[Job]:
    """The stages of a pipeline, in order."""
    jobs = [_preparation(config)]
    for preset in config.presets:
        jobs += _training(config, preset)
    jobs.append(_evaluation(config))
    if config.also:
        jobs.append(_comparison(config))
    return jobs


def _manifest(config: PipelineConfig, split: str) -> Place:
    return Place.parse(config.store) / config.corpus / split / "manifest.json"


def _checkpoints(config: PipelineConfig) -> tuple[Place, ...]:
    root = Place.parse(config.root)
    return tuple(root / run / "checkpoints" for run in config.runs)


def _preparation(config: PipelineConfig) -> Job:
    source = option_words("--source", config.source) if config.source else ()
    tokenizer = option_words("--tokenizer", config.tokenizer) if config.tokenizer else ()
    words = (config.corpus, *source, *tokenizer, "--store", config.store)
    reads = [Place.parse(config.source)] if config.source else []
    if config.tokenizer and not is_uri(config.tokenizer) and Place.parse(config.tokenizer).exists():
        reads.append(Place.parse(config.tokenizer))
    train, *others = (_manifest(config, split) for split in SPLITS)
    return Job("prepare", "prepare", words, tuple(reads), (train,), may_write=tuple(others))


def _training(config: PipelineConfig, preset: str) -> list[Job]:
    """The sweep of a preset, if one was asked for, and the training of the preset or of the sweep's winner."""
    root = Place.parse(config.root)
    run = config.run_of(preset)
    data = ("--root", config.root, "--data.store", config.store, "--data.corpus", config.corpus)
    reads = tuple(_manifest(config, split) for split in SPLITS[:2])
    checkpoints = (root / run / "checkpoints",)
    if not config.tune:
        words = (preset, *option_words("--run", run), *data, *_options(config.set))
        return [Job(f"train {run}", "train", words, reads, checkpoints)]
    sweep = f"{run}-sweep"
    best = root / sweep / "best.json"
    words = (
        config.tune,
        "--preset",
        preset,
        *option_words("--run", sweep),
        *data,
        *_options(config.set + config.tune_set),
    )
    search = Job(f"tune {run}", "tune", words, reads, (best,))
    words = (best.text, *option_words("--run", run), *data, *_own_values(config, preset), *_options(config.set))
    return [search, Job(f"train {run}", "train", words, (*reads, best), checkpoints)]


def _evaluation(config: PipelineConfig) -> Job:
    split = "" if config.split == "test" else f"-{config.split}"
    report = _below(config.root, f"{REPORTS}/{cli.file_name('-vs-'.join(config.runs) + split)}")
    folders = (_below(config.root, run) for run in config.runs)
    words = (*folders, "--split", config.split, "--output", report)
    reads = (*_checkpoints(config), _manifest(config, config.split))
    # A checkpoint records the store without its credentials.
    store = ("--store", config.store) if without_credentials(config.store) != config.store else ()
    unhashed = (*store, *_tracking_options(config))
    return Job(f"evaluate{split}", "evaluate", words, reads, (Place.parse(report),), unhashed=unhashed)


def _comparison(config: PipelineConfig) -> Job:
    report = _below(config.root, f"{REPORTS}/{cli.file_name('compare-' + '-vs-'.join(config.runs))}")
    folders = (_below(config.root, run) for run in config.runs)
    words = (*folders, "--root", config.root, "--output", report)
    made = (Place.parse(report),)
    return Job("compare", "compare", words, _checkpoints(config), made, unhashed=_tracking_options(config))


def _tracking_options(config: PipelineConfig) -> tuple[str, ...]:
    """The options of ``set`` that say where metrics go."""
    return tuple(_options(tuple(pair for pair in config.set if pair.startswith("tracking."))))


def _below(root: str, name: str) -> str:
    """A place below the root, as an option writes it: the query of a URI stays at its end."""
    return (Place.parse(root) / name).text if is_uri(root) else f"{root.rstrip('/')}/{name}"


def _own_values(config: PipelineConfig, preset: str) -> list[str]:
    """Options with the preset's own values of the fields that ``tune_set`` changed for the search and the search did not vary."""
    from pipelines.presets import PRESETS

    own = flatten(to_json(PRESETS[preset]))
    named = [field for field in (pair.partition("=")[0].replace("-", "_") for pair in config.tune_set) if field in own]
    if not named:
        return []
    varied = fields(combine(config.tune, {"preset": preset, **own}))
    kept = [field for field in named if not (field in varied or ("preset" in varied and field.startswith("model.")))]
    return [word for field in kept for word in words_of(field, own[field])]


def _options(pairs: tuple[str, ...]) -> list[str]:
    """``steps=500`` → ``--steps 500``, ``model.feedback=false`` → ``--model.no-feedback``."""
    words: list[str] = []
    for field, _, value in (pair.partition("=") for pair in pairs):
        group, dot, name = field.rpartition(".")
        flag = {"true": "", "false": "no-"}.get(value.lower())
        words += option_words(f"--{field}", value) if flag is None else [f"--{group}{dot}{flag}{name}"]
    return words


def main(argv: list[str]) -> int:
    """Run the stages that are not done yet, in order. Returns the status of the first that failed."""
    config = cli.parse(PipelineConfig, argv, __doc__).located()
    name = config.name or config.preset
    began = time.monotonic()
    planned = stages(config)
    check(config, planned)
    records = Place.parse(config.root) / "pipelines"
    records.make_folder()
    record = JobRecord(records / f"{name}.json")
    failed = run_jobs(planned, record=record, retries=config.retries, in_turn=True)
    if failed:
        return next(iter(failed.values()))
    print(f"{name}: all {len(planned)} stages are done, {cli.duration(time.monotonic() - began)}")
    return 0


def check(config: PipelineConfig, planned: Sequence[Job]) -> None:
    """Raise UserError, before the first stage, for options that training or the search before it would refuse."""
    from pipelines.presets import PRESETS
    from pipelines.sweeps.command import read_command

    trainings = (stage for stage in planned if stage.module == "train")
    for preset, stage in zip(config.presets, trainings, strict=True):
        with _as_given(("--set", config.set)):
            run = cli.parse_preset(PRESETS, [preset, *stage.words[1:]], "")  # searched fields keep the preset's values
        with given_by_user(ValueError):
            run.located().model.check_new()
    for stage in planned:
        if stage.module == "tune":
            with _as_given(("--tune-set", config.tune_set), ("--set", config.set)):
                sweep = read_command(stage.words)
            with given_by_user(ValueError):
                combine(sweep.space, sweep.flat)


@contextmanager
def _as_given(*given: tuple[str, Sequence[str]]) -> Iterator[None]:
    """Begin an error about an option of a stage with the pair that the option was made of. ``given``: --set, or --tune-set, and its
    pairs; those that come first replace later ones.
    """
    try:
        yield
    except UserError as error:
        about = str(error).partition("did you mean")[0]
        named = {word.replace("_", "-") for word in re.findall(r"--[\w.-]+", about)}
        for option, pairs in given:
            for pair in reversed(pairs):
                field, _, value = pair.partition("=")
                if f"--{field.replace('_', '-')}" in named or f"argument {value!r}" in about:
                    raise UserError(f"{option} {pair}: {error}") from None
        raise


if __name__ == "__main__":
    cli.run(main)
