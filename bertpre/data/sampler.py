"""The order of the examples: a pure function of (seed, epoch, position), so a resumed run continues immediately."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertpre.data.pairs import IGNORE_INDEX, ends_with_mark, plan_examples
from bertpre.data.store import Shard

SHARDS_PER_GROUP = 4  # 15 M tokens of the usual shards
Plan = tuple[np.ndarray, np.ndarray]  # a group's examples, (P, 7), and their order, (P,)


@dataclass(frozen=True)
class Position:
    """A position in the endless stream of examples: after the first `offset` ones of this group of this epoch."""

    phase: int = 0  # index into the training phases, each with its own sequence length
    epoch: int = 0
    group: int = 0  # of shards
    offset: int = 0
    step: int = 0  # of this phase of a pretraining


@dataclass(frozen=True, eq=False)  # arrays have no single answer to ==
class Example:
    """Token ids of two segments (the second may be empty), the label (-100: none), and the key of the random mask.

    `is_next`: whether segment B follows A, which of the pairs of `nsp` without a label some do.
    """

    a: np.ndarray
    b: np.ndarray
    is_random_next: int
    key: tuple[int, int]  # epoch; index in the epoch: the shard's number and the row of its plan
    is_next: bool = False


class PairDataset:
    """The segment pairs of some shards; every epoch cuts the documents differently.

    An epoch reads the shards in random order, `shards_per_group` at a time, and shuffles the pairs of each group. So
    the group, not the corpus, bounds the memory. `kind` and the probabilities are those of `plan_examples`;
    `has_padding` says whether rows may be shorter than `max_length`.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        max_length: int,
        seed: int,
        short_seq_prob: float = 0.1,
        random_next_prob: float = 0.5,
        kind: str = "nsp",
        sep_token_id: int | None = None,
        shards_per_group: int = SHARDS_PER_GROUP,
    ) -> None:
        self.shards, self.max_length, self.seed = shards, max_length, seed
        self.short_seq_prob, self.random_next_prob = short_seq_prob, random_next_prob
        self.kind, self.sep_token_id = kind, sep_token_id
        self.shards_per_group, self.groups = shards_per_group, -(-len(shards) // shards_per_group)
        # A packed row is shorter than max_length only where a shard has less text than that.
        self.has_padding = kind != "none" or any(len(shard.tokens) < max_length - 2 for shard in shards)
        self.make_plan: Callable[[int, int], Plan] = self.plan_group  # replaced while another process plans ahead
        self.planned: tuple[tuple[int, int], Plan] | None = None

    def settings(self) -> dict[str, Any]:
        """The arguments of the constructor except for the shards."""
        names = ("max_length", "seed", "short_seq_prob", "random_next_prob", "kind", "sep_token_id", "shards_per_group")
        return {name: getattr(self, name) for name in names}

    def plan(self, epoch: int, group: int = 0) -> Plan:
        """A group's examples, (P, 7), and their order, (P,). Columns: shard, row in its plan, those of `plan_pairs`."""
        planned = self.planned  # another thread may be ahead
        if planned is None or planned[0] != (epoch, group):
            self.planned = planned = ((epoch, group), self.make_plan(epoch, group))
        return planned[1]

    def plan_group(self, epoch: int, group: int) -> Plan:
        """`plan`, computed here and now."""
        shards = np.random.default_rng([self.seed, epoch]).permutation(len(self.shards))
        together = shards[group * self.shards_per_group :][: self.shards_per_group].tolist()
        examples = np.concatenate([self.plan_shard(epoch, number) for number in together])
        return examples, np.random.default_rng([self.seed, epoch, group]).permutation(len(examples))

    def plan_shard(self, epoch: int, number: int) -> np.ndarray:
        """One shard's examples, (P, 7)."""
        shard, generator = self.shards[number], random.Random(f"{self.seed}/{epoch}/{number}")
        probabilities = self.short_seq_prob, self.random_next_prob
        has_end_mark = None if self.kind == "none" else ends_with_mark(shard.tokens, shard.sentences)
        given = self.kind, shard.sentences, shard.documents, self.max_length, generator
        plan = plan_examples(*given, *probabilities, has_end_mark, shard.originals if shard.copies else None)
        rows = np.arange(len(plan))
        return np.column_stack([np.full_like(rows, number), rows, plan])

    def take(self, position: Position, count: int) -> tuple[list[Example], Position]:
        """The next `count` examples of the stream and the position after them; they may span several epochs."""
        epochs, rows, after = self.take_rows(position, count)
        return self.look_up(epochs, rows), after

    def take_rows(self, position: Position, count: int) -> tuple[np.ndarray, np.ndarray, Position]:
        """The epochs, (N,), and plan rows, (N, 7), of the next `count` examples, and the position after them."""
        epochs, rows, missing = [np.zeros(0, dtype=np.int64)], [np.zeros((0, 7), dtype=np.int64)], count
        while missing:
            planned, order = self.plan(position.epoch, position.group)
            indices = order[position.offset : position.offset + missing]
            epochs.append(np.full(len(indices), position.epoch))
            rows.append(planned[indices])
            missing -= len(indices)
            position = replace(position, offset=position.offset + len(indices))
            if position.offset >= len(order):
                position = self.group_after(position)
        return np.concatenate(epochs), np.concatenate(rows), position

    def group_after(self, position: Position) -> Position:
        """The begin of the next group, which may be of the next epoch."""
        if position.group + 1 < self.groups:
            return replace(position, group=position.group + 1, offset=0)
        return replace(position, epoch=position.epoch + 1, group=0, offset=0)

    def look_up(self, epochs: np.ndarray, rows: np.ndarray) -> list[Example]:
        """The examples of some plan rows, (N, 7), of these epochs, (N,)."""
        return [self.example(row, epoch) for row, epoch in zip(rows.tolist(), epochs.tolist(), strict=True)]

    def documents(self, rows: np.ndarray) -> list[str]:
        """The documents that plan rows, (N, 7), are cut from, by shard and number, without repetitions."""
        names: dict[str, None] = {}
        for number, _, a_start, _, b_start, b_end, _ in rows.tolist():
            shard = self.shards[number]
            file = getattr(shard.tokens, "filename", None)
            name = Path(file).name.removesuffix(".tokens.npy") if file else f"shard {number}"
            for start in (a_start, b_start) if b_end > b_start else (a_start,):
                sentence = np.searchsorted(shard.sentences, start, side="right") - 1
                document = np.searchsorted(shard.documents, sentence, side="right") - 1
                names[f"{name} document {document}"] = None
        return list(names)

    def example(self, row: list[int], epoch: int) -> Example:
        """Look up one example's tokens."""
        number, place, a_start, a_end, b_start, b_end, label = row
        shard = self.shards[number]
        a = shard.tokens[a_start:a_end]
        if self.kind == "none" and len(places := self.documents_begin(shard, a_start, a_end)):
            assert self.sep_token_id is not None, "packed examples need the id of [SEP]"
            a = np.insert(a, places[: self.max_length - 2 - len(a)], self.sep_token_id)
        is_unlabelled = self.kind == "nsp" and label == IGNORE_INDEX
        is_next = self.are_of_one_document(shard, a_start, b_start) if is_unlabelled else label == 0
        return Example(a, shard.tokens[b_start:b_end], label, (epoch, number << 32 | place), is_next)

    @staticmethod
    def are_of_one_document(shard: Shard, a_start: int, b_start: int) -> bool:
        """Whether two tokens are."""
        sentences = np.searchsorted(shard.sentences, [a_start, b_start], side="right") - 1
        first, second = np.searchsorted(shard.documents, sentences, side="right")
        return bool(first == second)

    @staticmethod
    def documents_begin(shard: Shard, start: int, end: int) -> np.ndarray:
        """Offsets of documents that begin within a span of tokens or right after it, counted from its start."""
        begins = np.searchsorted(shard.sentences, [start, end + 1], side="left")
        inside = shard.documents[:-1][slice(*np.searchsorted(shard.documents[:-1], begins, side="left"))]
        places = shard.sentences[inside] - start
        return places[places > 0]


def in_batches(examples: list[Example], size: int) -> Iterator[list[Example]]:
    """Consecutive groups of `size`; the last may be smaller."""
    return (examples[start : start + size] for start in range(0, len(examples), size))
