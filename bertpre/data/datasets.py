"""Segment pairs as torch datasets: map-style and iterable, for a DataLoader or transformers' Trainer."""

import operator
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from bertpre.data.pairs import KINDS, SHORTEST_ROW
from bertpre.data.randomness import LARGEST_SEED
from bertpre.data.sampler import SHARDS_PER_GROUP, Example, PairDataset
from bertpre.data.store import SPLITS
from bertpre.data.token_store import TokenStore
from bertpre.errors import UserError, refuse_outside, refuse_unknown

Kind = Literal["nsp", "sop", "none"]


class SegmentPairs:
    """What both datasets share: the settings of the pairs, the epoch, and the plan, which each process makes itself."""

    plans_whole_epoch = False  # in one group of shards

    def __init__(
        self,
        store: TokenStore,
        max_length: int = 128,
        *,
        split: Literal["train", "validation"] = "train",
        kind: Kind = "nsp",
        short_seq_prob: float = 0.1,
        random_next_prob: float = 0.5,
        seed: int = 0,
    ) -> None:
        if not isinstance(store, TokenStore):
            raise UserError(f"store: is {store!r}; open it first: TokenStore(folder)")
        refuse_unknown("split", split, SPLITS)
        refuse_unknown("kind", kind, KINDS)
        refuse_outside("max_length", max_length, SHORTEST_ROW)
        refuse_outside("short_seq_prob", short_seq_prob, 0, 1)
        refuse_outside("random_next_prob", random_next_prob, 0, 1)
        refuse_outside("seed", seed, 0, LARGEST_SEED)
        self.store, self.split = store, split
        self.settings: dict[str, Any] = {
            "max_length": max_length,
            "kind": kind,
            "short_seq_prob": short_seq_prob,
            "random_next_prob": random_next_prob,
            "seed": seed,
            "sep_token_id": store.tokenizer.sep_token_id,
        }
        self.shared_epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # workers that persist see it change
        store.shards(split)  # damage shows here, not in a worker
        self.planner: PairDataset | None = None
        self.length: int | None = None  # of epoch 0, once it is planned

    @property
    def epoch(self) -> int:
        """The epoch that is read."""
        return int(self.shared_epoch)

    def set_epoch(self, epoch: int) -> None:
        """Read the pairs of another epoch: other cuts, other random segments and, in the collator, other masks."""
        refuse_outside("epoch", epoch, 0)
        self.shared_epoch.fill_(epoch)

    @property
    def pairs(self) -> PairDataset:
        """The pairs of the split, group by group."""
        if self.planner is None:
            shards = self.store.shards(self.split)
            group = len(shards) if self.plans_whole_epoch else SHARDS_PER_GROUP
            self.planner = PairDataset(shards, shards_per_group=group, **self.settings)
        return self.planner

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"planner": None}


class SegmentPairDataset(SegmentPairs, Dataset[Example]):
    """The segment pairs of a store with `len` and `[i]`, already shuffled.

    `max_length` counts the tokens of a pair with its special tokens. `kind` is `nsp` (segment B is the true next one,
    or with `random_next_prob` a random one), `sop` (with that probability the two are swapped) or `none` (no pairs:
    every row is full of consecutive text). A pair is a function of (seed, epoch, index): `set_epoch(n)` before each
    epoch gives new ones. The length is that of epoch 0; a later epoch is cut, or repeats a few pairs, to have as many.
    The plan of an epoch takes 56 bytes of memory for each pair; for billions of tokens use SegmentPairIterableDataset.
    """

    plans_whole_epoch = True

    def __len__(self) -> int:
        if self.length is None:
            self.length = len(self.pairs.plan(0)[1])
        return self.length

    def __getitem__(self, index: int) -> Example:
        """One pair; raises IndexError outside the dataset."""
        epoch, place = self.epoch, range(len(self))[operator.index(index)]
        planned, order = self.pairs.plan(epoch)
        return self.pairs.example(planned[order[place % len(order)]].tolist(), epoch)


class SegmentPairIterableDataset(SegmentPairs, IterableDataset[Example]):
    """One epoch of the segment pairs of a store, shuffled, read with little memory however large the store is.

    Settings as in SegmentPairDataset. The workers of a DataLoader share the pairs. With `world_size` processes, each
    reads the share of its `rank`, all shares of the same size; under accelerate or Trainer leave both out, since these
    divide the batches among the processes themselves. `set_epoch(n)` before each epoch gives new pairs.
    """

    def __init__(
        self,
        store: TokenStore,
        max_length: int = 128,
        *,
        split: Literal["train", "validation"] = "train",
        kind: Kind = "nsp",
        short_seq_prob: float = 0.1,
        random_next_prob: float = 0.5,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        probabilities = {"short_seq_prob": short_seq_prob, "random_next_prob": random_next_prob}
        super().__init__(store, max_length, split=split, kind=kind, seed=seed, **probabilities)
        refuse_outside("world_size", world_size, 1)
        refuse_outside("rank", rank, 0, world_size - 1)
        self.rank, self.world_size = rank, world_size

    def __iter__(self) -> Iterator[Example]:
        epoch, worker, start = self.epoch, get_worker_info(), 0
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        first, step = self.rank + self.world_size * number, self.world_size * workers
        waiting: list[tuple[int, Example]] = []  # at most one
        for group in range(self.pairs.groups):
            planned, order = self.pairs.plan(epoch, group)
            end = start + len(order)
            whole = end - end % self.world_size  # up to here there is a pair for each process
            while waiting and waiting[0][0] < whole:
                yield waiting.pop()[1]
            for place in range(start + (first - start) % step, end, step):
                example = self.pairs.example(planned[order[place - start]].tolist(), epoch)
                if place < whole:
                    yield example
                else:
                    waiting.append((place, example))
            start = end
