"""The batches of fine-tuning: texts of similar length together, in an order given by seed and epoch."""

from typing import TYPE_CHECKING

import numpy as np
from accelerate import Accelerator

from bertpre.data.sampler import Position, micro_batch_size
from bertpre.finetuning.encoding import Encoded, collate, in_slices
from bertpre.recipe import Finetune
from bertpre.training.batches import StepBatch
from bertpre.training.metrics import Batch

if TYPE_CHECKING:
    pass


LENGTH_MULTIPLE = 8  # as matrix products in bf16 like it


class TrainingBatches:
    """The batches of fine-tuning: texts of like length together, in an order that seed and epoch give.

    In each epoch those that a teacher labelled come first: the true labels have the last word.
    """

    def __init__(
        self, encoded: Encoded, pad_token_id: int, settings: Finetune, accelerator: Accelerator, seed: int
    ) -> None:
        self.encoded, self.lengths, self.pad_token_id = encoded, encoded.lengths, pad_token_id
        self.batch_size, self.max_length = settings.batch_size, settings.max_length
        self.accelerator, self.seed = accelerator, seed
        self.planned: tuple[int, np.ndarray] | None = None
        everything = np.arange(len(self.lengths))
        self.parts = [part for part in (everything[: encoded.taught], everything[encoded.taught :]) if len(part)]
        self.steps_per_epoch = sum(-(-len(part) // settings.batch_size) for part in self.parts)
        self.micro_batch_size = micro_batch_size(
            settings.batch_size, settings.micro_batch_size, accelerator.num_processes, "finetune.batch_size"
        )

    def __call__(self, position: Position, progress: float) -> StepBatch:
        """This process's texts of the step at `position`, whose offset counts steps here."""
        batch = self.epoch_batches(position.epoch)[position.offset]
        is_last = position.offset + 1 == self.steps_per_epoch
        after = (
            Position(epoch=position.epoch + 1)
            if is_last
            else Position(epoch=position.epoch, offset=position.offset + 1)
        )
        mine = batch[self.accelerator.process_index :: self.accelerator.num_processes]
        return StepBatch([self.collate(mine[part]) for part in in_slices(len(mine), self.micro_batch_size)], after)

    def largest(self) -> list[Batch]:
        """A micro-batch of the longest texts."""
        longest = np.argsort(-self.lengths)[: self.micro_batch_size]
        return [self.collate(longest)]

    def epoch_batches(self, epoch: int) -> np.ndarray:
        """An epoch's batches, (steps, batch_size), indices of texts."""
        if self.planned is None or self.planned[0] != epoch:
            generator = np.random.default_rng([self.seed, epoch])
            self.planned = (epoch, np.concatenate([self.part_batches(part, generator) for part in self.parts]))
        return self.planned[1]

    def part_batches(self, part: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Batches (steps, batch_size) of texts of like length, in random order.

        The last batch is filled up from the beginning of another shuffle.
        """
        size = self.batch_size
        needed = -(-len(part) // size) * size
        order = np.concatenate([generator.permutation(part) for _ in range(-(-needed // len(part)))])[:needed]
        groups = [
            group[np.argsort(self.lengths[group], kind="stable")]
            for group in np.split(order, range(0, needed, 32 * size))
        ]
        return generator.permutation(np.concatenate(groups).reshape(-1, size))

    def collate(self, indices: np.ndarray) -> Batch:
        """The texts at `indices` as a batch."""
        longest = int(self.lengths[indices].max())
        length = min(self.max_length, -(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE)
        return collate(self.encoded, indices, length, self.pad_token_id)
