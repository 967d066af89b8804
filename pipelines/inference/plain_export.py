"""A `gpt2`, `llama` or `mamba2` as transformers' own class, such as LlamaForCausalLM, for `pipelines.export --format transformers`.

    model = plain(wrapped, config)              # of the ThroughlineForCausalLM that an export saves
    model.save_pretrained(folder)
    check_plain(folder, ours, config)

vLLM, llama.cpp's converter and all that know these classes open such a folder. `model.pretrained` begins a run with it.
"""

from __future__ import annotations

from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from common.errors import UserError
from recur_models import ModelConfig, RecurrentModel
from recur_models.hf import ThroughlineForCausalLM
from recur_models.pretrained_config import PretrainedConfig
from recur_models.pretrained_weights import theirs_of, weights_of


def check_has_plain_form(config: ModelConfig, place: object) -> PretrainedConfig:
    """The config, if transformers has a class of its own for the model. Else raises UserError."""
    if not isinstance(config, PretrainedConfig) or config.has_recurrence:
        raise UserError(
            f"{place} is a {config.name}, which no model of transformers' own computes: leave out --format transformers (gpt2, "
            "llama and mamba2 have such a form)"
        )
    return config


def plain(wrapped: ThroughlineForCausalLM, config: PretrainedConfig) -> Any:
    """transformers' own model with the weights, special ids and generation config of ``wrapped``."""
    family = config.family
    kind: Any = getattr(import_module("transformers"), family.saver)
    ids = {
        name: getattr(wrapped.config, name) for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")
    }
    values = config.plain_values()
    theirs = kind.config_class(**ids, **values)
    theirs.begin_of_document_id = wrapped.config.begin_of_document_id  # which ends no text (pretrained_weights.py)
    for name in values.keys() - theirs.to_dict().keys():  # older readers know a value by an older name
        setattr(theirs, name, values[name])
    with torch.device("meta"):  # all weights are assigned below
        model = kind(theirs)
    weights = theirs_of(family, wrapped.model.state_dict())
    tied = model.state_dict().keys() - weights.keys()
    embeddings = wrapped.model.embedding.weight
    model.load_state_dict({**weights, **dict.fromkeys(tied, embeddings)}, assign=True)
    model.tie_weights()
    model.generation_config = deepcopy(wrapped.generation_config)
    return model


def check_plain(folder: Path, ours: RecurrentModel, config: PretrainedConfig) -> None:
    """Raise ValueError unless the folder's model has our weights bit for bit, and our logits over one block to rounding."""
    family = config.family
    kind: Any = getattr(import_module("transformers"), family.saver)
    theirs = kind.from_pretrained(folder).eval()
    weights = ours.state_dict()
    found = weights_of(family, folder, ours.vocab_size, weights)
    same = all(torch.equal(found[name], weights[name]) for name in weights)
    whole = config.plain_config().restore(ours.vocab_size, weights).eval()
    check_logits(folder, theirs, whole, 1, same)


def check_logits(folder: Path, theirs: Any, ours: RecurrentModel, blocks: int, same_weights: bool) -> None:
    """Raise ValueError unless an exported model has the ``same_weights`` as ours, and its logits over some blocks.

    Logits may differ by rounding: where a weight lies in memory decides which kernel reads it.
    """
    tokens_1T = torch.randint(ours.vocab_size, (1, blocks * ours.block), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        alike = torch.allclose(theirs(tokens_1T, use_cache=False).logits, ours(tokens_1T)[0], rtol=1e-4, atol=1e-4)
    if not (same_weights and alike):
        raise ValueError(f"{folder} does not give the logits of the checkpoint: report this as a bug")
