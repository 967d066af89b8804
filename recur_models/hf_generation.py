"""How transformers' `generate` continues a text: with the State as its cache, and without a begin-of-document inside.

    model.generate(input_ids, max_new_tokens=100_000)        # the cache never grows
    model(input_ids, use_cache=True).past_key_values.save("book.safetensors")     # RecurrentCache.load continues it

Letters: B lanes · T tokens.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from os import PathLike
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers.cache_utils import Cache
from transformers.generation.configuration_utils import GenerationConfig
from transformers.generation.utils import GenerationMixin

from recur_models.decoding import DecodingState, begin
from recur_models.hf_arguments import check_generation
from recur_models.hf_config import ThroughlineConfig
from recur_models.protocol import IncrementalDecoder, State, detach


class RecurrentCache(Cache):
    """The reading position of each lane: its State, and the block that is being read. Its size never grows."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.reading: DecodingState | None = None
        self.seen = 0
        self.fits: tuple[torch.dtype, torch.device] | None = None

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns that have been read, padding included."""
        return self.seen

    @property
    def is_croppable(self) -> bool:
        return False

    def reset(self) -> None:
        self.reading = None
        self.seen = 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.reading is not None:
            self.reading = self.reading.select(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.reading is not None:
            self.batch_select_indices(torch.arange(len(self.reading.filled_B)).repeat_interleave(repeats))

    def detach(self) -> RecurrentCache:
        """Cut the State from the graph, in place: the next call's backward pass ends here. Returns the cache."""
        if self.reading is not None:
            reading = self.reading
            self.reading = replace(reading, state=detach(reading.state), block=detach(reading.block))
        return self

    def save(self, file: str | PathLike[str]) -> None:
        """Write the State of what was read to a safetensors file, with which `load` continues. Raises ValueError if it is empty."""
        if self.reading is None:
            raise ValueError("nothing was read with this cache: save one that the model has returned")
        reading = self.reading
        named = {f"state.{name}": tensor for name, tensor in reading.state.items()}
        named |= {f"block.{name}": tensor for name, tensor in reading.block.items()}
        named["filled"] = reading.filled_B
        copies = {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in named.items()}
        save_file(copies, file, {"seen": str(self.seen)})

    @classmethod
    def load(cls, file: str | PathLike[str], device: str | torch.device = "cpu") -> RecurrentCache:
        """The cache that `save` has written, on this device, for the model that made it. Raises ValueError if it is none."""
        cache = cls()
        parts: dict[str, State] = {"state": {}, "block": {}}
        remedy = "name a file that RecurrentCache.save has written"
        try:
            opened = safe_open(file, "pt", str(device))
        except SafetensorError as error:
            raise ValueError(f"{file} cannot be read ({error}): {remedy}") from None
        with opened as saved:
            seen = (saved.metadata() or {}).get("seen")
            if seen is None:
                raise ValueError(f"{file} is no saved cache: {remedy}")
            cache.seen = int(seen)
            for name in set(saved.keys()) - {"filled"}:
                part, _, rest = name.partition(".")
                parts[part][rest] = saved.get_tensor(name)
            cache.reading = DecodingState(**parts, filled_B=saved.get_tensor("filled").cpu())
        return cache

    def fit(self, decoder: IncrementalDecoder, dtype: torch.dtype, device: torch.device) -> None:
        """Move what was read to the dtype and device of the model, which may have been another one when it was read.

        Raises ValueError if the State is not one of this model's.
        """
        if self.reading is not None and self.fits != (dtype, device):
            expected = begin(decoder, lanes=1)
            state = moved(self.reading.state, expected.state)
            self.reading = replace(self.reading, state=state, block=moved(self.reading.block, expected.block))
        self.fits = (dtype, device)

    def __bool__(self) -> bool:
        """True. transformers' own would be False, since it counts layers, and `cache or None` would lose the State."""
        return True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.seen} columns read)"

    def crop(self, tokens_to_remove: int) -> NoReturn:
        """Raises ValueError: a State has no earlier tokens to return to."""
        raise ValueError("the State cannot be rolled back: assisted decoding is not supported with these models")


def moved(state: State, like: State) -> State:
    """``state`` with the dtypes and the device of ``like``. Raises ValueError if they differ in names or sizes."""
    shapes = [{name: tensor.shape[1:] for name, tensor in each.items()} for each in (state, like)]
    if shapes[0] != shapes[1]:
        raise ValueError("past_key_values was made by another model: give it to the one that made it")
    return {name: tensor.to(like[name]) for name, tensor in state.items()}


class RecurrentGenerationMixin(GenerationMixin):
    """`generate` for models whose padding may be begin-of-document, with which a text begins."""

    config: ThroughlineConfig
    device: Any

    def generate(  # pyrefly: ignore[bad-override]
        self, inputs: Tensor | None = None, generation_config: GenerationConfig | None = None, **kwargs: Any
    ) -> Any:
        """Continue texts, as transformers does with these arguments. Begin-of-document is never generated.

        Args:
            inputs: int64 [B, T], texts with the begin-of-document token before them.
            generation_config: by default the model's own.
            kwargs: further arguments of transformers' `generate`, which also replace values of ``generation_config``.

        Raises ValueError for a model that predicts labels, for arguments that these models do not have, and for a cache that has
        read the text to its end: it has no logits of the last token, and cannot read this token again. New tokens alone are taken
        with the attention mask of the whole text, as by transformers.
        """
        defaults = generation_config or self.generation_config
        check_generation(self.config, defaults, kwargs)
        begin_id = self.config.begin_of_document_id
        suppressed = kwargs.pop("suppress_tokens", None) or getattr(defaults, "suppress_tokens", None) or ()
        if generation_config is None:
            kwargs["suppress_tokens"] = [*suppressed, begin_id]
        else:  # transformers warns of arguments beside a config
            generation_config = copy.deepcopy(generation_config)
            generation_config.suppress_tokens = [*suppressed, begin_id]
        prompt = kwargs.get("input_ids") if inputs is None else inputs
        past = kwargs.get("past_key_values")
        mask = kwargs.get("attention_mask")
        is_whole = prompt is not None and (mask is None or mask.shape[-1] == prompt.shape[1])
        if is_whole and isinstance(past, RecurrentCache) and past.seen >= prompt.shape[1]:
            raise ValueError(
                f"past_key_values has read {past.seen} columns, and the text has {prompt.shape[1]}: give the whole text, and a "
                "cache that has not read its last token"
            )
        padding = kwargs.get("pad_token_id", getattr(defaults, "pad_token_id", None))
        # Without a mask, transformers takes padding ids for padding: also the begin-of-document that every text has, and that
        # transformers itself reads where there is no prompt.
        if mask is None and padding in (None, begin_id):
            alone = torch.ones(1, 1, dtype=torch.int64, device=self.device)
            kwargs["attention_mask"] = alone if prompt is None else torch.ones_like(prompt)
        return super().generate(inputs, generation_config, **kwargs)  # pyrefly: ignore[bad-argument-type]
