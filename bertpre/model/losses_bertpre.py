"""The losses of the BertPre models.

Shapes: N tokens, E hidden, V vocabulary, C classes, B batch.
"""

from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx

from .configuration_bertpre import BertPreConfig

IGNORE_INDEX = -100  # the label of a position without a target
CACHED_LOGITS = 1 << 17  # of a thread at a time: 1 MB with the gradient, often a core's second cache
SCORED_ROWS = 2048  # where scores are not kept: with fewer at a time, adding up the weights' gradients takes long

Count: TypeAlias = Tensor | int | None


def divide_loss(loss_sum: Tensor, num_items: Tensor | int) -> Tensor:
    """Divide a summed loss by a count of targets, at least by 1: without targets the loss is 0, not NaN."""
    return loss_sum / torch.as_tensor(num_items, device=loss_sum.device).clamp(min=1)


def check_labels(labels: Tensor, shape: torch.Size) -> None:
    """Raise ValueError unless the labels have this shape; torch would hide some mistakes by broadcasting."""
    if labels.shape != shape:
        raise ValueError(f"labels have shape {tuple(labels.shape)}, but these logits need {tuple(shape)}")


def class_labels(labels: Tensor, shape: torch.Size) -> Tensor:
    """Labels of any integer type in the one that torch's losses take; raises ValueError unless they have this shape."""
    check_labels(labels, shape)
    return labels.long()


def cross_entropy(logits: Tensor, labels: Tensor, num_items: Count) -> Tensor:
    """Cross entropy in fp32 of logits (..., C) against labels (...), summed and divided by `num_items`.

    The default of `num_items` is the number of labels that are not -100. Raises ValueError when the shapes disagree.
    """
    labels = class_labels(labels, logits.shape[:-1])
    num_items = (labels != IGNORE_INDEX).sum() if num_items is None else num_items
    logits, labels = logits.flatten(0, -2), labels.flatten()  # (..., C) -> (N, C), (...) -> (N,)
    if makes_own_gradient(logits, logits.numel()):
        return CachedCrossEntropy.apply(logits, labels, divide_loss(torch.ones(()), num_items))
    loss_sum = F.cross_entropy(logits.float(), labels, ignore_index=IGNORE_INDEX, reduction="sum")
    return divide_loss(loss_sum, num_items)


def makes_own_gradient(inputs: Tensor, num_logits: int) -> bool:
    """Whether a loss makes its gradient itself: in training on a CPU, where so many scores leave the caches.

    In fp16 the gradient would be rounded to 0 before it is multiplied by the loss's scale. torch.func needs torch's own
    operations. While compiling nothing more is asked: a program would be for some sizes alone.
    """
    return (
        not torch.compiler.is_compiling()
        and inputs.device.type == "cpu"
        and inputs.requires_grad
        and not torch._C._functorch.is_functorch_wrapped_tensor(inputs)
        and inputs.dtype != torch.float16
        and num_logits > CACHED_LOGITS
    )


def prepared_labels(labels: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Labels (N,) as places (N, 1), and the weight of each, (N, 1): 0 where there is no target."""
    if ((labels < 0) & (labels != IGNORE_INDEX)).any():  # gather would not notice, as torch's own loss does
        raise IndexError(f"label {int(labels[labels != IGNORE_INDEX].min())} is out of bounds")
    return labels.clamp(min=0).unsqueeze(-1), ((labels != IGNORE_INDEX) * weight).unsqueeze(-1)


def turn_into_gradient(scores: Tensor, labels: Tensor, weights: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Write the loss's gradient for scores (N, C) into `gradient`, which may be `scores`, a few rows at a time.

    Takes `prepared_labels`. Returns the weighted sum of the losses, and how many labels score highest; where another
    class scores as high, a label counts half.
    """
    count = max(1, CACHED_LOGITS * torch.get_num_threads() // scores.shape[1])
    # The label's logarithm and probability, and the largest probability of the others.
    found = torch.empty(3, len(scores), 1, dtype=torch.float32)
    parts = (scores, gradient, labels, weights, *found)
    for rows, row_gradient, label, weight, logarithm, probability, others in zip(
        *(part.split(count) for part in parts), strict=True
    ):
        values = F.log_softmax(rows, -1, dtype=torch.float32)
        torch.gather(values, 1, label, out=logarithm)
        torch.gather(values.exp_(), 1, label, out=probability)
        values.scatter_(1, label, probability - 1)
        torch.amax(values, -1, keepdim=True, out=others)
        row_gradient.copy_(values.mul_(weight))
    logarithm, probability, others = found
    is_right = ((probability > others).float() + (probability >= others).float()) / 2
    return -(logarithm * weights).sum(), (is_right * (weights > 0)).sum()


def kept_gradients(ctx: FunctionCtx, grad_output: Tensor) -> tuple[Tensor, ...]:
    """The gradients that a forward pass has left for the backward pass.

    Raises RuntimeError where they are to be differentiated again: once_differentiable would give wrong numbers.
    """
    if torch.is_grad_enabled():  # create_graph=True
        raise RuntimeError(
            "on a CPU this loss has no second derivative; call the model without labels, and "
            "torch.nn.functional.cross_entropy with its logits"
        )
    gradients: tuple[Tensor, ...] = ctx.saved_tensors
    return gradients if grad_output == 1 else tuple(gradient * grad_output for gradient in gradients)


class CachedCrossEntropy(torch.autograd.Function):
    """Cross entropy of a vocabulary, with its gradient, a few rows at a time, so that both stay in a CPU's caches.

    The same numbers as torch's own, which writes the scores to memory four times in fp32
    (benchmarks/vocabulary_loss.py). There is no second derivative.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
        """The sum over rows (N, C) whose label (N,) is not -100, times `weight`."""
        gradient = torch.empty_like(logits)
        loss, _ = turn_into_gradient(logits, *prepared_labels(labels, weight), gradient)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx: FunctionCtx, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of the logits; raises RuntimeError as `kept_gradients` does."""
        return *kept_gradients(ctx, grad_output), None, None


def vocabulary_loss(
    states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, num_items: Count
) -> tuple[Tensor, Tensor]:
    """As `cross_entropy` of the scores of states (..., E) by a decoder's weight (V, E) and bias (V,), which it drops.

    Also returns how many labels score highest. Only where `makes_own_gradient` holds.
    """
    labels = class_labels(labels, states.shape[:-1])
    num_items = (labels != IGNORE_INDEX).sum() if num_items is None else num_items
    scale = divide_loss(torch.ones(()), num_items)
    return DecodedCrossEntropy.apply(states.flatten(0, -2), weight, bias, labels.flatten(), scale)


class DecodedCrossEntropy(torch.autograd.Function):
    """The decoder to a vocabulary and its cross entropy, with all gradients, `SCORED_ROWS` at a time.

    So neither the scores nor their gradient are ever in memory as a whole (benchmarks/vocabulary_loss.py).
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, scale: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The sum over rows (N, E) whose label (N,) is not -100, times `scale`, and how many labels score highest."""
        of_states, of_decoder = torch.empty_like(states), list[Tensor]()
        loss, num_right = torch.zeros((), dtype=torch.float32), torch.zeros((), dtype=torch.float32)
        parts = (states, of_states, *prepared_labels(labels, scale))
        for rows, of_rows, label, row_weight in zip(*(part.split(SCORED_ROWS) for part in parts), strict=True):
            scores = torch.addmm(bias, rows, weight.T)
            row_loss, right = turn_into_gradient(scores, label, row_weight, scores)
            loss, num_right = loss + row_loss, num_right + right
            torch.mm(scores, weight, out=of_rows)
            new = [scores.T @ rows, scores.sum(0)]
            # Several are added up in fp32.
            of_decoder = [total.float().add_(each) for total, each in zip(of_decoder, new, strict=False)] or new
        ctx.save_for_backward(of_states, *(total.to(weight.dtype) for total in of_decoder))
        ctx.mark_non_differentiable(num_right)
        return loss, num_right

    @staticmethod
    def backward(ctx: FunctionCtx, grad_output: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of states, weight and bias; raises RuntimeError as `kept_gradients` does."""
        return *kept_gradients(ctx, grad_output), None, None


def classification_loss(config: BertPreConfig, logits: Tensor, labels: Tensor, num_items: Count) -> Tensor:
    """Loss of logits (B, C) by `config.problem_type`; None is inferred from the labels, as transformers does.

    Summed and divided by `num_items`, by default the number of labels: B for single-label classification, B * C for
    multi-label classification and regression. Raises ValueError when the shapes disagree.
    """
    problem = config.problem_type
    if problem is None and config.num_labels == 1:
        problem = "regression"
    elif problem is None:
        problem = "multi_label_classification" if labels.is_floating_point() else "single_label_classification"
    if problem == "single_label_classification":
        return cross_entropy(logits, labels.squeeze(-1) if labels.ndim == logits.ndim else labels, num_items)
    others = ("multi_label_classification", "regression")
    if problem not in others:
        raise ValueError(f"problem_type: {problem!r} is not single_label_classification, {' or '.join(others)}")
    labels = labels.float() if labels.ndim == 2 else labels.float().unsqueeze(-1)  # (B,) -> (B, 1)
    check_labels(labels, logits.shape)
    element_loss = F.mse_loss if problem == "regression" else F.binary_cross_entropy_with_logits
    loss_sum = element_loss(logits.float(), labels, reduction="sum")
    return divide_loss(loss_sum, labels.numel() if num_items is None else num_items)
