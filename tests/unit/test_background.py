"""Checkpoints that a thread writes: what they hold, when training waits for them, and how their errors arrive."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from bertpre.errors import UserError
from bertpre.training import checkpoint
from bertpre.training.background import BackgroundWriter
from bertpre.training.checkpoint import FILES, Checkpoints, list_checkpoints
from bertpre.training.gradient_guard import MAX_IN_A_ROW
from bertpre.training.trainer import Trainer
from tests.toys import toy_trainer

Tensors = dict[str, torch.Tensor]
save_file = checkpoint.save_file


def steps_in(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in list_checkpoints(folder / "checkpoints")]


def test_the_thread_takes_no_other_threads_and_leaves_the_training_its_own() -> None:
    before, found = torch.get_num_threads(), list[int]()
    torch.set_num_threads(2)
    try:
        with BackgroundWriter() as writer:
            writer.start(lambda: found.append(torch.get_num_threads()))
            writer.wait()
        assert (found, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)


def slowly(tensors: Tensors, file: Path) -> None:
    """Write a file so slowly that what does not wait for it is long done."""
    save_file(tensors, file)
    time.sleep(0.1)


def full_from(step: int) -> Callable[[Tensors, Path], None]:
    """A disk that is full when a step is written."""

    def write(tensors: Tensors, file: Path) -> None:
        if f"step-{step:08d}" in str(file):
            raise OSError("no space left")
        save_file(tensors, file)

    return write


class Killed(Exception):
    """Ends a training between two steps."""


def save_at_step_5(trainer: Trainer) -> None:
    """Save and wait for it."""
    if trainer.progress.step == 5:
        trainer.save()


def test_training_continues_while_a_checkpoint_of_its_step_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_step_7, continued = threading.Event(), []

    def write_after_step_7(tensors: Tensors, file: Path) -> None:
        if "step-00000005" in str(file):
            continued.append(at_step_7.wait(20))
        save_file(tensors, file)

    def after_step(trainer: Trainer) -> None:
        if trainer.progress.step == 7:
            at_step_7.set()

    toy_trainer(tmp_path / "waiting", every=0, after_step=save_at_step_5).train()
    monkeypatch.setattr(checkpoint, "save_file", write_after_step_7)
    toy_trainer(tmp_path / "background", every=5, after_step=after_step).train()
    assert continued == [True] * len(FILES)
    for name in FILES:
        waiting, background = (
            (tmp_path / run / "checkpoints" / "step-00000005" / name).read_bytes() for run in ("waiting", "background")
        )
        assert waiting == background, name


def test_the_first_and_the_last_checkpoint_and_those_asked_for_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[int]] = []

    def after_step(trainer: Trainer) -> None:
        save_at_step_5(trainer)
        seen.append(steps_in(tmp_path))

    monkeypatch.setattr(checkpoint, "save_file", slowly)
    toy_trainer(tmp_path, 6, every=0, after_step=after_step).train()
    assert seen == [[0]] * 4 + [[0, 5]] * 2
    assert steps_in(tmp_path) == [5, 6]


def test_an_error_while_writing_arrives_at_the_next_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "save_file", full_from(4))
    trainer = toy_trainer(tmp_path, 10, every=2)
    with pytest.raises(UserError, match="step 4 cannot be written: no space left. Earlier checkpoints are intact"):
        trainer.train()
    assert trainer.progress.step == 6
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000000", "step-00000002"]


@pytest.mark.parametrize(("steps", "every"), [(10, 5), (12, 10)])
def test_an_error_while_writing_arrives_at_the_end(
    steps: int, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "save_file", full_from(10))
    with pytest.raises(UserError, match="step 10 cannot be written: no space left"):
        toy_trainer(tmp_path, steps, every=every).train()


def test_a_training_that_an_error_ends_completes_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(trainer: Trainer) -> None:
        if trainer.progress.step == 5:
            raise Killed

    monkeypatch.setattr(checkpoint, "save_file", slowly)
    with pytest.raises(Killed):
        toy_trainer(tmp_path, every=5, after_step=end).train()
    assert steps_in(tmp_path) == [0, 5]
    assert not any(thread.name.startswith("checkpoint") for thread in threading.enumerate())


def test_an_error_while_writing_does_not_hide_the_one_that_ended_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def end(trainer: Trainer) -> None:
        if trainer.progress.step == 5:
            raise Killed

    monkeypatch.setattr(checkpoint, "save_file", full_from(5))
    with pytest.raises(Killed), caplog.at_level(logging.WARNING):
        toy_trainer(tmp_path, every=5, after_step=end).train()
    assert "the checkpoint of step 5 cannot be written: no space left" in caplog.text


def test_a_roll_back_waits_for_the_checkpoint_that_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoil(trainer: Trainer) -> None:
        if trainer.progress.step == 1:
            weight = trainer.training_step.model.classifier.weight
            weight.register_hook(lambda gradient: gradient * (float("nan") if trainer.progress.step in spoilt else 1.0))

    monkeypatch.setattr(checkpoint, "save_file", slowly)
    spoilt = range(5, 5 + MAX_IN_A_ROW)
    toy_trainer(tmp_path, 14, every=5, after_step=spoil).train()
    assert "back to step 5; these steps will be left out" in capsys.readouterr().out


def test_without_memory_for_a_copy_training_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []
    monkeypatch.setattr(checkpoint, "save_file", slowly)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=0))
    toy_trainer(tmp_path, 3, every=2, after_step=lambda trainer: seen.append(steps_in(tmp_path))).train()
    assert seen == [[0], [0, 2], [0, 2]]


def test_each_file_is_hashed_once_and_one_that_has_changed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []

    def note(file: Path) -> str:
        hashed.append(f"{file.parent.name.removesuffix('.partial')}/{file.name}")
        return checksum_of(file)

    def spoil_step_3(trainer: Trainer) -> None:
        if trainer.progress.step == 4:
            trainer.saver.finish_writing()
            with (tmp_path / "checkpoints" / "step-00000003" / FILES[1]).open("ab") as stream:
                stream.write(b"!")

    checksum_of = checkpoint.file_checksum
    monkeypatch.setattr(checkpoint, "file_checksum", note)
    trainer = toy_trainer(tmp_path, 8, after_step=spoil_step_3)
    trainer.saver.place = Checkpoints(tmp_path / "checkpoints", every=1, keep=2)
    trainer.train()
    assert steps_in(tmp_path) == [3, 7, 8]  # a damaged one is not removed
    once = [f"step-{step:08d}/{name}" for step in range(9) for name in FILES]
    assert sorted(hashed) == sorted([*once, *(f"step-00000003/{name}" for name in FILES)])


def test_one_job_at_a_time() -> None:
    done: list[int] = []
    with BackgroundWriter() as writer:
        assert writer.wait() is None
        for number in range(3):
            writer.start(lambda number=number: done.append(number))
            with pytest.raises(AssertionError):
                writer.start(lambda: done.append(-1))
            assert writer.wait() is not None
    assert done == [0, 1, 2]
