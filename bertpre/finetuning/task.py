"""The tasks of fine-tuning: their losses, and the meaning of their logits."""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.utils import ModelOutput

from bertpre.console import log_once
from bertpre.data.pairs import IGNORE_INDEX
from bertpre.errors import UserError
from bertpre.finetuning.examples import Examples
from bertpre.training.metrics import Batch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from bertpre.recipe import Finetune

PROBLEM_TYPES = {  # transformers' names of the tasks, in a model's configuration
    "classification": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
    "tokens": None,
}


@dataclass(frozen=True)
class Task:
    """A task, its classes, and the parameters of its loss; `class_weights` (C,) multiply the losses of the classes.

    A regression predicts (number - `center`) / `scale`, the training labels' mean and standard deviation.
    """

    kind: str
    classes: tuple[str, ...]
    class_weights: tuple[float, ...] | None = None
    label_smoothing: float = 0.0
    center: float = 0.0
    scale: float = 1.0

    @property
    def auto_class(self) -> str:
        """The Auto class of transformers whose models have the head for this task."""
        return "AutoModelForTokenClassification" if self.kind == "tokens" else "AutoModelForSequenceClassification"

    @property
    def config(self) -> dict[str, Any]:
        """The entries of a model's configuration: the names of the classes, and the kind of problem."""
        names = dict(enumerate(self.classes))
        return {
            "num_labels": len(names),
            "id2label": names,
            "label2id": {name: number for number, name in names.items()},
            "problem_type": PROBLEM_TYPES[self.kind],
        }

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The sum of a batch's losses, in nats; in a regression, of squared errors in units of `scale`."""
        if self.kind == "regression":
            # Labels are in fp64: a large one may differ from its neighbours by less than fp32 shows.
            wanted = ((labels - self.center) / self.scale).to(logits.dtype)
            return F.mse_loss(logits.squeeze(-1), wanted, reduction="sum")
        if self.kind == "multi_label":
            return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(-1).sum()
        weights = None if self.class_weights is None else tensor_on(logits.device, logits.dtype, self.class_weights)
        labels = labels if labels.is_floating_point() else labels.flatten()
        return F.cross_entropy(
            logits.flatten(0, -2), labels, weights, ignore_index=IGNORE_INDEX,
            label_smoothing=self.label_smoothing, reduction="sum",
        )  # fmt: skip

    def outputs(self, logits: Tensor) -> np.ndarray:
        """Probabilities of the classes (..., C), or predicted numbers (B,)."""
        if self.kind == "regression":
            return logits.squeeze(-1).cpu().numpy() * self.scale + self.center
        return (logits.sigmoid() if self.kind == "multi_label" else logits.softmax(-1)).cpu().numpy()

    @torch.no_grad()
    def with_scale_in(self, layer: nn.Linear) -> "Task":
        """Move `center` and `scale` into a model's last layer; returns the task for logits that are the numbers."""
        layer.weight.mul_(self.scale)
        layer.bias.mul_(self.scale).add_(self.center)
        return replace(self, center=0.0, scale=1.0)


@cache
def tensor_on(device: torch.device, dtype: torch.dtype, values: tuple[float, ...]) -> Tensor:
    """A tensor of these values, which is copied to a device once: each copy would make a GPU wait."""
    with torch.inference_mode(False):  # it may be asked for first where no gradients are wanted
        return torch.tensor(values, dtype=dtype, device=device)


def last_layer(model: "PreTrainedModel") -> nn.Linear:
    """The layer whose output is a regression's number."""
    return [module for module in model.modules() if isinstance(module, nn.Linear) and module.out_features == 1][-1]


def build_task(settings: "Finetune", training: Examples) -> Task:
    """The recipe's task on these training examples.

    `balanced` class weights are inversely proportional to the classes' counts, as in scikit-learn.
    Raises UserError if there is not one weight for each class, if a regression's training labels are all the same, or
    if two classes or tags that `label_names` does not name are all but the same.
    """
    if settings.task != "regression" and settings.label_names is None:
        refuse_alike(training.classes)
    if settings.task == "regression":
        center, scale = training.labels.mean(), training.labels.std()
        if not scale:
            raise UserError(
                f"finetune: all {len(training)} training examples have the label {center:g}, so there is nothing to "
                "learn; the others are in the validation or test part"
            )
        step = abs(center) * 2.0**-23  # between two numbers of 32 bits near the labels, as the model gives them
        if 1000 * step > scale:
            log_once(
                f"finetune: the labels lie around {center:g} with a standard deviation of {scale:g}, but the model's "
                f"numbers have steps of {step:.1g} there: subtract a constant from the labels"
            )
        return Task(settings.task, training.classes, center=float(center), scale=float(scale))
    weights = settings.class_weights
    if weights == "balanced":
        labels = np.concatenate(training.labels) if settings.task == "tokens" else training.labels
        counts = labels.sum(0) if labels.ndim == 2 else np.bincount(labels, minlength=len(training.classes))
        counts = np.maximum(counts, 1)
        weights = counts.sum() / (len(counts) * counts)
    if weights is not None and len(weights) != len(training.classes):
        raise UserError(
            f"finetune.class_weights: {len(weights)} weights for {len(training.classes)} classes "
            f"({', '.join(training.classes)})"
        )
    return Task(
        settings.task,
        training.classes,
        None if weights is None else tuple(float(weight) for weight in weights),
        settings.label_smoothing,
    )


def refuse_alike(names: Sequence[str]) -> None:
    """Raise UserError where two classes look alike: white space, capitals or Unicode's forms are usually a mistake."""
    known: dict[str, str] = {}
    for name in names:
        plain = unicodedata.normalize("NFC", " ".join(name.split()).lower())
        if plain in known:
            raise UserError(
                f"finetune: the labels {known[plain]!r} and {name!r} differ in white space, capitals or Unicode's "
                "form of a letter alone; make them the same, or, if they are two classes, name all classes: "
                "finetune.label_names=[...]"
            )
        known[plain] = name


@dataclass
class TaskOutput(ModelOutput):
    """The loss, and the logits (B, ..., C) in fp32."""

    loss: Tensor | None = None
    logits: Tensor | None = None


class TaskModel(nn.Module):
    """A model with a head for the task, and the task's loss."""

    def __init__(self, model: "PreTrainedModel", task: Task) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, labels: Tensor, num_items_in_batch: Tensor, **inputs: Tensor) -> TaskOutput:
        """The batch's share of the mean loss over `num_items_in_batch` labels; `inputs` are passed to the model."""
        logits = self.model(**inputs).logits.float()
        return TaskOutput(self.task.loss(logits, labels) / num_items_in_batch, logits)


class TaskObjective:
    """The loss, and if there are classes the accuracy, during training."""

    count_names: tuple[str, ...] = ("num_items_in_batch",)

    def __init__(self, task: Task) -> None:
        self.has_accuracy = task.kind in ("classification", "tokens")
        self.options: dict[str, bool] = {}
        self.unit = task.scale**2 if task.kind == "regression" else 1.0  # so that the loss is as in validation
        self.metric_names: tuple[str, ...] = ("loss", "accuracy") if self.has_accuracy else ("loss",)

    def counts(self, batch: Batch) -> dict[str, int]:
        """The number of labels in a batch: of texts, or of words."""
        labels = batch["labels"]
        return {
            "num_items_in_batch": len(labels) if labels.is_floating_point() else int((labels != IGNORE_INDEX).sum())
        }

    def measure(self, outputs: Any, batch: Batch, counts: Mapping[str, float]) -> dict[str, Tensor]:
        """This batch's share of the loss and the accuracy (fraction) over `counts` labels."""
        measured = {"loss": outputs.loss.detach() * self.unit}
        if self.has_accuracy:
            labels = batch["labels"]
            labels = labels.argmax(-1) if labels.is_floating_point() else labels
            right = (outputs.logits.argmax(-1) == labels).sum()
            measured["accuracy"] = right / counts["num_items_in_batch"]
        return measured
