"""All models as one transformers model: `save_pretrained`, `from_pretrained`, `generate` and a loss, with State as the cache.

    model = ThroughlineForCausalLM(ThroughlineConfig.of(RecConfig(layers=4, ...), vocab_size=257))
    model.generate(input_ids, max_new_tokens=100_000)        # the cache never grows
    ThroughlineModel(config)(input_ids).last_hidden_state      # the same model and weights, without logits

A document begins where a sequence begins; a begin-of-document id later in a sequence is read like any other, and resets nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils.generic import can_return_tuple
from transformers.utils.logging import get_logger

from recur_models.compiling import compile_model, is_compiled
from recur_models.decoding import begin, compact, read, spread
from recur_models.hf_arguments import (
    READ,
    check_arguments,
    check_attention,
    check_devices,
    check_input_ids,
    check_mask,
    check_positions,
    kept_columns,
    loss_arguments,
    predicted_labels,
    share_scored,
)
from recur_models.hf_config import ThroughlineConfig
from recur_models.hf_generation import RecurrentCache, RecurrentGenerationMixin
from recur_models.hidden import in_place_of_logits
from recur_models.losses import tied_or_untied_output
from recur_models.protocol import RecurrentModel

logger = get_logger(__name__)
Forward = TypeVar("Forward", bound=Callable[..., Any])

LORA_TARGETS = r".*\.(c_attn|q_proj|v_proj|qkv|qkvg|qkvo|kvq|inward|mixer\.[qkv])"
"""The projections that PEFT puts an adapter on where its config names none: its own targets of a GPT-2 (c_attn) and a Llama
(q_proj, v_proj). In other models: the projections to queries, keys and values, with gates where one matrix makes both; and in a
Mamba-2 the projection to all inputs of its recurrence, in an sLSTM that to z and the output gate (inward)."""


def by_layers(forward: Forward) -> Forward:
    """Decorate a `forward` so that torch.compile compiles the model's layers, and not the loops around them."""

    @wraps(forward)
    def called(self: ThroughlinePreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling() and not torch.compiler.is_exporting():
            return self.with_compiled_layers(forward, *args, **kwargs)
        return forward(self, *args, **kwargs)

    return cast(Forward, called)


class ThroughlinePreTrainedModel(PreTrainedModel):
    """The model that the config names. Its weights have the same names in all subclasses."""

    config_class = ThroughlineConfig
    config: ThroughlineConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _is_stateful = True
    _input_embed_layer = "embedding"

    def __init__(self, config: ThroughlineConfig):
        check_attention(config._attn_implementation)
        super().__init__(config)
        self.model: RecurrentModel = config.model_config().build(config.vocab_size)
        self.incremental_decoder = self.model.incremental_decoder()
        self._no_split_modules = {type(self.model).__name__}  # so that device_map="auto" keeps the model on one device
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Does nothing: `build` initialises the weights."""

    def get_output_embeddings(self) -> nn.Module | None:
        """The output layer; None where the embeddings make the logits."""
        output: Any = getattr(self.model, "output", None)
        return output

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.model.output = new_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        assert isinstance(value, nn.Embedding)
        self.model.embedding = value
        self.model.vocab_size = value.num_embeddings

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # `forward` makes a RecurrentCache

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """As transformers has it, but raises ValueError for weights that are missing, left over or of another shape, of which
        transformers warns, and for a device_map that takes the model apart.
        """
        loaded: Any = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        model, info = loaded
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            names = sorted(map(str, info[kind]))
            if names:
                raise ValueError(
                    f"the weights in {args[0] if args else 'this folder'} are not those of the model in its config.json "
                    f"({kind.replace('_', ' ')}: {names[0]}, {len(names)} in all): export the checkpoint again, "
                    "or open an adapter with PeftModel.from_pretrained"
                )
        check_devices(getattr(model, "hf_device_map", None))
        model.config.model_config().freeze(model.model)  # transformers has made its parameters anew
        return (model, info) if output_loading_info else model

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoModel") -> None:
        """Does nothing: see hf_config.py."""

    @property
    def gradient_checkpointing(self) -> bool:
        """Whether each layer is computed again in the backward pass; transformers sets it.

        Raises ValueError if it is set for a model that recomputes nothing.
        """
        return self.model.recompute != "nothing"

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, value: bool) -> None:
        config = self.config.model_config()
        units = [unit for unit in ("layer", "block") if unit in config.recomputes]
        if value and not units:
            raise ValueError(f"gradient_checkpointing is given, but a {config.name} recomputes nothing: leave it out")
        self.model.recompute = units[0] if value else "nothing"

    def activation_checkpointing_enable(
        self,
        activation_checkpointing_kwargs: dict[str, Any] | None = None,
        every_n_layers: int = 1,
        offload: bool = False,
    ) -> None:
        """Compute each layer again in the backward pass, or each block in a model whose layers read token by token.

        Raises ValueError for a model that recomputes nothing, and for other arguments than the default ones.
        """
        given = {**(activation_checkpointing_kwargs or {}), "every_n_layers": every_n_layers, "offload": offload}
        for name, default in (("use_reentrant", False), ("every_n_layers", 1), ("offload", False)):
            value = given.pop(name, default)
            if value != default:
                raise ValueError(f"{name} is {value}, but these models checkpoint with {default} alone: leave it out")
        if given:
            raise ValueError(f"{min(given)} is given, but these models checkpoint without it: leave it out")
        super().activation_checkpointing_enable()

    def set_attn_implementation(self, attn_implementation: Any, *args: Any, **kwargs: Any) -> None:
        """Raises ValueError for another one than "eager", transformers' name for a model's own."""
        check_attention(attn_implementation)
        super().set_attn_implementation(attn_implementation, *args, **kwargs)

    def compile(self, **options: Any) -> None:
        """Have each layer compiled when it is first called: layers of one kind share their code, in every block and pass. The loops
        around them stay as they are, because a compiler would unroll them. ``options``: those of torch.compile.
        """
        compile_model(self.model, "layer", **options)

    @torch.compiler.disable(reason="its layers are compiled one by one: leave out fullgraph, or call model.compile()")
    def with_compiled_layers(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The class's ``forward`` under torch.compile, which does not pass on its options. `self.forward` may be compiled."""
        if not is_compiled(self.model):
            logger.warning_once(
                "torch.compile(model) compiles this model's layers with torch's default options: for others, call "
                "model.compile(...) with them, in place of torch.compile"
            )
            self.compile()
        return forward(self, *args, **kwargs)

    def read(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        past_key_values: RecurrentCache | None,
        use_cache: bool | None,
        keep: int = 0,
    ) -> tuple[Tensor, RecurrentCache | None]:
        """The model's output for each token [B, T, …], by default logits; and its cache after them.

        Args:
            input_ids: int64 [B, T].
            attention_mask: [B, T], or [B, columns read before + T].
            position_ids: int64 [B or 1, T]; checked, not read.
            past_key_values: cache from which to resume.
            use_cache: by default where there is ``past_key_values``, else as the config says, but not in training.
            keep: how many of the last columns suffice, 0 for all.

        Raises:
            ValueError: ``input_ids`` are None or empty, or the cache, mask or positions do not fit them.
        """
        if self.config.output_attentions:
            raise ValueError("config.output_attentions is set, but these models do not return attention's weights")
        input_ids = check_input_ids(input_ids)
        if past_key_values is not None and not isinstance(past_key_values, RecurrentCache):
            raise ValueError(
                f"past_key_values is a {type(past_key_values).__name__}: leave it out, or give a RecurrentCache"
            )
        seen = 0 if past_key_values is None else past_key_values.seen
        mask_BT = check_mask(attention_mask, input_ids, seen)
        check_positions(position_ids, input_ids, attention_mask, seen)
        if use_cache is None:
            use_cache = past_key_values is not None or (self.config.use_cache and not self.training)
        if not use_cache and past_key_values is None:
            return self._whole(input_ids, mask_BT), None
        cache = RecurrentCache() if past_key_values is None else past_key_values
        cache.fit(self.incremental_decoder, self.dtype, self.device)
        reading = cache.reading or begin(self.incremental_decoder, len(input_ids))
        if len(reading.filled_B) != len(input_ids):
            raise ValueError(
                f"past_key_values is of {len(reading.filled_B)} lanes, but {len(input_ids)} are given: repeat its lanes with "
                "batch_repeat_interleave, for each beam or returned sequence too, or take some with batch_select_indices"
            )
        made, cache.reading = read(self.incremental_decoder, reading, input_ids, mask_BT, keep=keep)
        cache.seen += input_ids.shape[1]
        return made, cache if use_cache else None

    def read_states(self, *arguments: Any, layers: bool) -> tuple[tuple[Tensor, ...], RecurrentCache | None]:
        """`read` with these arguments: the last hidden states [B, T, D], as the output layer reads them. With ``layers``, the
        inputs of each layer come before them, the embeddings first.

        Raises ValueError where the model does not give them.
        """
        with in_place_of_logits(layers) as found:
            made, cache = self.read(*arguments)
        states = made.split(found.widths, -1)
        if layers and len(states) == 1:
            raise ValueError(
                f"output_hidden_states is given, but a {self.config.model_config().name} gives the last hidden state alone: leave "
                "it out, and take the last_hidden_state of AutoModel"
            )
        return states, cache

    def _whole(self, tokens_BT: Tensor, mask_BT: Tensor | None) -> Tensor:
        """The model's output for whole sequences in one pass, as in training."""
        moved_BT, source_BT = compact(tokens_BT, mask_BT)
        filled_BT = F.pad(moved_BT, (0, -moved_BT.shape[1] % self.model.block))
        made_BTV, _ = self.model(filled_BT)
        return spread(made_BTV, source_BT) if mask_BT is not None else made_BTV[:, : tokens_BT.shape[1]].contiguous()


class ThroughlineModel(ThroughlinePreTrainedModel):
    """A model that returns hidden states, as its output layer reads them: `pipelines.embed` writes the same. It has all weights of
    the model, also those of the output layer.
    """

    @by_layers
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        past_key_values: RecurrentCache | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        position_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Read sequences of any length, or resume them: ``last_hidden_state`` [B, T, D].

        Arguments and errors: see `ThroughlineForCausalLM.forward`. A padded column has the state of the latest token before it, or
        zeros if there is none.
        """
        check_arguments(kwargs, READ)
        layers = bool(self.config.output_hidden_states if output_hidden_states is None else output_hidden_states)
        arguments = (input_ids, attention_mask, position_ids, past_key_values, use_cache)
        states, cache = self.read_states(*arguments, layers=layers)
        return BaseModelOutputWithPast(
            last_hidden_state=states[-1], past_key_values=cache, hidden_states=states if layers else None
        )


class ThroughlineForCausalLM(ThroughlinePreTrainedModel, RecurrentGenerationMixin):
    """A model that predicts the next token, or a label of each."""

    def __init__(self, config: ThroughlineConfig):
        super().__init__(config)
        if self.generation_config is not None:
            self.generation_config.suppress_tokens = [config.begin_of_document_id]  # no text has it inside
        if config.predicts_labels:
            # By this name Trainer counts the labels of all columns, not only those behind the first.
            self.loss_type = "ForTokenClassification"
            self.loss_function = ForCausalLMLoss

    @by_layers
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        past_key_values: RecurrentCache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Read sequences of any length, or resume them.

        Args:
            input_ids: int64 [B, T].
            attention_mask: [B, T], or [B, columns read before + T]: 0 where a lane has no token, on whichever side.
            labels: int64 [B, T]; column t should predict the label in column t + 1, or with ``config.predicts_labels`` that in
                column t; −100 is not scored, and neither is the first token behind padding, which no column predicts.
            past_key_values: cache from which to resume; it is changed, and is also in the output.
            use_cache: by default as the config says, but not with labels or in training. A new cache begins at the learned first
                State of a rec or rmt, and gives it no gradient.
            logits_to_keep: make only the logits of the last columns, 0 for all; or of the columns in a tensor (`kept_columns`).
            output_hidden_states: also return the input of each layer, the embeddings first, and of the output layer: [B, T, D]
                each, one more than the layers that a token passes.
            kwargs: arguments that transformers passes; see hf_arguments.py.

        Raises:
            ValueError: ``input_ids`` are None or empty, the cache or mask does not fit them, or an argument is one that these
                models do not have.
            TypeError: an argument is unknown.
        """
        position_ids = kwargs.pop("position_ids", None)  # `generate` would count them for a signature that has them
        loss_kwargs = loss_arguments(kwargs)
        keep = logits_to_keep if isinstance(logits_to_keep, int) else 0
        if keep < 0:
            raise ValueError(f"logits_to_keep is {keep}: give 0 for all, or more")
        if labels is not None and (keep or isinstance(logits_to_keep, Tensor)):
            raise ValueError(
                "logits_to_keep and labels are both given: the loss needs all logits, so leave out one of them"
            )
        if use_cache is None and labels is not None and past_key_values is None:
            use_cache = False
        arguments = (input_ids, attention_mask, position_ids, past_key_values, use_cache)
        with_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        states: tuple[Tensor, ...] | None = None
        if with_states:
            states, cache = self.read_states(*arguments, layers=True)
            made = tied_or_untied_output(states[-1], self.model.embedding, self.get_output_embeddings(), None)
        else:
            made, cache = self.read(*arguments, keep=keep)
        logits = kept_columns(made, logits_to_keep)
        loss = None
        if labels is not None:
            if self.config.predicts_labels:
                loss_kwargs.setdefault("shift_labels", labels)
            ignored = loss_kwargs.get("ignore_index", -100)
            scored = predicted_labels(labels, attention_mask, ignored)
            items = loss_kwargs.get("num_items_in_batch")
            if items is not None and "shift_labels" not in loss_kwargs:
                loss_kwargs["num_items_in_batch"] = items * share_scored(labels, scored, ignored)
            loss = self.loss_function(logits=logits, labels=scored, vocab_size=self.config.vocab_size, **loss_kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache, hidden_states=states)


try:  # PEFT knows architectures by their model_type, which all models here share
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
except ImportError:  # PEFT is not installed
    pass
else:
    TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING[ThroughlineConfig.model_type] = LORA_TARGETS
# By this name Trainer shifts the labels under label smoothing; else the model would learn to repeat its input.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[ThroughlineConfig.model_type] = ThroughlineForCausalLM.__name__
