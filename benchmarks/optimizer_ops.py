"""How many operations the optimizers' part of a step takes, and how long; prints one JSON line.

python benchmarks/optimizer_ops.py [SHAPE] [ROUNDS]        (default: mini, 5 rounds; the other shape is base)

Of BERT of two sizes in bf16 with random gradients: gradients to fp32, clipping, the optimizers, weights to bf16. An
operation is what Python hands to torch: on a GPU about one kernel, where a list of tensors counts once. `muon_loop` is
torch's own Muon, which updates one matrix after the other. `_guarded` is the update on a GPU, whose optimizers skip a
step themselves where its gradient is not finite. The variants take turns, medians are reported.
"""

import json
import statistics
import sys
import time
from typing import Any

import torch
from against_stock import SHAPES
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from training_step import hardware

from bertpre.model.configuration_bertpre import BertPreConfig
from bertpre.model.modeling_bertpre import BertPreForPreTraining
from bertpre.runtime import keep_freed_memory
from bertpre.training.optimizer import Muon, build_optimizers
from bertpre.training.precision import WorkingCopy

VARIANTS = ("adamw", "lamb", "muon", "muon_loop", "adamw_guarded", "lamb_guarded", "muon_guarded")


class CountOperations(TorchDispatchMode):
    """Counts the operations in its `with` block, without views."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def optimizers_of(model: nn.Module, name: str) -> list[torch.optim.Optimizer]:
    """The optimizers of a variant."""
    optimizers = build_optimizers(model, name.removesuffix("_loop"), 1e-3, 0.01)
    if name == "muon_loop":
        (group,) = optimizers.pop().param_groups
        settings = {"lr": group["lr"], "weight_decay": group["weight_decay"], "momentum": group["momentum"]}
        optimizers.append(torch.optim.Muon(group["params"], **settings))
        optimizers[-1].param_groups[0]["peak_lr"] = group["lr"]
    return optimizers


class Part:
    """The optimizers' part of a step, of a model with its working copy in bf16."""

    def __init__(self, name: str, sizes: dict[str, int]) -> None:
        self.master = BertPreForPreTraining(BertPreConfig(**sizes))
        self.working = WorkingCopy(self.master, torch.bfloat16)
        self.is_guarded = name.endswith("_guarded")
        self.optimizers = optimizers_of(self.master, name.removesuffix("_guarded"))
        for optimizer in self.optimizers:
            if isinstance(optimizer, Muon):
                optimizer.dtype = torch.bfloat16  # as torch's, on every processor

    def run(self, operations: CountOperations | None = None) -> float:
        """Do the part of one step; returns its seconds."""
        for weight in self.working.model.parameters():
            weight.grad = torch.randn_like(weight)
        start = time.perf_counter()
        with operations or torch.enable_grad():
            self.working.collect_gradients()
            norm = nn.utils.clip_grad_norm_(self.master.parameters(), 1.0)
            found_inf = norm.isfinite().logical_not().float() if self.is_guarded else None
            for optimizer in self.optimizers:
                optimizer.found_inf = found_inf
                optimizer.step()
                optimizer.zero_grad()
            self.working.update()
        return time.perf_counter() - start


def measure(shape: str, rounds: int) -> dict[str, object]:
    """Operations and milliseconds of each variant."""
    keep_freed_memory()
    _, _, _, sizes = SHAPES[shape]
    parts = {name: Part(name, sizes) for name in VARIANTS}
    operations = {name: CountOperations() for name in VARIANTS}
    seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for name, part in parts.items():
        part.run()  # fills the state
        part.run(operations[name])
    for _ in range(rounds):
        for name, part in parts.items():
            seconds[name].append(part.run())
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "benchmark": "optimizer_ops",
        "shape": shape,
        "operations": {name: counter.count for name, counter in operations.items()},
        "milliseconds": {name: round(1e3 * value, 1) for name, value in medians.items()},
        "muon_to_muon_loop": round(medians["muon"] / medians["muon_loop"], 3),
        "hardware": hardware(),
    }


if __name__ == "__main__":
    print(json.dumps(measure(*(sys.argv[1:2] or ["mini"]), int(sys.argv[2]) if len(sys.argv) > 2 else 5)))
