"""A fine-tuned model applied to examples, and measured on them."""

import copy
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from bertpre.console import console, duration
from bertpre.data.pairs import IGNORE_INDEX
from bertpre.finetuning.encoding import EncodedExamples, collate, encode_examples, in_batches
from bertpre.finetuning.examples import Examples
from bertpre.finetuning.scores import score
from bertpre.finetuning.task import Task
from bertpre.recipe import Recipe
from bertpre.runtime import choose_dtype, start_accelerator

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


# What a batch may hold on a CPU: larger ones leave its caches (benchmarks/evaluation_batches.py).
CPU_BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Classifier:
    """A model with a head for a task, its tokenizer, and how texts are cut for it; `precision` as in the recipe."""

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    task: Task
    max_length: int
    truncation: str
    precision: str = "auto"
    batch_size: int = 64

    @classmethod
    def of(
        cls, recipe: Recipe, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", task: Task
    ) -> "Classifier":
        """A classifier that cuts texts and computes as the recipe says."""
        settings, batch_size = recipe.required_finetune, recipe.evaluate.batch_size
        precision = recipe.training.precision
        return cls(model, tokenizer, task, settings.max_length, settings.truncation, precision, batch_size)

    def encode(self, examples: Examples) -> EncodedExamples:
        """Examples as the model reads them."""
        return encode_examples(self.tokenizer, examples, self.max_length, self.truncation)

    def apply(self, examples: Examples) -> tuple[Any, Any]:
        """The labels of the examples, as `true_labels` gives them, and the model's outputs for them."""
        accelerator, encoded = start_accelerator(), self.encode(examples)
        self.model.to(accelerator.device)
        return true_labels(self.task, encoded), self.outputs(encoded, accelerator)

    def predict(self, examples: Examples) -> Any:
        """The model's outputs for examples."""
        return self.apply(examples)[1]

    def measure(self, encoded: EncodedExamples, accelerator: Accelerator) -> dict[str, Any]:
        """The task's metrics on encoded examples."""
        outputs = self.outputs(encoded, accelerator)
        return score(self.task.kind, true_labels(self.task, encoded), outputs, self.task.classes)

    def outputs(self, encoded: EncodedExamples, accelerator: Accelerator) -> Any:
        """`Task.outputs` for all examples, in order, on every process: (N, C) or (N,); for words a list of (W, C).

        Each process works through its share.
        Numbers are computed in fp32: bf16 would round them to one part in 256.
        """
        dtype = choose_dtype("fp32" if self.task.kind == "regression" else self.precision, accelerator.device)
        working = self.model if dtype == torch.float32 else copy.deepcopy(self.model).to(dtype)
        was_training = working.training
        working.eval()
        lengths = encoded.lengths
        order = np.argsort(lengths, kind="stable")[accelerator.process_index :: accelerator.num_processes]
        found: list[tuple[int, np.ndarray]] = []
        start, total, done = time.perf_counter(), int(lengths[order].sum()), 0
        most_tokens = CPU_BATCH_TOKENS if self.model.device.type == "cpu" else None
        for part in in_batches(lengths[order], self.batch_size, most_tokens):
            indices = order[part]
            batch = collate(encoded, indices, int(lengths[indices].max()), self.tokenizer.pad_token_id)
            labels = batch.pop("labels")
            with torch.no_grad():
                logits = working(**{name: tensor.to(self.model.device) for name, tensor in batch.items()}).logits
            rows = list(self.task.outputs(logits.float()))
            if self.task.kind == "tokens":
                rows = [row[is_word] for row, is_word in zip(rows, (labels != IGNORE_INDEX).numpy(), strict=True)]
            found += zip(indices.tolist(), rows, strict=True)
            done += int(lengths[indices].sum())
            left = (time.perf_counter() - start) * (total / done - 1)
            texts = f"{len(found):,} of {len(order):,} texts"
            console.draw("predicting", f"{texts}, {duration(left)} left", done / total)
        console.erase()
        working.train(was_training)
        in_order = [row for _, row in sorted(gather_object(found), key=lambda each: each[0])]
        return in_order if self.task.kind == "tokens" else np.stack(in_order)


def true_labels(task: Task, encoded: EncodedExamples) -> Any:
    """The labels; in the task `tokens`, of the words that were not cut off."""
    return [row[row != IGNORE_INDEX] for row in encoded.labels] if task.kind == "tokens" else encoded.labels
