"""Guards: what must be true before the weights are touched."""

import torch

from bertpre.errors import UserError


def check_finite(grad_norm: torch.Tensor, step: int) -> None:
    """Stop before an update that would destroy the weights; raises UserError where the gradient is not finite."""
    if not torch.isfinite(grad_norm):
        raise UserError(
            f"the gradient of step {step} is not finite, and the weights were left as they were; "
            "lower training.learning_rate, lengthen training.warmup, or try training.precision=fp32; "
            "the last checkpoint is intact"
        )
