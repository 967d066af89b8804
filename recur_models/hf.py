"""Makes all models and their tokenizers known to transformers' Auto classes, which then open an exported folder.

    import recur_models.hf
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)

AutoModel gives hidden states in the place of logits.

Without Throughline, transformers opens the same folder with trust_remote_code=True (bundle.py).
"""

from transformers.models.auto.configuration_auto import AutoConfig
from transformers.models.auto.modeling_auto import AutoModel, AutoModelForCausalLM
from transformers.models.auto.tokenization_auto import AutoTokenizer

from recur_models.hf_config import ThroughlineConfig
from recur_models.hf_generation import RecurrentCache
from recur_models.hf_model import ThroughlineForCausalLM, ThroughlineModel
from recur_models.hf_tokenizer import ThroughlineTokenizer

AutoConfig.register(ThroughlineConfig.model_type, ThroughlineConfig, exist_ok=True)
AutoModel.register(ThroughlineConfig, ThroughlineModel, exist_ok=True)
AutoModelForCausalLM.register(ThroughlineConfig, ThroughlineForCausalLM, exist_ok=True)
AutoTokenizer.register(ThroughlineConfig, tokenizer_class=ThroughlineTokenizer, exist_ok=True)

__all__ = ["RecurrentCache", "ThroughlineConfig", "ThroughlineForCausalLM", "ThroughlineModel", "ThroughlineTokenizer"]
