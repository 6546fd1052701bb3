"""`bertpre finetune`: a model + labelled texts -> classifier; and `fit`, which every verb that trains one calls."""

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from accelerate import Accelerator

from bertpre.data.encoding import Encoded, collate, encode_examples, in_slices
from bertpre.data.labelled import Examples
from bertpre.data.sampler import Position, micro_batch_size
from bertpre.distill import encode_and_teach
from bertpre.inference import measure_model
from bertpre.recipe import Finetune, Recipe, flatten
from bertpre.run_directory import FREE, claim, one_at_a_time, write_manifest, write_results, write_text
from bertpre.runtime import (
    choose_compile,
    choose_deterministic,
    choose_dtype,
    is_worth_compiling,
    manifest,
    start_accelerator,
)
from bertpre.scores import spread
from bertpre.splits import read_further, read_parts, require_finetune
from bertpre.starting_point import load_start
from bertpre.training.guards import SpikeWatch
from bertpre.training.metrics import Batch
from bertpre.training.optimizer import build_optimizers
from bertpre.training.schedule import Duration, lr_at
from bertpre.training.tasks import Task, TaskModel, TaskObjective, build_task, last_layer
from bertpre.training.trackers import MetricsLog, start_trackers
from bertpre.training.trainer import StepBatch, Trainer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Encoder = Callable[["PreTrainedTokenizerBase"], Encoded]
LENGTH_MULTIPLE = 8  # as matrix products in bf16 like it
FIGURES = "figures.json"


@dataclass(frozen=True)
class Fitted:
    """A classifier and how its training went."""

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    task: Task
    figures: dict[str, Any]


@one_at_a_time
def finetune(recipe: Recipe) -> dict[str, Any]:
    """Train a classifier on the recipe's labelled texts, for each seed; returns the figures for `results.json`.

    The epoch with the best figure on the validation part is kept, and of several seeds the best one's classifier.
    """
    settings = require_finetune(recipe)
    accelerator = start_accelerator()
    if accelerator.is_main_process:
        claim(recipe)
    accelerator.wait_for_everyone()
    start, folder = time.perf_counter(), Path(recipe.output_dir)
    parts = read_parts(recipe)
    unlabelled = read_further(recipe, parts)
    if accelerator.is_main_process:
        print_doubts(recipe, parts.validation)
    encode = encode_once(settings, parts.training, unlabelled, accelerator)
    seeds = range(recipe.seed, recipe.seed + settings.seeds)
    each = [fit_seed(recipe, parts.training, parts.validation, encode, seed, accelerator) for seed in seeds]
    best = best_of(each, settings)
    figures = each[best] | {"seconds": time.perf_counter() - start, "init": settings.init}
    if unlabelled is not None:
        figures["unlabelled"] = len(unlabelled)
    if settings.seeds > 1:
        figures |= {"seeds": each, "spread": spread_of(each)}
    if accelerator.is_main_process:
        if settings.seeds > 1:
            keep_classifier(folder, seeds[best])
        dtype = choose_dtype(recipe.training.precision, accelerator.device)
        write_manifest(folder, "finetune", manifest(accelerator.device, dtype, accelerator.num_processes))
        write_results(folder, "finetune", figures)
        print(closing_line(figures, settings))
    accelerator.wait_for_everyone()
    return figures


def print_doubts(recipe: Recipe, validation: Examples | None) -> None:
    """Say what seldom goes well, and what to set instead."""
    settings = recipe.finetune
    is_own = settings.init in ("pretrained", "random")
    if is_own and recipe.model.hidden_size <= 512 and settings.optimizer == "adamw" and settings.learning_rate < 1e-4:
        print(
            f"finetune: learning_rate is {settings.learning_rate:g}, which suits published models of base size; a "
            "small one of your own wants 3e-4 to 1e-3"
        )
    if is_own and recipe.model.architecture == "modern" and recipe.pairs.kind == "none" and settings.pooling == "cls":
        print("finetune: pooling is cls, a token that pairs.kind=none taught nothing; pooling=mean suits such a model")
    if validation is not None and len(validation) < 100:
        print(
            f"finetune: only {len(validation)} examples choose the best epoch: give a larger validation_fraction, or "
            "0, which keeps the last one"
        )


# ---- seeds -----------------------------------------------------------------------------------------------------------


def fit_seed(
    recipe: Recipe,
    training: Examples,
    validation: Examples | None,
    encode: Encoder,
    seed: int,
    accelerator: Accelerator,
) -> dict[str, Any]:
    """Train and save the classifier of one seed, unless that was done before; returns its figures."""
    settings, folder = recipe.finetune, Path(recipe.output_dir)
    is_only = settings.seeds == 1
    target = folder / "finetuned" if is_only else folder / "seeds" / str(seed)
    told = fingerprint(recipe)
    if not is_only and (target / FIGURES).exists():
        known = json.loads((target / FIGURES).read_text())
        if known["recipe"] == told:
            if accelerator.is_main_process:
                print(f"finetune: seed {seed} is finished")
            return known["figures"]
    is_main = accelerator.is_main_process
    stage = "finetune" if seed == recipe.seed else f"finetune seed {seed}"
    trackers = start_trackers(folder, stage.replace(" ", "-"), recipe.training, recipe.model_dump()) if is_main else []
    log = MetricsLog(folder / "metrics.jsonl", stage, is_main, trackers)
    fitted = fit(recipe, training, validation, encode, settings.init, seed, accelerator, log)
    if is_main:
        fitted.model.save_pretrained(target)
        fitted.tokenizer.save_pretrained(target)
        if not is_only:
            write_text(target / FIGURES, json.dumps({"recipe": told, "figures": fitted.figures}, indent=2))
    accelerator.wait_for_everyone()
    return fitted.figures


def fingerprint(recipe: Recipe) -> str:
    """What changes where a key changes that a fine-tuning or its measurement depends on; not with `seeds`."""
    keys = flatten(recipe.model_dump(include={"seed", "tokenizer", "model", "training", "finetune", "evaluate"}))
    binding = {key: value for key, value in keys.items() if key not in (*FREE, "finetune.seeds")}
    return hashlib.sha256(json.dumps(binding, sort_keys=True).encode()).hexdigest()[:16]


def best_of(each: list[dict[str, Any]], settings: Finetune) -> int:
    """Which seed's classifier is the best in validation; the first one without validation."""
    if not settings.has_validation:
        return 0
    return int(np.argmax([goodness(figures["validation"], settings.best_by) for figures in each]))


def goodness(figures: dict[str, Any], metric: str) -> float:
    """A figure for which more is better."""
    return -figures[metric] if metric == "loss" else figures[metric]


def spread_of(each: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and deviation over the seeds of every validation figure."""
    rows = [figures.get("validation", {}) for figures in each]
    return {name: spread([row[name] for row in rows]) for name in rows[0] if name != "examples"}


def keep_classifier(folder: Path, seed: int) -> None:
    """Copy one seed's classifier to where the run's classifier lies."""
    partial = folder / "finetuned.partial"
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(folder / "seeds" / str(seed), partial, ignore=shutil.ignore_patterns(FIGURES))
    shutil.rmtree(folder / "finetuned", ignore_errors=True)
    partial.rename(folder / "finetuned")


def closing_line(figures: dict[str, Any], settings: Finetune) -> str:
    """What is said at the end."""
    text = f"finetune: {figures['seconds']:.0f} s"
    if "validation" in figures:
        metric = settings.best_by
        where = f"after epoch {figures['best_epoch']} of {figures['epochs']}"
        text += f"; validation {metric} {figures['validation'][metric]:.4f} {where} (seed {figures['seed']})"
    if "spread" in figures and figures["spread"]:
        over = figures["spread"][metric]
        text += f"; over {settings.seeds} seeds {over['mean']:.4f} ± {over['deviation']:.4f}"
    return text


# ---- one training ----------------------------------------------------------------------------------------------------


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
    trainer = build_trainer(recipe, accelerator, TaskModel(model, task), data, epochs, best, log, seed)
    trainer.train()
    log.close()
    figures = {"seed": seed, "epochs": trainer.step // data.steps_per_epoch, "examples": len(encoded.ids)}
    if best is not None:
        best.restore()
        figures |= {"best_epoch": best.best_step // data.steps_per_epoch}
        figures |= {"validation": best.best | {"examples": len(validation)}}
    if numbers is not None:
        task = task.with_scale_in(numbers)
    return Fitted(model.eval(), tokenizer, task, figures | {"seconds": time.perf_counter() - start})


def build_trainer(
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
        log=log,
        dtype=choose_dtype(training.precision, accelerator.device),
        compile=not is_short and choose_compile(training.compile, accelerator.device),
        any_length=True,
        deterministic=choose_deterministic(training.deterministic, accelerator.device),
        max_grad_norm=training.max_grad_norm,
        seed=seed,
        log_every=training.log_every,
        eval_every=data.steps_per_epoch,
        evaluate=best,
        evaluate_first=False,
        is_enough=best.is_enough if best else bool,
        watches=[SpikeWatch()],
        price_per_hour=training.price_per_hour,
    )


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
