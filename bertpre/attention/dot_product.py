"""Attention as a weighted mean: softmax turns scores into weights, and the weights mix the values."""

import torch
from torch import Tensor


def attend(scores: Tensor, values: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The mean of the values, weighted by the softmax of each row of scores.

    Scores (..., S, T) and values (..., T, Dv) give (..., S, Dv) and the weights (..., S, T). The mask broadcasts to the
    scores; a row that may attend to nothing gets weights of zero, where softmax alone would give NaN.
    """
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = scores.softmax(dim=-1)
    if mask is not None:
        weights = weights.masked_fill(~mask.any(dim=-1, keepdim=True), 0.0)
    return weights @ values, weights


def simple_self_attention(states: Tensor) -> tuple[Tensor, Tensor]:
    """Attention without any parameter, softmax(X X^T) X: (..., S, E) to (..., S, E) and the weights (..., S, S)."""
    return attend(states @ states.transpose(-2, -1), states)


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """softmax(Q K^T / sqrt(D)) V (Vaswani et al. 2017, equation 1).

    Query (..., S, D), key (..., T, D) and value (..., T, Dv) give (..., S, Dv) and the weights (..., S, T). The model's
    `eager_attention` computes the same.
    """
    return attend(query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5, value, mask)


def look_up(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The value whose key fits each query best: what attention becomes when its scores grow; (..., S, E)."""
    best = (query @ key.transpose(-2, -1)).argmax(dim=-1)  # (..., S)
    return value.gather(-2, best.unsqueeze(-1).expand(*best.shape, value.shape[-1]))


def causal_mask(length: int) -> Tensor:
    """Each position may see itself and those before it: (S, S)."""
    return torch.ones(length, length, dtype=torch.bool).tril()


def padding_mask(lengths: Tensor, longest: int) -> Tensor:
    """Every position may see the tokens of its row and not the padding after them: (B,) to (B, 1, T)."""
    return (torch.arange(longest, device=lengths.device) < lengths.unsqueeze(-1)).unsqueeze(-2)
