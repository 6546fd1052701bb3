"""The order of the examples: every pair once an epoch, the same however it is taken, from any place."""

from collections.abc import Iterator
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertpre.data import sampler
from bertpre.data.sampler import Example, PairDataset, Position
from tests.property.strategies import Lengths, document_lengths, shard_of

modest = settings(max_examples=40, deadline=None)
shards = st.lists(document_lengths(longest_sentence=15), min_size=1, max_size=3)


@pytest.fixture(autouse=True, scope="module", params=[1, 8])
def shards_together(request: pytest.FixtureRequest) -> Iterator[None]:
    """Groups of one shard, and of all."""
    with mock.patch.object(sampler, "SHARDS_TOGETHER", request.param):
        yield


def dataset(lengths: list[Lengths], seed: int = 0) -> PairDataset:
    return PairDataset([shard_of(part, 10_000 * number) for number, part in enumerate(lengths)], 32, seed)


def content(examples: list[Example]) -> list[tuple]:
    return [(e.a.tolist(), e.b.tolist(), e.is_random_next, e.key) for e in examples]


@modest
@given(shards, st.integers(0, 99), st.integers(0, 3))
def test_an_epoch_has_every_pair_exactly_once(lengths: list[Lengths], seed: int, epoch: int) -> None:
    data = dataset(lengths, seed)
    planned = {number: data.plan_shard(epoch, number) for number in range(len(lengths))}
    examples, after = data.take(Position(epoch=epoch), sum(map(len, planned.values())))
    assert after == Position(epoch=epoch + 1)
    keys = {(epoch, number << 32 | row) for number, rows in planned.items() for row in range(len(rows))}
    assert {example.key for example in examples} == keys
    assert len(examples) == len(keys)
    for example in examples:
        number, row = divmod(example.key[1], 1 << 32)
        shard, place, a_start, a_end, b_start, b_end, is_random_next = planned[number][row].tolist()
        assert (shard, place) == (number, row)
        assert example.a.tolist() == data.shards[shard].tokens[a_start:a_end].tolist()
        assert example.b.tolist() == data.shards[shard].tokens[b_start:b_end].tolist()
        assert example.is_random_next == is_random_next


@modest
@given(shards, st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_it_does_not_matter_how_many_are_taken_at_a_time(lengths: list[Lengths], counts: list[int]) -> None:
    data, position, pieces = dataset(lengths), Position(), []
    for count in counts:
        examples, position = data.take(position, count)
        assert len(examples) == count
        pieces += examples
    whole, end = dataset(lengths).take(Position(), sum(counts))
    assert content(pieces) == content(whole)
    assert position == end


@modest
@given(shards, st.integers(1, 80), st.integers(1, 20))
def test_going_on_from_a_position_is_never_having_stopped(lengths: list[Lengths], before: int, after: int) -> None:
    _, position = dataset(lengths).take(Position(), before)
    resumed, end = dataset(lengths).take(position, after)
    whole, whole_end = dataset(lengths).take(Position(), before + after)
    assert content(resumed) == content(whole)[before:]
    assert end == whole_end
