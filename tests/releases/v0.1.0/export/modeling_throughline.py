"""Lets transformers open this folder with trust_remote_code=True. The code itself is Throughline's own package."""

try:
    from recur_models.hf import ThroughlineForCausalLM
    from recur_models.hf_config import ThroughlineConfig
    from recur_models.hf_tokenizer import ThroughlineTokenizer
except ImportError as error:
    raise ImportError("this model needs Throughline's package recur_models: install Throughline where you open it") from error
