"""Optimizers: AdamW, or Muon on the hidden matrices with AdamW for the rest."""

import copy

import torch
from torch import nn


def build_optimizers(
    model: nn.Module,
    name: str,
    learning_rate: float,
    weight_decay: float,
    muon_learning_rate: float = 0.02,
    adam_beta2: float = 0.999,
    muon_weight_decay: float = 0.1,
) -> list[torch.optim.Optimizer]:
    """The optimizers of all trainable parameters, each of which is in exactly one group.

    `adamw`: Loshchilov and Hutter 2019; matrices are decayed, biases and normalisations are not (Devlin et al. 2018).
    `muon`: Jordan et al. 2024; hidden matrices are orthogonalised, embeddings and output layers keep AdamW. A step
    moves all singular values alike, and what a pre-LN layer adds may grow without changing the loss, so only weight
    decay bounds it (Liu et al. 2025, section 2.2).
    """
    parameters = {key: value for key, value in model.named_parameters() if value.requires_grad}
    hidden = {key for key, value in parameters.items() if name == "muon" and value.ndim == 2 and not is_outer(key)}
    rest = {key: value for key, value in parameters.items() if key not in hidden}
    groups = [
        {"params": [value for value in rest.values() if value.ndim >= 2], "weight_decay": weight_decay},
        {"params": [value for value in rest.values() if value.ndim < 2], "weight_decay": 0.0},
    ]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, adam_beta2), eps=1e-6, fused=True)
    ]
    if name == "muon":
        matrices = [parameters[key] for key in sorted(hidden)]
        optimizers.append(
            torch.optim.Muon(matrices, lr=muon_learning_rate, weight_decay=muon_weight_decay, momentum=0.95)
        )
    held = [id(value) for optimizer in optimizers for group in optimizer.param_groups for value in group["params"]]
    assert sorted(held) == sorted(map(id, parameters.values())), "each parameter belongs to exactly one group"
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


def is_outer(key: str) -> bool:
    """Whether a weight belongs to the embeddings or to an output layer."""
    return any(part in ("embeddings", "decoder", "seq_relationship", "classifier") for part in key.split("."))


def set_learning_rate(optimizers: list[torch.optim.Optimizer], factor: float) -> float:
    """Scale every group's peak rate by `factor`; returns the first group's rate."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor
    return optimizers[0].param_groups[0]["lr"]


class WorkingCopy:
    """The model that does the arithmetic: the master itself in fp32, else a copy of it in a shorter type.

    Steps too small for bf16 would be lost in its weights; the fp32 masters keep them (Micikevicius et al. 2018, section
    3.1). Autocast rounds every weight in every forward pass, which takes longer where they are many:
    docs/architecture.md.
    """

    def __init__(self, master: nn.Module, dtype: torch.dtype) -> None:
        self.master = master
        self.is_master = dtype == torch.float32
        self.model = master if self.is_master else copy.deepcopy(master).to(dtype)
        self.pairs = list(zip(master.parameters(), self.model.parameters(), strict=True))

    def collect_gradients(self) -> None:
        """Move the copy's gradients to the masters, in fp32."""
        if self.is_master:
            return
        for master, working in self.pairs:
            master.grad = (
                None if working.grad is None else working.grad.float()
            )  # None: a weight this batch did not use
            working.grad = None

    def update(self) -> None:
        """Round the masters into the copy."""
        if self.is_master:
            return
        with torch.no_grad():
            for master, working in self.pairs:
                working.copy_(master)
