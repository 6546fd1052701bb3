"""`bertpre pretrain`: store -> model, with exact resume."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate import Accelerator, DistributedType
from torch import nn

from bertpre.data.masking import MaskingCollator
from bertpre.data.sampler import Example, PairDataset, Position, in_batches, micro_batch_size
from bertpre.data.store import Shard, open_shards, read_manifest
from bertpre.data.tokenizer import fingerprint, load_tokenizer
from bertpre.errors import UserError
from bertpre.model.configuration_bertpre import BertPreConfig
from bertpre.model.conversion import load_for_pretraining
from bertpre.model.flops import flops_per_token
from bertpre.model.modeling_bertpre import BertPreForPreTraining
from bertpre.recipe import Phase, Recipe, seconds
from bertpre.run_directory import claim, model_of, one_at_a_time, write_manifest, write_results
from bertpre.runtime import choose_compile, choose_deterministic, choose_dtype, manifest, peak_flops, start_accelerator
from bertpre.training.guards import PlateauWatch, SpikeWatch
from bertpre.training.metrics import Batch, PretrainingObjective
from bertpre.training.optimizer import build_optimizers
from bertpre.training.schedule import Duration, lr_at
from bertpre.training.sharding import is_sharded, shard_model, whole
from bertpre.training.trackers import MetricsLog, start_trackers
from bertpre.training.trainer import StepBatch, Trainer, evaluate_batches

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@one_at_a_time
def pretrain(recipe: Recipe) -> dict[str, Any]:
    """Pretrain the recipe's model on the prepared data; returns the figures for `results.json`."""
    accelerator = start_accelerator()
    if accelerator.is_main_process:
        claim(recipe)
    accelerator.wait_for_everyone()
    folder = Path(recipe.output_dir)
    facts = read_manifest(folder / "data")
    tokenizer = load_tokenizer(folder / "tokenizer")
    data = PretrainingData(recipe, tokenizer, folder / "data", accelerator)
    dtype = choose_dtype(recipe.training.precision, accelerator.device)
    torch.manual_seed(recipe.seed)
    model = initial_model(recipe, tokenizer)
    trainer = build_trainer(recipe, accelerator, model, data, dtype, folder)
    if accelerator.is_main_process:
        write_manifest(folder, "pretrain", manifest(accelerator.device, dtype, accelerator.num_processes))
    validation = trainer.train()
    trainer.log.close()
    figures = {
        "steps": trainer.step,
        "tokens": trainer.tokens,
        "seconds": trainer.elapsed,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "validation": {name: validation[name] for name in trainer.objective.figures if name != "loss"},
        "unigram_entropy": facts["unigram_entropy"],
        "fillings": validation["fillings"],
    }
    weights = {name: whole(value) for name, value in model.state_dict().items()}
    if accelerator.is_main_process:
        model.save_pretrained(folder / "model", state_dict=weights)
        tokenizer.save_pretrained(folder / "model")
        write_results(folder, "pretrain", figures)
        print(
            f"pretrain: {figures['steps']:,} steps, {figures['tokens']:,} tokens in {figures['seconds']:.0f} s; "
            f"validation MLM loss {validation['mlm_loss']:.3f} (unigram entropy {facts['unigram_entropy']:.3f})"
            + (f", {recipe.pairs.kind.upper()} accuracy {validation['nsp_accuracy']:.3f}" if has_pairs(recipe) else "")
        )
    accelerator.wait_for_everyone()
    return figures


def wants_shards(accelerator: Accelerator) -> bool:
    """Whether the launcher was asked for FSDP, whose second version is the one there is here."""
    return accelerator.distributed_type == DistributedType.FSDP


def has_pairs(recipe: Recipe) -> bool:
    """Whether the examples are pairs with a label."""
    return recipe.pairs.kind != "none"


def build_config(recipe: Recipe, tokenizer: "PreTrainedTokenizerBase") -> BertPreConfig:
    """The model's configuration: the recipe's sizes, the tokenizer's vocabulary and special tokens."""
    return BertPreConfig(
        **recipe.model.model_dump(),
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        mask_token_id=tokenizer.mask_token_id,
    )


def initial_model(recipe: Recipe, tokenizer: "PreTrainedTokenizerBase") -> BertPreForPreTraining:
    """A model with random weights, or with those of `training.init`, where that has them, and the recipe's dropout.

    Raises UserError where there is no such model, or its sizes or vocabulary are not the recipe's.
    """
    config, source = build_config(recipe, tokenizer), recipe.training.init
    if source is None:
        return BertPreForPreTraining(config)
    try:
        known = load_for_pretraining(model_of(source))
    except (OSError, ValueError) as error:
        raise UserError(f"training.init: {source!r} cannot be taken: {str(error).strip().splitlines()[0]}") from None
    if known.config.vocab_size != len(tokenizer):
        raise UserError(
            f"training.init: {source} has {known.config.vocab_size:,} tokens, this run's tokenizer {len(tokenizer):,}: "
            f"prepare with tokenizer.path={source}"
        )
    keys = [key for key in type(recipe.model).model_fields if not key.endswith("dropout_prob")]
    if wrong := [key for key in keys if getattr(known.config, key) != getattr(config, key)]:
        wanted = " ".join(f"model.{key}={getattr(known.config, key)}" for key in wrong)
        raise UserError(f"training.init: {source} has other sizes: set {wanted}")
    for key in ("layer_norm_eps", "rope_theta", "hidden_act", "initializer_range", "type_vocab_size"):
        setattr(config, key, getattr(known.config, key))  # a recipe has no key for these
    model = BertPreForPreTraining(config)
    model.load_state_dict(known.state_dict(), strict=False)  # what ModernBERT has not stays random
    return model


class PretrainingData:
    """The batches of pretraining: a `Source` for the trainer, and the validation batches."""

    def __init__(
        self, recipe: Recipe, tokenizer: "PreTrainedTokenizerBase", folder: Path, accelerator: Accelerator
    ) -> None:
        training, self.accelerator = recipe.training, accelerator
        vocabulary_hash = fingerprint(tokenizer)
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
        return MaskingCollator.of(
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


def build_trainer(
    recipe: Recipe,
    accelerator: Accelerator,
    model: nn.Module,
    data: PretrainingData,
    dtype: torch.dtype,
    folder: Path,
    is_rehearsal: bool = False,
) -> Trainer:
    """Unpack the recipe into the trainer's parts; a rehearsal has no evaluation, and leaves nothing in the folder."""
    training, objective, device = recipe.training, PretrainingObjective(has_pairs(recipe)), accelerator.device
    model.to(device)
    if wants_shards(accelerator):
        shard_model(model, dtype)
    if device.type == "cpu":
        model.set_attn_implementation("eager")  # faster than sdpa once compiled: benchmarks/training_step.py
    length, tokenizer = training.phases[0].max_length, load_tokenizer(folder / "tokenizer")
    entropy = read_manifest(folder / "data")["unigram_entropy"]
    writes = accelerator.is_main_process and not is_rehearsal
    trackers = start_trackers(folder, "pretrain", training, recipe.model_dump()) if writes else []

    def evaluate(step: int) -> dict[str, Any]:
        figures = evaluate_batches(accelerator, model, objective, data.validation_batches(), dtype)
        return figures | {"fillings": fill_masks(model, tokenizer, data.validation_shards[0])}

    return Trainer(
        accelerator=accelerator,
        model=model,
        optimizers=build_optimizers(
            model,
            training.optimizer,
            training.learning_rate,
            training.weight_decay,
            training.muon_learning_rate,
            training.adam_beta2,
            training.muon_weight_decay,
        ),
        source=data,
        objective=objective,
        duration=Duration(
            training.max_steps, seconds(training.budget) if training.budget else None, training.max_tokens
        ),
        lr_at=partial(lr_at, schedule=training.schedule, warmup=training.warmup, decay=training.decay),
        log=MetricsLog(folder / "metrics.jsonl", "pretrain", writes, trackers),
        dtype=dtype,
        compile=choose_compile(training.compile, device) and not is_sharded(model),
        deterministic=choose_deterministic(training.deterministic, device),
        max_grad_norm=training.max_grad_norm,
        seed=recipe.seed,
        log_every=training.log_every,
        eval_every=training.eval_every,
        evaluate=None if is_rehearsal else evaluate,
        checkpoint_dir=None if is_rehearsal else folder / "checkpoints",
        checkpoint_every=recipe.checkpoint.every,
        checkpoint_keep=recipe.checkpoint.keep,
        checkpoint_keep_every=seconds(recipe.checkpoint.keep_every) if recipe.checkpoint.keep_every else None,
        watches=[SpikeWatch(), PlateauWatch(entropy, training.mask_split, recipe.model.architecture)],
        flops_per_token=flops_per_token(model.config, length, training.masked_lm_prob),
        peak_flops=peak_flops(device, dtype),
        price_per_hour=training.price_per_hour,
    )


def fill_masks(
    model: nn.Module, tokenizer: "PreTrainedTokenizerBase", shard: Shard, count: int = 3
) -> list[dict[str, Any]]:
    """Hide one word in each of a few validation sentences and let the model guess: sentence, answer, three guesses."""
    fillings = []
    model.eval()
    for number in range(len(shard.sentences) - 1):
        ids = shard.tokens[shard.sentences[number] : shard.sentences[number + 1]].tolist()
        words = tokenizer.convert_ids_to_tokens(ids)
        candidates = [
            place
            for place in range(3, len(words) - 2)
            if words[place].isalpha() and not words[place + 1].startswith("##")
        ]
        if not 8 <= len(ids) <= 24 or not candidates:
            continue
        place = max(candidates, key=lambda index: len(words[index]))
        shown = [*ids[:place], tokenizer.mask_token_id, *ids[place + 1 :]]
        inputs = torch.tensor([[tokenizer.cls_token_id, *shown, tokenizer.sep_token_id]], device=model.device)
        with torch.no_grad():
            forward = model if is_sharded(model) else model.forward  # uncompiled, as in evaluate_batches
            logits = forward(input_ids=inputs).prediction_logits[0, place + 1]
        guesses = tokenizer.convert_ids_to_tokens(logits.topk(3).indices.tolist())
        fillings.append({"sentence": tokenizer.decode(shown), "answer": words[place], "guesses": guesses})
        if len(fillings) == count:
            break
    return fillings
