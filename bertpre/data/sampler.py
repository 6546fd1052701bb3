"""The order of the examples: a pure function of (seed, epoch, position), so a resumed run finds its place at once."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bertpre.data.pairs import plan_examples
from bertpre.data.store import Shard
from bertpre.errors import UserError

SHARDS_TOGETHER = 4  # are shuffled into each other: 15 M tokens of the usual shards, planned in about a second


@dataclass(frozen=True)
class Position:
    """A place in the endless stream of examples: `offset` of this group of this epoch are behind it."""

    phase: int = 0  # of a training with several sequence lengths
    epoch: int = 0
    group: int = 0  # of shards
    offset: int = 0


@dataclass(frozen=True)
class Example:
    """Token ids of two segments, the label (-100 where there is no second segment), and the key of its random mask."""

    a: np.ndarray
    b: np.ndarray
    is_random_next: int
    key: tuple[int, int]  # epoch, place in the epoch: the shard's number and the row of its plan


class PairDataset:
    """The segment pairs of some shards; every epoch cuts the documents anew.

    An epoch goes through the shards in random order, a group at a time; pairs are shuffled within the group, so that
    memory is bounded by the group and not by the corpus.
    """

    def __init__(
        self,
        shards: list[Shard],
        max_length: int,
        seed: int,
        short_seq_prob: float = 0.1,
        random_next_prob: float = 0.5,
        kind: str = "nsp",
        sep_token_id: int | None = None,
    ) -> None:
        self.shards, self.max_length, self.seed = shards, max_length, seed
        self.short_seq_prob, self.random_next_prob = short_seq_prob, random_next_prob
        self.kind, self.sep_token_id = kind, sep_token_id
        self.groups = -(-len(shards) // SHARDS_TOGETHER)
        self.planned: tuple[tuple[int, int], np.ndarray, np.ndarray] | None = None

    def plan(self, epoch: int, group: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """A group's examples, (P, 7), and their order, (P,). Columns: shard, row in its plan, those of `plan_pairs`."""
        planned = self.planned  # another thread may be ahead
        if planned is None or planned[0] != (epoch, group):
            shards = np.random.default_rng([self.seed, epoch]).permutation(len(self.shards))
            together = shards[group * SHARDS_TOGETHER :][:SHARDS_TOGETHER].tolist()
            examples = np.concatenate([self.plan_shard(epoch, number) for number in together])
            order = np.random.default_rng([self.seed, epoch, group]).permutation(len(examples))
            self.planned = planned = ((epoch, group), examples, order)
        return planned[1], planned[2]

    def plan_shard(self, epoch: int, number: int) -> np.ndarray:
        """One shard's examples, (P, 7)."""
        shard, generator = self.shards[number], random.Random(f"{self.seed}/{epoch}/{number}")
        probabilities = self.short_seq_prob, self.random_next_prob
        plan = plan_examples(self.kind, shard.sentences, shard.documents, self.max_length, generator, *probabilities)
        rows = np.arange(len(plan))
        return np.column_stack([np.full_like(rows, number), rows, plan])

    def take(self, position: Position, count: int) -> tuple[list[Example], Position]:
        """The next `count` examples of the stream and the position behind them; an epoch's end is no seam."""
        rows, after = self.take_rows(position, count)
        return [self.example(row, epoch) for epoch, row in rows], after

    def take_rows(self, position: Position, count: int) -> tuple[list[tuple[int, list[int]]], Position]:
        """The epochs and rows of the plan of the next `count` examples, and the position behind them."""
        rows: list[tuple[int, list[int]]] = []
        while len(rows) < count:
            planned, order = self.plan(position.epoch, position.group)
            indices = order[position.offset : position.offset + count - len(rows)]
            rows += [(position.epoch, row) for row in planned[indices].tolist()]
            position = replace(position, offset=position.offset + len(indices))
            if position.offset >= len(order):
                position = replace(position, group=position.group + 1, offset=0)
            if position.group == self.groups:
                position = replace(position, epoch=position.epoch + 1, group=0)
        return rows, position

    def documents(self, position: Position, count: int) -> list[str]:
        """What the next `count` examples are cut from: names of shards and numbers of documents in them, each once."""
        names: dict[str, None] = {}
        for _, (number, _, a_start, _, b_start, b_end, _) in self.take_rows(position, count)[0]:
            shard = self.shards[number]
            file = getattr(shard.tokens, "filename", None)
            name = Path(file).name.removesuffix(".tokens.npy") if file else f"shard {number}"
            for start in (a_start, b_start) if b_end > b_start else (a_start,):
                sentence = np.searchsorted(shard.sentences, start, side="right") - 1
                document = np.searchsorted(shard.documents, sentence, side="right") - 1
                names[f"{name} document {document}"] = None
        return list(names)

    def example(self, row: list[int], epoch: int) -> Example:
        """Look one example's tokens up."""
        number, place, a_start, a_end, b_start, b_end, label = row
        shard = self.shards[number]
        a = shard.tokens[a_start:a_end]
        if self.kind == "none" and len(places := self.documents_begin(shard, a_start, a_end)):
            a = np.insert(a, places, self.sep_token_id)
        return Example(a, shard.tokens[b_start:b_end], label, (epoch, number << 32 | place))

    @staticmethod
    def documents_begin(shard: Shard, start: int, end: int) -> np.ndarray:
        """Where documents begin within a span of tokens, counted from its start."""
        begins = np.searchsorted(shard.sentences, [start, end], side="left")
        inside = shard.documents[slice(*np.searchsorted(shard.documents, begins, side="left"))]
        places = shard.sentences[inside] - start
        return places[places > 0]


def in_batches(examples: list[Example], size: int) -> Iterator[list[Example]]:
    """Consecutive groups of `size`; the last may be smaller."""
    return (examples[start : start + size] for start in range(0, len(examples), size))


def micro_batch_size(batch_size: int, wanted: int | None, num_processes: int, key: str) -> int:
    """Examples in one forward pass; raises UserError where the batch, the recipe's `key`, cannot be cut evenly."""
    size = wanted or batch_size // num_processes
    if not size or batch_size % (size * num_processes):
        raise UserError(
            f"{key} is {batch_size}: it must be a multiple of micro_batch_size ({size}) times the number of processes "
            f"({num_processes})"
        )
    return size
