"""The projections that PEFT puts an adapter on where its config names none.

    get_peft_model(model, LoraConfig(r=8))      # acts on queries, keys and values, or what is in their place

PEFT knows transformers' architectures by their model_type. All models here have one, so the default is a pattern of their names.
"""

from __future__ import annotations

DEFAULT_TARGETS = r".*\.(c_attn|q_proj|v_proj|qkv|qkvg|qkvo|kvq|inward|mixer\.[qkv])"
"""PEFT's own targets of a GPT-2 (c_attn) and a Llama (q_proj, v_proj). In other models: the projections to queries, keys and
values, with gates where one matrix makes both; and in a Mamba-2 the projection to all inputs of its recurrence (inward)."""


def register_default_targets(model_type: str) -> None:
    """Register these targets with PEFT, if it is installed."""
    try:
        from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    except ImportError:
        return
    TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING[model_type] = DEFAULT_TARGETS
