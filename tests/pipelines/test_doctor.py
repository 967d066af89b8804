"""The doctor's table and exit status on runs that are well and on runs that are not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.checkpoints.checkpoint import Checkpoint
from pipelines.doctor import main
from pipelines.prepare import PrepareConfig, prepare
from tests.ordinary_user import let_all_read, ordinary_user
from tests.small_corpus import contents

Train = Callable[..., Path]


def test_a_run_that_is_well(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    folder = train()
    before = contents(folder)
    capsys.readouterr()
    assert main([str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["checkpoint", "state", "step", "tokens", "workers", "lanes", "MB", "validation"]
    names = [line.split()[0] for line in lines[1:4]]
    assert names == ["step-00000020", "step-00000015", "step-00000010"]
    assert all(line.split()[1] == "whole" for line in lines[1:4])
    assert lines[1].split()[2:6] == ["20", "2,554", "1", "4"] and "newest" in lines[1]
    assert "at 10" in lines[2]  # step 15's newest validation
    assert lines[4].endswith("would resume from step 20")
    assert contents(folder) == before


def test_a_checkpoint_that_goes_while_it_is_read_is_no_fault(
    train: Train, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, opened = train("--steps", "10"), Checkpoint.open

    def taken_away(checkpoint: Path) -> Checkpoint:
        if checkpoint.name == "step-00000005":
            shutil.rmtree(checkpoint)
        return opened(checkpoint)

    monkeypatch.setattr(Checkpoint, "open", taken_away)
    assert main([str(folder)]) == 0
    assert "step-00000005  " not in capsys.readouterr().out


def test_two_of_one_step_are_told_apart(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    """As of two starts in a bucket."""
    newest = train("--steps", "10") / "checkpoints" / "step-00000010"
    other = newest.with_name("step-00000010.0badc0de")
    shutil.copytree(newest, other)

    def rows() -> dict[str, list[str]]:
        capsys.readouterr()
        status, out = main([str(newest.parents[1])]), capsys.readouterr().out
        assert "would resume from step 10" in out
        return {name: told for line in out.splitlines() for name, *told in [line.split()]} | {"status": [str(status)]}

    told = rows()
    assert told["status"] == ["0"] and told[other.name][-2:] == ["newest,", "best"]
    assert told[newest.name][0] == "whole" and "newest," not in told[newest.name] and "best" not in told[newest.name]
    (other / "model.safetensors").write_bytes(b"damaged")
    told = rows()
    assert told["status"] == ["2"] and told[other.name] == ["damaged"]
    assert told[newest.name][0] == "whole" and told[newest.name][-2:] == ["newest,", "best"]


@pytest.mark.parametrize("how", ["flipped", "cut", "removed", "pickle", "no json"])
def test_a_damaged_checkpoint_is_named(train: Train, capsys: pytest.CaptureFixture[str], how: str) -> None:
    folder = train()
    newest = folder / "checkpoints" / "step-00000020"
    weights = newest / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-3] ^= 4
    if how == "removed":
        weights.unlink()
    elif how == "pickle":
        (newest / "model.pt").write_bytes(b"\x80\x04.")
    elif how == "no json":
        (newest / "checkpoint.json").unlink()
    else:
        weights.write_bytes(data if how == "flipped" else data[:-9])
    (folder / "checkpoints" / ".step-00000025.00000000.tmp").mkdir()
    capsys.readouterr()
    assert main([str(folder)]) == 2
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if line.startswith("step-00000020"))
    assert row.split()[1] == "damaged" and ".step-00000025.00000000.tmp  unfinished" in out
    assert "wrong: " in out and str(newest) in out
    assert ("would resume from step 15" in out) == (how != "pickle")  # which `train` refuses to pass over


def test_one_that_fits_neither_store_nor_code(
    train: Train, make_config: Callable[..., PrepareConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = train("--steps", "5")
    other = str(tmp_path / "other")
    prepare(make_config(store=other, tokenizer="sentencepiece:300"))
    assert main([str(folder), "--store", other]) == 2
    assert "was trained with another tokenizer" in capsys.readouterr().out
    assert main([str(folder), "--store", str(tmp_path / "nowhere")]) == 2
    assert "there is no prepared split in" in capsys.readouterr().out
    from recur_models.block_recurrent import RecConfig

    with pytest.MonkeyPatch.context() as patch:  # a later version of the code, with another shape of a weight
        build = RecConfig.build
        patch.setattr(RecConfig, "build", lambda self, vocab_size: build(self, vocab_size + 1))
        assert main([str(folder)]) == 2
    assert "does not fit this code's" in capsys.readouterr().out


def test_an_old_checkpoint_that_may_not_be_read_hides_no_other(
    train: Train,
    store: Path,
    reachable: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = shutil.copytree(train("--steps", "10"), reachable / "run")
    copied = shutil.copytree(store, reachable / "store")
    let_all_read(reachable)
    (run / "checkpoints" / "step-00000005" / "model.safetensors").chmod(0)
    capsys.readouterr()
    with ordinary_user():
        assert main([str(run), "--store", str(copied)]) == 2
    out = capsys.readouterr().out
    states = {line.split()[0]: line.split()[1:3] for line in out.splitlines() if line.startswith("step-")}
    assert states["step-00000010"] == ["whole", "10"] and states["step-00000005"] == ["not", "readable"]
    assert "would resume from step 10" in out and "Permission denied: ask its owner for access" in out


def test_no_run_and_a_run_without_checkpoints(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    folder = train("--steps", "5")
    with pytest.raises(ValueError, match=r"does not exist: did you mean .*run\?"):
        main([str(folder.with_name("rnu"))])
    for name, sentence in (("checkpoints/step-00000005", "is a checkpoint: name the"), ("config.json", "is no folder")):
        with pytest.raises(ValueError, match=sentence):
            main([str(folder / name)])
    with pytest.raises(ValueError, match="elsewhere/unlike does not exist: name the folder of a run"):
        main([str(folder.parents[1] / "elsewhere" / "unlike")])
    unfinished = folder / "checkpoints" / "step-00000009"
    unfinished.mkdir()
    for inside in (folder / "checkpoints", folder / "logs", unfinished):
        with pytest.raises(ValueError, match=rf"{inside.name} holds no checkpoint: did you mean {folder}\?"):
            main([str(inside)])
    for above in (folder.parent, folder.parents[1]):
        with pytest.raises(ValueError, match=rf"{above} holds no checkpoint: did you mean {folder}\?"):
            main([str(above)])
    copies = [shutil.copytree(folder, folder.with_name(f"copy-{number}")) for number in range(4)]
    named = ", ".join(map(str, copies[:3]))
    with pytest.raises(ValueError, match=f"runs holds no checkpoint: name one of its runs: {named}, …$"):
        main([str(folder.parent)])
    shutil.rmtree(folder / "checkpoints")
    assert main([str(folder)]) == 2
    assert "holds no checkpoint that can be used" in capsys.readouterr().out
