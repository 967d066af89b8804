"""A training run as one frozen value: `TrainConfig`. Presets are instances of it (presets/), the command line
overrides its fields by dotted names, MLflow records it flattened, and a checkpoint carries it as JSON.

A config imports nothing of the code that it configures. A model's config stands beside the model; a run knows it only by the
interface `ModelSettings`.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import xxhash

from common.checks import check_fields
from common.choices import Compile, Recompute
from common.credentials import without_credentials
from common.errors import UserError, nearest
from common.places import Place
from common.uris import is_local, is_uri
from pipelines.config.parts import (
    CheckpointConfig,
    DataConfig,
    OptimConfig,
    PlacementConfig,
    ScheduleConfig,
    TrackingConfig,
)

if TYPE_CHECKING:

    class ModelSettings(Protocol):
        """The interface that a run needs of a model's config; recur_models.ModelConfig has it."""

        name: ClassVar[str]
        recomputes: ClassVar[tuple[Recompute, ...]]
        reading_fields: ClassVar[tuple[str, ...]]
        training_fields: ClassVar[tuple[str, ...]]
        path_fields: ClassVar[tuple[str, ...]]

        @property
        def block(self) -> int: ...
        @property
        def attention_window(self) -> int: ...
        @property
        def least_blocks(self) -> int: ...
        def check_new(self) -> None: ...
        def build(self, vocab_size: int) -> Any: ...
        def restore(self, vocab_size: int, weights: dict[str, Any]) -> Any: ...
        def costs(self, vocab_size: int) -> Any: ...
        def state_bytes(self, vocab_size: int) -> int: ...
        def to_json(self) -> dict[str, Any]: ...
        @classmethod
        def from_json(cls, values: dict[str, Any]) -> ModelSettings: ...

else:  # so that the command line takes the class of the preset's own model, with its fields and docstrings
    ModelSettings = Any


@dataclass(frozen=True)
class TrainConfig:
    """One training run. Repeating the command resumes it."""

    model: ModelSettings
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    initial_weights: str = ""
    """Exported folder with the initial weights of a new run; the optimizer is fresh. Naming the folder in place of a preset sets
    this option and the model. A resumed run reads only its checkpoint."""
    run: str = ""
    """Name of the run and of its folder below `root`; by default the preset's, of a sweep the preset's and the space's."""
    root: str = "runs"
    """Folder of all runs, with MLflow's sqlite file and artifacts; or a URI such as s3://bucket/runs, for machines that share no
    folder."""
    steps: int = 1000
    """Optimizer steps in all."""
    seed: int = 0
    """Seeds the weights, dropout and the order of documents."""
    num_workers: int | str = 2
    """Training workers: the processes that share the lanes of a run. Ray Train starts them; in a sweep, Ray Tune does, for each
    trial. 1:4 takes as many as the cluster has room for at each start, so that a run continues with fewer when a machine dies. 0
    trains in this process, without Ray (under torchrun: in its processes)."""
    use_gpu: Literal["auto", "yes", "no"] = "auto"
    """Whether workers train on GPUs; auto: where the cluster has one for each."""
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Autocast. auto is bfloat16 on a GPU, and on a CPU that is faster in it (Intel's amx_bf16, AMD's avx512_bf16) if the model's
    width is 256 or more; else float32. A resumed run keeps its choice. Parameters stay in float32."""
    recompute: Recompute = "nothing"
    """Activation checkpointing, less memory for more time. layer keeps only each layer's input; block keeps only the tensors passed
    from block to block, which is least for long segments."""
    micro_lanes: int = 0
    """Lanes of a worker that go through the model at a time; 0 for all. Gradients are summed, so the step is the same in less
    memory, but for rounding and dropout. Metrics of the recurrence are then means over the groups."""
    compile: Compile = "no"
    """torch.compile each layer, or the whole model, which compiles longer. Worth it on a GPU (benchmarks/gpu.py), and on a CPU,
    above all in bfloat16 (benchmarks/cpu_precision.py; pretrained_step.py for a Llama)."""
    log_every: int = 10
    """Steps between two points of the training curve."""
    validate_every: int = 100
    """Steps between validations; 0 for none."""
    validate_tokens: int = 100_000
    """Tokens of the validation split to read, the same ones each time; 0 for all. A part comes from documents of all lengths, and
    each of these is read for long."""
    max_failures: int = 3
    """Restarts after a worker has died, in a row without a new checkpoint in between."""
    hang_seconds: float = 1800.0
    """Seconds without a step (or one of validation) after which the workers are ended and started again; 0 waits for ever."""
    allow_change: tuple[str, ...] = ()
    """On resuming: dotted fields (or `store`) that may differ from the run's config. MLflow records each change in a tag, such as
    `changed.optim.lr`. Fields of the model can change only where the weights still fit."""

    def __post_init__(self) -> None:
        check_fields(
            "",
            self,
            steps=1,
            log_every=1,
            validate_every=0,
            validate_tokens=0,
            micro_lanes=0,
            max_failures=0,
            hang_seconds=0,
        )
        self._check_allow_change()
        if self.recompute not in self.model.recomputes:
            raise UserError(
                f"recompute is {self.recompute!r}, which {self.model.name} does not offer: "
                f"choose one of {', '.join(self.model.recomputes)}"
            )
        if not self.workers:
            raise UserError(
                f"data.lanes is {self.data.lanes}, which {self.num_workers} workers cannot share: each needs a lane of its own"
            )
        blocks, rest = divmod(self.data.segment_length, self.model.block)
        if rest:
            raise UserError(
                f"data.segment_length is {self.data.segment_length}, not a multiple of the model's block of {self.model.block} "
                f"tokens: choose {max(self.model.least_blocks, blocks) * self.model.block}"
            )
        if blocks < self.model.least_blocks:
            raise UserError(
                f"data.segment_length is {self.data.segment_length}, which is {blocks} block of {self.model.block} tokens: "
                f"{self.model.name} learns its recurrence across blocks, so choose at least "
                f"{self.model.least_blocks * self.model.block}"
            )

    def _check_allow_change(self) -> None:
        if not self.allow_change:
            return
        values = dataclasses.asdict(self)
        known = [*flatten(values), "model.name", "store"]
        parts = [key for key, value in values.items() if isinstance(value, dict)]
        for name in self.allowed:
            if name not in known and name not in parts:
                raise UserError(f"allow_change has {name!r}, which is no field of a run: {nearest(name, known)}")

    @property
    def allowed(self) -> tuple[str, ...]:
        """The fields of `allow_change` by their names, which may be written as options are: data.segment-length."""
        return tuple(given.replace("-", "_") for given in self.allow_change)

    def located(self) -> TrainConfig:
        """The same run with absolute paths and with the environment's settings, since workers have another folder and environment.
        Raises UserError for places that cannot be used.
        """
        initial = Place.parse(self.initial_weights).text if self.initial_weights else ""
        store = Place.parse(self.data.store).text
        root = Place.parse(self.root).text
        self._check_name(root)
        folder = f"{root}/{self.run}/"
        corpus = f"{store}/{self.data.corpus}/"
        if folder.startswith(corpus) or corpus.startswith(folder):
            raise UserError(
                f"run is {self.run!r}, and its folder would share files with {public(corpus)}: choose another --run"
            )
        cache = self.data.cache
        if cache not in ("", "none"):
            if not is_local(cache):
                raise UserError(f"data.cache is {public(cache)}: name a folder that each machine has, or none")
            cache = Place.parse(cache).text
        data = dataclasses.replace(self.data, store=store, cache=cache)
        tracking = self.tracking.located()
        own = tracking.in_own_file and not is_uri(root)
        odd = [character for character in "?#%" if character in root]
        if own and odd:
            raise UserError(
                f"root is {root}, and MLflow's own file cannot be below a folder with {odd[0]} in its name: choose another "
                "--root, name a server by --tracking.uri, or add --tracking.backend none"
            )
        return dataclasses.replace(self, root=root, data=data, tracking=tracking, initial_weights=initial)

    def _check_name(self, root: str) -> None:
        parts = self.run.split("/")
        if {"", ".", ".."} & set(parts):
            raise UserError(f"run is {self.run!r}: it must be the name of a folder below --root")
        if parts[0] in KEPT_NAMES:
            raise UserError(
                f"run is {self.run!r}, and {parts[0]} below --root is for MLflow or for reports: choose another name"
            )
        for count in range(len(parts)):
            above = Place.parse("/".join((root, *parts[:count])))
            if is_run(above):
                raise UserError(
                    f"run is {self.run!r}, which would lie in the run {above}, whose old checkpoints are deleted: choose another "
                    "name"
                )

    @property
    def workers(self) -> range:
        """The numbers of workers that the run may have, at most its number of lanes. 0: in this process, without Ray."""
        least, colon, most = str(self.num_workers).partition(":")
        known = least.isdecimal() and (not colon or (most.isdecimal() and 1 <= int(least) <= int(most)))
        if not known:
            raise UserError(
                f"num_workers is {self.num_workers}: write a number, or two as in 1:4, the first at least 1 and no more than "
                "the second"
            )
        return range(int(least), min(int(most or least), self.data.lanes) + 1)

    def uses_gpu(self, gpus: float) -> bool:
        """Whether the run's workers train on GPUs, if there are ``gpus`` of them."""
        return self.use_gpu == "yes" or (self.use_gpu == "auto" and gpus >= self.workers[0] * self.placement.gpus)

    @property
    def tokens_per_step(self) -> int:
        return self.data.lanes * self.data.segment_length


def is_run(place: Place) -> bool:
    """Whether a folder has what a training makes first: config.json, and a folder of checkpoints."""
    return (place / "config.json").exists() and (place / "checkpoints").is_dir()


MLFLOW_DATABASE = "mlflow.db"
MLFLOW_ARTIFACTS = "mlartifacts"
"""MLflow's own file and folder below --root, where no server keeps them."""
REPORTS = "reports"
"""Folder of the reports below --root."""
KEPT_NAMES = (MLFLOW_DATABASE, MLFLOW_ARTIFACTS, REPORTS)
"""Names below --root that no run may have."""
CHANGEABLE_ON_RESUME = (
    "tracking",
    "run",
    "root",
    "num_workers",
    "use_gpu",
    "placement",
    "recompute",
    "micro_lanes",
    "log_every",
    "validate_every",
    "validate_tokens",
    "checkpoint",
    "max_failures",
    "hang_seconds",
    "allow_change",
    "data.store",
    "data.cache",
    "model.eos_token_ids",
)
"""Fields that may differ when a run is resumed: they change neither the weights nor what a step means."""


def may_change(field: str, allowed: tuple[str, ...] = ()) -> bool:
    """Whether this dotted field may differ when a run is resumed."""
    return any(field == name or field.startswith(name + ".") for name in (*CHANGEABLE_ON_RESUME, *allowed))


def config_hash_without_seed(values: dict[str, Any]) -> str:
    """Hash of the config without the seed."""
    named = flatten(values)
    kept = {name: value for name, value in named.items() if name != "seed" and not may_change(name)}
    return xxhash.xxh3_64_hexdigest(json.dumps(kept, sort_keys=True).encode())


def to_json(config: TrainConfig) -> dict[str, Any]:
    """A run as nested JSON values, without credentials. `model.name` is the registered name of its model. ``initial_weights`` is
    there only if the run has some.
    """
    values = json.loads(json.dumps(dataclasses.asdict(config)))
    values["model"] = config.model.to_json()
    values["tracking"]["uri"] = without_credentials(config.tracking.uri)
    values["data"]["store"] = public(config.data.store)
    values["root"] = public(config.root)
    if not config.initial_weights:
        del values["initial_weights"]
    return values


def public(place: str) -> str:
    """A place without credentials; a local folder stays as it is."""
    return without_credentials(place) if is_uri(place) else place


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested JSON values under dotted names: ``{"optim": {"lr": 1}}`` → ``{"optim.lr": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def check_resumable(before: dict[str, Any], config: TrainConfig, place: object) -> None:
    """Raise UserError naming the fields that differ from what the run was last trained with, unless they may differ."""
    old = flatten(before)
    new = flatten(to_json(config))
    changed = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    # Checkpoints ranked by two metrics cannot be compared.
    refused = [key for key in changed if key == "checkpoint.best_by" or not may_change(key, config.allowed)]
    if not refused:
        return
    never = [key for key in ("model.name", "checkpoint.best_by") if key in refused][:1]
    keys = never or refused
    stood, says = (", ".join(f"{key}={values.get(key)}" for key in keys) for values in (old, new))
    back = "these values"
    if len(keys) == 1:
        says, back = new.get(keys[0]), old.get(keys[0])
    remedy = f"return to {back} or choose another --run"
    if not never:
        remedy += f", or add --allow-change {' '.join((*config.allowed, *keys))}"
        if any(key.startswith("model.") for key in keys):
            remedy += ", which helps where the weights fit"
    raise UserError(f"{place} was trained with {stood}, and this command says {says}: {remedy}")
