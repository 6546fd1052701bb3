"""Training batches: texts of similar length together, in an order given by seed and epoch."""

from collections.abc import Sequence

import numpy as np
from accelerate import Accelerator

from bertpre.data.sampler import Position
from bertpre.finetuning.encoding import EncodedExamples, collate, in_slices
from bertpre.recipe import Finetune
from bertpre.training.batches import StepBatch
from bertpre.training.metrics import Batch
from bertpre.training.micro_batches import LENGTH_MULTIPLE, micro_batch_size, sizes_to_try
from bertpre.training.unpadding import unpadded


class TrainingBatches:
    """The batches of fine-tuning: texts of similar length together, in an order given by seed and epoch.

    Each epoch begins with the pseudo-labelled examples, so that the true labels have the last word. `unpads` lets the
    model leave padding out.
    """

    def __init__(
        self,
        encoded: EncodedExamples,
        pad_token_id: int,
        settings: Finetune,
        accelerator: Accelerator,
        seed: int,
        unpads: bool = False,
    ) -> None:
        self.encoded, self.lengths, self.pad_token_id = encoded, encoded.lengths, pad_token_id
        self.batch_size, self.max_length = settings.batch_size, settings.max_length
        self.accelerator, self.seed, self.unpads = accelerator, seed, unpads
        self.planned: tuple[int, np.ndarray] | None = None
        parts = np.split(np.arange(len(self.lengths)), [encoded.num_pseudo_labelled])
        self.parts = [part for part in parts if len(part)]
        self.steps_per_epoch = sum(-(-len(part) // settings.batch_size) for part in self.parts)
        wanted = settings.micro_batch_size
        micro = micro_batch_size(settings.batch_size, wanted, accelerator.num_processes, "finetune.batch_size")
        self.micro_batch_size = micro
        self.choices: Sequence[int] = sizes_to_try(micro, accelerator) if wanted == "auto" else [micro]

    def __call__(self, position: Position, progress: float) -> StepBatch:
        """This process's micro-batches of the step at `position`, whose offset counts steps."""
        batch = self.epoch_batches(position.epoch)[position.offset]
        epochs, offset = divmod(position.offset + 1, self.steps_per_epoch)
        after = Position(epoch=position.epoch + epochs, offset=offset)
        mine = batch[self.accelerator.process_index :: self.accelerator.num_processes]
        return StepBatch([self.collate(mine[part]) for part in in_slices(len(mine), self.micro_batch_size)], after)

    @property
    def shapes(self) -> "list[TrainingBatches]":
        """One, as if all texts were as long as the longest."""
        return [self]

    def largest(self) -> list[Batch]:
        """One micro-batch, of the longest texts."""
        return [self.sample(self.micro_batch_size)]

    def sample(self, rows: int) -> Batch:
        """The longest texts as one micro-batch; a text comes again where there are fewer."""
        return self.collate(np.resize(np.argsort(-self.lengths)[:rows], rows))

    def epoch_batches(self, epoch: int) -> np.ndarray:
        """The indices of an epoch's texts, (steps, batch_size)."""
        if self.planned is None or self.planned[0] != epoch:
            generator = np.random.default_rng([self.seed, epoch])
            self.planned = (epoch, np.concatenate([self.part_batches(part, generator) for part in self.parts]))
        return self.planned[1]

    def part_batches(self, part: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Batches (steps, batch_size) of texts of similar length, in random order.

        The last batch is filled up with the first texts of another shuffle.
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
        batch = collate(self.encoded, indices, length, self.pad_token_id)
        return unpadded(batch) if self.unpads else batch
