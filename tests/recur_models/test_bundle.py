"""A saved folder of every model opens in transformers where Throughline is not installed."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from transformers.models.auto.modeling_auto import AutoModel

from recur_models import MODELS, ModelConfig
from recur_models.bundle import PACKAGES, flat, write_modules
from recur_models.hf import ThroughlineTokenizer
from tests.recur_models.conftest import SIZE
from tests.recur_models.small_exports import representatives, text, wrap

ELSEWHERE = """
import json, sys
sys.path += json.loads(sys.argv[1])  # of libraries alone, without what .pth files add
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer
generated = {}
for folder in sys.argv[2:]:
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    ids = torch.tensor(json.loads(open(f"{folder}/prompt.json").read()))
    generated[folder] = model.generate(ids, max_new_tokens=50, do_sample=False).tolist()
    model.save_pretrained(f"{folder}/again")
    again = AutoModelForCausalLM.from_pretrained(f"{folder}/again", trust_remote_code=True)
    assert torch.equal(again(ids).logits, model(ids).logits)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    except (OSError, ValueError):
        continue
    generated["ids"] = tokenizer("hello world")["input_ids"]
    base = AutoModel.from_pretrained(folder, trust_remote_code=True)
    generated["hidden"] = base(ids).last_hidden_state.sum((0, 2)).tolist()
    tokenizer.save_pretrained(f"{folder}/again")
    again = AutoTokenizer.from_pretrained(f"{folder}/again", trust_remote_code=True)
    assert again("hello world")["input_ids"] == generated["ids"]
assert not {"recur_models", "common", "pipelines", "data_prep"} & sys.modules.keys()
print(json.dumps(generated))
"""

RESAVED = """
import json, sys
sys.path += json.loads(sys.argv[1])
from pathlib import Path
from transformers import AutoModel, AutoModelForCausalLM
files = []
for auto in (AutoModelForCausalLM, AutoModel):
    auto.from_pretrained(sys.argv[2], trust_remote_code=True).save_pretrained(sys.argv[2] + auto.__name__)
    auto_map = json.loads(Path(sys.argv[2] + auto.__name__, "config.json").read_text())["auto_map"]
    files.append([sorted(path.name for path in Path(sys.argv[2] + auto.__name__).iterdir()), auto_map])
print(json.dumps(files))
"""

PLUGIN_NAME = "a_plugin_of_mine"
PLUGIN = """
from dataclasses import dataclass
from typing import ClassVar

from recur_models.vanilla import VanillaConfig


@dataclass(frozen=True)
class OwnConfig(VanillaConfig):
    name: ClassVar[str] = "own"
"""


def own_config(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModelConfig:
    """The config of a model that a plug-in has brought."""
    (folder / f"{PLUGIN_NAME}.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(folder)
    own: Any = importlib.import_module(PLUGIN_NAME)
    monkeypatch.setitem(MODELS, "own", own.OwnConfig)
    return own.OwnConfig(**SIZE)


def elsewhere(folders: list[Path], home: Path, script: str = ELSEWHERE) -> dict[str, Any]:
    """What another process generates, or prints with another script, which has our libraries and none of our packages."""
    command = [
        sys.executable,
        "-S",
        "-c",
        script,
        json.dumps([str(Path(torch.__file__).parents[1])]),
        *map(str, folders),
    ]
    environment = {**os.environ, "HF_HOME": str(home / "cache"), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=home)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def sentencepiece_tokenizer(folder: Path) -> ThroughlineTokenizer:
    corpus = folder / "corpus.txt"
    corpus.write_text("hello world, how do you do?\n" * 50)
    prefix = str(folder / "small")
    sentencepiece.SentencePieceTrainer.train(  # type: ignore[attr-defined]
        input=str(corpus), model_prefix=prefix, vocab_size=30, hard_vocab_limit=False, minloglevel=2
    )
    auto_map = {"AutoTokenizer": ["tokenization_throughline.ThroughlineTokenizer", None]}
    return ThroughlineTokenizer(f"{prefix}.model", auto_map=auto_map)


@pytest.mark.long
def test_every_model_generates_the_same_where_throughline_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gru: Any = importlib.import_module("examples.gru").GruConfig
    MODELS.pop("gru", None)
    monkeypatch.setitem(MODELS, "gru", gru)
    own = {"own": own_config(tmp_path, monkeypatch), "gru": gru(block=4, width=8)}
    configs = representatives() | own
    prompt = text(2, 9)
    expected = {}
    for name, config in configs.items():
        folder = tmp_path / name
        model = wrap(config)
        model.save_pretrained(folder)
        (folder / "prompt.json").write_text(json.dumps(prompt.tolist()))
        expected[str(folder)] = model.generate(prompt, max_new_tokens=50, do_sample=False).tolist()
    tokenizer = sentencepiece_tokenizer(tmp_path)
    tokenizer.save_pretrained(tmp_path / "rec")
    expected["ids"] = tokenizer("hello world")["input_ids"]
    base: Any = AutoModel.from_pretrained(tmp_path / "rec")
    hidden = base(prompt).last_hidden_state.sum((0, 2)).tolist()
    found = elsewhere([tmp_path / name for name in configs], tmp_path)
    assert found.pop("hidden") == pytest.approx(hidden, abs=1e-4)
    assert found == expected


def test_a_model_saved_again_has_the_files_and_entry_points_of_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "slide"
    model = wrap(representatives()["slide"])
    model.save_pretrained(folder)
    files = sorted(path.name for path in folder.iterdir())
    of_causal, of_base = elsewhere([folder], tmp_path, RESAVED)
    assert of_causal == [files, model.config.auto_map]
    assert of_base == [[name for name in files if name != "generation_config.json"], model.config.auto_map]


@pytest.mark.parametrize(
    "line",
    [
        "from recur_models import costs",
        "import recur_models.costs",
        "from pipelines.presets import PRESETS",
        "from .helper import helped",
    ],
)
def test_an_import_that_the_folder_lacks_is_said(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / f"{PLUGIN_NAME}.py").write_text(f"if True:\n    {line}\nfrom recur_models.costs import Costs\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, PLUGIN_NAME, raising=False)
    write_modules(tmp_path, {PLUGIN_NAME, *PACKAGES}, [PLUGIN_NAME])
    assert [f"since that module has '{line}'" in record.message for record in caplog.records] == [True]


def test_a_module_with_several_such_imports_gives_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lines = "from data_prep.corpora import CORPORA", "from pipelines.presets import PRESETS"
    (tmp_path / f"{PLUGIN_NAME}.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, PLUGIN_NAME, raising=False)
    write_modules(tmp_path, {PLUGIN_NAME, *PACKAGES}, [PLUGIN_NAME])
    (record,) = caplog.records
    assert all(line in record.message for line in lines)


def test_a_folder_has_the_modules_of_its_model_alone(tmp_path: Path) -> None:
    wrap(representatives()["lstm"]).save_pretrained(tmp_path)
    modules = {path.stem for path in tmp_path.glob("*.py")}
    assert {flat("recur_models.lstm"), flat("recur_models.protocol"), "modeling_throughline"} < modules
    assert not {flat("recur_models.gpt2"), flat("recur_models.hf_tokenizer"), "recur_models"} & modules
