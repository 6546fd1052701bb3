"""The thread that prepares batches."""

import threading

import pytest
import torch

from bertpre.data.sampler import Position
from bertpre.training.batches import Prefetcher, StepBatch
from tests.toys import ToyObjective


def empty(position: Position, progress: float) -> StepBatch:
    return StepBatch([], position)


@pytest.mark.parametrize(
    ("device", "expected"),
    [("cuda:3", [3]), ("cuda", []), ("cpu", [])],  # of one GPU there is no choice
)
def test_the_thread_uses_the_gpu_of_its_process(
    device: str, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[tuple[int | None, bool]] = []
    is_main = lambda: threading.current_thread() is threading.main_thread()  # noqa: E731
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: chosen.append((device.index, is_main())))
    with Prefetcher(empty, ToyObjective(), torch.device(device)) as batches:
        for _ in range(2):
            batches.prefetch(Position(), 0.0)
            batches.next_batch()
    assert chosen == [(index, False) for index in expected]


def test_a_batch_that_was_not_asked_for_is_an_error() -> None:
    with Prefetcher(empty, ToyObjective(), torch.device("cpu")) as batches, pytest.raises(RuntimeError, match="asked"):
        batches.next_batch()
