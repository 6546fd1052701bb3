"""A fine-tuned model applied to examples, and measured on them."""

import copy
import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from bertpre.compiler import can_compile, give_up_compiling, is_compiler_fault, is_worth_compiling, prepare_compiler
from bertpre.console import console, time_text
from bertpre.data.pairs import IGNORE_INDEX
from bertpre.errors import first_line
from bertpre.finetuning.encoding import EncodedExamples, collate, encode_examples, slices_by_tokens
from bertpre.finetuning.examples import Examples
from bertpre.finetuning.scores import score
from bertpre.finetuning.task import Task
from bertpre.model.casting import cast_weights
from bertpre.model.configuration_bertpre import BertPreConfig
from bertpre.recipe import Recipe
from bertpre.runtime import choose_dtype, start_accelerator
from bertpre.training.step import parts_to_compile

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


logger = logging.getLogger(__name__)

# What a batch may hold on a CPU: larger ones leave its caches (benchmarks/evaluation_batches.py).
CPU_BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Classifier:
    """A model with a head for a task, its tokenizer, and how texts are cut for it.

    `precision` and `compile` are as in the recipe; reading is compiled only where it takes long enough. `knows_pairs`
    is False for a model from elsewhere, whose configuration does not say whether it reads pairs.
    """

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    task: Task
    max_length: int
    truncation: str
    precision: str = "auto"
    compile: str | bool = "auto"
    batch_size: int = 64
    knows_pairs: bool = True

    @classmethod
    def of(
        cls, recipe: Recipe, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", task: Task
    ) -> "Classifier":
        """A classifier that cuts texts and computes as the recipe says."""
        settings, training, batch_size = recipe.required_finetune, recipe.training, recipe.evaluate.batch_size
        cuts = (settings.max_length, settings.truncation)
        return cls(model, tokenizer, task, *cuts, training.precision, training.compile, batch_size)

    def encode(self, examples: Examples) -> EncodedExamples:
        """Examples as the model reads them."""
        return encode_examples(self.tokenizer, examples, self.max_length, self.truncation)

    def apply(self, examples: Examples | EncodedExamples) -> tuple[Any, Any]:
        """The labels of the examples, as `true_labels` gives them, and the model's outputs for them.

        All processes call this together, and each gets everything.
        """
        encoded = self.encode(examples) if isinstance(examples, Examples) else examples
        accelerator = start_accelerator()
        self.model.to(accelerator.device)
        return true_labels(self.task, encoded), self.outputs(encoded, accelerator)

    def predict(self, examples: Examples) -> Any:
        """The model's outputs for examples, by this process alone, on the model's device."""
        return self.outputs(self.encode(examples))

    def measure(self, encoded: EncodedExamples, accelerator: Accelerator) -> dict[str, Any]:
        """The task's metrics on encoded examples."""
        outputs = self.outputs(encoded, accelerator)
        return score(self.task.kind, true_labels(self.task, encoded), outputs, self.task.classes)

    def outputs(self, encoded: EncodedExamples, accelerator: Accelerator | None = None) -> Any:
        """`Task.outputs` for all examples, in order: (N, C) or (N,); for words a list of (W, C).

        With an accelerator each process works through its share, and gets those of the others. Numbers are computed in
        fp32: bf16 would round them to one part in 256.
        """
        rank, processes = (accelerator.process_index, accelerator.num_processes) if accelerator else (0, 1)
        lengths = encoded.lengths
        working = self.working_model(int(lengths.sum()))
        was_training = working.training
        working.eval()
        order = np.argsort(lengths, kind="stable")[rank::processes]
        found: list[tuple[int, np.ndarray]] = []
        start, total, done = time.perf_counter(), int(lengths[order].sum()), 0
        most_tokens = CPU_BATCH_TOKENS if self.model.device.type == "cpu" else None
        for part in slices_by_tokens(lengths[order], self.batch_size, most_tokens):
            indices = order[part]
            batch = collate(encoded, indices, int(lengths[indices].max()), self.tokenizer.pad_token_id)
            labels = batch.pop("labels")
            logits = read(working, **{name: tensor.to(self.model.device) for name, tensor in batch.items()})
            rows = list(self.task.outputs(logits.float()))
            if self.task.kind == "tokens":
                rows = [row[is_word] for row, is_word in zip(rows, (labels != IGNORE_INDEX).numpy(), strict=True)]
            found += zip(indices.tolist(), rows, strict=True)
            done += int(lengths[indices].sum())
            left = (time.perf_counter() - start) * (total / done - 1)
            texts = f"{len(found):,} of {len(order):,} texts"
            console.draw("predicting", f"{texts}, {time_text(left)} left", done / total)
        console.erase()
        working.train(was_training)
        gathered = gather_object(found) if processes > 1 else found
        in_order = [row for _, row in sorted(gathered, key=lambda each: each[0])]
        return in_order if self.task.kind == "tokens" else np.stack(in_order)

    def with_working_model(self) -> "Classifier":
        """The same for many short calls: the model is copied into a shorter type here, and not in each of them."""
        return replace(self, model=self.working_model(tokens=0), precision="fp32", compile=False)

    def working_model(self, tokens: int) -> "PreTrainedModel":
        """The model that reads this many tokens: itself, or a copy in a shorter type or with compiled layers.

        Compiled, it reads 1.45 times as fast on a CPU (benchmarks/evaluation_batches.py). On a GPU that has not been
        measured, and reading stays uncompiled.
        """
        device = self.model.device
        dtype = choose_dtype("fp32" if self.task.kind == "regression" else self.precision, device)
        compiles = bool(self.compile) and pays_to_compile(self.model, tokens)
        if dtype == torch.float32 and not compiles:
            return self.model
        working = cast_weights(copy.deepcopy(self.model), dtype)
        return compile_layers(working) if compiles else working


def pays_to_compile(model: "PreTrainedModel", tokens: int) -> bool:
    """Whether so many tokens are read faster where compiling comes first; it never is on a GPU, not measured there."""
    device, weights = model.device, sum(weight.numel() for weight in model.parameters())
    return device.type == "cpu" and can_compile(device) and is_worth_compiling(2 * weights * tokens, device)


def compile_layers(model: "PreTrainedModel") -> "PreTrainedModel":
    """The model, whose layers are compiled for rows of any length."""
    prepare_compiler()
    if isinstance(model.config, BertPreConfig):
        model.set_attn_implementation("sdpa")  # eager is the faster one only where gradients are computed
    for part in parts_to_compile(model):
        part.compile(dynamic=True)
    return model


@torch.no_grad()
def read(model: "PreTrainedModel", **inputs: torch.Tensor) -> torch.Tensor:
    """The logits of a batch; where torch.compile fails, without it from then on, and with a warning."""
    try:
        return model(**inputs).logits
    except RuntimeError as error:
        if not is_compiler_fault(error):
            raise
        logger.warning("torch.compile fails (%s): reading continues without it, more slowly", first_line(error))
        give_up_compiling()
        return model(**inputs).logits


def true_labels(task: Task, encoded: EncodedExamples) -> Any:
    """The labels; in the task `tokens`, of the words that were not cut off."""
    return [row[row != IGNORE_INDEX] for row in encoded.labels] if task.kind == "tokens" else encoded.labels
