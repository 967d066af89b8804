"""Fine-tuning weights from a folder: the run goes on bit for bit, and is exported, when the folder is gone."""

from __future__ import annotations

import shlex
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from data_prep.errors import UserError
from pipelines.export import main as export
from pipelines.inference.trained import load
from pipelines.train import main
from tests.small_corpus import contents

# By name, so that pyright does not read half of transformers.
THEIRS: Any = import_module("transformers.models.gpt2.modeling_gpt2")
GPT2LMHeadModel, GPT2Config = THEIRS.GPT2LMHeadModel, THEIRS.GPT2Config

WORDS = shlex.split("""
    pg19-gpt2-rec-overlap-5 --model.window 13 --data.corpus text --data.lanes 4 --data.segment-length 32 --steps 6
    --schedule.warmup 2 --log-every 1 --validate-every 6 --validate-tokens 200 --checkpoint.every 3
    --tracking.backend none --num-workers 0 --use-gpu no
""")


@pytest.fixture
def pretrained(tmp_path: Path) -> Path:
    """A tiny GPT-2 of bytes."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 32}
    GPT2LMHeadModel(GPT2Config(vocab_size=256, **sizes)).save_pretrained(tmp_path / "gpt2")
    return tmp_path / "gpt2"


def weights(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(folder).items() if name.endswith(".safetensors")}


def test_a_run_goes_on_when_its_pretrained_weights_are_gone(pretrained: Path, store: Path, tmp_path: Path) -> None:
    words = [*WORDS, "--data.store", str(store), "--root", str(tmp_path / "runs"), "--run", "mine"]
    words += ["--model.pretrained", str(pretrained)]
    main(words)
    run = tmp_path / "runs" / "mine"
    last = run / "checkpoints" / "step-00000006"
    expected = weights(last)
    shutil.rmtree(last)
    shutil.rmtree(pretrained)
    with pytest.raises(UserError, match=r"no folder of this machine.* goes on without it from its config.json"):
        main(words)
    main([str(run / "config.json")])
    assert weights(last) == expected
    export([str(run), "--output", str(tmp_path / "exported")])
    ours, theirs = (load(place).model for place in (run, tmp_path / "exported"))
    text = torch.randint(256, (1, 40), generator=torch.Generator().manual_seed(0))
    assert torch.equal(ours(text)[0], theirs(text)[0])


def test_weights_of_another_vocabulary_are_a_users_error(pretrained: Path, store: Path, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 32}
    GPT2LMHeadModel(GPT2Config(vocab_size=300, **sizes)).save_pretrained(pretrained)
    words = [
        *WORDS,
        "--data.store",
        str(store),
        "--root",
        str(tmp_path / "runs"),
        "--model.pretrained",
        str(pretrained),
    ]
    with pytest.raises(UserError, match=r"has 257 ids, and .* of 300: prepare the store"):
        main(words)
