"""The one transformers config of all models: the model's name, the fields of its own config, and its vocabulary.

    ThroughlineConfig.of(RecConfig(layers=4, ...), vocab_size=257).save_pretrained(folder)

Beside it stand the modules of its model, so that transformers opens the folder with trust_remote_code=True where Throughline is not
installed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from transformers.configuration_utils import PreTrainedConfig

from common.choices import MODEL_MODULE
from recur_models.bundle import write_model
from recur_models.protocol import ModelConfig
from recur_models.registry import model_from_json

AUTO_CLASSES = {
    "AutoConfig": "ThroughlineConfig",
    "AutoModel": "ThroughlineModel",
    "AutoModelForCausalLM": "ThroughlineForCausalLM",
}
"""Our class for each of transformers' Auto classes."""


class ThroughlineConfig(PreTrainedConfig):
    """A registered model by name; a model added to ``MODELS`` needs nothing more."""

    model_type = "throughline"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012  (read by transformers as it stands)

    model: dict[str, Any] | None = None
    """``name``, as in ``recur_models.MODELS``, and the fields of that config."""
    trained: dict[str, Any] | None = None
    """An export's record of its run: steps, corpus, the tokenizer's fingerprint (pipelines/checkpoints/exported.py)."""
    vocab_size: int = 257
    """Ids, that of begin-of-document included."""
    begin_of_document_id: int | None = None
    """By default the last id. It stands before a text's first token, so that this token is predicted too. It is never generated."""
    bos_token_id: int | None = None
    """By default begin-of-document; a model with a chat template has its own."""
    eos_token_id: int | list[int] | None = None
    """By default begin-of-document, and then no text ends of itself. A model that began with pretrained weights ends a text where
    those did."""
    pad_token_id: int | None = None
    """By default begin-of-document: where the attention mask is 0 nothing is read."""
    predicts_labels: bool = False
    """Whether column t predicts the label in column t, as in a labelled task, and not the token in column t + 1."""
    use_cache: bool = True
    """Whether a call returns ``past_key_values``, with which the next call can continue."""
    tie_word_embeddings: bool = False
    """False even if the output layer is the embedding: both are then one parameter, which transformers need not tie."""

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.begin_of_document_id is None:
            self.begin_of_document_id = self.vocab_size - 1
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            if getattr(self, name) is None:
                setattr(self, name, self.begin_of_document_id)
        self.auto_map = {auto: f"{MODEL_MODULE}.{name}" for auto, name in AUTO_CLASSES.items()}

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Write config.json, and the modules that open a model of it (bundle.py)."""
        super().save_pretrained(save_directory, *args, **kwargs)
        write_model(Path(save_directory), self.model_config())

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states, where tools look for it. Not written to config.json: the model's own fields have it."""
        return self.model_config().sized().d_model  # pyrefly: ignore

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Does nothing: saving must not copy this file, as transformers does with code that came out of a folder."""

    @classmethod
    def of(cls, config: ModelConfig, vocab_size: int, **fields: Any) -> ThroughlineConfig:
        """The config of ``config.build(vocab_size)``."""
        return cls(model=config.to_json(), vocab_size=vocab_size, **fields)

    def model_config(self) -> ModelConfig:
        """The model's own config. Raises ValueError if this version does not know the name or a field."""
        if self.model is None:
            raise ValueError(
                "this ThroughlineConfig names no model: make it with ThroughlineConfig.of(config, vocab_size)"
            )
        return model_from_json(self.model)
