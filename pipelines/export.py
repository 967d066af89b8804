"""Make a folder that transformers opens from a checkpoint: weights in safetensors, and the tokenizer beside them.

    python -m pipelines.export runs/demo-rec --output exported/demo-rec
    python -m pipelines.export runs/llama --output exported/llama --format transformers      # a plain LlamaForCausalLM

    import recur_models.hf                                          # makes the models known to transformers
    model = AutoModelForCausalLM.from_pretrained("exported/demo-rec")

Nothing in it is pickled. The modules of the model stand beside its weights, so transformers also opens the folder where Throughline
is not installed, with trust_remote_code=True (`lm_eval --model hf`: benchmarks/harness.py).
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from common.errors import UserError
from common.places import Place
from data_prep.tokenizers import SymbolsTokenizer, Tokenizer, chat_of
from pipelines.checkpoints.checkpoint import Snapshot
from pipelines.checkpoints.errors import retry_if_removed
from pipelines.inference.trained import Form, eos_ids, find_model
from pipelines.terminal import cli
from pipelines.terminal.commands import typed


@dataclass(frozen=True)
class ExportConfig:
    """A model to export, and the folder to write."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Folder or URI of a run (its newest checkpoint is taken) or of a checkpoint, or a folder that was exported before."""
    output: Path
    """The folder to make; it must not exist yet."""
    format: Form = "throughline"
    """throughline: any model, State included, with its code beside it. transformers: a gpt2 as GPT2LMHeadModel or a llama as
    LlamaForCausalLM, which attend to the whole context, and a mamba2 as Mamba2ForCausalLM; vLLM and llama.cpp open these too."""
    store: str = ""
    """Store that the run was trained on, for its tokenizer; by default the path in the run's config, and for an exported folder its
    own copy of the tokenizer."""


@retry_if_removed
def export_run(config: ExportConfig) -> tuple[Snapshot, Tokenizer]:
    """Find a checkpoint and export it. Returns it with the run's tokenizer. Raises UserError for bad input."""
    checkpoint = find_model(config.run)
    from pipelines.inference.to_transformers import export  # seconds, and not before there is something to export

    return checkpoint, export(checkpoint, config.output, config.store, config.format)


def main(argv: list[str]) -> None:
    """Write a checkpoint as a folder that transformers opens. Raises UserError for bad input."""
    config = cli.parse(ExportConfig, argv, __doc__)
    if not Place.parse(config.output).is_writable():
        raise UserError(f"{config.output} cannot be written: choose another --output")
    checkpoint, tokenizer = export_run(config)
    print(f"exported {checkpoint.folder} to {config.output}: logits and token ids checked")
    if config.format == "transformers":
        return
    if isinstance(tokenizer, SymbolsTokenizer):  # the model predicts labels and continues nothing
        return
    command = f"{typed('generate')} {shlex.quote(cli.shown(config.output))}"
    print(f"  continue a text    {command} --prompt Once")
    if chat_of(tokenizer):
        print(
            f"  chat               {command} --chat --prompt Hello\n"
            "  A chat needs tokenizer.apply_chat_template. The tokenizer reads names of special tokens as their ids; with "
            "split_special_tokens=True it reads them as text, as training did."
        )
    ends = eos_ids(checkpoint, tokenizer)
    if ends:
        print(f"  A text ends at id {' or '.join(map(str, ends))}.")


if __name__ == "__main__":
    cli.run(main)
