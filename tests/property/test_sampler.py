"""The order of the examples: every pair once an epoch, whatever the size of a take, from any position."""

from hypothesis import given, settings
from hypothesis import strategies as st

from bertpre.data.sampler import Example, PairDataset, Position
from tests.property.strategies import Lengths, document_lengths, shard_of

modest = settings(max_examples=80, deadline=None)
shards = st.lists(document_lengths(longest_sentence=15), min_size=1, max_size=3)
kinds = st.sampled_from(["nsp", "none"])
group_sizes = st.sampled_from([1, 2, 8])  # one shard at a time, some, and all


def dataset(lengths: list[Lengths], together: int, seed: int = 0, kind: str = "nsp") -> PairDataset:
    shards = [shard_of(part, 10_000 * number) for number, part in enumerate(lengths)]
    return PairDataset(shards, 32, seed, kind=kind, sep_token_id=99_999, shards_per_group=together)


def content(examples: list[Example]) -> list[tuple]:
    return [(e.a.tolist(), e.b.tolist(), e.is_random_next, e.key) for e in examples]


@modest
@given(shards, group_sizes, st.integers(0, 99), st.integers(0, 3))
def test_an_epoch_has_every_pair_exactly_once(lengths: list[Lengths], together: int, seed: int, epoch: int) -> None:
    data = dataset(lengths, together, seed)
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
@given(shards, group_sizes, st.lists(st.integers(1, 30), min_size=1, max_size=8), kinds)
def test_it_does_not_matter_how_many_are_taken_at_a_time(
    lengths: list[Lengths], together: int, counts: list[int], kind: str
) -> None:
    data, position, pieces = dataset(lengths, together, kind=kind), Position(), []
    for count in counts:
        examples, position = data.take(position, count)
        assert len(examples) == count
        pieces += examples
    whole, end = dataset(lengths, together, kind=kind).take(Position(), sum(counts))
    assert content(pieces) == content(whole)
    assert position == end


@modest
@given(shards, group_sizes, st.integers(1, 80), st.integers(1, 20), kinds)
def test_resuming_from_a_position_gives_the_same_examples(
    lengths: list[Lengths], together: int, before: int, after: int, kind: str
) -> None:
    _, position = dataset(lengths, together, kind=kind).take(Position(), before)
    resumed, end = dataset(lengths, together, kind=kind).take(position, after)
    whole, whole_end = dataset(lengths, together, kind=kind).take(Position(), before + after)
    assert content(resumed) == content(whole)[before:]
    assert end == whole_end
