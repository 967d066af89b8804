"""Opens this folder in transformers with trust_remote_code=True. Made of Throughline's modules."""

from .recur_models_block_recurrent import RecConfig
from .recur_models_hf_config import ThroughlineConfig
from .recur_models_hf_model import ThroughlineForCausalLM, ThroughlineModel
from .recur_models_registry import register

register(RecConfig)
