"""Optimizers: AdamW, LAMB, or Muon on the hidden matrices with AdamW for the rest."""

import re
from typing import Any

import torch
from torch import Tensor, nn

from bertpre.runtime import has_native_bf16


def build_optimizers(
    model: nn.Module,
    name: str,
    learning_rate: float,
    weight_decay: float,
    muon_learning_rate: float = 0.02,
    adam_beta2: float = 0.999,
    muon_weight_decay: float = 0.1,
    layer_decay: float = 1.0,
) -> list[torch.optim.Optimizer]:
    """The optimizers of all trainable parameters, each of which is in exactly one group.

    `adamw`: Loshchilov and Hutter 2019; matrices are decayed, biases and normalisations are not (Devlin et al. 2018).
    `lamb`: You et al. 2020; for batches of thousands.
    `muon`: Jordan et al. 2024; updates of hidden matrices are orthogonalised, embeddings and output layers keep AdamW.
    The orthogonalisation computes in bf16 where the device multiplies it natively, else in fp32.
    Only weight decay bounds the matrices: the output of a pre-LN layer may grow without changing the loss (Liu et al.
    2025, section 2.2).
    `layer_decay` is the factor on AdamW's rate from each layer to the one below it (Howard and Ruder 2018, section 3.2,
    discriminative fine-tuning; Sun et al. 2019, section 5.3.4).
    """
    parameters = {key: value for key, value in model.named_parameters() if value.requires_grad}
    hidden = {key for key, value in parameters.items() if name == "muon" and value.ndim == 2 and not is_outer(key)}
    rest = {key: value for key, value in parameters.items() if key not in hidden}
    groups = parameter_groups(rest, learning_rate, weight_decay, layer_decay)
    settings: dict[str, Any] = {"lr": learning_rate, "betas": (0.9, adam_beta2), "eps": 1e-6}
    adam = Lamb(groups, **settings) if name == "lamb" else torch.optim.AdamW(groups, **settings, fused=True)
    optimizers: list[torch.optim.Optimizer] = [adam]
    if name == "muon":
        matrices = [parameters[key] for key in sorted(hidden)]
        dtype = torch.bfloat16 if has_native_bf16(matrices[0].device) else torch.float32
        optimizers.append(Muon(matrices, lr=muon_learning_rate, weight_decay=muon_weight_decay, dtype=dtype))
    held = [id(value) for optimizer in optimizers for group in optimizer.param_groups for value in group["params"]]
    assert sorted(held) == sorted(map(id, parameters.values())), "each parameter belongs to exactly one group"
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


def parameter_groups(
    parameters: dict[str, nn.Parameter], learning_rate: float, weight_decay: float, layer_decay: float
) -> list[dict[str, Any]]:
    """Groups of one learning rate and one weight decay each; vectors are not decayed."""
    factors = layer_factors(list(parameters), layer_decay)
    groups = [
        {
            "params": [
                value for key, value in parameters.items() if factors[key] == factor and (value.ndim < 2) == is_vector
            ],
            "weight_decay": 0.0 if is_vector else weight_decay,
            "lr": learning_rate * factor,
        }
        for factor in sorted(set(factors.values()), reverse=True)
        for is_vector in (False, True)
    ]
    return [group for group in groups if group["params"]]


def layer_factors(keys: list[str], layer_decay: float) -> dict[str, float]:
    """The factor on each weight's rate: 1 above the layers, `layer_decay` for the top layer, its square below, ..."""
    found = {key: re.search(r"\.layers?\.(\d+)\.", key) for key in keys}
    top = max((int(match[1]) for match in found.values() if match), default=-1)

    def depth(key: str) -> int:
        if match := found[key]:
            return top + 1 - int(match[1])
        return top + 2 if "embeddings" in key.split(".") else 0

    return {key: layer_decay ** depth(key) for key in keys}


class WeightByWeight(torch.optim.Optimizer):
    """An optimizer whose `update` changes one weight at a time."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update all weights that have a gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self.update(weight, group)

    def update(self, weight: Tensor, group: dict) -> None:
        """Update one weight of a group."""
        raise NotImplementedError


class Muon(WeightByWeight, torch.optim.Muon):
    """torch's Muon, with the orthogonalisation in a chosen type; in bf16 the two are bit-identical.

    torch always computes it in bf16. A processor that emulates bf16 then spends 7.7 s on one step of a model that
    needs 0.16 s in fp32 (docs/muon.md).
    """

    def __init__(self, params: list[nn.Parameter], lr: float, weight_decay: float, dtype: torch.dtype) -> None:
        super().__init__(params, lr=lr, weight_decay=weight_decay, momentum=0.95)
        self.dtype = dtype

    def update(self, weight: Tensor, group: dict) -> None:
        """Update one matrix: Nesterov momentum, orthogonalised, times the rate that fits the matrix's shape."""
        state, (rows, columns) = self.state[weight], weight.shape
        if not state:
            state["momentum_buffer"] = torch.zeros_like(weight.grad)
        state["momentum_buffer"].lerp_(weight.grad, 1 - group["momentum"])
        direction = weight.grad.lerp(state["momentum_buffer"], group["momentum"])
        direction = orthogonalise(direction.to(self.dtype), group["ns_coefficients"], group["ns_steps"], group["eps"])
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.add_(direction, alpha=-group["lr"] * max(1, rows / columns) ** 0.5)


def orthogonalise(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """The matrix with all singular values near 1, by Newton-Schulz steps (Jordan et al. 2024)."""
    a, b, c = coefficients
    is_tall = matrix.size(0) > matrix.size(1)
    wide = matrix.T if is_tall else matrix
    wide = wide / wide.norm().clamp(min=eps)
    for _ in range(steps):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.T if is_tall else wide


class Lamb(WeightByWeight):
    """Adam whose step for each weight has the norm of that weight, times the rate (You et al. 2020, algorithm 2).

    Groups without decay (biases and normalisations) take Adam's step unchanged, as in the authors' code.
    """

    def __init__(
        self, params: list[dict], lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    def update(self, weight: Tensor, group: dict) -> None:
        """Update one weight."""
        state, (beta1, beta2) = self.state[weight], group["betas"]
        if not state:
            state |= {"step": torch.zeros(()), "exp_avg": torch.zeros_like(weight)}
            state["exp_avg_sq"] = torch.zeros_like(weight)
        state["step"] += 1
        state["exp_avg"].lerp_(weight.grad, 1 - beta1)
        state["exp_avg_sq"].lerp_(weight.grad.square(), 1 - beta2)
        count = float(state["step"])
        mean, square = state["exp_avg"] / (1 - beta1**count), state["exp_avg_sq"] / (1 - beta2**count)
        direction = mean / (square.sqrt() + group["eps"]) + group["weight_decay"] * weight
        if group["weight_decay"]:
            length, size = direction.norm(), weight.norm()
            direction *= torch.where((length > 0) & (size > 0), size / length, 1.0)
        weight.sub_(direction, alpha=group["lr"])


def is_outer(key: str) -> bool:
    """Whether a weight belongs to the embeddings or to an output layer."""
    return any(part in ("embeddings", "decoder", "seq_relationship", "classifier") for part in key.split("."))


def set_learning_rate(optimizers: list[torch.optim.Optimizer], factor: float) -> float:
    """Scale every group's peak rate by `factor`; returns the first group's rate."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor
    return optimizers[0].param_groups[0]["lr"]
