"""`bertpre finetune`: pretrained model + labelled texts -> classifier."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn

from bertpre.data.classification import LabelledTexts, collate_texts, encode_texts, in_slices, read_labelled
from bertpre.data.sampler import Position
from bertpre.data.tokenizer import load_tokenizer
from bertpre.errors import UserError
from bertpre.model.modeling_bertpre import BertPreForSequenceClassification
from bertpre.pretrain import build_config
from bertpre.recipe import Finetune, Recipe
from bertpre.run_directory import claim, one_at_a_time, write_manifest, write_results
from bertpre.runtime import choose_compile, choose_dtype, manifest, start_accelerator
from bertpre.training.guards import SpikeWatch
from bertpre.training.metrics import Batch, ClassificationObjective
from bertpre.training.optimizer import build_optimizers
from bertpre.training.schedule import Duration, lr_at
from bertpre.training.trackers import MetricsLog, start_trackers
from bertpre.training.trainer import StepBatch, Trainer, evaluate_batches

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LENGTH_MULTIPLE = 64


@one_at_a_time
def finetune(recipe: Recipe) -> dict[str, Any]:
    """Fine-tune a classifier on the recipe's labelled texts; returns the figures for `results.json`.

    The epoch with the best accuracy on a validation part of the training split is kept.
    """
    settings = require_finetune(recipe)
    accelerator = start_accelerator()
    if accelerator.is_main_process:
        claim(recipe)
    accelerator.wait_for_everyone()
    start, folder = time.perf_counter(), Path(recipe.output_dir)
    tokenizer = load_tokenizer(folder / "tokenizer")
    training, validation = split_off_validation(recipe, read_labelled(settings, settings.split, settings.limit))
    dtype = choose_dtype(recipe.training.precision, accelerator.device)
    model = build_classifier(recipe, folder, tokenizer, num_labels=int(training.labels.max()) + 1)
    data = LabelledData(training, tokenizer, settings, accelerator, recipe.seed)
    held_out = LabelledData(validation, tokenizer, settings, accelerator, recipe.seed)
    keeper = BestEpoch(accelerator, model, held_out, dtype)
    trainer = build_trainer(recipe, accelerator, model, data, keeper, dtype, folder)
    trainer.train()
    trainer.log.close()
    keeper.restore()
    figures = {
        "seconds": time.perf_counter() - start,
        "epochs": settings.epochs,
        "best_epoch": keeper.best_step // data.steps_per_epoch,
        "examples": len(training.texts),
        "init": settings.init,
        "validation": {"accuracy": keeper.best_accuracy, "examples": len(validation.texts)},
    }
    if accelerator.is_main_process:
        write_manifest(folder, "finetune", manifest(accelerator.device, dtype, accelerator.num_processes))
        model.save_pretrained(folder / "finetuned")
        tokenizer.save_pretrained(folder / "finetuned")
        write_results(folder, "finetune", figures)
        print(
            f"finetune: validation accuracy {keeper.best_accuracy:.4f} after epoch "
            f"{figures['best_epoch']} of {settings.epochs}, {figures['seconds']:.0f} s"
        )
    accelerator.wait_for_everyone()
    return figures


def require_finetune(recipe: Recipe) -> Finetune:
    """The recipe's finetune section; raises UserError where it has none."""
    if recipe.finetune is None:
        raise UserError("this recipe has no finetune section: say which labelled texts with finetune.path=...")
    return recipe.finetune


def split_off_validation(recipe: Recipe, labelled: LabelledTexts) -> tuple[LabelledTexts, LabelledTexts]:
    """Training and validation part, drawn by the seed alone; raises UserError where one would be empty."""
    order = np.random.default_rng([recipe.seed, 1]).permutation(len(labelled.texts))
    count = round(len(order) * recipe.finetune.validation_fraction)
    if not 0 < count < len(order):
        raise UserError(
            f"finetune.validation_fraction: {recipe.finetune.validation_fraction} of {len(order)} texts leaves nothing "
            "to choose the best epoch on; give more texts or a larger fraction"
        )
    return labelled.subset(order[count:]), labelled.subset(order[:count])


def build_classifier(
    recipe: Recipe, folder: Path, tokenizer: "PreTrainedTokenizerBase", num_labels: int
) -> BertPreForSequenceClassification:
    """A classifier on the encoder that `finetune.init` names: `pretrained`, `random`, or a folder or Hub id."""
    settings = recipe.finetune
    torch.manual_seed(recipe.seed)
    choices = {"num_labels": num_labels, "classifier_dropout": settings.dropout, "classifier_pooling": settings.pooling}
    if settings.init == "random":
        config = build_config(recipe, tokenizer)
        for name, value in choices.items():
            setattr(config, name, value)
        return BertPreForSequenceClassification(config)
    source = folder / "model" if settings.init == "pretrained" else settings.init
    if settings.init == "pretrained" and not source.exists():
        raise UserError(f"no pretrained model in {source}: run `bertpre pretrain` first, or set finetune.init=random")
    try:
        model = BertPreForSequenceClassification.from_pretrained(source, dtype=torch.float32, **choices)
    except (OSError, ValueError) as error:
        raise UserError(
            f"finetune.init: no bertpre model in {str(source)!r}: {str(error).strip().splitlines()[0]}"
        ) from None
    if model.config.vocab_size != len(tokenizer):
        raise UserError(
            f"finetune.init: the model in {source} has {model.config.vocab_size} tokens, "
            f"this run's tokenizer {len(tokenizer)}"
        )
    return model


class LabelledData:
    """The batches of fine-tuning: a `Source` for the trainer, and all texts in order for an evaluation."""

    def __init__(
        self,
        labelled: LabelledTexts,
        tokenizer: "PreTrainedTokenizerBase",
        settings: Finetune,
        accelerator: Accelerator,
        seed: int,
    ) -> None:
        self.rows = encode_texts(tokenizer, labelled.texts, settings.max_length, settings.truncation)
        self.lengths = np.array([len(row) for row in self.rows])
        self.labels, self.seed, self.accelerator = labelled.labels, seed, accelerator
        self.planned: tuple[int, np.ndarray] | None = None
        self.batch_size, self.max_length, self.pad_token_id = (
            settings.batch_size,
            settings.max_length,
            tokenizer.pad_token_id,
        )
        self.steps_per_epoch = -(-len(self.rows) // settings.batch_size)
        if settings.batch_size % accelerator.num_processes:
            raise UserError(
                f"finetune.batch_size is {settings.batch_size}: it must be a multiple of the number of processes "
                f"({accelerator.num_processes})"
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
        return StepBatch([self.collate(batch[self.accelerator.process_index :: self.accelerator.num_processes])], after)

    def largest(self) -> list[Batch]:
        """A batch that holds the longest text."""
        longest = np.argsort(-self.lengths)[: self.batch_size // self.accelerator.num_processes]
        return [self.collate(longest)]

    def epoch_batches(self, epoch: int) -> np.ndarray:
        """An epoch's batches, (steps, batch_size), indices of texts of like length, in random order.

        The last batch is filled up from the beginning of another shuffle.
        """
        if self.planned is None or self.planned[0] != epoch:
            generator = np.random.default_rng([self.seed, epoch])
            count, size = len(self.rows), self.batch_size
            shuffles = -(-self.steps_per_epoch * size // count)
            order = np.concatenate([generator.permutation(count) for _ in range(shuffles)])[
                : self.steps_per_epoch * size
            ]
            groups = [
                group[np.argsort(self.lengths[group], kind="stable")]
                for group in np.split(order, range(0, len(order), 32 * size))
            ]
            self.planned = (epoch, generator.permutation(np.concatenate(groups).reshape(-1, size)))
        return self.planned[1]

    def in_order(self) -> Iterator[Batch]:
        """This process's share of all texts, once, on the device."""
        indices = np.arange(len(self.rows))[self.accelerator.process_index :: self.accelerator.num_processes]
        for part in in_slices(len(indices), self.batch_size):
            batch = self.collate(indices[part])
            yield {name: tensor.to(self.accelerator.device) for name, tensor in batch.items()}

    def collate(self, indices: np.ndarray) -> Batch:
        """The texts at `indices` as a batch."""
        rows = [self.rows[index] for index in indices]
        # A few lengths only: torch.compile makes one program for each.
        longest = min(self.max_length, -(-max(map(len, rows)) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE)
        return collate_texts(rows, self.labels[indices], longest, self.pad_token_id)


class BestEpoch:
    """Evaluates after each epoch and keeps the weights of the best one."""

    def __init__(self, accelerator: Accelerator, model: nn.Module, held_out: LabelledData, dtype: torch.dtype) -> None:
        self.accelerator, self.model, self.held_out, self.dtype = accelerator, model, held_out, dtype
        self.best_accuracy, self.best_step, self.weights = -1.0, 0, {}

    def __call__(self, step: int) -> dict[str, float]:
        """Figures on the validation part; remembers the weights where they are the best so far."""
        objective = ClassificationObjective()
        figures = evaluate_batches(self.accelerator, self.model, objective, self.held_out.in_order(), self.dtype)
        if figures["accuracy"] > self.best_accuracy:
            self.best_accuracy, self.best_step = figures["accuracy"], step
            self.weights = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        return figures

    def restore(self) -> None:
        """Put the best weights back."""
        self.model.load_state_dict(self.weights)


def build_trainer(
    recipe: Recipe,
    accelerator: Accelerator,
    model: nn.Module,
    data: LabelledData,
    keeper: BestEpoch,
    dtype: torch.dtype,
    folder: Path,
) -> Trainer:
    """Unpack the recipe into the trainer's parts."""
    settings, training = recipe.finetune, recipe.training
    model.to(accelerator.device)
    if accelerator.device.type == "cpu":
        model.set_attn_implementation("eager")
    is_main = accelerator.is_main_process
    trackers = start_trackers(folder, "finetune", training, recipe.model_dump()) if is_main else []
    return Trainer(
        accelerator=accelerator,
        model=model,
        optimizers=build_optimizers(
            model, "adamw", settings.learning_rate, settings.weight_decay, adam_beta2=training.adam_beta2
        ),
        source=data,
        objective=ClassificationObjective(),
        duration=Duration(max_steps=settings.epochs * data.steps_per_epoch),
        lr_at=partial(lr_at, schedule="linear", warmup=settings.warmup),
        log=MetricsLog(folder / "metrics.jsonl", "finetune", is_main, trackers),
        dtype=dtype,
        compile=choose_compile(training.compile, accelerator.device),
        max_grad_norm=training.max_grad_norm,
        seed=recipe.seed,
        log_every=training.log_every,
        eval_every=data.steps_per_epoch,
        evaluate=keeper,
        watches=[SpikeWatch()],
        price_per_hour=training.price_per_hour,
    )
