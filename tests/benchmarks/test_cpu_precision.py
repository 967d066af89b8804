"""The benchmark of precisions on a CPU: what it counts, and the record that it makes."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks import cpu_precision, machine, results
from common.errors import UserError


def test_a_table_has_products_steps_and_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cpu_precision, "SIZES", {32: 1})
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    words = shlex.split(
        "--models demo-rec --rounds 3 --step-lanes 8 --training-steps 2 --segment-length 32 --profile 2 --record"
    )
    threads = torch.get_num_threads()
    cpu_precision.main(words)
    assert torch.get_num_threads() == threads
    first, *lines = capsys.readouterr().out.splitlines()
    assert "1 threads" in first and len(lines) == 8
    assert lines[0].split()[:3] == ["product", "of", "32²"] and "d 96, 8 × 256 tokens" in lines[1]
    flops = 8 * 256 * cpu_precision.case("demo-rec")[0].costs(257).computed_training_flops_per_token
    assert lines[2].split()[:2] == [f"{flops / 1e9:.0f}", "GFLOP"] and lines[2].endswith("of the rate")
    assert [line.split()[:2] for line in lines[3:7]] == [
        ["demo-rec,", name] for name in 2 * ["float32"] + 2 * ["bfloat16"]
    ]
    assert "bits/byte, last 1 of 2 steps of 2 × 32 tokens" in lines[7]
    record, profile = results.read(tmp_path / "speed" / results.JSON).records
    assert [len(row) for row in record.rows] == [5] * 4 and "--record" not in record.command
    assert len(profile.rows) == 4 and "aten::" in "".join(str(row[1]) for row in profile.rows)


def test_both_precisions_take_turns_and_the_first_rounds_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    done = []

    def take(name: str, seconds: float) -> None:
        done.append(name)
        clock[0] += seconds if len(done) > 4 else 100.0

    monkeypatch.setattr(machine.time, "process_time", lambda: clock[0])
    runs: dict[str, Callable[[], object]] = {
        "float32": lambda: take("float32", 3.0),
        "bfloat16": lambda: take("bfloat16", 2.0),
    }
    assert cpu_precision.alternating(5, runs) == ({"float32": 3.0, "bfloat16": 2.0}, [1.5] * 3)
    assert done[:4] == ["bfloat16", "float32", "float32", "bfloat16"]


def test_a_step_is_compared_with_a_product_of_its_own_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_precision, "SIZES", {16: 5, 32: 4})
    flops = 4 * 2 * 32**3  # those of the four largest products
    assert cpu_precision.share_of_rate(flops, [2.0, 40.0, 1.0], [1.0, 10.0, 1.0]) == "50%"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--rounds 2", "the first two do not"),
        ("--models", "--models is empty"),
        ("--step-lanes -1", "--step-lanes is -1"),
    ],
)
def test_nothing_to_measure_is_a_users_error(words: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        cpu_precision.main(words.split())
