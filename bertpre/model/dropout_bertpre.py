"""Dropout that is fast in programs compiled for a CPU; elsewhere it is torch's own.

This file and its siblings need only torch, transformers and each other, because saving a model with custom code copies
these files alone.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Dropout(nn.Dropout):
    """`drop` as a module."""

    def forward(self, states: Tensor) -> Tensor:
        return drop(states, self.p, self.training)


def drop(states: Tensor, probability: float, training: bool) -> Tensor:
    """Zero each value with this probability and scale up the others (Srivastava et al. 2014); the shape is kept.

    Compiled for a CPU, torch's dropout draws its random numbers one after the other, which took a third of a training
    step (docs/architecture.md). There, two numbers are drawn per call, and each value hashes its own index with them.
    """
    if not (training and probability > 0 and states.device.type == "cpu" and torch.compiler.is_compiling()):
        return F.dropout(states, probability, training)
    factor, offset = torch.randint(-(1 << 31), 1 << 31, (2,), dtype=torch.int32)
    index = torch.arange(states.numel(), dtype=torch.int32).view(states.shape)
    # An odd factor maps different indices to different numbers.
    is_kept = hash_bits(index * (factor | 1) + offset) >= round((probability - 0.5) * (1 << 32))
    return torch.where(is_kept, states * (1 / (1 - probability)), 0)


def hash_bits(index: Tensor) -> Tensor:
    """Mix int32 numbers so that each output bit depends on every input bit (the finalizer of MurmurHash3)."""
    for shift, factor in ((16, -2048144789), (13, -1028477387), (16, 1)):
        index = (index ^ ((index >> shift) & ((1 << (32 - shift)) - 1))) * factor
    return index
