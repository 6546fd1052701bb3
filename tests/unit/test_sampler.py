"""The order of the examples: different in every epoch, fixed by the seed."""

import hashlib
import random

import numpy as np
import pytest

from bertpre.data.masking import MaskingCollator
from bertpre.data.sampler import Example, PairDataset, Position, in_batches
from bertpre.data.store import Shard
from bertpre.data.tokenizer import SPECIAL_TOKENS
from bertpre.errors import UserError
from bertpre.training.micro_batches import micro_batch_size


def shard(first: int, documents: int = 6) -> Shard:
    """Documents of eight sentences of three tokens; no two tokens are equal."""
    tokens = 24 * documents
    return Shard(np.arange(first, first + tokens), np.arange(0, tokens + 1, 3), np.arange(0, 8 * documents + 1, 8))


def taken(data: PairDataset, epoch: int, count: int = 10) -> list[list[int]]:
    return [example.a.tolist() for example in data.take(Position(epoch=epoch), count)[0]]


def test_every_epoch_cuts_the_documents_differently() -> None:
    data = PairDataset([shard(0)], 16, seed=0)
    assert sorted(data.plan_shard(0, 0).tolist()) != sorted(data.plan_shard(1, 0).tolist())
    assert taken(data, 0) == taken(PairDataset([shard(0)], 16, seed=0), 0)


def test_shards_are_cut_differently() -> None:
    data = PairDataset([shard(0), shard(1000)], 16, seed=0)
    assert data.plan_shard(0, 0)[:, 2:].tolist() != data.plan_shard(0, 1)[:, 2:].tolist()


def short_documents(first: int, documents: int = 30) -> Shard:
    """Documents of one sentence of three tokens: each gives one pair in every epoch."""
    return Shard(np.arange(first, first + 3 * documents), np.arange(0, 3 * documents + 1, 3), np.arange(documents + 1))


def order_of_documents(data: PairDataset, epoch: int, count: int) -> list[int]:
    return [int(example.a[0]) // 3 for example in data.take(Position(epoch=epoch), count)[0]]


def test_every_epoch_has_another_order_of_pairs_and_of_shards() -> None:
    data = PairDataset([short_documents(0)], 16, seed=0)
    orders = [order_of_documents(data, epoch, 30) for epoch in range(4)]
    assert all(sorted(order) == list(range(30)) for order in orders)
    assert len(set(map(tuple, [*orders, range(30)]))) == 5

    shards = [short_documents(30 * number, 10) for number in range(8)]
    data = PairDataset(shards, 16, seed=0, shards_per_group=1)
    orders = [[document // 10 for document in order_of_documents(data, epoch, 80)][::10] for epoch in range(4)]
    assert all(sorted(order) == list(range(8)) for order in orders)
    assert len(set(map(tuple, [*orders, range(8)]))) == 5


def test_groups_of_an_epoch_have_different_orders() -> None:
    data = PairDataset([short_documents(0), short_documents(90)], 16, seed=0, shards_per_group=1)
    order = order_of_documents(data, 0, 60)
    assert [document % 30 for document in order[:30]] != [document % 30 for document in order[30:]]


def test_shards_are_mixed_within_a_group_and_not_beyond() -> None:
    data = PairDataset([short_documents(90 * number) for number in range(4)], 16, seed=0, shards_per_group=2)
    shards = [document // 30 for document in order_of_documents(data, 0, 120)]
    assert [len(set(shards[:60])), len(set(shards[60:]))] == [2, 2]
    assert len(set(shards[:30])) == 2


def test_another_seed_gives_another_order() -> None:
    assert taken(PairDataset([shard(0)], 16, seed=0), 0) != taken(PairDataset([shard(0)], 16, seed=1), 0)


def test_a_random_segment_does_not_come_from_a_copy_of_its_document() -> None:
    one, others = shard(0, documents=1), shard(10_000, documents=3)
    tokens = np.concatenate([one.tokens] * 5 + [others.tokens])
    sentences = np.arange(0, len(tokens) + 1, 3)
    joined = Shard(tokens, sentences, np.arange(0, len(sentences), 8), copies=[(1, 5), (3, 1)])
    assert joined.originals.tolist() == [0] * 5 + [1, 2, 3]
    data = PairDataset([joined], 24, seed=0, random_next_prob=1.0)
    for epoch in range(20):
        examples, _ = data.take(Position(epoch=epoch), len(data.plan(epoch)[0]))
        assert not any(example.a[0] < 10_000 and example.b[0] < 10_000 for example in examples)


def test_a_random_segment_comes_from_the_same_shard() -> None:
    data = PairDataset([shard(0), shard(10_000)], 16, seed=0, random_next_prob=1.0)
    examples, _ = data.take(Position(), len(data.plan(0)[0]))
    assert all((example.a[0] >= 10_000) == (example.b[0] >= 10_000) for example in examples)


@pytest.mark.parametrize("kind", ["nsp", "sop"])
def test_the_probabilities_reach_the_plan(kind: str) -> None:
    never = PairDataset([shard(0, 40)], 16, seed=0, random_next_prob=0.0, kind=kind).plan(0)[0]
    always = PairDataset([shard(0, 40)], 16, seed=0, random_next_prob=1.0, kind=kind).plan(0)[0]
    assert not never[:, -1].max() and always[:, -1].max()
    assert {label for plan in (never, always) for label in plan[:, -1].tolist()} == {0, 1, -100}
    full = PairDataset([shard(0, 40)], 16, seed=0, short_seq_prob=0.0, random_next_prob=0.0, kind=kind).plan(0)[0]
    short = PairDataset([shard(0, 40)], 16, seed=0, short_seq_prob=1.0, random_next_prob=0.0, kind=kind).plan(0)[0]
    assert len(short) > 1.2 * len(full)


def test_a_take_may_span_several_epochs() -> None:
    data = PairDataset([shard(0)], 16, seed=0)
    sizes = [len(data.plan_shard(epoch, 0)) for epoch in range(3)]
    examples, position = data.take(Position(phase=1), sum(sizes) - 1)
    assert position == Position(phase=1, epoch=2, offset=sizes[2] - 1)
    assert [sum(example.key[0] == epoch for example in examples) for epoch in range(3)] == [*sizes[:2], sizes[2] - 1]


BATCHES = {  # of a seed: a run resumes with the same ones. Last changed: nsp and none on 2026-11-30, sop of 32 on -29
    ("none", 32): "064aebf6958fe49d",
    ("none", 128): "594f411cb38beeea",
    ("nsp", 32): "9c1260b0a8193dcb",
    ("nsp", 128): "642ec76fb405fad9",
    ("sop", 32): "77cf24852a42f281",
    ("sop", 128): "12f17223f180bf76",
}


@pytest.mark.parametrize(("kind", "length"), BATCHES)
def test_a_seed_stands_for_the_same_batches_in_every_version(kind: str, length: int) -> None:
    special_ids = {token: number for number, token in enumerate(SPECIAL_TOKENS)}
    sep = special_ids["[SEP]"]
    data = PairDataset(varied_shards(3), length, 5, kind=kind, sep_token_id=sep, shards_per_group=2)
    collate = MaskingCollator(300, special_ids, np.arange(5, 300), length, seed=5)
    seen, position = hashlib.sha256(), Position()
    while position.epoch < 2:
        examples, position = data.take(position, 16)
        for _, values in sorted(collate(examples).items()):
            seen.update(values.numpy().tobytes())
    assert seen.hexdigest()[:16] == BATCHES[kind, length]


def varied_shards(count: int) -> list[Shard]:
    """Shards of 60 documents with 1 to 14 sentences of 1 to 40 random tokens."""
    generator, shards = random.Random(0), []
    for _ in range(count):
        lengths = [[1 + generator.randrange(40) for _ in range(1 + generator.randrange(14))] for _ in range(60)]
        sentences = np.cumsum([0, *(length for document in lengths for length in document)])
        tokens = np.array([5 + generator.randrange(295) for _ in range(sentences[-1])])
        shards.append(Shard(tokens, sentences, np.cumsum([0, *map(len, lengths)])))
    return shards


@pytest.mark.parametrize(("count", "sizes"), [(6, [3, 3]), (7, [3, 3, 1]), (2, [2]), (0, [])])
def test_batches_are_consecutive(count: int, sizes: list[int]) -> None:
    examples = [Example(np.array([number]), np.array([0]), 0, (0, number)) for number in range(count)]
    batches = list(in_batches(examples, 3))
    assert [len(batch) for batch in batches] == sizes
    assert [example for batch in batches for example in batch] == examples


def test_processes_share_a_batch_evenly_or_the_sum_is_said() -> None:
    assert micro_batch_size(12, "auto", 4, "the_key") == 3
    assert micro_batch_size(12, 3, 2, "the_key") == 3
    for size in (2, 10):
        with pytest.raises(UserError, match=rf"the_key is {size}: it must be a multiple of the number of .* \(4\)$"):
            micro_batch_size(size, "auto", 4, "the_key")
    with pytest.raises(UserError, match=r"multiple of micro_batch_size \(5\) times the number of processes \(2\)"):
        micro_batch_size(12, 5, 2, "the_key")
