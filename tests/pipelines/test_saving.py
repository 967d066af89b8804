"""Checkpoints as they are written: copied at once, kept by a policy, never half there; and a disk that is full."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from common.errors import UserError, is_users
from common.places import Place
from pipelines.checkpoints import retention, saving
from pipelines.checkpoints.checkpoint import Checkpoint, check_is_no_pickle, digest_json, name_of
from pipelines.checkpoints.errors import CheckpointError, PickledError
from pipelines.checkpoints.retention import best
from pipelines.checkpoints.run_folder import RunFolder
from pipelines.checkpoints.saving import SaveError, Saver, Unwritable
from pipelines.config.run import CheckpointConfig
from pipelines.inference.trained import find_checkpoint
from pipelines.tracking.metrics_file import MetricsFile, Record
from pipelines.training.progress import Tail, messages_into_log, show_progress
from pipelines.training.world import World
from tests.ordinary_user import let_all_read, ordinary_user
from tests.small_corpus import contents, flip
from tests.small_runs import records_with
from tests.waiting import wait_until

Train = Callable[..., Path]


TOKEN = "0badc0de"


class Alone(World):
    """One process, whose unfinished files have a name that is known beforehand."""

    def broadcast_str(self, text: str) -> str:
        return TOKEN


class Trained:
    """A model and an optimizer with some state, saved under steps of one's choice."""

    def __init__(
        self, root: Path, config: CheckpointConfig | None = None, bits: dict[int, float] | None = None
    ) -> None:
        root.mkdir(exist_ok=True)
        self.run = RunFolder.parse(root)
        self.bits = bits or {}
        self.saver = Saver(self.run, config or CheckpointConfig(keep=2, keep_best=0), Alone.alone(), lanes=2)
        self.model = torch.nn.Linear(4, 3)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.model(torch.randn(2, 4)).sum().backward()
        self.optimizer.step()

    def save(self, step: int) -> Path:
        self.saver.save(
            step,
            model=self.model,
            optimizer=self.optimizer,
            per_lane={"digest": torch.tensor([step, -step])},
            per_process={"nats": torch.tensor(0.5)},
            meta={"config": {"validate_tokens": 0}, "validation": self.validation(step)},
        )
        return self.run.folder / "checkpoints" / name_of(step)

    def validation(self, step: int) -> dict[str, Any] | None:
        bits = self.bits.get(step)
        return None if bits is None else {"step": step, "bits_per_token": bits, "best_by": bits, "store": "one"}

    def obstruct(self, step: int) -> Path:
        """A file where the folder of this step's checkpoint would be made."""
        path = self.run.folder / "checkpoints" / f".step-{step:08d}.{TOKEN}.tmp"
        path.parent.mkdir(exist_ok=True)
        path.write_text("in the way")
        return path


def steps(run: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in run.glob("checkpoints/step-*"))


class TestPolicy:
    """Which checkpoints are kept."""

    def test_the_newest_the_round_and_the_best(self, tmp_path: Path) -> None:
        bits = {2: 3.0, 4: 1.0, 6: 2.0, 8: 2.5}
        trained = Trained(tmp_path, CheckpointConfig(keep=2, keep_every=5, keep_best=1), bits)
        for step in range(1, 10):
            trained.save(step)
        trained.saver.close()
        assert steps(tmp_path) == [4, 5, 8, 9]

    def test_a_damaged_one_takes_no_ones_place(self, tmp_path: Path) -> None:
        trained = Trained(tmp_path, CheckpointConfig(keep=1, keep_best=0))
        trained.save(1)
        trained.save(9)
        trained.saver.close()  # 9 alone is left; then it is damaged, and the run has fallen back to 1
        folder = tmp_path / "checkpoints"
        shutil.copytree(folder / "step-00000009", folder / "step-00000020")
        (folder / "step-00000020" / "model.safetensors").write_bytes(b"")
        again = Trained(tmp_path, CheckpointConfig(keep=1, keep_best=0))
        again.save(10)
        again.saver.close()
        assert steps(tmp_path) == [10, 20]  # not 20 alone: it counts for nothing
        assert RunFolder.parse(tmp_path).newest()[0].step == 10  # pyrefly: ignore

    def test_a_damaged_one_of_its_full_size_takes_no_ones_place(self, tmp_path: Path) -> None:
        trained = Trained(tmp_path, CheckpointConfig(keep=2, keep_best=0))
        for step in (1, 2, 9):
            trained.save(step)
        trained.saver.close()  # 2 and 9 are left; 9 is then damaged, and its size does not show it
        model = tmp_path / "checkpoints" / "step-00000009" / "model.safetensors"
        flip(model, -1)
        again = Trained(tmp_path, CheckpointConfig(keep=2, keep_best=0))
        again.save(3)
        again.saver.close()
        assert steps(tmp_path) == [2, 3, 9]

    def test_the_best_by_a_metric_of_ones_choice(self, train: Train, capsys: pytest.CaptureFixture[str]) -> None:
        by = "validation/bits_per_token_states_cleared"
        folder = train("--checkpoint.best-by", by, "--validate-every", "5")
        for path in folder.glob("checkpoints/step-*/checkpoint.json"):
            validation = json.loads(path.read_text())["validation"]
            (logged,) = (record.metrics[by] for record in records_with(folder, by) if record.step == validation["step"])
            assert validation["best_by"] == logged != validation["bits_per_token"]
        kinds = [
            {"bits_per_token": 2.0, "best_by": 0.1},
            {"bits_per_token": 1.0, "best_by": 0.2},
            {"bits_per_token": 0.05, "best_by": 0.15},
        ]
        made = [validated(n, kind) for n, kind in enumerate(kinds)]
        assert [found.step for found in best(made)] == [0, 2, 1]
        with pytest.raises(UserError, match=r"best_by is 'validation/bits': did you mean 'validation/bits_per_"):
            train("--checkpoint.best-by", "validation/bits", name="another")
        with pytest.raises(UserError, match=r"error_rate is never logged: choose another --checkpoint\.best-by"):
            train("--checkpoint.best-by", "validation/error_rate", "--validate-every", "5", name="another")
        with pytest.raises(
            UserError, match=r"was trained with checkpoint\.best_by=.*_cleared, and .* or choose another --run$"
        ):
            train("--steps", "25", "--validate-every", "5")  # by bits per token, which do not compare

    @pytest.mark.parametrize("field", ["every", "keep", "keep_every", "keep_best"])
    def test_numbers_that_mean_nothing(self, field: str) -> None:
        with pytest.raises(ValueError, match=f"checkpoint.{field} is -1"):
            CheckpointConfig(**dict[str, Any]({field: -1}))


def test_what_is_saved_is_what_was_there_at_the_time(tmp_path: Path) -> None:
    """The thread is held up while everything changes; then what it writes is compared with what was."""
    trained, gate, at_work = Trained(tmp_path), threading.Event(), threading.Event()
    write = saving.save_file

    def held(tensors: dict[str, torch.Tensor], path: Path) -> None:
        at_work.set()
        assert gate.wait(300)
        write(tensors, path)

    expected = {name: value.clone() for name, value in trained.model.state_dict().items()}
    momentum = trained.optimizer.state_dict()["state"][0]["exp_avg"].clone()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saving, "save_file", held)
        folder = trained.save(1)
        assert at_work.wait(300) and not folder.exists()  # `save` came back before anything was on the disk
        with torch.no_grad():
            for value in trained.model.parameters():
                value.fill_(7.0)
        trained.optimizer.step()
        gate.set()
        trained.saver.close()
    saved = Checkpoint.open(folder)
    for name, value in saved.weights().items():
        assert torch.equal(value, expected[name])
    assert torch.equal(saved.optimizer()["state"][0]["exp_avg"], momentum)


def test_a_run_folder_that_is_removed_during_training(tmp_path: Path) -> None:
    """The save fails and leaves no folder that looks like a run."""
    trained = Trained(tmp_path / "run")
    trained.save(1)
    trained.saver.close()
    shutil.rmtree(tmp_path / "run")
    trained.save(2)
    with pytest.raises(Unwritable, match=r"step 2 could not be written .*No such file.*run/checkpoints"):
        trained.saver.close()
    assert not (tmp_path / "run").exists()


def test_one_save_at_a_time(tmp_path: Path) -> None:
    trained = Trained(tmp_path)
    trained.save(1)
    for step in range(2, 6):
        trained.save(step)
        assert steps(tmp_path)[-1] >= step - 1  # it waited for the one before
    trained.saver.close()


def test_memory_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[dict[str, int]] = []
    write = saving.save_file

    def noted(tensors: dict[str, torch.Tensor], path: Path) -> None:
        places.append({name: tensor.data_ptr() for name, tensor in tensors.items()})
        write(tensors, path)

    monkeypatch.setattr(saving, "save_file", noted)
    trained = Trained(tmp_path)
    for step in (1, 2):
        trained.save(step)
    trained.saver.close()
    assert len(places) == 6 and places[:3] == places[3:]


class TestFailure:
    """A failed save is reported, and leaves the other checkpoints as they were."""

    def test_stop_raises_in_the_loop(self, tmp_path: Path) -> None:
        trained = Trained(tmp_path)
        trained.save(1)
        trained.saver.close()
        before = contents(tmp_path)
        obstacle = trained.obstruct(2)
        trained.save(2)
        with pytest.raises(SaveError, match=r"the checkpoint of step 2 could not be written .*File exists"):
            wait_until(trained.saver.check)  # as the loop asks after each step
        obstacle.unlink()
        assert contents(tmp_path) == before

    def test_warn_goes_on_to_the_next(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        trained = Trained(tmp_path, CheckpointConfig(on_failure="warn"))
        trained.save(1)
        trained.obstruct(2)
        trained.save(2)
        trained.save(3)  # which waits for the one before
        trained.saver.check()
        trained.saver.close()
        assert steps(tmp_path) == [1, 3]
        assert "warning: the checkpoint of step 2 could not be written" in capsys.readouterr().err

    def test_the_last_one_fails_the_run_however_it_is_set(self, tmp_path: Path) -> None:
        trained = Trained(tmp_path, CheckpointConfig(on_failure="warn"))
        trained.obstruct(1)
        trained.save(1)
        with pytest.raises(SaveError):
            trained.saver.close()

    def test_what_a_slower_rank_wrote_into_a_failed_one_is_removed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It makes the folder again after rank 0 has met a full disk, and has removed what there was."""
        trained = Trained(tmp_path)
        folder = trained.obstruct(1)
        next_one = folder.with_name(folder.name.replace("00000001", "00000002"))

        def rank_1_ends(world: Alone, failed: bool) -> bool:
            folder.unlink()
            folder.mkdir()
            (folder / "lanes-1-2-of-2.safetensors").touch()
            next_one.mkdir()  # it has begun the next save already
            return failed

        monkeypatch.setattr(Alone, "any", rank_1_ends)
        trained.save(1)
        with pytest.raises(SaveError, match="step 1 could not be written"):
            trained.saver.close()
        assert list(folder.parent.iterdir()) == [next_one]

    @pytest.mark.parametrize(
        ("cause", "users"),
        [
            (OSError(errno.EIO, "Input/output error"), False),  # as NFS and a bucket say once
            (OSError("AWS Error SLOW_DOWN during PutObject"), False),
            (OSError(errno.ENOSPC, "No space left on device"), True),
            (OSError(errno.EROFS, "Read-only file system"), True),
        ],
    )
    def test_whether_to_try_again_is_told_by_the_cause(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: OSError, users: bool
    ) -> None:
        def fails(tensors: object, path: Path) -> None:
            raise cause

        trained = Trained(tmp_path)
        monkeypatch.setattr(saving, "save_file", fails)
        trained.save(1)
        with pytest.raises(SaveError, match="the checkpoint of step 1 could not be written") as caught:
            trained.saver.close()
        assert is_users(caught.value) == users

    def test_what_an_earlier_start_left_is_removed(self, tmp_path: Path) -> None:
        (tmp_path / "checkpoints" / ".step-00000003.0123abcd.tmp").mkdir(parents=True)
        (tmp_path / "checkpoints" / ".step-00000002.0123abcd.old").mkdir()
        Trained(tmp_path)
        assert not list((tmp_path / "checkpoints").iterdir())


def test_a_checkpoint_that_goes_while_it_is_read_is_passed_over(train: Train) -> None:
    """A run that trains removes its older ones, and others look at it meanwhile."""
    run = RunFolder.parse(train())
    whole, over = run.folder / "checkpoints" / "step-00000020", threading.Event()

    def come_and_go() -> None:
        for i in itertools.count():
            other = whole.with_name(f"step-{i % 9:08d}")
            shutil.copytree(whole, other)
            os.rename(other, other.with_name(f".{other.name}.old"))
            shutil.rmtree(other.with_name(f".{other.name}.old"))
            if over.is_set():
                return

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(300):
            assert run.complete_checkpoints()[0].step == 20
            for name in run.checkpoint_names()[1:]:
                with contextlib.suppress(CheckpointError):
                    run.open_checkpoint(name)
    finally:
        over.set()
        thread.join()


def save_after_each_look(monkeypatch: pytest.MonkeyPatch, look: str, trained: Trained, steps: Iterable[int]) -> None:
    """Have the run save the next of these steps after each call of a method of RunFolder by a reader, which is slow."""
    coming = iter(steps)
    looked = getattr(RunFolder, look)

    def look_and_save(run: RunFolder) -> object:
        found = looked(run)
        if threading.current_thread() is threading.main_thread():  # the reader's, and not the saver's own
            for step in itertools.islice(coming, 1):
                trained.save(step)
                trained.saver.close()
        return found

    monkeypatch.setattr(RunFolder, look, look_and_save)


def test_the_newest_is_found_though_the_run_has_just_removed_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with `--checkpoint.keep 1`, where the reader was slow between the list of the checkpoints and the newest of them."""
    trained = Trained(tmp_path, CheckpointConfig(keep=1, keep_best=0))
    trained.save(1)
    trained.saver.close()
    with monkeypatch.context() as patch:
        save_after_each_look(patch, "checkpoint_names", trained, (2, 3, 4))
        assert [found.step for found in trained.run.complete_checkpoints()] == [4]
    save_after_each_look(monkeypatch, "checkpoint_names", trained, (5, 6, 7))
    assert find_checkpoint(tmp_path).step == 7 and capsys.readouterr().err == ""


def test_the_best_is_found_though_the_run_has_just_removed_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = Trained(tmp_path, CheckpointConfig(keep=1, keep_best=1), {1: 4.0, 2: 3.0, 3: 2.0, 4: 5.0})
    trained.save(1)
    trained.saver.close()
    save_after_each_look(monkeypatch, "examined", trained, (2, 3, 4))
    assert find_checkpoint(tmp_path, best=True).step == 3


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of three megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", place]).returncode:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.parametrize("on_failure", ["stop", "warn"])
def test_a_disk_that_fills_during_a_save(
    train: Train, small_disk: Path, on_failure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--root", str(small_disk), "--checkpoint.on-failure", on_failure, "--checkpoint.keep", "9")
    words += ("--allow-change", "steps", "--checkpoint.every", "4")
    train(*words, "--steps", "8")
    folder = small_disk / "run"
    before = contents(folder / "checkpoints")
    assert sorted(Path(name).parts[0] for name in before if name.endswith(".json")) == [
        "step-00000004",
        "step-00000008",
    ]
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    one = sum(len(data) for name, data in before.items() if name.startswith("step-00000008"))
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(free - one // 2))  # half a checkpoint fits
    with pytest.raises(Unwritable, match=r"step 12 could" if on_failure == "stop" else r"step 20 could"):
        train(*words, "--steps", "20")
    assert contents(folder / "checkpoints") == before  # intact, and no half one beside them
    if on_failure == "warn":
        assert "warning: the checkpoint of step 12 could not be written" in capsys.readouterr().err
    ballast.unlink()
    train(*words, "--steps", "20")
    assert Checkpoint.open(folder / "checkpoints" / "step-00000020")


def test_why_another_rank_could_not_write_is_heard_though_all_have_given_up(tmp_path: Path) -> None:
    """As at a run's end, where the loop hears of the other rank's error before rank 0's thread has looked for its note."""
    saver = Trained(tmp_path).saver
    saver._files, together = ["lanes-0-1-of-2.safetensors", "lanes-1-2-of-2.safetensors"], Place.parse(tmp_path)
    note = saving._note(together, saver._files[1])
    saver._give_up.set()
    with pytest.raises(SaveError, match=r"lanes-1-2-of-2\.safetensors was not written; is .* shared"):
        saver._notes_of_the_others(together)
    note.write_atomically(json.dumps({"failed": "rank 1: No space left on device", "users": True}).encode())
    with pytest.raises(Unwritable, match=r"^rank 1: No space left on device"):
        saver._notes_of_the_others(together)
    note.write_atomically(json.dumps({"bytes": 9}).encode())
    assert saver._notes_of_the_others(together) == {saver._files[1]: {"bytes": 9}}


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    for module in (saving, retention):
        monkeypatch.setattr(module, "sync", lambda path: synced.append(Path(path).name))
    trained = Trained(tmp_path)
    folder = trained.save(1)
    trained.saver.close()
    tensors = {path.name for path in folder.glob("*.safetensors")}
    assert len(tensors) == 3 and set(synced[:3]) == tensors and synced[-1] == "checkpoints"


def test_an_interrupted_removal_leaves_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(place: Place) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "step-00000001"
    folder.mkdir()
    monkeypatch.setattr(Place, "delete", killed)
    with pytest.raises(KeyboardInterrupt):
        retention.remove(Place.parse(folder))
    assert not folder.exists()


def validated(step: int, metrics: dict[str, float], store: str = "one", validate_tokens: int = 0) -> Checkpoint:
    """A checkpoint with these metrics of its validation."""
    meta = {"step": step, "config": {"validate_tokens": validate_tokens}}
    return Checkpoint(Path("run"), {**meta, "validation": {"step": step, "store": store, **metrics}})


def test_a_damaged_best_checkpoint_is_passed_over_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = Trained(tmp_path, CheckpointConfig(keep=3), {1: 2.0, 2: 1.0, 3: 3.0})
    for step in (1, 2, 3):
        trained.save(step)
    trained.saver.close()
    (tmp_path / "checkpoints" / name_of(2) / "model.safetensors").write_bytes(b"")
    assert find_checkpoint(tmp_path, best=True).step == 1
    warning = capsys.readouterr().err
    assert warning.startswith("warning: passed over a checkpoint: ") and name_of(2) in warning


def with_unreadable(run: Path, step: int, name: str) -> Path:
    """A run with checkpoints of steps 1 and 2, of which a file or the folder may not be read."""
    trained = Trained(run)
    trained.save(1)
    trained.save(2)
    trained.saver.close()
    let_all_read(run)
    (run / "checkpoints" / name_of(step) / name).chmod(0)
    return run


@pytest.mark.parametrize("name", ["model.safetensors", "checkpoint.json", "."])
def test_a_checkpoint_that_may_not_be_read_is_not_passed_over(reachable: Path, name: str) -> None:
    run = with_unreadable(reachable / "run", 2, name)
    with ordinary_user(), pytest.raises(PermissionError, match=name_of(2)):
        find_checkpoint(run)


def test_an_old_checkpoint_that_may_not_be_read_hides_no_other(reachable: Path) -> None:
    run = with_unreadable(reachable / "run", 1, "model.safetensors")
    with ordinary_user():
        complete, complaints = RunFolder.parse(run).examined()
    assert [checkpoint.step for checkpoint in complete] == [2]
    assert len(complaints) == 1 and complaints[0].endswith(
        "Permission denied: ask its owner for access, or choose another place"
    )


def test_of_equally_good_checkpoints_the_earliest_is_the_best() -> None:
    made = [validated(n, {"best_by": 1.0}) for n in (2, 1, 3)]
    assert [found.step for found in best(made)] == [1, 2, 3]


def test_checkpoints_that_were_validated_on_another_text_are_not_ranked() -> None:
    before = [validated(1, {"best_by": 1.0}), validated(2, {"best_by": 1.1})]
    harder = [validated(3, {"best_by": 3.0}, store="two"), validated(4, {"best_by": 2.0}, store="two")]
    assert [found.step for found in best([*before, *harder])] == [4, 3]
    assert [found.step for found in best([*before, validated(3, {"best_by": 3.0}, validate_tokens=5)])] == [3]


class TestForeign:
    """What is no checkpoint of ours is never loaded, however it came there."""

    def test_a_folder_of_a_larger_world(self, tmp_path: Path) -> None:
        """Its checksums are right, but not all of its lanes are there."""
        folder = self.saved(tmp_path)
        meta = json.loads((folder / "checkpoint.json").read_text())
        meta |= {"lanes": 4, "world": 2}
        rename(folder, "lanes-0-2-of-2.safetensors", "lanes-0-2-of-4.safetensors", meta)
        with pytest.raises(CheckpointError, match="its files do not cover its 4 lanes"):
            Checkpoint.open(folder)

    def test_a_header_as_long_as_a_pickle_begins_is_none(self, tmp_path: Path) -> None:
        path = tmp_path / "model.safetensors"
        for letters in range(1, 900):
            save_file({"x" * letters: torch.zeros(1)}, path)
            if path.read_bytes()[:2] in (b"\x80\x02", b"\x80\x03"):
                break
        else:
            pytest.fail("no header of 640 or 896 bytes")
        check_is_no_pickle(path)

    @pytest.mark.parametrize("name", ["model.pt", "optimizer.bin", "state.pkl"])
    def test_a_pickle_beside_the_files(self, tmp_path: Path, name: str) -> None:
        folder = self.saved(tmp_path)
        (folder / name).write_bytes(pickle.dumps({}))
        with pytest.raises(PickledError, match=f"{name} may hold pickled objects, .* remove it"):
            RunFolder.parse(tmp_path).newest()

    @pytest.mark.parametrize("protocol", [2, 4, "zip"])
    def test_a_pickle_in_the_place_of_a_file(self, tmp_path: Path, protocol: int | str) -> None:
        """Even with a checksum that is right."""
        folder = self.saved(tmp_path)
        path, fired = folder / "model.safetensors", tmp_path / "fired"
        if protocol == "zip":
            torch.save({"weight": torch.zeros(3)}, path)
        else:
            path.write_bytes(pickle.dumps(Bomb(str(fired)), protocol=int(protocol)))
        meta = json.loads((folder / "checkpoint.json").read_text())
        rename(folder, "model.safetensors", "model.safetensors", meta)
        with pytest.raises(PickledError, match=r"model.safetensors may hold pickled objects, .* remove it"):
            RunFolder.parse(tmp_path).newest()
        assert not fired.exists()

    def test_a_file_outside_of_the_folder(self, tmp_path: Path) -> None:
        folder = self.saved(tmp_path)
        save_file({"a": torch.zeros(1)}, folder.parent / "other.safetensors")
        meta = json.loads((folder / "checkpoint.json").read_text())
        meta["files"]["../other.safetensors"] = record(folder.parent / "other.safetensors")
        rename(folder, "model.safetensors", "model.safetensors", meta)
        with pytest.raises(CheckpointError, match=r"other.safetensors"):
            Checkpoint.open(folder)

    @staticmethod
    def saved(root: Path) -> Path:
        trained = Trained(root)
        folder = trained.save(1)
        trained.saver.close()
        return folder


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self.path, "w")


def record(path: Path) -> dict[str, object]:
    """What checkpoint.json says of a file."""
    return {"bytes": path.stat().st_size, "xxh3": Place.parse(path).xxh3()}


def rename(folder: Path, before: str, after: str, meta: dict[str, object]) -> None:
    """Rename a file, and write a checkpoint.json whose checksums are right."""
    (folder / before).rename(folder / after)
    files = meta["files"]
    assert isinstance(files, dict)
    del files[before]
    files[after] = record(folder / after)
    meta["digest"] = digest_json(meta)
    (folder / "checkpoint.json").write_text(json.dumps(meta))


def test_the_checkpoint_knows_its_run_in_mlflow(train: Train, tmp_path: Path) -> None:
    """A folder that was copied without mlflow_run.json continues the same run; another run that begins from it does not."""
    words = ("--tracking.backend", "mlflow", "--tracking.system-metrics", "off")
    folder = train(*words, "--steps", "5")  # too short for MLflow to have answered before its checkpoint
    train(*words, "--steps", "10", "--allow-change", "steps")
    before = json.loads((folder / "mlflow_run.json").read_text())["run_id"]
    (folder / "mlflow_run.json").unlink()
    shutil.copytree(folder / "checkpoints", folder.with_name("fork") / "checkpoints")
    train(*words, "--steps", "20", "--allow-change", "steps")
    train(*words, "--steps", "20", "--allow-change", "steps", name="fork")
    after, fork = (json.loads((folder.with_name(name) / "mlflow_run.json").read_text()) for name in ("run", "fork"))
    assert after["run_id"] == before != fork["run_id"]


def test_who_may_read_the_folder_may_read_its_files(tmp_path: Path) -> None:
    trained = Trained(tmp_path)
    folder = trained.save(1)
    trained.saver.close()
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {folder.stat().st_mode & 0o666}


def test_messages_that_a_full_disk_does_not_take_end_nothing(tmp_path: Path) -> None:
    for name, log in (("full", Path("/dev/full")), ("room", tmp_path / "log")):
        (tmp_path / name / "logs").mkdir(parents=True)
        (tmp_path / name / "logs" / "worker-0.log").symlink_to(log)
        with messages_into_log(RunFolder.parse(tmp_path / name), 0):
            for number in range(3):
                print(f"warning {number}", file=sys.stderr, flush=True)
    assert (tmp_path / "log").read_text() == "warning 0\nwarning 1\nwarning 2\n"


def test_checkpoints_that_were_passed_over_count_when_they_are_made_anew(tmp_path: Path) -> None:
    run = RunFolder.parse(tmp_path)
    for step in (10, 20, 30):
        (tmp_path / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    damaged = run.beyond(10)
    assert run.newest_step() == 30 and run.newest_step(damaged) == 10
    again = tmp_path / "checkpoints" / "step-00000020"
    again.rmdir()
    assert run.newest_step(damaged) == 10
    again.mkdir()
    os.utime(again, ns=(1, 1))
    assert run.newest_step(damaged) == 20


def test_what_a_start_left_that_was_killed_at_its_end_is_removed_by_the_next(train: Train) -> None:
    words = ("--steps", "9", "--validate-every", "0", "--checkpoint.every", "3", "--checkpoint.keep", "1")
    run = train(*words)
    folder = run / "checkpoints"
    shutil.copytree(folder / "step-00000009", folder / ".step-00000006.0123abcd.old")
    left = run / "config.json.1.0123abcd.tmp"
    left.touch()
    train(*words)
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000009"] and not left.exists()
    left.touch()
    shutil.rmtree(folder)
    words = ("--steps", "4", "--validate-every", "0", "--checkpoint.every", "1")
    train(*words, "--checkpoint.keep", "9")
    assert not left.exists()
    train(*words, "--checkpoint.keep", "1")  # which trains nothing, and so removes nothing
    assert [path.name for path in sorted(folder.iterdir())] == [f"step-{step:08d}" for step in range(1, 5)]


def test_a_resumed_run_shows_its_steps_after_the_clock_was_set_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.append(Record(1, 10_000, {"train/bits_per_token": 8.0}))
    with show_progress(Place.parse(tmp_path), first_step=1, steps=2):
        file.append(Record(2, 5_000, {"train/bits_per_token": 7.0}))
    assert "step 2/2" in capsys.readouterr().out


@pytest.mark.parametrize("made", [2, 3, 9])
def test_a_file_that_a_resume_has_rewritten_is_read_from_its_beginning(tmp_path: Path, made: int) -> None:
    """Though it is as long as before, or longer, when it is looked at again."""
    path = tmp_path / "metrics.jsonl"
    tail = Tail(Place.parse(path))
    assert tail.records() == []
    before = [Record(step, 1000 + step, {"train/bits_per_token": 8.0}) for step in range(1, 7)]
    path.write_bytes(b"".join(record.line() for record in before) + b'{"step": 7, "ti')
    assert tail.records() == before and tail.records() == []
    after = [*before[:3], *(Record(step, 2000 + step, {"train/bits_per_token": 8.0}) for step in range(4, 4 + made))]
    path.write_bytes(b"".join(record.line() for record in after))
    assert tail.records() == after and tail.records() == []


def test_the_time_left_is_estimated_from_the_first_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The start of Ray and of the model is no part of the rate."""
    file = MetricsFile(tmp_path / "metrics.jsonl")
    with show_progress(Place.parse(tmp_path), first_step=0, steps=100):
        for step, time in ((10, 60_000), (20, 70_000), (100, 150_000)):
            file.append(Record(step, time, {"train/bits_per_token": 8.0}))
    ends = [line.rpartition("  ")[2] for line in capsys.readouterr().out.splitlines()]
    assert ends == ["8.000 bits/token", "about 80 s left", "about 0 s left"]
