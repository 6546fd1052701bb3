"""One fine-tuning: a model, labelled texts and a seed -> a classifier; every command that trains one calls `fit`."""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from accelerate import Accelerator

from bertpre.finetuning.batches import TrainingBatches
from bertpre.finetuning.encoding import Encoded, encode_examples
from bertpre.finetuning.examples import Examples
from bertpre.finetuning.inference import measure_model
from bertpre.finetuning.loading import load_start
from bertpre.finetuning.pseudo_labels import encode_and_teach
from bertpre.finetuning.task import Task, TaskModel, TaskObjective, build_task, last_layer
from bertpre.recipe import Finetune, Recipe, flatten
from bertpre.run_directory import FREE
from bertpre.runtime import (
    choose_compile,
    choose_deterministic,
    choose_dtype,
    is_worth_compiling,
)
from bertpre.training.evaluation import Evaluation
from bertpre.training.optimizer import build_optimizers
from bertpre.training.schedule import Duration, lr_at
from bertpre.training.step import Arithmetic
from bertpre.training.step_log import Machine, StepLog
from bertpre.training.trackers import MetricsLog
from bertpre.training.trainer import Remedies, Trainer
from bertpre.training.watches import SpikeWatch

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


Encoder = Callable[["PreTrainedTokenizerBase"], Encoded]


REMEDIES = Remedies(
    memory="lower finetune.micro_batch_size",
    not_finite="lower finetune.learning_rate, lengthen finetune.warmup, or try training.precision=fp32",
    budget="finetune.epochs",
)


@dataclass(frozen=True)
class Fitted:
    """A classifier and how its training went."""

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    task: Task
    figures: dict[str, Any]


def recipe_fingerprint(recipe: Recipe) -> str:
    """What changes where a key changes that a fine-tuning or its measurement depends on; not with `seeds`."""
    keys = flatten(recipe.model_dump(include={"seed", "tokenizer", "model", "training", "finetune", "evaluate"}))
    binding = {key: value for key, value in keys.items() if key not in (*FREE, "finetune.seeds")}
    return hashlib.sha256(json.dumps(binding, sort_keys=True).encode()).hexdigest()[:16]


def goodness(figures: dict[str, Any], metric: str) -> float:
    """A figure for which more is better."""
    return -figures[metric] if metric == "loss" else figures[metric]


def encode_once(
    settings: Finetune, training: Examples, unlabelled: Examples | None, accelerator: Accelerator
) -> Encoder:
    """A function that gives what the network learns from: worked out for the first seed, the same for the others."""
    known: list[Encoded] = []

    def encode(tokenizer: "PreTrainedTokenizerBase") -> Encoded:
        if not known and unlabelled is None:
            known.append(encode_examples(tokenizer, training, settings.max_length, settings.truncation))
        elif not known:
            start = time.perf_counter()
            known.append(encode_and_teach(settings, tokenizer, training, unlabelled))
            seconds = time.perf_counter() - start
            accelerator.print(f"finetune: NB-SVM labelled {len(unlabelled):,} texts, {seconds:.0f} s", flush=True)
        return known[0]

    return encode


def fit(
    recipe: Recipe,
    training: Examples,
    validation: Examples | None,
    encode: Encoder,
    init: str,
    seed: int,
    accelerator: Accelerator,
    log: MetricsLog,
) -> Fitted:
    """Train one classifier from `init`, with the recipe's settings."""
    start, settings = time.perf_counter(), recipe.finetune
    task = build_task(settings, training)
    model, tokenizer = load_start(recipe, init, task, seed)
    model.to(accelerator.device)
    numbers = last_layer(model) if task.kind == "regression" else None
    dtype = choose_dtype(recipe.training.precision, accelerator.device)
    encoded = encode(tokenizer)
    data = TrainingBatches(encoded, tokenizer.pad_token_id, settings, accelerator, seed)
    epochs = max(settings.epochs, -(-(settings.min_steps or 0) // data.steps_per_epoch))
    best = None
    if validation is not None:
        held_out = encode_examples(tokenizer, validation, settings.max_length, settings.truncation)
        measure = partial(measure_model, model, task, held_out, tokenizer.pad_token_id, dtype, accelerator)
        best = BestEpoch(model, measure, settings)
    trainer = build_finetuning_trainer(recipe, accelerator, TaskModel(model, task), data, epochs, best, log, seed)
    trainer.train()
    log.close()
    figures = {"seed": seed, "epochs": trainer.progress.step // data.steps_per_epoch, "examples": len(encoded.ids)}
    if best is not None:
        best.restore()
        figures |= {"best_epoch": best.best_step // data.steps_per_epoch}
        figures |= {"validation": best.best | {"examples": len(validation)}}
    if numbers is not None:
        task = task.with_scale_in(numbers)
    return Fitted(model.eval(), tokenizer, task, figures | {"seconds": time.perf_counter() - start})


def build_finetuning_trainer(
    recipe: Recipe,
    accelerator: Accelerator,
    model: TaskModel,
    data: "TrainingBatches",
    epochs: int,
    best: "BestEpoch | None",
    log: MetricsLog,
    seed: int,
) -> Trainer:
    """Unpack the recipe into the trainer's parts."""
    settings, training = recipe.finetune, recipe.training
    flops = 6 * sum(weight.numel() for weight in model.parameters()) * int(data.lengths.sum()) * epochs
    is_short = training.compile == "auto" and not is_worth_compiling(flops, accelerator.device)
    return Trainer(
        accelerator=accelerator,
        model=model,
        optimizers=build_optimizers(
            model,
            settings.optimizer,
            settings.learning_rate,
            settings.weight_decay,
            muon_learning_rate=settings.muon_learning_rate,
            adam_beta2=training.adam_beta2,
            muon_weight_decay=training.muon_weight_decay,
            layer_decay=settings.layer_decay,
        ),
        source=data,
        objective=TaskObjective(model.task),
        duration=Duration(max_steps=epochs * data.steps_per_epoch),
        lr_at=partial(lr_at, schedule="linear", warmup=settings.warmup),
        log=StepLog(log, training.log_every, [SpikeWatch()], Machine(price_per_hour=training.price_per_hour)),
        seed=seed,
        arithmetic=Arithmetic(
            choose_dtype(training.precision, accelerator.device),
            compile=not is_short and choose_compile(training.compile, accelerator.device),
            dynamic_shapes=True,
            deterministic=choose_deterministic(training.deterministic, accelerator.device),
            max_grad_norm=training.max_grad_norm,
        ),
        evaluation=Evaluation(best, data.steps_per_epoch, at_start=False) if best else None,
        should_stop=best.is_enough if best else lambda: False,
        remedies=REMEDIES,
    )


class BestEpoch:
    """Measures after each epoch, keeps the weights of the best one, and knows when no better one is to be expected."""

    def __init__(self, model: "PreTrainedModel", measure: Callable[[], dict[str, Any]], settings: Finetune) -> None:
        self.model, self.measure, self.settings = model, measure, settings
        self.best: dict[str, Any] = {}
        self.best_step, self.without_better, self.weights = 0, 0, {}

    def __call__(self, step: int) -> dict[str, float]:
        """Figures on the validation part; remembers the weights where they are the best so far."""
        measured = self.measure()
        figures = {name: value for name, value in measured.items() if isinstance(value, float)}
        metric = self.settings.best_by
        self.without_better += 1
        if not self.best or goodness(figures, metric) > goodness(self.best, metric):
            self.best, self.best_step, self.without_better = figures, step, 0
            self.weights = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        return figures

    def is_enough(self) -> bool:
        """Whether `patience` epochs have brought nothing better."""
        return self.settings.patience is not None and self.without_better >= self.settings.patience

    def restore(self) -> None:
        """Put the best weights back."""
        self.model.load_state_dict(self.weights)
