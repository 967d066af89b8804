"""Makes the models known to transformers, so that after ``import recur_models`` its Auto classes open an exported folder:

    import recur_models
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = (auto.from_pretrained(folder) for auto in (AutoModelForCausalLM, AutoTokenizer))

Importing this module does it, and recur_models imports it when somebody imports transformers, which training does without:
seconds in each process. The model's class brings in most of transformers: it is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

from transformers.models.auto.configuration_auto import AutoConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM
from transformers.models.auto.tokenization_auto import AutoTokenizer

from recur_models.hf_config import ThroughlineConfig
from recur_models.hf_tokenizer import ThroughlineTokenizer


class _Imported(type):
    """The class of a class that stands for another until one of its attributes is asked for."""

    def __getattr__(cls, name: str) -> Any:
        return getattr(importlib.import_module("recur_models.hf").ThroughlineForCausalLM, name)


class ThroughlineForCausalLM(metaclass=_Imported):
    """Stands for `recur_models.hf.ThroughlineForCausalLM`."""

    config_class = ThroughlineConfig


AutoConfig.register(ThroughlineConfig.model_type, ThroughlineConfig, exist_ok=True)
AutoModelForCausalLM.register(ThroughlineConfig, ThroughlineForCausalLM, exist_ok=True)
AutoTokenizer.register(ThroughlineConfig, tokenizer_class=ThroughlineTokenizer, exist_ok=True)
