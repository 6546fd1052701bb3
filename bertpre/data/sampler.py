"""The order of the examples: a pure function of (seed, epoch, position), so a resumed run finds its place at once."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from bertpre.data.pairs import plan_pairs
from bertpre.data.store import Shard


@dataclass(frozen=True)
class Position:
    """A place in the endless stream of examples: `offset` of this epoch's are behind it."""

    phase: int = 0  # of a training with several sequence lengths
    epoch: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Example:
    """Token ids of two segments, the label, and the key of its random mask."""

    a: np.ndarray
    b: np.ndarray
    is_random_next: int
    key: tuple[int, int]  # epoch, index in the epoch's plan


class PairDataset:
    """The segment pairs of some shards; every epoch cuts the documents anew."""

    def __init__(
        self,
        shards: list[Shard],
        max_length: int,
        seed: int,
        short_seq_prob: float = 0.1,
        random_next_prob: float = 0.5,
    ) -> None:
        self.shards, self.max_length, self.seed = shards, max_length, seed
        self.short_seq_prob, self.random_next_prob = short_seq_prob, random_next_prob
        self.planned: tuple[int, np.ndarray, np.ndarray] | None = None

    def plan(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The epoch's pairs, (P, 6): a shard's number, then the columns of `plan_pairs`; and their order, (P,)."""
        if self.planned is None or self.planned[0] != epoch:
            rows = []
            for number, shard in enumerate(self.shards):
                generator = random.Random(f"{self.seed}/{epoch}/{number}")
                pairs = plan_pairs(
                    shard.sentences,
                    shard.documents,
                    self.max_length,
                    generator,
                    self.short_seq_prob,
                    self.random_next_prob,
                )
                rows.append(np.insert(pairs, 0, number, axis=1))
            pairs = np.concatenate(rows)
            order = np.random.default_rng([self.seed, epoch]).permutation(len(pairs))
            self.planned = (epoch, pairs, order)
        return self.planned[1], self.planned[2]

    def take(self, position: Position, count: int) -> tuple[list[Example], Position]:
        """The next `count` examples of the stream and the position behind them; an epoch's end is no seam."""
        examples: list[Example] = []
        while len(examples) < count:
            pairs, order = self.plan(position.epoch)
            indices = order[position.offset : position.offset + count - len(examples)]
            examples += [self.example(pairs[index], position.epoch, int(index)) for index in indices]
            position = replace(position, offset=position.offset + len(indices))
            if position.offset >= len(order):
                position = replace(position, epoch=position.epoch + 1, offset=0)
        return examples, position

    def example(self, pair: np.ndarray, epoch: int, index: int) -> Example:
        """Look one pair's tokens up."""
        shard, a_start, a_end, b_start, b_end, is_random_next = pair.tolist()
        tokens = self.shards[shard].tokens
        return Example(tokens[a_start:a_end], tokens[b_start:b_end], is_random_next, (epoch, index))


def in_batches(examples: list[Example], size: int) -> Iterator[list[Example]]:
    """Consecutive groups of `size`; the last may be smaller."""
    return (examples[start : start + size] for start in range(0, len(examples), size))
