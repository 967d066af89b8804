"""Every command of the documents runs, small: `make test-documents`, some minutes. What is not run says why."""

from __future__ import annotations

import contextlib
import csv
import importlib
import json
import os
import re
import shlex
import zipfile
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
import ray
import transformers

from benchmarks.killing import CORE, SIZE, WINDOWS
from common.places import Place
from recur_models import GPT2Config, LlamaConfig, Mamba2Config
from tests.mlflow_server import serve
from tests.s3_server import ENVIRONMENT, s3_server
from tests.small_corpus import words as text_of
from tests.small_runs import TINY as SMALL_REC
from tests.test_documents import COMMANDS, of_ours

ASKED = "THROUGHLINE_TEST_DOCUMENTS"
RUN = (
    "--data.lanes 4 --steps 4 --schedule.warmup-steps 1 --log-every 1 --validate-every 2 --validate-tokens 200 "
    "--checkpoint.every 2"
)
HERE = f"--use-gpu no --tracking.backend none {RUN}"
TINY = f"{shlex.join(SMALL_REC[1:])} {HERE}"  # words that come later count
TASK = f"{CORE} --model.chunk 8 --model.passes 2 --data.segment-length 32 --num-workers 0 {HERE}"
PRETRAINED = f"{WINDOWS} --model.positions 0 --model.hidden 8 8 --data.segment-length 32 --num-workers 0 {HERE}"
SWEEP = f"{TINY} --num-workers 1 --num-cpus 2"
QUIET = "--tracking.backend none"

SCENARIO = f"""
# README, docs/training.md, evaluation.md and trained-models.md: one's own data
prepare text --source my_books --tokenizer sentencepiece:8192 --store runs/store
    + --tokenizer sentencepiece:300
train small-rec --run books --data.corpus text --data.store runs/store --model.gate lstm --data.lanes 16
    + {TINY}
train small-rec --run mine --data.corpus text --data.store runs/store --model.gate lstm --data.lanes 16
    + {TINY}
evaluate runs/mine
    + {QUIET}
evaluate runs/books
    + {QUIET}
generate runs/mine --file beginning.txt --max-new-tokens 500 --temperature 0.8
    + --max-new-tokens 20
generate runs/books --file beginning.txt --max-new-tokens 500 --temperature 0.8
    + --max-new-tokens 20
train small-rec --run lstm --model.gate lstm --optim.lr 3e-4 --num-workers 4
    + {TINY} --num-workers 2
train small-rec --run elastic --num-workers 1:4 --hang-seconds 600
    + {TINY} --model.gate lstm --num-workers 1:2
doctor runs/mine
doctor runs/elastic
evaluate runs/mine/checkpoints/step-00002000 --split validation
    + {QUIET}
evaluate runs/mine --clear states --clear-every 4
    + {QUIET}
evaluate runs/mine --clear-at 4096
    + {QUIET} --clear-at 64
export runs/mine --output exported/mine
evaluate exported/mine --store runs/store
    + {QUIET}
train exported/mine --run further --data.store runs/store --optim.lr 1e-4
    + --num-workers 0 {HERE}
embed runs/mine --split test --output embedded/test
embed runs/mine --file book.txt --every 64 --dtype float16 --output embedded/book
continuations runs/mine --places 8 --new-tokens 80
    + --places 2 --new-tokens 5 {QUIET}
train --presets pg19 scale rec
# docs/installation.md
completion bash
completion zsh
# docs/data.md
prepare pg19 --source FOLDER --store runs/store
    + --source pg19 --tokenizer bytes --overwrite
prepare arxiv --source papers --metadata arxiv.json --subject math --store runs/store
    + --tokenizer bytes --num-workers 0
prepare jsonl --source FOLDER --text-field body --thread-field link_id --store runs/store
    + --source threads --tokenizer bytes
prepare wikitext --source wikitext-103-raw-v1 --store runs/store
    + --tokenizer bytes --num-workers 0
prepare algorithm --store runs/store
    + --train 60 --validation 6 --test 6 --num-workers 0
prepare mqar --length 256 --pairs 16 --store runs/store
    + --train 60 --validation 6 --test 6 --num-workers 0
vocabulary text --source my_books --tokenizers bytes sentencepiece:4000 gpt2:FOLDER
    + --tokenizers bytes sentencepiece:300 gpt2:gpt2 {QUIET}
inspect runs/store/text/train
verify runs/store
prepare text --source s3://bucket/books --store s3://bucket/store
    + --tokenizer bytes --num-workers 0
train small-rec --run bucket --data.corpus text --data.store s3://bucket/store
    + {TINY} --run far
# docs/models.md
train small-rec --model.gate lstm --model.cell dual --model.states 64
    + {TINY} --run dual
train small-delta --model.layers delta delta window --model.negative-eigenvalues
    + {RUN} --use-gpu no --tracking.backend none --steps 2 --model.d-model 16 --model.heads 2 --model.key-dim 4
    + --model.value-dim 8 --model.mlp-dim 16 --model.window 16 --model.chunk 16 --data.segment-length 32 --run mixers
    + --data.corpus text --data.store runs/store --num-workers 0
train small-rmt --model.memory-tokens 16
    + {RUN} --use-gpu no --tracking.backend none --steps 2 --model.layers 1 --model.d-model 16 --model.heads 2 --model.head-dim 8
    + --model.mlp-dim 16 --model.window 16 --data.segment-length 32 --run rmt --data.corpus text --data.store runs/store
    + --num-workers 0
train small-rec --model.equations paper
    + {TINY} --run equations
train pg19-rec-fixed-skip --data.store runs/store --num-workers 8
    + {TINY} --optim.name adamw
train pg19-scale-650M-rec --data.store runs/store --num-workers 8
    + {TINY} --optim.name adamw
tune rec-table-3-window --preset pg19-rec-fixed-skip --num-workers 1
    + --max-trials 1 --steps 1 --num-cpus 2 {CORE} --model.layers 1 --model.recurrent-layers 1 --model.states 4
    + --optim.name adamw --data.lanes 1 --data.segment-length 1024 --validate-every 1 --validate-tokens 1000
    + --checkpoint.keep-best 0 --use-gpu no {QUIET}
train algorithm-staircase --data.store runs/store
    + {TASK}
tune staircase-passes --preset algorithm-staircase --search grid --metric validation/error_rate
    + {TASK} --max-trials 2 --num-workers 1 --num-cpus 2
prepare random-walk --train 1000000 --segment-length 64 --curriculum 8 16 32 64 128 256 400 --store runs/store
    + --train 70 --validation 4 --test 4 --num-workers 0
tune staircase-figure-2 --preset walk-staircase --search grid --scheduler none --num-workers 1
    + {CORE} --max-trials 1 --num-cpus 2 --data.segment-length 128 {HERE}
prepare parquet --source wikipedia --title-column title --split-by hash --store runs/store
    + --tokenizer bytes --num-workers 0
prepare enwik8 --source enwik8.zip --pieces 32 --store runs/store
    + --pieces 4 --num-workers 0
prepare pg19 --source pg19 --tokenizer gpt2 --books 1250 --validation-tokens 15000 --store runs/gpt2-store
    + --validation-tokens 500
train pg19-gpt2-rec-overlap-50 --model.pretrained gpt2 --data.store runs/gpt2-store
    + {PRETRAINED} --run gpt2
evaluate runs/gpt2 --overlap 0 5 10 30 50
    + --overlap 0 2 4 --allow-other-windows {QUIET}
prepare pg19 --source pg19 --tokenizer smollm2 --newline normalize --validation-tokens 15000 --store runs/smollm2-store
train pg19-llama-rec-overlap-50 --model.pretrained smollm2 --data.store runs/smollm2-store
    + {PRETRAINED}
train smollm2-rec --model.pretrained smollm2 --data.store runs/smollm2-store
    + {PRETRAINED}
train smollm2 --model.pretrained smollm2 --data.store runs/smollm2-store --steps 1 --optim.lr 0 --run untrained
    + {WINDOWS} --model.positions 0 --data.segment-length 32 --num-workers 0 {HERE}
evaluate runs/untrained --split validation
    + {QUIET}
train smollm2-rec-layers --model.pretrained smollm2 --data.store runs/smollm2-store
    + {PRETRAINED} --model.insert-layer 1
benchmarks.whose_states runs/smollm2-rec --split validation
prepare pg19 --source pg19 --tokenizer mamba2 --store runs/mamba2-store
train pg19-mamba2 --model.pretrained mamba2 --data.store runs/mamba2-store
    + --model.window 16 --model.chunk 16 --data.segment-length 32 --num-workers 0 {HERE}
paper block-recurrent table-1 --source pg19=books arxiv=papers --options arxiv.metadata=arxiv.json --seeds 0 1 2
    + --dry-run
paper block-recurrent table-3 --corpus python-source --only window
    + --dry-run
paper staircase table-1 --no-train
    + --dry-run
paper gpt2 table-2 --scale paper --dry-run
    + --source pg19=pg19
# docs/sweeps.md
tune lr+states+window+gate --preset small-rec --num-samples 12 --num-workers 1 --data.store runs/store
    + {SWEEP} --num-samples 2
tune optim.lr=1e-3,3e-3+model.states=64,128 --search grid --scheduler none --num-workers 1
    + {SWEEP} --max-trials 2
tune optim.lr=1e-4..1e-2 --scheduler pbt --num-samples 4 --num-workers 1
    + {SWEEP}
tune lr --num-workers 1 --scheduler ray.tune.schedulers:MedianStoppingRule(min_samples_required=4)
    + {SWEEP} --num-samples 2 --run median
tune lr --num-workers 1 --scheduler ray.tune.schedulers:HyperBandScheduler
    + {SWEEP} --num-samples 2 --run hyperband
tune optim.lr=1e-4..1e-2 --num-workers 1 --scheduler ray.tune.schedulers.pb2:PB2
    + {SWEEP} --num-samples 2 --run pb2
tune lr --num-workers 1 --search ray.tune.search.optuna:OptunaSearch --stop plateau
    + {SWEEP} --num-samples 2 --run optuna
tune lr --num-workers 1 --stop ray.tune.stopper:TrialPlateauStopper(std=0.001, num_results=6)
    + {SWEEP} --num-samples 2 --run plateau
train runs/small-rec-lr-states-window-gate/best.json --run again
    + --num-workers 0
compare runs/mine runs/small-rec-lr-states-window-gate
    + {QUIET}
# docs/evaluation.md and docs/mlflow.md: the demo's two runs, and a server
compare runs/demo-rec runs/demo-slide
    + {QUIET}
tokens runs/demo-slide runs/demo-rec
    + {QUIET}
tokens runs/demo-rec
    + {QUIET}
tokens runs/demo-slide runs/demo-rec --clear states --clear-every 16
    + {QUIET}
tokens runs/demo-slide runs/demo-rec --documents 5 --per-document 4 --by token
    + {QUIET}
compare runs/sweep-a runs/sweep-b --trials best
    + {QUIET}
train small-rec --tracking.uri http://host:5000
    + {TINY} --tracking.backend mlflow --run mine --root elsewhere --tracking.uri SERVER
compare 0123456789abcdef0123456789abcdef runs/mine --tracking.uri http://host:5000
    + --tracking.uri SERVER
# The other documents
benchmarks.kills --help
benchmarks.gpu --output speed.json
    + --device cpu --size tiny --models rec --output speed.json
benchmarks.gpu --measure generation --models rec --output generation.json
    + --device cpu --size tiny --tokens 2000
benchmarks.gpu --measure attention --output attention.json
    + --device cpu --size tiny
"""
"""Commands as the documents have them, in an order in which each finds what it needs; after a plus, words that make them small."""

MLFLOW_ID = "0123456789abcdef0123456789abcdef"
NOT_RUN = {
    "on machines of a cluster: make test-cluster": ["docs/cluster.md", "docs/start-cluster.md"],
    "an hour and more": ["benchmarks.recall --root runs/recall"],
    "its compiler takes minutes: tests/benchmarks/test_gpu.py": [
        "benchmarks.gpu --measure profile --models rec slide --lanes 8 --compile layer no --output profile.json",
        "benchmarks.gpu --measure precision --models rec slide --lanes 4 --compile layer --output precision.json",
    ],
    "needs an Instruct model: tests/pipelines/test_chat.py": [
        "generate exported/chat --chat --prompt What is gravity?"
    ],
    "needs a hub": [
        "prepare hub --source wikimedia/wikipedia --subset 20231101.simple --split-by hash --store runs/store"
    ],
    "an example: tests/test_examples.py": ["examples.wiki_dump simplewiki-latest-pages-articles.xml.bz2 wiki.jsonl"],
    "needs a package of 98 MB: tests/test_examples.py": ["examples.smollm2 smollm2"],
    "needs GPUs": [
        "train demo-rec --num-workers 0 --compile layer --run one-gpu",
        "train demo-rec --num-workers 2 --use-gpu yes --compile layer --run two-gpus-on-ray",
        "compare runs/one-gpu runs/two-gpus runs/two-gpus-on-ray",
    ],
}
"""What is not run here, by the reason: a document, or a command."""


def scenario() -> Iterator[tuple[str, str]]:
    """Each command and the words that make it small."""
    for part in re.split(r"\n(?! )", re.sub(r"^#.*\n", "", SCENARIO.strip(), flags=re.MULTILINE)):
        line, *more = part.split("\n    + ")
        yield line, " ".join(more)


def documented() -> dict[str, tuple[str, list[str]]]:
    """Each whole command of ours: the place where it stands first, and its words."""
    found = dict[str, tuple[str, list[str]]]()
    for command in COMMANDS:
        if command.whole and (ours := of_ours(command.words)):
            words = [ours[0].removeprefix("pipelines."), *ours[1]]
            found.setdefault(" ".join(words), (command.place, words))
    return found


def with_smaller(words: list[str], smaller: list[str]) -> list[str]:
    """A document's command with other options: these stand in place of its own of the same name."""
    kept = []
    replaced = False
    for word in words:
        if word.startswith("--"):
            replaced = word in smaller
        if not replaced:
            kept.append(word)
    return [*kept, *smaller]


def test_each_is_run_or_says_why_not() -> None:
    ran = {line for line, _ in scenario()}
    left = {what for some in NOT_RUN.values() for what in some}
    for line, (place, _) in documented().items():
        assert line in ran or line in left or place.partition(":")[0] in left, f"{place}: {line}"
    assert ran <= set(documented()), ran - set(documented())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder, with texts, archives, pretrained models, a bucket and the runs that the documents take for granted."""
    ray.shutdown()  # a session that stands knows neither this folder nor the bucket
    monkeypatch.chdir(tmp_path)
    for corpus in ("my_books", "pg19"):
        for split, count in {"train": 5, "validation": 2, "test": 2}.items():
            Path(corpus, split).mkdir(parents=True)
            for i in range(count):
                Path(corpus, split, f"{len(split)}{i}.txt").write_text(text_of(f"{split}{i}", 700), "utf-8")
    with open("pg19/metadata.csv", "w") as file:
        csv.writer(file).writerows(
            [path.stem, path.stem, "1900", f"https://books.invalid/{path.stem}"]
            for path in Path("pg19").glob("*/*.txt")
        )
    Path("beginning.txt").write_text(text_of("beginning", 20))
    Path("book.txt").write_text(text_of("book", 300))
    Path("threads").mkdir()
    lines = [json.dumps({"link_id": f"t{i // 3}", "body": text_of(f"t{i}", 60)}) for i in range(30)]
    Path("threads/comments.jsonl").write_text("\n".join(lines))
    papers = [f"2101.0000{i}" for i in range(6)]
    for paper in papers:
        Path("papers", paper).mkdir(parents=True)
        Path("papers", paper, "main.tex").write_text(f"\\documentclass{{article}}\n{text_of(paper, 100)}")
    records = [{"id": paper, "title": paper, "categories": "math.NT"} for paper in papers]
    Path("arxiv.json").write_text("\n".join(map(json.dumps, records)))
    Path("wikitext-103-raw-v1").mkdir()
    for split in ("train", "validation", "test"):
        rows = ["", f" = {split} = \n", "", f" {text_of(f'article {split}', 200)} \n"]
        pq.write_table(pa.table({"text": rows}), f"wikitext-103-raw-v1/{split}-00000-of-00001.parquet")
    Path("wikipedia/20231101.simple").mkdir(parents=True)
    articles = pa.table(
        {"title": [f"{i}" for i in range(60)], "text": [text_of(f"article {i}", 50) for i in range(60)]}
    )
    pq.write_table(articles, "wikipedia/20231101.simple/train-00000-of-00001.parquet")
    with zipfile.ZipFile("enwik8.zip", "w") as archive:
        archive.writestr("enwik8", text_of("wiki", 9000))
    pretrained()
    Path("server").mkdir()
    with s3_server() as address, serve(tmp_path / "server") as server:
        for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": f"http://{address}"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("SERVER", server.uri)
        bucket = Place.parse("s3://books?scheme=http")
        pyarrow.fs.copy_files("my_books", "books/books", destination_filesystem=bucket.filesystem)
        yield tmp_path


def pretrained() -> None:
    """Folders as transformers saves them: a GPT-2 with its tokenizer's files, a Llama and a Mamba-2 with a tokenizer.json."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from tokenizers.pre_tokenizers import ByteLevel

    vocabulary = {character: number for number, character in enumerate(sorted(ByteLevel.alphabet()))}
    vocabulary["<|endoftext|>"] = len(vocabulary)
    kinds: dict[str, tuple[Any, Any]] = {
        "gpt2": (transformers.GPT2LMHeadModel, GPT2Config.family),
        "smollm2": (transformers.LlamaForCausalLM, LlamaConfig.family),
        "mamba2": (transformers.Mamba2ForCausalLM, Mamba2Config.family),
    }
    for name, (kind, family) in kinds.items():
        small = family.small | {"layers": 2, "d_model": 16, "heads": 2, "kv_heads": 1, "mlp_dim": 32}
        small |= {"key_dim": 8, "value_dim": 16}
        sizes = {theirs: small[ours] for ours, theirs in family.names.items()}
        config = kind.config_class(**sizes | {"vocab_size": len(vocabulary), "tie_word_embeddings": True})
        kind(config).save_pretrained(name)
    Path("gpt2/vocab.json").write_text(json.dumps(vocabulary))
    Path("gpt2/merges.txt").write_text("#version: 0.2\n")
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyrefly: ignore
    for name in ("smollm2", "mamba2"):
        tokenizer.save(f"{name}/tokenizer.json")


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.documents
@pytest.mark.skipif(not os.environ.get(ASKED), reason="takes minutes: make test-documents")
def test_all_of_them_in_their_order(folder: Path, ray_session: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Ray's workers are in the folder and know the bucket: both are there before it starts."""

    def run(name: str, *words: str) -> None:
        stands_for = {"SERVER": os.environ["SERVER"], "s3://bucket": "s3://books", MLFLOW_ID: "", "step-00002000": ""}
        stands_for["step-00002000"] = max(Path("runs/mine/checkpoints").glob("step-*"), default=Path()).name
        with contextlib.suppress(FileNotFoundError):
            stands_for[MLFLOW_ID] = json.loads(Path("elsewhere/mine/mlflow_run.json").read_text())["run_id"]
        given = [reduce(lambda text, old: text.replace(old, stands_for[old]), stands_for, word) for word in words]
        module = importlib.import_module(name if name.startswith("benchmarks.") else f"pipelines.{name}")
        try:
            status = module.main(given)
        except SystemExit as done:
            status = done.code
        except Exception as error:  # the others are tried, too
            status = repr(error)
        said = capsys.readouterr()
        if status:
            with capsys.disabled():  # while the others run
                print(f"{name} {shlex.join(given)}: {status}")
            failed.append(f"{name} {shlex.join(given)}: {status}\n{said.out[-1500:]}{said.err[-1500:]}")

    failed = list[str]()
    for demo in ("rec", "slide"):
        run("prepare", *f"text --source my_books --tokenizer bytes --store demo{demo}".split())
        size = shlex.split(f"{SIZE} --model.states 4 --model.recurrent-layers 2" if demo == "rec" else SIZE)
        where = shlex.split("--data.store demorec --data.corpus text --data.segment-length 32 --num-workers 0")
        run("train", f"demo-{demo}", *where, *size, *shlex.split(HERE))
    for name in ("a", "b"):
        words = ["optim.lr=1e-3,3e-3", "--data.store", "demorec", "--run", f"sweep-{name}", "--search", "grid"]
        run("tune", *words, *shlex.split(SWEEP))
    commands = documented()
    for line, more in scenario():
        name, *words = commands[line][1]
        run(name, *with_smaller(words, shlex.split(more)))
    assert not failed, "\n\n".join(failed)
