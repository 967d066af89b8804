"""README.md of an export: what the model is, and code that opens it.

    card_of(checkpoint, model, tokenizer, plain_form=None)

Its Python code runs as it stands, in the export's folder.
"""

from __future__ import annotations

from data_prep.tokenizers import SentencePieceTokenizer, SymbolsTokenizer, Tokenizer, chat_of
from pipelines.checkpoints.checkpoint import Snapshot
from recur_models import RecurrentModel
from recur_models.pretrained_config import PretrainedConfig

CARD = """---
library_name: transformers
pipeline_tag: {tag}
tags: [throughline, {kind}]
---
# {run}, step {step}

A {form} of {parameters:,} parameters, trained by Throughline on `{corpus}` ({tokens:,} tokens read).{about}

```python
{imports}from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "."  # the path of this folder
tokenizer = AutoTokenizer.from_pretrained(folder{trust})
model = AutoModelForCausalLM.from_pretrained(folder)
{use}
```
"""
ABOUT = """ It {does}, in
blocks of {block:,} tokens and constant memory. {passes}

Install Throughline first: in a copy of its repository, `pip install .` Or leave out the first line and give both calls
`trust_remote_code=True`: the model's code stands beside its weights."""
WRITES = {
    "tag": "text-generation",
    "does": "continues texts",
    "use": """inputs = tokenizer("Once", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=200, do_sample=True)[0]))""",
}
CHATS = {
    "tag": "text-generation",
    "does": "replies to messages and continues texts",
    "use": """messages = [{"role": "user", "content": "Hello"}]
inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=200)[0]))""",
}
LABELS = {
    "tag": "token-classification",
    "does": "predicts the label of each symbol",
    "use": """inputs = tokenizer(SYMBOLS, return_tensors="pt")  # the tokenizer knows its symbols alone: tokenizer.get_vocab()
print(tokenizer.decode(model(input_ids=inputs.input_ids).logits.argmax(-1)[0]))""",
}
"""WRITES, CHATS and LABELS: README.md of a model that continues texts, has a chat template, or predicts labels."""
NOTES = """
- {note}
- `<|begin_of_document|>`, the last id, stands before a text. The tokenizer puts it there, and the model never predicts it.
"""
NOTE_ON_BPE = """- llama.cpp's `convert_hf_to_gguf.py` knows a BPE tokenizer by the ids of a sample text.
  Where it does not recognize this one, set `"post_processor": null` in a copy of tokenizer.json: without begin-of-document
  the ids are those of the original tokenizer.
"""
"""NOTES and NOTE_ON_BPE: the end of the folder's README.md. The second is left out if pieces are SentencePiece's."""


def card_of(
    checkpoint: Snapshot, model: RecurrentModel, tokenizer: Tokenizer, plain_form: PretrainedConfig | None
) -> str:
    """The export's README.md; ``plain_form``: the config of a model that becomes one of transformers' own classes."""
    config = checkpoint.meta["config"]
    facts = {"run": config["run"], "step": checkpoint.step, "corpus": config["data"]["corpus"]}
    facts |= {"tokens": checkpoint.meta["tokens"], "parameters": sum(weight.numel() for weight in model.parameters())}
    if plain_form:
        by_pieces = isinstance(tokenizer, SentencePieceTokenizer)
        own = {"kind": plain_form.family.kind, "tag": WRITES["tag"], "form": f"`{plain_form.family.saver}`"}
        own |= {"about": "", "imports": "", "trust": ", trust_remote_code=True" if by_pieces else ""}
        most = min(200, plain_form.longest // 2) if plain_form.longest else 200
        use = WRITES["use"].replace("200", f"{most}")
        notes = NOTES if by_pieces else NOTES + NOTE_ON_BPE
        return CARD.format(**facts, **own, use=use) + notes.format(note=plain_form.plain_note)
    name = config["model"]["name"]
    kind = CHATS if chat_of(tokenizer) else WRITES
    if isinstance(tokenizer, SymbolsTokenizer):
        kind = {**LABELS, "use": LABELS["use"].replace("SYMBOLS", repr(" ".join(tokenizer.symbols[:3])))}
    state = model.initial_state(1)
    size = sum(tensor.numel() for tensor in state.values())
    passes = f"Nothing passes from one block to the next: it never sees more than {model.block:,} tokens."
    if state:
        passes = f"From one block to the next passes a State of {size:,} numbers: all that it knows of earlier ones."
    about = ABOUT.format(block=model.block, passes=passes, does=kind["does"])
    own = {"kind": name, "tag": kind["tag"], "form": f"`{name}` model", "about": about}
    own |= {"imports": "import recur_models.hf\n", "trust": ""}
    return CARD.format(**facts, **own, use=kind["use"])
