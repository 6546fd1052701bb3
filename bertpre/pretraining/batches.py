"""The batches of pretraining: store -> pairs -> masked micro-batches of this process."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator, DistributedType

from bertpre.data.ahead import planned_ahead
from bertpre.data.audit import audit_frequencies
from bertpre.data.masking import MaskingCollator
from bertpre.data.pairs import IGNORE_INDEX
from bertpre.data.sampler import Example, PairDataset, Position, in_batches
from bertpre.data.store import SPLITS, Shard, open_shards, read_token_counts
from bertpre.data.tokenizer import tokenizer_fingerprint
from bertpre.errors import UserError
from bertpre.pretraining.model import build_config
from bertpre.recipe import Phase, Recipe
from bertpre.runtime import choose_dtype
from bertpre.training.agreement import every_process, on_every_process
from bertpre.training.batches import StepBatch, to_device
from bertpre.training.intervals import wilson_interval
from bertpre.training.metrics import Batch
from bertpre.training.micro_batches import LENGTH_MULTIPLE, micro_batch_size, rows_of_similar_length, sizes_to_try
from bertpre.training.unpadding import choose_unpadding, unpadded

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


# Rows filled to this share or more stay as they are: different lengths need a program for any length under
# torch.compile, which takes 1.7 times as long to compile.
WELL_FILLED, ROWS_TO_MEASURE = 0.9, 1024


@dataclass
class PhaseBatches:
    """The examples and batch sizes of one phase, which has its own sequence length: a `Shape` for the trainer."""

    max_length: int
    dataset: PairDataset
    collator: MaskingCollator
    global_batch_size: int
    micro_batch_size: int
    choices: Sequence[int]  # of micro-batch sizes
    end: float  # share of the training after which the next phase begins
    has_pairs: bool
    unpads: bool = False  # lets the model leave padding out
    sorts: bool = False  # gives a micro-batch rows of similar length, and no more padding than the longest needs
    is_causal: bool = False  # predicts each token from those before it
    alternates: bool = False  # is causal in every other step

    def at(self, position: Position) -> "PhaseBatches":
        """What it is in the step that begins at a position, so that a resumed run goes on in turn."""
        return replace(self, is_causal=position.step % 2 == 1) if self.alternates else self

    def micro_batches(self, examples: list[Example], masked_lm_prob: float | None = None) -> Iterator[Batch]:
        """Masked micro-batches, without what the model does better without.

        No attention mask where no row of the data set is padded: sdpa's flash kernel takes none. A full micro-batch
        among others keeps its mask: torch.compile would make another program for it. Without pairs no label of them:
        the model then leaves out what only the head for pairs reads.
        """
        left_out = [] if self.dataset.has_padding else ["attention_mask"]
        left_out += [] if self.has_pairs else ["next_sentence_label"]
        if self.sorts:
            examples = sorted(examples, key=lambda each: len(each.a) + len(each.b))
        for group in in_batches(examples, self.micro_batch_size):
            if self.is_causal:
                yield self.collator.next_tokens(group)
                continue
            batch = self.collator(group, masked_lm_prob)
            kept = {name: value for name, value in batch.items() if name not in left_out}
            yield unpadded(kept) if self.unpads else cut_padding(kept) if self.sorts else kept

    def first(self, rows: int) -> Batch:
        """The first examples as one micro-batch."""
        return next(replace(self, micro_batch_size=rows).micro_batches(self.dataset.take(Position(), rows)[0]))

    def sample(self, rows: int) -> Batch:
        """A micro-batch that takes as much memory as any: of the phase's length, and causal where one is."""
        is_causal = self.is_causal or self.alternates
        batch = dict(replace(self, unpads=False, is_causal=is_causal).first(rows))
        if not self.unpads or is_causal or "attention_mask" not in batch:
            return batch
        return unpadded(batch | {"attention_mask": torch.ones_like(batch["attention_mask"])})


class PretrainingData:
    """The batches of pretraining: a `BatchSource` for the trainer, and the validation batches."""

    def __init__(
        self, recipe: Recipe, tokenizer: "PreTrainedTokenizerBase", folder: Path, accelerator: Accelerator
    ) -> None:
        training, self.tokenizer, self.accelerator = recipe.training, tokenizer, accelerator
        open_split = partial(open_shards, folder, tokenizer_hash=tokenizer_fingerprint(tokenizer))
        group = every_process()
        share = (0, 1) if group is None else share_of_machine()
        shards, self.validation_shards = on_every_process(
            lambda: [open_split(split, share=share) for split in SPLITS], group
        )
        self.masked_lm_probs = (training.masked_lm_prob, training.masked_lm_prob_end or training.masked_lm_prob)
        ends = accumulate(phase.share for phase in training.phases)
        self.phases = [
            build_phase(recipe, tokenizer, phase, shards, accelerator, end)
            for phase, end in zip(training.phases, ends, strict=True)
        ]
        counts = read_token_counts(folder)
        self.tokens_per_epoch = int(counts.sum())
        self.frequencies = audit_frequencies(counts, tokenizer, training.mask_split)
        # Validation uses the first phase's length, where most of the training is, from the start to the end.
        held_out = pair_dataset(recipe, tokenizer, training.phases[0], self.validation_shards)
        self.held_out = held_out
        available = len(held_out.plan(0)[0])
        count = min(training.eval_pairs, available)
        if wants_shards(accelerator):  # all processes then have to evaluate the same number of batches
            count -= count % accelerator.num_processes
            if not count:
                raise UserError(
                    f"FSDP: {min(training.eval_pairs, available)} validation examples are too few for "
                    f"{accelerator.num_processes} processes; raise training.eval_pairs or pairs.validation_fraction"
                )
        self.validation, _ = held_out.take(Position(), count)

    def __call__(self, position: Position, progress: float) -> StepBatch:
        """This process's micro-batches of the step that begins at `position`."""
        number = max(position.phase, self.phase_at(progress))  # a budget's progress may fall a little in a resume
        if number != position.phase:
            position = Position(number, position.epoch + 1)
        phase = self.phases[number]
        epochs, rows, after = phase.dataset.take_rows(position, phase.global_batch_size)
        share = phase.global_batch_size // self.accelerator.num_processes
        mine = slice(share * self.accelerator.process_index, share * (self.accelerator.process_index + 1))
        examples = phase.dataset.look_up(epochs[mine], rows[mine])
        micro_batches = list(phase.at(position).micro_batches(examples, self.masked_lm_prob_at(progress)))
        after = replace(after, step=position.step + 1)
        return StepBatch(micro_batches, after, partial(phase.dataset.documents, rows))

    @contextmanager
    def planned_ahead(self) -> Iterator[None]:
        """Plan groups of examples ahead, in one process for each phase, to the end of the block."""
        with ExitStack() as stack:
            for phase in self.phases:
                stack.enter_context(planned_ahead(phase.dataset))
            yield

    def judge_pairs(self, accuracy: float) -> dict[str, Any]:
        """What an accuracy on the validation pairs is worth: their number, its 95 % interval, the majority class."""
        labels = [example.is_random_next for example in self.validation if example.is_random_next != IGNORE_INDEX]
        return {
            "nsp_pairs": len(labels),
            "nsp_interval": wilson_interval(accuracy, len(labels)),
            "nsp_majority_share": max(Counter(labels).values(), default=0) / max(len(labels), 1),
        }

    @property
    def shapes_differ(self) -> bool:
        """Whether micro-batches of one phase differ in shape, so that one compiled program has to serve them all."""
        return any(phase.sorts or phase.unpads for phase in self.phases)

    def largest(self) -> list[Batch]:
        """A micro-batch of each phase, or two of a mixed one, whose program is one that the training will use."""
        kinds = [[phase, replace(phase, is_causal=True)] if phase.alternates else [phase] for phase in self.phases]
        return [phase.first(phase.micro_batch_size) for phase in chain.from_iterable(kinds)]

    @property
    def shapes(self) -> list[PhaseBatches]:
        """Each phase has its own."""
        return self.phases

    def masked_lm_prob_at(self, progress: float) -> float:
        """The share of tokens that are masked, which changes linearly with progress (0 to 1)."""
        start, end = self.masked_lm_probs
        return start + (end - start) * progress

    def phase_at(self, progress: float) -> int:
        """The number of the phase at this progress (0 to 1)."""
        # Sums of shares are rounded: 0.1 + 0.2 is more than 3 / 10.
        return min(sum(phase.end <= progress + 1e-9 for phase in self.phases), len(self.phases) - 1)

    def validation_batches(self) -> Iterator[Batch]:
        """This process's share of the validation pairs on the device, with the same masks every time."""
        mine = self.validation[self.accelerator.process_index :: self.accelerator.num_processes]
        phase = replace(self.phases[0], dataset=self.held_out, unpads=False, is_causal=False)
        phase = replace(phase, sorts=phase.sorts and self.held_out.has_padding)
        for batch in phase.micro_batches(mine):
            yield to_device(batch, self.accelerator.device)


def share_of_machine() -> tuple[int, int]:
    """The number of this process among those of its machine, and how many they are, as torchrun says."""
    together = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return int(os.environ.get("LOCAL_RANK", "0")) % together, together


def build_phase(
    recipe: Recipe,
    tokenizer: "PreTrainedTokenizerBase",
    phase: Phase,
    shards: list[Shard],
    accelerator: Accelerator,
    end: float,
) -> PhaseBatches:
    """One phase of the recipe; raises UserError where its batch cannot be divided among the processes."""
    training = recipe.training
    place = f"training.phases.{training.phases.index(phase)}"
    key = f"{place}.global_batch_size" if phase.global_batch_size else "training.global_batch_size"
    size = training.batch_size(phase)
    micro = micro_batch_size(size, phase.micro_batch_size, accelerator.num_processes, key)
    dataset = pair_dataset(recipe, tokenizer, phase, shards)
    collator = build_collator(recipe, tokenizer, phase)
    device = accelerator.device
    sorts = device.type == "cpu" and dataset.has_padding and filled_share(dataset) < WELL_FILLED
    choices = [micro]
    if phase.micro_batch_size == "auto":
        choices = [rows_of_similar_length(micro, phase.max_length)] if sorts else sizes_to_try(micro, accelerator)
    dtype = choose_dtype(training.precision, device)
    unpads = dataset.has_padding and choose_unpadding(build_config(recipe, tokenizer), dtype, device)
    return PhaseBatches(
        phase.max_length, dataset, collator, size, choices[0], choices, end, has_pairs(recipe), unpads, sorts,
        is_causal=phase.objective == "causal", alternates=phase.objective == "mixed",
    )  # fmt: skip


def filled_share(dataset: PairDataset) -> float:
    """The share of the first rows' slots that hold tokens."""
    examples, _ = dataset.take(Position(), ROWS_TO_MEASURE)
    special_tokens = sum(2 + bool(len(example.b)) for example in examples)
    tokens = sum(len(example.a) + len(example.b) for example in examples) + special_tokens
    return tokens / (len(examples) * dataset.max_length)


def cut_padding(batch: Batch) -> Batch:
    """A batch, on the CPU, with rows as long as the longest, and as many slots for targets as one row needs."""
    longest = int(batch["attention_mask"].sum(dim=1).max())
    length = min(-(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE, batch["input_ids"].shape[1])
    slots = max(1, int((batch["labels"] != IGNORE_INDEX).sum(dim=1).max()))  # the used ones come first
    ends = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), length)
    ends |= dict.fromkeys(("masked_positions", "labels"), slots)
    return {name: value[:, : ends[name]].contiguous() if name in ends else value for name, value in batch.items()}


def build_collator(recipe: Recipe, tokenizer: "PreTrainedTokenizerBase", phase: Phase) -> MaskingCollator:
    """What masks the pairs of a phase."""
    training = recipe.training
    return MaskingCollator.from_tokenizer(
        tokenizer,
        phase.max_length,
        masked_lm_prob=training.masked_lm_prob,
        seed=recipe.seed,
        masking=training.masking,
        mask_split=training.mask_split,
    )


def pair_dataset(
    recipe: Recipe, tokenizer: "PreTrainedTokenizerBase", phase: Phase, shards: list[Shard]
) -> PairDataset:
    """The pairs of some shards at one phase's length."""
    pairs = recipe.pairs
    probabilities = pairs.short_seq_prob, pairs.random_next_prob
    return PairDataset(shards, phase.max_length, recipe.seed, *probabilities, pairs.kind, tokenizer.sep_token_id)


def has_pairs(recipe: Recipe) -> bool:
    """Whether the examples are pairs with a label."""
    return recipe.pairs.kind != "none"


def wants_shards(accelerator: Accelerator) -> bool:
    """Whether the launcher asked for FSDP (bertpre uses its second version, `fully_shard`)."""
    return accelerator.distributed_type == DistributedType.FSDP
