"""Optimizers: AdamW, LAMB, or Muon on the hidden matrices with AdamW for the rest."""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor

from bertpre.errors import UserError
from bertpre.hardware import has_native_bf16
from bertpre.training.dealing import deal, dealt
from bertpre.training.sharding import local_part


def build_optimizers(
    model: nn.Module,
    name: str,
    learning_rate: float,
    weight_decay: float,
    muon_learning_rate: float = 0.02,
    adam_beta2: float = 0.999,
    muon_weight_decay: float = 0.1,
    layer_decay: float = 1.0,
    group: ProcessGroup | None = None,
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
    `group` is the processes over which Muon may deal its matrices.
    """
    parameters = {key: value for key, value in model.named_parameters() if value.requires_grad}
    embeddings = embedding_keys(model)
    matrices = {key for key, value in parameters.items() if value.ndim == 2 and key not in embeddings}
    hidden = {key for key in matrices if name == "muon" and not is_output(key)}
    rest = {key: value for key, value in parameters.items() if key not in hidden}
    factors = layer_factors(list(rest), embeddings, layer_decay)
    groups = parameter_groups(rest, factors, learning_rate, weight_decay)
    settings: dict[str, Any] = {"lr": learning_rate, "betas": (0.9, adam_beta2), "eps": 1e-6}
    adam = Lamb(groups, **settings) if name == "lamb" else torch.optim.AdamW(groups, **settings, fused=True)
    optimizers: list[torch.optim.Optimizer] = [adam]
    if name == "muon":
        orthogonal = muon_groups({key: parameters[key] for key in sorted(hidden)})
        weights = [value for each in orthogonal for value in each["params"]]
        dtype = torch.bfloat16 if has_native_bf16(weights[0].device) else torch.float32
        group = group if is_worth_dealing(weights) else None
        optimizers.append(
            Muon(orthogonal, lr=muon_learning_rate, weight_decay=muon_weight_decay, dtype=dtype, group=group)
        )
    held = [id(value) for optimizer in optimizers for each in optimizer.param_groups for value in each["params"]]
    assert sorted(held) == sorted(map(id, parameters.values())), "each parameter belongs to exactly one group"
    for optimizer in optimizers:
        for each in optimizer.param_groups:
            each["peak_lr"] = each["lr"]
    return optimizers


def parameter_groups(
    parameters: dict[str, nn.Parameter], factors: dict[str, float], learning_rate: float, weight_decay: float
) -> list[dict[str, Any]]:
    """Groups of one learning rate and one weight decay each; vectors are not decayed. `factors` are those of rates."""
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


def muon_groups(matrices: dict[str, nn.Parameter]) -> list[dict[str, Any]]:
    """Groups of matrices by the number of `parts` that each is orthogonalised in.

    Query, key and value in one matrix are three parts, which Jordan et al. (2024) found better.
    """
    parts = {key: 3 if key.endswith("Wqkv.weight") else 1 for key in matrices}
    groups = [
        {"params": [value for key, value in matrices.items() if parts[key] == count], "parts": count}
        for count in (1, 3)
    ]
    return [group for group in groups if group["params"]]


def layer_factors(keys: list[str], embeddings: set[str], layer_decay: float) -> dict[str, float]:
    """The factor on each weight's rate: 1 above the layers, `layer_decay` for the top layer, its square below, ...

    Raises UserError where no weight has the number of a layer in its name.
    """
    found = {key: re.search(r"\.layers?\.(\d+)\.", key) for key in keys}
    top = max((int(match[1]) for match in found.values() if match), default=-1)
    if layer_decay != 1 and top < 0:
        raise UserError(
            "finetune.layer_decay: this model has no numbered layers, whose rates it could lower; set it to 1"
        )

    def depth(key: str) -> int:
        if match := found[key]:
            return top + 1 - int(match[1])
        return top + 2 if key in embeddings else 0

    return {key: layer_decay ** depth(key) for key in keys}


class ShapeByShape(torch.optim.Optimizer):
    """An optimizer whose `update` changes all weights of one shape in a few operations, each on a list of tensors.

    One shape at a time, because temporary copies of all weights together would take as much memory as the model.
    """

    found_inf: Tensor | None = None  # on the device, 1 where the step must not change anything; torch's own name for it
    is_applied: Tensor | None = None  # the opposite, compared once in each step

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update all weights that have a gradient."""
        self.is_applied = None if self.found_inf is None else self.found_inf == 0
        for group in self.param_groups:
            self.update_group(by_shape(group["params"]), group)

    def update_group(self, of_shape: list[list[Tensor]], group: dict) -> None:
        """Update the weights of a group, those of one shape after the other."""
        for weights in of_shape:
            self.update(weights, group)

    def update(self, weights: list[Tensor], group: dict) -> None:
        """Update some weights of a group; they have one shape."""
        raise NotImplementedError

    def unless_skipped(self, value: Any, otherwise: Any) -> Any:
        """`value`, or `otherwise` where the step is skipped; the device chooses, and the CPU does not wait for it."""
        return value if self.is_applied is None else torch.where(self.is_applied, value, otherwise)

    def each_unless_skipped(self, values: list[Tensor], otherwise: list[Tensor] | float) -> list[Tensor]:
        """The same for each of several tensors of one shape."""
        if self.is_applied is None:
            return values
        others = torch.stack(otherwise) if isinstance(otherwise, list) else otherwise
        return list(self.unless_skipped(torch.stack(values), others).unbind())


class Muon(ShapeByShape, torch.optim.Muon):
    """torch's Muon, with the orthogonalisation in a chosen type, and of all matrices of one shape together.

    In bf16 on a CPU the two are bit-identical, but for a group with `parts`. torch always computes in bf16. A processor
    that emulates bf16 then spends 7.7 s on one step of a model that needs 0.16 s in fp32 (docs/muon.md).

    A group of weights may say in how many `parts` each is orthogonalised, one below the other.

    The processes of a `group`, or those that sharded matrices lie on, orthogonalise a share of the matrices each and
    exchange the results, so their weights stay bit-identical. Every one of them has to call `step`.
    """

    def __init__(
        self,
        params: list[nn.Parameter] | list[dict[str, Any]],
        lr: float,
        weight_decay: float,
        dtype: torch.dtype,
        group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(params, lr=lr, weight_decay=weight_decay, momentum=0.95)
        for each in self.param_groups:
            each.setdefault("parts", 1)
        self.dtype = dtype
        first = self.param_groups[0]["params"][0]
        self.group = first.device_mesh.get_group() if isinstance(first, DTensor) else group

    def update_group(self, of_shape: list[list[Tensor]], group: dict) -> None:
        """Update matrices; those of a shape are sent around while the next shape's are orthogonalised."""
        if self.group is None:
            super().update_group(of_shape, group)
            return
        parts = group["parts"]
        costs = [parts * newton_schulz_flops(part_shape(weights[0], parts), group["ns_steps"]) for weights in of_shape]
        shares = deal([len(weights) for weights in of_shape], costs, self.group.size())
        arriving = [self.send(weights, share, group) for weights, share in zip(of_shape, shares, strict=True)]
        for weights, wait in zip(of_shape, arriving, strict=True):
            self.move(weights, wait(), group)

    def update(self, weights: list[Tensor], group: dict) -> None:
        """Update matrices of one shape, in this process alone."""
        self.move(weights, self.orthogonalise(self.directions(weights, group), group), group)

    def send(self, weights: list[Tensor], share: list[int], group: dict) -> Callable[[], Tensor]:
        """Orthogonalise this process's share of matrices of one shape; what it returns waits for those of all."""
        assert self.group is not None
        exchange = dealt(weights[0], share, self.group)
        return exchange.gather(self.orthogonalise(exchange.share_of(self.directions(weights, group)), group))

    def directions(self, weights: list[Tensor], group: dict) -> Tensor:
        """Nesterov momentum of matrices of one shape, in the type of the products; of sharded ones, the rows here."""
        gradients = list(map(local_part, gradients_of(weights)))
        for weight in weights:
            if not self.state[weight]:
                self.state[weight]["momentum_buffer"] = torch.zeros_like(weight.grad)
        buffers = [local_part(self.state[weight]["momentum_buffer"]) for weight in weights]
        gradients = self.each_unless_skipped(gradients, buffers)  # towards itself a buffer does not move
        torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
        return torch.stack(torch._foreach_lerp(gradients, buffers, group["momentum"])).to(self.dtype)

    def orthogonalise(self, directions: Tensor, group: dict) -> Tensor:
        """Directions with all singular values near 1, of each part by itself."""
        (count, rows, columns), parts = directions.shape, group["parts"]
        apart = directions.reshape(count * parts, rows // parts, columns)
        apart = orthogonalise(apart, group["ns_coefficients"], group["ns_steps"], group["eps"])
        return apart.reshape(directions.shape)

    def move(self, weights: list[Tensor], directions: Tensor, group: dict) -> None:
        """Decay matrices of one shape, then move them along `directions` by the rate that fits the shape."""
        (rows, columns), parts = part_shape(weights[0], group["parts"]), list(map(local_part, weights))
        directions = self.unless_skipped(directions, 0.0)
        torch._foreach_mul_(parts, self.unless_skipped(1 - group["lr"] * group["weight_decay"], 1.0))
        rate = group["lr"] * max(1, rows / columns) ** 0.5
        directions = directions.to(parts[0].dtype)  # with one dtype a GPU adds all of them in one kernel
        torch._foreach_add_(parts, list(directions.unbind()), alpha=-rate)


def part_shape(matrix: Tensor, parts: int) -> torch.Size:
    """The shape of one of several parts of a matrix, which lie below each other."""
    return torch.Size((matrix.size(0) // parts, matrix.size(1)))


def orthogonalise(matrices: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Matrices (N, R, C) with all singular values near 1, by Newton-Schulz steps (Jordan et al. 2024)."""
    a, b, c = coefficients
    is_tall = matrices.size(1) > matrices.size(2)
    wide = matrices.mT if is_tall else matrices
    wide = wide / wide.norm(dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = wide @ wide.mT
        wide = torch.baddbmm(wide, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.mT if is_tall else wide


def newton_schulz_flops(shape: torch.Size, steps: int) -> float:
    """FLOPs of orthogonalising a matrix of this shape: three products in each step."""
    short, long = sorted(shape)
    return 2.0 * steps * (2 * short**2 * long + short**3)


# FLOPs of one step's orthogonalisation from which it is dealt: measured on a CPU, estimated for GPUs (docs/muon.md).
WORTH_DEALING = {"cpu": 1e10, "cuda": 1e11}


def is_worth_dealing(matrices: list[nn.Parameter]) -> bool:
    """Whether orthogonalising all of these takes longer than exchanging the results; all processes agree."""
    flops = sum(newton_schulz_flops(matrix.shape, steps=5) for matrix in matrices)
    return flops >= WORTH_DEALING.get(matrices[0].device.type, 0.0)


class Lamb(ShapeByShape):
    """Adam whose step for each weight has the norm of that weight, times the rate (You et al. 2020, algorithm 2).

    Vectors (biases and normalisations) take Adam's step unchanged, as in the authors' code. Steps are
    counted on the device, because only the device knows whether one is skipped.
    """

    def __init__(
        self, params: list[dict], lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6
    ) -> None:
        # capturable: torch then restores the counts of steps to the device.
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "capturable": True}
        super().__init__(params, defaults)

    def update(self, weights: list[Tensor], group: dict) -> None:
        """Update weights of one shape."""
        directions = self.adam_directions(weights, group)
        if weights[0].ndim > 1:
            torch._foreach_add_(directions, weights, alpha=group["weight_decay"])
            lengths, sizes = (torch.stack(torch._foreach_norm(tensors)) for tensors in (directions, weights))
            trusts = torch.where((lengths > 0) & (sizes > 0), sizes / lengths, 1.0)
            torch._foreach_mul_(directions, list(trusts.unbind()))
        directions = self.each_unless_skipped(directions, 0.0)
        torch._foreach_sub_(weights, directions, alpha=group["lr"])

    def adam_directions(self, weights: list[Tensor], group: dict) -> list[Tensor]:
        """Adam's steps at a rate of 1 (Kingma and Ba 2015, algorithm 1), after the moments have taken the gradients."""
        gradients, (beta1, beta2) = gradients_of(weights), group["betas"]
        for weight in weights:
            if not self.state[weight]:
                moments = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
                self.state[weight] |= {"step": torch.zeros((), device=weight.device)} | moments
        names = ("step", "exp_avg", "exp_avg_sq")
        counts, means, squares = ([self.state[weight][name] for weight in weights] for name in names)
        # Given a single tensor, _foreach_add_ reads its value.
        torch._foreach_add_(counts, 1 if self.is_applied is None else [self.is_applied.float()] * len(counts))
        numbers = torch.stack(counts).double()
        # Moved towards themselves, the moments stay as they are.
        products = torch._foreach_mul(gradients, gradients)
        torch._foreach_lerp_(means, self.each_unless_skipped(gradients, means), 1 - beta1)
        torch._foreach_lerp_(squares, self.each_unless_skipped(products, squares), 1 - beta2)
        scales = torch._foreach_div(squares, list((1 - beta2**numbers).float().unbind()))
        torch._foreach_sqrt_(scales)
        torch._foreach_add_(scales, group["eps"])
        directions = torch._foreach_div(means, list((1 - beta1**numbers).float().unbind()))
        torch._foreach_div_(directions, scales)
        return directions


def by_shape(weights: list[Tensor]) -> list[list[Tensor]]:
    """The weights that have a gradient, those of one shape together."""
    of_shape: dict[torch.Size, list[Tensor]] = {}
    for weight in weights:
        if weight.grad is not None:
            of_shape.setdefault(weight.shape, []).append(weight)
    return list(of_shape.values())


def gradients_of(weights: list[Tensor]) -> list[Tensor]:
    """The gradients of weights that all have one."""
    return [weight.grad for weight in weights if weight.grad is not None]


def embedding_keys(model: nn.Module) -> set[str]:
    """The names of the embeddings' weights: of tables, those of relative positions too, and BERT's norm beside them."""
    tables = (name for name, module in model.named_modules() if isinstance(module, nn.Embedding))
    return {f"{name}.weight" for name in tables} | {
        key for key, _ in model.named_parameters() if "embeddings" in key.split(".")
    }


def is_output(key: str) -> bool:
    """Whether a weight belongs to an output layer."""
    return any(part in ("decoder", "seq_relationship", "classifier") for part in key.split("."))


def set_learning_rate(optimizers: list[torch.optim.Optimizer], factor: float) -> float:
    """Scale every group's peak rate by `factor`; returns the first group's rate."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factor
    return optimizers[0].param_groups[0]["lr"]
