"""Arithmetic in short types on fp32 weights: the working copy, and the loss scale of fp16."""

import torch
from torch import nn

from bertpre.model.casting import in_type


class WorkingCopy:
    """The model that computes: the fp32 master itself, or a copy of it in a shorter type.

    Updates too small for bf16 weights are kept by the fp32 masters (Micikevicius et al. 2018, section 3.1). Autocast
    would round every weight in every forward pass, which takes longer for large models: docs/architecture.md.
    """

    def __init__(self, master: nn.Module, dtype: torch.dtype) -> None:
        self.master = master
        self.is_master = dtype == torch.float32
        self.model = in_type(master, dtype)
        self.pairs = list(zip(master.parameters(), self.model.parameters(), strict=True))

    def add_gradients(self) -> None:
        """Add the copy's gradients to those of the masters, in fp32.

        After each micro-batch: a sum in bf16 hardly changes once it is some 256 times as large as what is added.
        """
        if self.is_master:
            return
        used = [(master, working) for master, working in self.pairs if working.grad is not None]
        first = [pair for pair in used if pair[0].grad is None]
        later = [pair for pair in used if pair[0].grad is not None]
        if later:
            torch._foreach_add_([master.grad for master, _ in later], [working.grad for _, working in later])
        for master, _ in first:
            master.grad = torch.empty_like(master)
        if first:
            torch._foreach_copy_([master.grad for master, _ in first], [working.grad for _, working in first])
        for _, working in used:
            working.grad = None

    def return_gradients(self) -> None:
        """The opposite, rounded: DDP shares the copy's gradients, which then are the sums of all micro-batches."""
        for master, working in () if self.is_master else self.pairs:
            if master.grad is not None:
                working.grad, master.grad = master.grad.to(working.dtype), None

    def collect_gradients(self, loss_scale: float = 1.0) -> None:
        """Move the last gradients to the masters, and divide the sums by the loss scale."""
        self.add_gradients()
        if loss_scale != 1:
            torch._foreach_div_([master.grad for master, _ in self.pairs if master.grad is not None], loss_scale)

    def update(self) -> None:
        """Round the masters into the copy."""
        if self.is_master:
            return
        with torch.no_grad():
            torch._foreach_copy_([working for _, working in self.pairs], [master for master, _ in self.pairs])


class LossScale:
    """The factor on the loss that keeps fp16's gradients from vanishing (Micikevicius et al. 2018, section 3.2).

    It halves when a gradient overflows, and that step is left out; after 2,000 good steps it doubles.
    """

    START, PATIENCE, LEAST = 2.0**16, 2000, 2.0**-8

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self.value, self.good_steps = (self.START if enabled else 1.0), 0

    def update(self, is_finite: bool) -> None:
        """Adapt the scale after a step."""
        self.good_steps = self.good_steps + 1 if is_finite else 0
        if not is_finite:
            self.value /= 2
        elif self.good_steps == self.PATIENCE:
            self.value, self.good_steps = self.value * 2, 0
