"""What the benchmark of long generation calls flat, and that memory is, on few tokens."""

from __future__ import annotations

import pytest

from benchmarks import long_generation


def test_growth_is_not_called_flat(capsys: pytest.CaptureFixture[str]) -> None:
    assert long_generation.flat("x", [10.0, 10.9, 9.6], 0.10, "ms")
    assert not long_generation.flat("x", [10.0, 10.0, 11.1], 0.10, "ms")
    assert not long_generation.flat("x", [100.0 + 2 * i for i in range(10)], 0.05, "MiB")
    assert [line.split(" x:")[0].strip() for line in capsys.readouterr().out.splitlines()] == [
        "flat",
        "NOT FLAT",
        "NOT FLAT",
    ]


@pytest.mark.long
def test_memory_is_flat_in_every_way(capsys: pytest.CaptureFixture[str]) -> None:
    long_generation.main(["--tokens", "600", "--stretch", "150", "--prompt", "24000"])  # times may well be noisy here
    out = capsys.readouterr().out
    for way in ("ours", "transformers", "prompt of 24,000 tokens"):
        assert f"\nflat     {way}, memory" in out
    assert out.count("tokens     451 to     600:") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--tokens 10", "three times --stretch"),
        ("--prompt 100", "at least 20480"),
        ("--preset recall-dleta", "did you mean 'recall-delta'"),
    ],
)
def test_too_few_tokens_are_refused(words: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        long_generation.main(words.split())
