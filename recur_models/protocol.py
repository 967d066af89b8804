"""The one protocol of every model: ``model(tokens, state, fresh, targets) -> (logits or nats, state)``.

State is an argument and a result, never a buffer: a flat mapping from names such as ``layers.9.states`` to tensors whose
first dimension is the lane; empty for a model without memory. The last part of a name is the tensor's kind:

- ``states``: recurrent vectors or matrices; ``states_count``: how many of them there are yet; ``log_scale``: the logarithm of
  the scale in which they are written
- ``keys``, ``values``: those of the tokens just before the segment
- ``memory_keys``, ``memory_values``, ``memory_count``: a kNN memory, and how many pairs it holds
- ``inputs``: the newest inputs of a layer, a convolution or a token shift; ``count``: how many of a layer's there are
- ``present``: whether the lane has a previous block (`equations = "paper"`)
- ``tokens``, ``tokens_count``: the ids of the overlap's tokens, and how many there are

    state = model.initial_state(lanes=4)
    nats_BT, state = model(tokens_BT, state, fresh_BK, targets_BT)

Letters: B lanes · T tokens in a segment · K blocks in a segment (K = T / block) · V vocabulary.
"""

from __future__ import annotations

import dataclasses
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from common.checks import check_fields, field_types
from common.choices import IGNORED as IGNORED
from common.choices import Recompute
from common.errors import UserError
from recur_models.costs import Costs

State = dict[str, Tensor]
"""The tensors that a model carries from one segment to the next; their first dimension is the lane."""

RECURRENT = ("states", "log_scale", "states_count", "memory_keys", "memory_values", "memory_count")
"""The kinds of State that reach back beyond the window: recurrent vectors, with the scale in which they are written, and a kNN
memory, with their counts; but not the previous block's keys and values. The study of Hutchins et al. 2022, section 4.6, clears
these."""


@dataclass(frozen=True)
class ModelConfig(ABC):
    """The interface of every model's config; the sizes are fields of each model's own config."""

    name: ClassVar[str]
    recomputes: ClassVar[tuple[Recompute, ...]] = ("nothing", "layer", "block")
    """Kinds of activation checkpointing that save memory in this model."""
    reading_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that determine how a text is read, but no weight's shape: trained weights can be scored with other values."""
    trained_reading_fields: ClassVar[tuple[str, ...]] = ()
    """Those of `reading_fields` that the weights are trained for: another value is scored only on explicit request."""
    training_fields: ClassVar[tuple[str, ...]] = ("dropout", "dropout_places")
    """Fields that only training reads: a run that begins with trained weights may change them."""
    path_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that name a local file: they are left empty in exports."""

    @property
    @abstractmethod
    def block(self) -> int:
        """Tokens in a block: documents begin at block boundaries, and a segment is a whole number of blocks."""

    @property
    def attention_window(self) -> int:
        """Tokens that a layer's attention reaches at most; 0 where no layer attends to tokens."""
        return 0

    @property
    def least_blocks(self) -> int:
        """Blocks that a training segment needs so that every parameter gets a gradient."""
        return 1

    def check_new(self) -> None:  # noqa: B027
        """Raises ValueError if no new run should begin with this config. A resumed run is not checked."""

    @abstractmethod
    def build(self, vocab_size: int) -> RecurrentModel:
        """A newly initialised model, drawn from torch's global generator. On the device ``meta`` it has only shapes."""

    def restore(self, vocab_size: int, weights: Mapping[str, Tensor]) -> RecurrentModel:
        """The model with these weights, on the CPU. It initialises no weights, and reads no pretrained ones."""
        with torch.device("meta"):
            model = self.build(vocab_size)
        model = model.to_empty(device="cpu")
        model.load_state_dict(weights)
        return model

    def sized(self) -> Self:
        """This config with a size in place of each that it leaves empty; most configs leave none."""
        return self

    def freeze(self, model: nn.Module) -> None:
        """Set which of the model's parameters require gradients; by default all."""
        model.requires_grad_()

    @abstractmethod
    def costs(self, vocab_size: int) -> Costs:
        """Parameters, and FLOPs of one block of one lane, counted from the sizes without building the model (costs.py)."""

    def state_bytes(self, vocab_size: int) -> int:
        """Bytes of one lane's State, in the dtypes of `initial_state`. Under bfloat16 autocast, keys and values take half."""
        with torch.device("meta"):
            state = self.build(vocab_size).initial_state(1)
        return sum(tensor.numel() * tensor.element_size() for tensor in state.values())

    def to_json(self) -> dict[str, Any]:
        """The config as JSON values, its registered name under ``name``."""
        return {"name": self.name, **json.loads(json.dumps(dataclasses.asdict(self)))}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The config that `to_json` wrote. Raises ValueError if this version lacks a field."""
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(values.keys() - known - {"name"})
        if unknown:
            raise ValueError(f"the model {cls.name!r} has no field {unknown[0]!r}: use the version that wrote it")
        given = {name: values[name] for name in values if name != "name"}
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def check_sizes(config: ModelConfig, from_0: Collection[str] = ()) -> None:
    """Raises UserError, which names the field, unless each value has its field's type and range.

    Integers are at least 1, those of ``from_0`` at least 0; other numbers are finite; ``dropout`` is at least 0 and below 1.
    """
    integers = [field.name for field in dataclasses.fields(config) if field_types(type(config))[field.name] is int]
    check_fields("model", config, **{name: 0 if name in from_0 else 1 for name in integers})
    for name, value in vars(config).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"model.{name} is {value}: it must be a number")
    rate = vars(config).get("dropout", 0.0)
    if not 0 <= rate < 1:
        raise UserError(f"model.dropout is {rate}: it must be at least 0 and below 1")


class RecurrentModel(nn.Module, ABC):
    """A language model that carries State along its lanes."""

    vocab_size: int
    block: int
    embedding: nn.Embedding
    """Embedding of the inputs: [V, D]."""
    layers: nn.ModuleList
    recompute: Recompute = "nothing"
    """Set it before a forward pass. It changes memory and time; results only where dropout is drawn block by block."""
    one_graph: bool = False
    """Whether a forward pass reads no tensor's value on the host, so that it compiles to one graph. Layers may set it too."""

    def units(self) -> list[nn.Module]:
        """Modules that are compiled one by one (compiling.py)."""
        return list(self.layers)

    def recomputed(self, unit: Recompute, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, which computes one ``unit``, with activation checkpointing if `recompute` is that unit."""
        if self.recompute != unit or not torch.is_grad_enabled():
            return function
        return partial(checkpoint, function, use_reentrant=False)

    def read_blocks(
        self,
        read: Callable[..., tuple[Tensor, State]],
        x_BTD: Tensor,
        state: State,
        fresh_BK: Tensor,
        at_once: bool = False,
    ) -> tuple[Tensor, State]:
        """``read``, which takes a block, State and ``fresh``, for one block after the other: all outputs, and the last State.

        ``at_once``: for all blocks in one call, unless `recompute` is ``block``. ``read`` must then take any number of them.
        """
        if at_once and self.recompute != "block":
            return read(x_BTD, state, fresh_BK)
        run = self.recomputed("block", read)
        outputs = []
        for k, x_BWD in enumerate(x_BTD.split(self.block, 1)):
            x_BWD, state = run(x_BWD, state, fresh_BK[:, k : k + 1])
            outputs.append(x_BWD)
        return torch.cat(outputs, 1), state

    @abstractmethod
    def initial_state(self, lanes: int) -> State:
        """The State of ``lanes`` lanes before their first document, on the model's device. Its dtype is the model's, or float32
        where the model's would lose small additions."""

    def forward(
        self,
        tokens_BT: Tensor,
        state: State | None = None,
        fresh_BK: Tensor | None = None,
        targets_BT: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Read one segment.

        ``tokens_BT``: int64 inputs. ``fresh_BK``: True where a new document begins, so that nothing earlier is seen; by
        default only the first block when ``state`` is None. ``targets_BT``: int64, ``IGNORED`` where nothing is predicted.

        Returns nats per token [B, T] in float32 (0 where ignored) when there are targets, else logits [B, T, V]; and the
        State after the segment, still attached to the graph: the caller detaches it.

        Raises ValueError when T is no multiple of the block, or when tokens, targets, State and model do not fit one another.
        """
        state, fresh_BK = begin_segment(self, tokens_BT, state, fresh_BK)
        if targets_BT is not None and targets_BT.shape != tokens_BT.shape:
            given = f"{tuple(targets_BT.shape)}, but tokens {tuple(tokens_BT.shape)}"
            remedy = f"give each token one, or {IGNORED} where nothing is predicted"
            raise ValueError(f"targets have shape {given}: {remedy}")
        return self.read_segment(tokens_BT, state, fresh_BK, targets_BT)

    @abstractmethod
    def read_segment(
        self, tokens_BT: Tensor, state: State, fresh_BK: Tensor, targets_BT: Tensor | None
    ) -> tuple[Tensor, State]:
        """`forward` with checked arguments and without defaults."""

    def recurrent_parameters(self) -> list[nn.Parameter]:
        """Parameters of the recurrence's own modules; empty for a model that has no such modules."""
        return []

    @abstractmethod
    def incremental_decoder(self) -> IncrementalDecoder:
        """A decoder that reads parts of blocks. `decoding.RecomputeDecoder` works for every model, at W times the cost."""

    @abstractmethod
    def probes(self) -> list[Probe]:
        """Metrics that show whether the model uses its recurrent State (health.py); empty where it has none."""


class IncrementalDecoder(ABC):
    """Reads parts of blocks. Like a State, the block that it keeps maps names to tensors whose first dimension is the lane."""

    def __init__(self, model: RecurrentModel):
        self.model = model

    @abstractmethod
    def open(self, state: State, lanes: int) -> State:
        """An empty block, in tensors of its own, that begins at ``state``."""

    @abstractmethod
    def extend(self, tokens_Bn: Tensor, places: Places, state: State, block: State) -> tuple[Tensor, State]:
        """Read tokens of one block. Returns their logits [B, n, V], and the block with them (``block`` may be overwritten)."""

    @abstractmethod
    def close(self, state: State, block: State) -> State:
        """The State after a full block that began at ``state``."""


class Places:
    """The places of new tokens in their lanes' blocks. `write` puts a tensor of the tokens into one of the blocks.

    Attributes:
        of_tokens_Bn: int64. The place of each token in its block; those beyond a lane's count are padding.
        has_padding: Whether there is padding.
    """

    def __init__(self, filled_B: Tensor, counts_B: Tensor, device: torch.device):
        """``filled_B``: int64, on the CPU: tokens that each block already has. ``counts_B``: the same for added tokens."""
        step_n = torch.arange(int(counts_B.max()))
        places_Bn = filled_B[:, None] + step_n
        valid_Bn = step_n < counts_B[:, None]
        row, step = valid_Bn.nonzero(as_tuple=True)
        self.of_tokens_Bn = places_Bn.to(device)
        self.has_padding = len(row) < valid_Bn.numel()
        self._valid_Bn = valid_Bn
        self._row = row.to(device)
        self._step = step.to(device)
        self._place = places_Bn[row, step].to(device)

    @cached_property
    def valid_Bn(self) -> Tensor:
        """bool. Whether a token is not padding."""
        return self._valid_Bn.to(self._row.device)

    def write(self, into_BW: Tensor, values_Bn: Tensor) -> Tensor:
        """``into_BW`` [B, W, …] with the tokens' values [B, n, …] at their places.

        It is overwritten, so that a step does not copy the block; with gradients enabled, a new tensor is returned.
        """
        put = torch.Tensor.index_put if torch.is_grad_enabled() else torch.Tensor.index_put_
        return put(into_BW, (self._row, self._place), values_Bn[self._row, self._step].to(into_BW.dtype))


@dataclass(frozen=True)
class Probe:
    """A metric that is computed at each pass of a module. Metrics of the same name are averaged over their modules."""

    name: str
    """One of those in health.py, or the model's own."""
    module: nn.Module
    metric: Callable[[Tensor, Tensor], Tensor]
    """Computes a scalar from the first argument of ``module`` and the output of ``until``."""
    until: nn.Module | None = None
    """A module that runs after ``module``; by default the same one."""


def reset(tensor_B: Tensor, initial_B: Tensor, fresh_B: Tensor) -> Tensor:
    """``tensor_B``, one entry of the State, with ``initial_B`` on the lanes where a document begins (``fresh_B``, bool)."""
    per_lane = (-1, *[1] * (tensor_B.dim() - 1))
    return torch.where(fresh_B.view(per_lane), initial_B, tensor_B)


def reset_to_zeros(tensor_B: Tensor, fresh_B: Tensor) -> Tensor:
    """`reset` to zeros, a copy. NaN and infinity become zeros too; a product with 0 would leave NaN."""
    return reset(tensor_B, tensor_B.new_zeros(()), fresh_B)


def detach(state: State) -> State:
    """The same State, cut from the graph: backpropagation through time ends here."""
    return {name: tensor.detach() for name, tensor in state.items()}


def with_dtypes_of(state: State, like: State) -> State:
    """``state`` with each tensor in the dtype that it has in ``like``."""
    return {name: tensor.to(like[name].dtype) for name, tensor in state.items()}


def select_lanes(lanes: slice, state: State) -> State:
    """The State of some lanes."""
    return {name: tensor[lanes] for name, tensor in state.items()}


def concat_lanes(states: Sequence[State]) -> State:
    """One State with the lanes of all ``states``, in order."""
    if len(states) == 1:
        return states[0]
    return {name: torch.cat([state[name] for state in states]) for name in states[0]}


def clear(state: State, initial: State, kinds: tuple[str, ...] | None = None, lanes_B: Tensor | None = None) -> State:
    """``state`` with the entries of ``kinds`` set back to ``initial`` on the lanes of ``lanes_B`` (bool). None means all."""
    cleared = dict(state)
    for name in state:
        if kinds is None or kind_of(name) in kinds:
            cleared[name] = initial[name] if lanes_B is None else reset(state[name], initial[name], lanes_B)
    return cleared


def kind_of(name: str) -> str:
    """The kind of an entry of the State, from its name: ``states`` for ``layers.9.states``."""
    return name.rsplit(".", 1)[-1]


def layer_state(index: int, state: State) -> State:
    """The State of one layer, counted from 0, without the prefix: ``states`` for ``layers.9.states``."""
    prefix = f"layers.{index}."
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def join_layers(states: Iterable[State], first: int = 0) -> State:
    """One State from those of consecutive layers, the first of index ``first``: ``layers.9.states`` is ``states`` of the tenth."""
    return {f"layers.{i}.{name}": tensor for i, state in enumerate(states, first) for name, tensor in state.items()}


def begin_segment(
    model: RecurrentModel, tokens_BT: Tensor, state: State | None, fresh_BK: Tensor | None
) -> tuple[State, Tensor]:
    """``state`` and ``fresh_BK`` for `read_segment`: checked, and with `forward`'s defaults where they are None.

    Raises ValueError, with the sizes and a remedy, unless they and the tokens fit the model and one another.
    """
    if tokens_BT.dim() != 2:
        raise ValueError(f"tokens have shape {tuple(tokens_BT.shape)}: give [lanes, tokens], tokens[None] for one text")
    lanes, length = tokens_BT.shape
    blocks, rest = divmod(length, model.block)
    if not length:
        raise ValueError(f"there is nothing to read: a segment has at least one block, of {model.block} tokens")
    if rest:
        raise ValueError(f"a segment of {length} tokens is not a multiple of the block of {model.block}: pad or cut it")
    if fresh_BK is None:
        fresh_BK = torch.zeros(lanes, blocks, dtype=torch.bool, device=tokens_BT.device)
        fresh_BK[:, 0] = state is None
    if fresh_BK.shape != (lanes, blocks) or fresh_BK.dtype != torch.bool:
        given = f"{tuple(fresh_BK.shape)} of {str(fresh_BK.dtype).removeprefix('torch.')}"
        raise ValueError(f"fresh has shape {given}, but {lanes} lanes of {blocks} blocks are read: give each a bool")
    if state is None:
        return model.initial_state(lanes), fresh_BK
    check_state(model, state, lanes)
    return state, fresh_BK


def check_state(model: RecurrentModel, state: State, lanes: int) -> None:
    """Raises ValueError unless ``state`` has the names and shapes of the model's State of so many lanes."""
    expected = model.initial_state(0)
    if state.keys() != expected.keys():
        odd = sorted(state.keys() ^ expected.keys())[0]
        raise ValueError(f"the State is of another model: it differs in {odd!r}; start from model.initial_state(lanes)")
    for name, tensor in state.items():
        needed = (lanes, *expected[name].shape[1:])
        if tensor.shape != needed:
            raise ValueError(
                f"State {name!r} has shape {tuple(tensor.shape)}, but this model needs {needed} "
                f"for {lanes} lanes; start from model.initial_state({lanes})"
            )
