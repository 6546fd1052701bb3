"""The recipe unpacked into the trainer of pretraining."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from torch import nn

from bertpre.data.store import read_store_manifest
from bertpre.data.tokenizer import load_tokenizer
from bertpre.model.flops import flops_per_token
from bertpre.pretraining.batches import PretrainingData, wants_shards
from bertpre.pretraining.mask_predictions import fill_masks
from bertpre.recipe import Recipe, seconds
from bertpre.runtime import choose_compile, choose_deterministic, peak_flops
from bertpre.training.metrics import PretrainingObjective
from bertpre.training.optimizer import build_optimizers
from bertpre.training.schedule import Duration, lr_at
from bertpre.training.sharding import is_sharded, shard_model
from bertpre.training.trackers import MetricsLog, start_trackers
from bertpre.training.trainer import Trainer, evaluate_batches
from bertpre.training.watches import PlateauWatch, SpikeWatch

if TYPE_CHECKING:
    pass


def has_pairs(recipe: Recipe) -> bool:
    """Whether the examples are pairs with a label."""
    return recipe.pairs.kind != "none"


def build_pretraining_trainer(
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
    entropy = read_store_manifest(folder / "data")["unigram_entropy"]
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
