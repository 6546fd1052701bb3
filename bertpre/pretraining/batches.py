"""The batches of pretraining: store -> pairs -> masked micro-batches of this process."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from accelerate import Accelerator, DistributedType

from bertpre.data.masking import MaskingCollator
from bertpre.data.sampler import Example, PairDataset, Position, in_batches, micro_batch_size
from bertpre.data.store import Shard, open_shards
from bertpre.data.tokenizer import tokenizer_fingerprint
from bertpre.recipe import Phase, Recipe
from bertpre.training.metrics import Batch
from bertpre.training.trainer import StepBatch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def wants_shards(accelerator: Accelerator) -> bool:
    """Whether the launcher was asked for FSDP, whose second version is the one there is here."""
    return accelerator.distributed_type == DistributedType.FSDP


class PretrainingData:
    """The batches of pretraining: a `Source` for the trainer, and the validation batches."""

    def __init__(
        self, recipe: Recipe, tokenizer: "PreTrainedTokenizerBase", folder: Path, accelerator: Accelerator
    ) -> None:
        training, self.accelerator = recipe.training, accelerator
        vocabulary_hash = tokenizer_fingerprint(tokenizer)
        self.validation_shards = open_shards(folder, "validation", vocabulary_hash)
        shards = open_shards(folder, "train", vocabulary_hash)
        self.phases = training.phases
        self.global_batch_sizes = [phase.global_batch_size or training.global_batch_size for phase in self.phases]
        self.sep_token_id = tokenizer.sep_token_id
        self.masked_lm_probs = (training.masked_lm_prob, training.masked_lm_prob_end or training.masked_lm_prob)
        self.micro_batch_sizes = [
            micro_batch_size(
                size,
                phase.micro_batch_size,
                accelerator.num_processes,
                "training.phases.N.global_batch_size" if phase.global_batch_size else "training.global_batch_size",
            )
            for size, phase in zip(self.global_batch_sizes, self.phases, strict=True)
        ]
        self.datasets = [self.dataset(recipe, shards, phase) for phase in self.phases]
        self.collators = [self.collator(recipe, tokenizer, phase) for phase in self.phases]
        # Validation is on the first phase's length, where most of the training is, from the start to the end.
        held_out = self.dataset(recipe, self.validation_shards, self.phases[0])
        available = len(held_out.plan(0)[0])
        count = min(training.eval_pairs, available)
        if wants_shards(accelerator):  # then all processes have to evaluate as often
            count -= count % accelerator.num_processes
        self.validation, _ = held_out.take(Position(), count)

    def dataset(self, recipe: Recipe, shards: list[Shard], phase: Phase) -> PairDataset:
        """The pairs of some shards at one phase's length."""
        pairs = recipe.pairs
        probabilities = pairs.short_seq_prob, pairs.random_next_prob
        return PairDataset(shards, phase.max_length, recipe.seed, *probabilities, pairs.kind, self.sep_token_id)

    def collator(self, recipe: Recipe, tokenizer: "PreTrainedTokenizerBase", phase: Phase) -> MaskingCollator:
        """The masking at one phase's length."""
        training = recipe.training
        return MaskingCollator.from_tokenizer(
            tokenizer,
            phase.max_length,
            masked_lm_prob=training.masked_lm_prob,
            seed=recipe.seed,
            masking=training.masking,
            mask_split=training.mask_split,
        )

    def __call__(self, position: Position, progress: float) -> StepBatch:
        """This process's micro-batches of the step that begins at `position`."""
        phase = self.phase_at(progress)
        if phase != position.phase:
            position = Position(phase, position.epoch + 1)
        dataset, size = self.datasets[phase], self.global_batch_sizes[phase]
        examples, after = dataset.take(position, size)
        share = size // self.accelerator.num_processes
        mine = examples[share * self.accelerator.process_index :][:share]
        batches = list(self.batches(mine, phase, self.masked_lm_prob_at(progress)))
        return StepBatch(batches, after, partial(dataset.documents, position, size))

    def largest(self) -> list[Batch]:
        """A micro-batch of each phase; all of a phase have one shape."""
        first = [
            data.take(Position(), size)[0] for data, size in zip(self.datasets, self.micro_batch_sizes, strict=True)
        ]
        return [batch for phase, examples in enumerate(first) for batch in self.batches(examples, phase)]

    def masked_lm_prob_at(self, progress: float) -> float:
        """The share of tokens that are masked at a share of the training."""
        start, end = self.masked_lm_probs
        return start + (end - start) * progress

    def phase_at(self, progress: float) -> int:
        """The phase at a share of the training."""
        ends = np.cumsum([phase.share for phase in self.phases])
        return min(int(np.searchsorted(ends, progress, side="right")), len(self.phases) - 1)

    def batches(self, examples: list[Example], phase: int, masked_lm_prob: float | None = None) -> Iterator[Batch]:
        """Collated micro-batches."""
        return (
            self.collators[phase](group, masked_lm_prob)
            for group in in_batches(examples, self.micro_batch_sizes[phase])
        )

    def validation_batches(self) -> Iterator[Batch]:
        """This process's share of the validation pairs on the device, masked as in the first epoch, always the same."""
        mine = self.validation[self.accelerator.process_index :: self.accelerator.num_processes]
        for batch in self.batches(mine, phase=0):
            yield {name: tensor.to(self.accelerator.device) for name, tensor in batch.items()}
