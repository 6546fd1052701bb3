"""The order of the examples: fresh every epoch, fixed by the seed."""

import numpy as np
import pytest

from bertpre.data.sampler import Example, PairDataset, Position, in_batches
from bertpre.data.store import Shard


def shard(first: int, documents: int = 6) -> Shard:
    """Documents of eight sentences of three tokens; no two tokens are equal."""
    tokens = 24 * documents
    return Shard(np.arange(first, first + tokens), np.arange(0, tokens + 1, 3), np.arange(0, 8 * documents + 1, 8))


def taken(data: PairDataset, epoch: int, count: int = 10) -> list[list[int]]:
    return [example.a.tolist() for example in data.take(Position(epoch=epoch), count)[0]]


def test_every_epoch_cuts_the_documents_anew_and_in_another_order() -> None:
    data = PairDataset([shard(0)], 16, seed=0)
    assert taken(data, 0) != taken(data, 1)
    assert taken(data, 0) == taken(PairDataset([shard(0)], 16, seed=0), 0)


def test_another_seed_is_another_order() -> None:
    assert taken(PairDataset([shard(0)], 16, seed=0), 0) != taken(PairDataset([shard(0)], 16, seed=1), 0)


def test_shards_are_mixed() -> None:
    examples, _ = PairDataset([shard(0, 30), shard(10_000, 30)], 16, seed=0).take(Position(), 40)
    from_second = sum(bool(example.a[0] >= 10_000) for example in examples)
    assert 8 < from_second < 32


def test_a_random_segment_comes_from_the_same_shard() -> None:
    data = PairDataset([shard(0), shard(10_000)], 16, seed=0, random_next_prob=1.0)
    examples, _ = data.take(Position(), len(data.plan(0)[0]))
    assert all((example.a[0] >= 10_000) == (example.b[0] >= 10_000) for example in examples)


def test_the_share_of_random_nexts_reaches_the_plan() -> None:
    never = PairDataset([shard(0, 40)], 16, seed=0, random_next_prob=0.0).plan(0)[0]
    assert never[:, -1].mean() < 0.35  # documents that end in a single sentence have no true next


def test_a_take_longer_than_an_epoch_goes_through_several() -> None:
    data = PairDataset([shard(0)], 16, seed=0)
    sizes = [len(data.plan_shard(epoch, 0)) for epoch in range(3)]
    examples, position = data.take(Position(phase=1), sum(sizes) - 1)
    assert position == Position(phase=1, epoch=2, offset=sizes[2] - 1)
    assert [sum(example.key[0] == epoch for example in examples) for epoch in range(3)] == [*sizes[:2], sizes[2] - 1]


@pytest.mark.parametrize(("count", "sizes"), [(6, [3, 3]), (7, [3, 3, 1]), (2, [2]), (0, [])])
def test_batches_are_consecutive(count: int, sizes: list[int]) -> None:
    examples = [Example(np.array([number]), np.array([0]), 0, (0, number)) for number in range(count)]
    batches = list(in_batches(examples, 3))
    assert [len(batch) for batch in batches] == sizes
    assert [example for batch in batches for example in batch] == examples
