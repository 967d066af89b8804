"""A run's progress beside weights, optimizer and lanes: part of each checkpoint's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from data_prep.lanes import TrainingLanes
from data_prep.store import SegmentStore
from pipelines.checkpoints.checkpoint import Checkpoint
from pipelines.config.run import TrainConfig, to_json
from pipelines.tracking import Tracker
from pipelines.training.precision import Precision
from pipelines.training.world import World
from recur_models.health import PATIENCE, Health


@dataclass
class TrainState:
    """A run's progress, updated as training proceeds. A resumed run takes it from its checkpoint."""

    logged: int = 0
    """The step of the curve's newest point."""
    worths: list[float] = field(default_factory=list[float])
    """Bits per token that clearing the recurrent State cost in the newest validations."""
    warned: bool = False
    """Whether the newest warning says that the model ignores its recurrent State."""
    validation: dict[str, Any] | None = None
    """The newest validation: its step, its bits per token, the metric by which checkpoints are compared, and the fingerprint of its
    split."""

    @classmethod
    def of(cls, resume: Checkpoint | None) -> TrainState:
        """The progress at a checkpoint; that of a new run without one."""
        if resume is None:
            return cls()
        return cls(**{each.name: resume.meta[each.name] for each in fields(cls)})

    def note_validation(
        self, metrics: Mapping[str, float], step: int, config: TrainConfig, validated: SegmentStore, world: World
    ) -> None:
        """Keep the values of a validation that later steps need. ``validated``: the split that was read."""
        worth = metrics.get("validation/worth_of_states_bits")
        if worth is not None and step > config.schedule.warmup_steps:
            self.worths = [*self.worths, worth][-PATIENCE:]
        bits = metrics.get("validation/bits_per_token")
        best_by = metrics.get(config.checkpoint.best_by)
        if bits is None:  # it is NaN
            return
        if best_by is None:
            if world.rank == 0:
                print(
                    f"warning: step {step:,} has no {config.checkpoint.best_by}, and its checkpoint is not ranked by it",
                    flush=True,
                )
            self.validation = None
            return
        text = validated.manifest.fingerprint
        self.validation = {"step": step, "bits_per_token": bits, "best_by": best_by, "store": text}

    def warn_of_unused_state(self, health: Health, tracker: Tracker, step: int) -> None:
        """Print once that the model has begun to ignore its recurrent State, or to use it again, and tag the run with it."""
        warning = health.warning(self.worths)
        if (warning is not None) == self.warned:
            return
        self.warned = warning is not None
        tracker.set_tag("recurrence", warning or "in use again")
        print(f"step {step}: {warning or 'the recurrent State is in use again'}", flush=True)

    def meta(
        self,
        step: int,
        config: TrainConfig,
        schedule: TrainingLanes,
        store: SegmentStore,
        tracker: Tracker | None,
        precision: Precision,
    ) -> dict[str, Any]:
        """The part of a checkpoint's JSON about its run."""
        return {
            **asdict(self),
            "config": to_json(config),
            "mlflow_run": tracker.run_id if tracker else None,
            "mlflow_start": tracker.start_id if tracker else None,
            "precision": precision.name,
            "machine": precision.machine,
            "cursor": schedule.cursor(step).tolist(),
            "tokens": schedule.tokens_before(step),
            "vocab_size": store.vocab_size,
            "tokenizer": store.manifest.tokenizer.fingerprint,
            "store": store.manifest.fingerprint,
        }
