"""The thread that prepares batches."""

import threading
from contextlib import suppress

import pytest
import torch

from bertpre.data.sampler import Position
from bertpre.training.batches import BatchSource, Prefetcher, StepBatch, to_device
from tests.helpers import LIMIT, wait_until
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
            batches.begin(Position(), 0.0)
            batches.next_batch()
    assert chosen == [(index, False) for index in expected]


def test_a_tensor_that_repeats_its_memory_reaches_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def pin_memory(tensor: torch.Tensor) -> torch.Tensor:
        """As torch's: it keeps the strides, which copying then refuses."""
        places = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        return torch.empty(places, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride()).copy_(tensor)

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *_, **__: tensor)
    expanded = torch.arange(3).expand(2, -1)
    batch = to_device({"token_type_ids": expanded, "labels": torch.ones(2)}, torch.device("cuda"))
    assert batch["token_type_ids"].tolist() == [[0, 1, 2], [0, 1, 2]] and batch["labels"].tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="single memory location"):
        pin_memory(expanded)


def test_the_thread_takes_no_other_threads_and_leaves_the_training_its_own() -> None:
    before, found = torch.get_num_threads(), []

    def source(position: Position, progress: float) -> StepBatch:
        found.append(torch.get_num_threads())
        return StepBatch([], position)

    torch.set_num_threads(2)
    try:
        with at_once(source) as batches:
            batches.begin(Position(), 0.0)
            batches.next_batch()
        assert (found, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)


def at_once(source: BatchSource) -> Prefetcher:
    return Prefetcher(source, ToyObjective(), torch.device("cpu"))


def test_batches_follow_each_other_from_the_position_where_they_begin() -> None:
    asked: list[tuple[int, float]] = []

    def source(position: Position, progress: float) -> StepBatch:
        asked.append((position.offset, progress))
        return StepBatch([], Position(offset=position.offset + 10))

    with at_once(source) as batches:
        batches.begin(Position(offset=3), 0.0)
        for number in range(1, 4):
            batches.prefetch(number / 10)
        assert [batches.next_batch()[0].after.offset for _ in range(2)] == [13, 23]
        batches.begin(Position(offset=500), 0.7)  # as after a rollback
        batches.prefetch(0.8)
        assert [batches.next_batch()[0].after.offset for _ in range(2)] == [510, 520]
        batches.prefetch(0.9)  # after batches that are all taken
        assert batches.next_batch()[0].after.offset == 530
    assert asked[:2] == [(3, 0.0), (13, 0.1)] and asked[-3:] == [(500, 0.7), (510, 0.8), (520, 0.9)]


def test_an_error_is_raised_where_its_batch_is_wanted() -> None:
    def source(position: Position, progress: float) -> StepBatch:
        if position.offset == 1:
            raise OSError("the disk is gone")
        return StepBatch([], Position(offset=position.offset + 1))

    with at_once(source) as batches:
        batches.begin(Position(), 0.0)
        batches.prefetch(0.1)
        batches.prefetch(0.2)
        batches.next_batch()
        for _ in range(2):  # no batch is made at a position that is not known
            with pytest.raises(OSError, match="the disk is gone"):
                batches.next_batch()


def test_no_batch_is_made_after_the_end() -> None:
    made, all_are_asked_for = [], threading.Event()
    others = set(threading.enumerate())  # of other tests in this process

    def source(position: Position, progress: float) -> StepBatch:
        made.append(progress)
        assert all_are_asked_for.wait(LIMIT)
        with suppress(TimeoutError):  # then the next one is made too
            wait_until(batches.pending[-1].cancelled, seconds=60)  # which the end does to those that wait
        return StepBatch([], position)

    with at_once(source) as batches:
        batches.begin(Position(), 0.0)
        for _ in range(5):
            batches.prefetch(0.5)
        all_are_asked_for.set()
        wait_until(lambda: made)
    assert made == [0.0]
    assert [each for each in threading.enumerate() if "ThreadPool" in each.name and each not in others] == []


def test_a_batch_that_was_not_asked_for_is_an_error() -> None:
    with Prefetcher(empty, ToyObjective(), torch.device("cpu")) as batches, pytest.raises(RuntimeError, match="asked"):
        batches.next_batch()
