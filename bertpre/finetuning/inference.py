"""What a fine-tuned model makes of encoded examples, and how good that is."""

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from bertpre.data.pairs import IGNORE_INDEX
from bertpre.finetuning.encoding import Encoded, collate, encode_examples, in_slices
from bertpre.finetuning.examples import Examples
from bertpre.finetuning.scores import score
from bertpre.finetuning.task import Task
from bertpre.recipe import Recipe
from bertpre.runtime import choose_dtype, start_accelerator

if TYPE_CHECKING:
    from transformers import PreTrainedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def measure_model(
    model: "PreTrainedModel",
    task: Task,
    encoded: Encoded,
    pad_token_id: int,
    dtype: torch.dtype,
    accelerator: Accelerator,
    batch_size: int = 64,
) -> dict[str, Any]:
    """The task's figures on encoded examples, each process working through its share."""
    outputs = infer(model, task, encoded, pad_token_id, dtype, accelerator, batch_size)
    return score(task.kind, true_labels(task, encoded), outputs, task.classes)


def true_labels(task: Task, encoded: Encoded) -> Any:
    """The labels; of words, those that the encoding has room for."""
    return [row[row != IGNORE_INDEX] for row in encoded.labels] if task.kind == "tokens" else encoded.labels


def infer(
    model: "PreTrainedModel",
    task: Task,
    encoded: Encoded,
    pad_token_id: int,
    dtype: torch.dtype,
    accelerator: Accelerator,
    batch_size: int = 64,
) -> Any:
    """`Task.outputs` for every example, in order, on every process; of words, a list with (W, C) for each text.

    Numbers are computed in fp32: bf16 would round them to one part in 256.
    """
    dtype = torch.float32 if task.kind == "regression" else dtype
    working = model if dtype == torch.float32 else copy.deepcopy(model).to(dtype)
    was_training = working.training
    working.eval()
    lengths = encoded.lengths
    order = np.argsort(lengths, kind="stable")[accelerator.process_index :: accelerator.num_processes]
    found: list[tuple[int, np.ndarray]] = []
    for part in in_slices(len(order), batch_size):
        indices = order[part]
        batch = collate(encoded, indices, int(lengths[indices].max()), pad_token_id)
        labels = batch.pop("labels")
        with torch.no_grad():
            logits = working(**{name: tensor.to(model.device) for name, tensor in batch.items()}).logits
        rows = task.outputs(logits.float())
        if task.kind == "tokens":
            rows = [row[is_word] for row, is_word in zip(rows, (labels != IGNORE_INDEX).numpy(), strict=True)]
        found += zip(indices.tolist(), rows, strict=True)
    working.train(was_training)
    in_order = [row for _, row in sorted(gather_object(found), key=lambda each: each[0])]
    return in_order if task.kind == "tokens" else np.stack(in_order)


def apply(recipe: Recipe, model: "PreTrainedModel", tokenizer: Any, task: Task, examples: Examples) -> tuple[Any, Any]:
    """The labels of examples, as far as the model reads them, and what it makes of them."""
    settings, accelerator = recipe.finetune, start_accelerator()
    encoded = encode_examples(tokenizer, examples, settings.max_length, settings.truncation)
    dtype = choose_dtype(recipe.training.precision, accelerator.device)
    model.to(accelerator.device)
    outputs = infer(model, task, encoded, tokenizer.pad_token_id, dtype, accelerator, recipe.evaluate.batch_size)
    return true_labels(task, encoded), outputs
