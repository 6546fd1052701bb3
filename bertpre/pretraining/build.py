"""The recipe unpacked into the trainer of pretraining."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from bertpre.compiler import choose_compile
from bertpre.hardware import peak_flops
from bertpre.model.flops import flops_per_token
from bertpre.model.modeling_bertpre import BertPreForPreTraining
from bertpre.pretraining.batches import PretrainingData, has_pairs, wants_shards
from bertpre.pretraining.mask_predictions import fill_masks
from bertpre.pretraining.objective import PretrainingObjective, evaluate_batches
from bertpre.pretraining.plateau import PlateauWatch
from bertpre.recipe import Recipe, Training, seconds
from bertpre.recipe.public import without_own_places
from bertpre.runtime import choose_deterministic
from bertpre.training.checkpoint import Checkpoints, list_checkpoints
from bertpre.training.dealing import machine_group
from bertpre.training.evaluation import Evaluation
from bertpre.training.optimizer import build_optimizers
from bertpre.training.remedies import Remedies
from bertpre.training.schedule import Duration, lr_at, whole_warmup
from bertpre.training.sharding import shard_model
from bertpre.training.step import Arithmetic
from bertpre.training.step_log import Machine, StepLog
from bertpre.training.trackers import MetricsLog, start_trackers
from bertpre.training.trainer import Trainer
from bertpre.training.watches import CausalWatch, SpikeWatch

SAVE_SECONDS = 1800.0  # between checkpoints at most: a slow machine may take hours for checkpoint.every steps
REMEDIES = Remedies(
    memory="lower training.phases.N.micro_batch_size (phases count from 0)",
    not_finite="in a new output_dir lower training.learning_rate (with muon also training.muon_learning_rate), "
    "lengthen training.warmup, or try training.precision=fp32",
    budget="training.budget",
    compiler="set training.compile=false and run the same command again",
)


def build_pretraining_trainer(
    recipe: Recipe,
    accelerator: Accelerator,
    model: BertPreForPreTraining,
    data: PretrainingData,
    dtype: torch.dtype,
    folder: Path,
    is_rehearsal: bool = False,
    after_step: Callable[[Trainer], None] | None = None,
) -> Trainer:
    """Unpack the recipe into the trainer's parts; a rehearsal has no evaluation and writes nothing."""
    training, objective = recipe.training, PretrainingObjective(has_pairs(recipe))
    if not has_pairs(recipe):
        freeze_pair_head(model)
    if training.initial_attention == "neighbours":
        model.bert.embeddings.position_embeddings.requires_grad_(requires_grad=False)
    place_model(model, accelerator, dtype)
    limits = training_duration(training, data.tokens_per_epoch)
    evaluate = partial(evaluate_model, accelerator, model, objective, data, dtype)
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
            group=machine_group(),
        ),
        source=data,
        objective=objective,
        duration=limits,
        lr_at=partial(
            lr_at,
            schedule=training.schedule,
            warmup=whole_warmup(training.warmup, training.max_steps),
            decay=training.decay,
        ),
        log=step_log(
            recipe, accelerator, model, data, dtype, folder, writes=accelerator.is_main_process and not is_rehearsal
        ),
        seed=recipe.seed,
        arithmetic=Arithmetic(
            dtype,
            compile=not is_short(training, limits, model, dtype)
            and choose_compile(training.compile, accelerator.device),
            dynamic_shapes=data.shapes_differ,
            must_compile=training.compile is True,
            deterministic=choose_deterministic(training.deterministic, accelerator.device),
            max_grad_norm=training.max_grad_norm,
        ),
        evaluation=None if is_rehearsal else Evaluation(evaluate, training.eval_every),
        checkpoints=None if is_rehearsal else checkpoints(recipe, folder),
        after_step=after_step,
        remedies=REMEDIES,
    )


FP32_FLOPS, BF16_FLOPS = 3e10, 1.2e11  # a second, of training steps on two cores with AVX2 and with AVX512-BF16
SHORT_SECONDS = 500.0


def is_short(training: Training, limits: Duration, model: BertPreForPreTraining, dtype: torch.dtype) -> bool:
    """Whether `auto` leaves the layers uncompiled: on a CPU, where compiling would take longer than it saves.

    It takes half a minute, and more than a minute where lengths differ, and saves 0 to 16 % of a step without dropout
    (benchmarks/startup.py).
    """
    device = next(model.parameters()).device
    if training.compile != "auto" or device.type != "cpu":
        return False
    slots = max(training.batch_size(phase) * phase.max_length for phase in training.phases)
    tokens = min(limits.max_tokens or math.inf, (limits.max_steps or math.inf) * slots)
    flops = 6 * sum(weight.numel() for weight in model.parameters()) * tokens
    by_work = flops / (FP32_FLOPS if dtype == torch.float32 else BF16_FLOPS)
    return min(limits.budget_seconds or math.inf, by_work) < SHORT_SECONDS


def freeze_pair_head(model: BertPreForPreTraining) -> None:
    """Leave the pooler and the head for pairs as they are: without a loss, weight decay alone would shrink them."""
    assert model.bert.pooler is not None  # a model for pretraining has one
    model.bert.pooler.requires_grad_(requires_grad=False)
    model.cls.seq_relationship.requires_grad_(requires_grad=False)


def place_model(model: BertPreForPreTraining, accelerator: Accelerator, dtype: torch.dtype) -> None:
    """Move the model to the device, sharded where the launcher asked for it, with the fastest attention there."""
    model.to(accelerator.device)
    if wants_shards(accelerator):
        shard_model(model, dtype)
    if accelerator.device.type == "cpu":
        model.set_attn_implementation("eager")  # faster than sdpa once compiled: benchmarks/training_step.py


def training_duration(training: Training, tokens_per_epoch: int) -> Duration:
    """How long to train on a text of `tokens_per_epoch` tokens."""
    budget = seconds(training.budget) if training.budget else None
    epochs = None if training.max_epochs is None else math.ceil(training.max_epochs * tokens_per_epoch)
    tokens = min((limit for limit in (training.max_tokens, epochs) if limit is not None), default=None)
    return Duration(training.max_steps, budget, tokens)


def checkpoints(recipe: Recipe, folder: Path) -> Checkpoints:
    """Where and how often to save."""
    settings = recipe.checkpoint
    keep_every = seconds(settings.keep_every) if settings.keep_every else None
    return Checkpoints(folder / "checkpoints", settings.every, settings.keep, keep_every, every_seconds=SAVE_SECONDS)


def step_log(
    recipe: Recipe,
    accelerator: Accelerator,
    model: BertPreForPreTraining,
    data: PretrainingData,
    dtype: torch.dtype,
    folder: Path,
    writes: bool,
) -> StepLog:
    """The log of pretraining, with its trackers and watches."""
    training = recipe.training
    flops = [
        flops_per_token(model.config, phase.max_length, training.predicted_share(phase)) for phase in training.phases
    ]
    resumes = bool(list_checkpoints(folder / "checkpoints"))
    config = without_own_places(recipe).model_dump()
    trackers = start_trackers(folder, "pretrain", training, config, resumes=resumes) if writes else []
    context_free_loss = data.frequencies["context_free_loss"]
    shown = {"mlm_loss": f"MLM loss {{:.3f}} (context-free {context_free_loss:.3f})"}
    if recipe.pairs.kind == "sop":
        shown["nsp_accuracy"] = "SOP accuracy {:.1%}"
    return StepLog(
        MetricsLog(folder / "metrics.jsonl", "pretrain", writes, trackers, shown),
        training.log_every,
        [SpikeWatch(), CausalWatch(), PlateauWatch(context_free_loss, recipe.model.architecture)],
        Machine(
            flops,
            peak_flops(accelerator.device, dtype),
            training.price_per_hour,
        ),
    )


def evaluate_model(
    accelerator: Accelerator,
    model: BertPreForPreTraining,
    objective: PretrainingObjective,
    data: PretrainingData,
    dtype: torch.dtype,
    step: int,
) -> dict[str, Any]:
    """Metrics on the validation pairs, and what the model predicts for some masked words."""
    metrics = evaluate_batches(accelerator, model, objective, data.validation_batches(), dtype)
    return metrics | {"fillings": fill_masks(model, data.tokenizer, data.validation_shards[0])}
