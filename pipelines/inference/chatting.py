"""A message in the form that a model's chat template gives it.

chat_ids(load("exported/chat"), "What is gravity?")      # ids that end where the reply begins
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common.errors import UserError
from data_prep.tokenizers import HuggingFaceTokenizer
from pipelines.inference.trained import ExportedTokenizer, Trained


def chat_ids(trained: Trained, message: str) -> list[int]:
    """Ids of a user's message and of the reply's beginning. Raises UserError where the tokenizer has no chat template."""
    tokenizer = chat_tokenizer(trained)
    if tokenizer is None or not tokenizer.chat_template:
        raise UserError(
            f"{trained.place} has a tokenizer without a chat template: leave out --chat, or prepare the corpus with a folder that "
            "has one"
        )
    messages = [{"role": "user", "content": message}]
    try:
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    except Exception as error:  # whatever the template raises
        raise UserError(
            f"the chat template of {trained.place} cannot write the message ({error}): leave out --chat, or repair the template"
        ) from None
    return trained.tokenizer.checked(ids) if isinstance(trained.tokenizer, ExportedTokenizer) else ids


def chat_tokenizer(trained: Trained) -> Any:
    """transformers' tokenizer of a model; None where its tokenizer has no chat template."""
    tokenizer = trained.tokenizer
    if isinstance(tokenizer, ExportedTokenizer):
        return tokenizer.transformers
    if not isinstance(tokenizer, HuggingFaceTokenizer) or tokenizer.chat is None:
        return None
    from transformers.models.auto.tokenization_auto import AutoTokenizer

    from pipelines.inference.to_transformers import save_tokenizer

    with TemporaryDirectory() as name:
        save_tokenizer(tokenizer, Path(name))
        return AutoTokenizer.from_pretrained(name)
