"""What a step of Muon costs on several processes: orthogonalised on each, or dealt over them; prints one JSON line.

torchrun --standalone --nproc_per_node 2 benchmarks/muon_ranks.py [SHAPE ...]      (default: every one below)

Milliseconds are the slowest process's, medians of rounds in which the ways take turns. `exchanged_mb` is what the
processes send together. `operations` are one process's, as benchmarks/optimizer_ops.py counts them.
"""

import json
import statistics
import sys
import time

import torch
from optimizer_ops import CountOperations
from torch import distributed, nn
from training_step import hardware

from bertpre.hardware import has_native_bf16
from bertpre.runtime import keep_freed_memory
from bertpre.training.optimizer import Muon, newton_schulz_flops

SHAPES = {"tiny": (32, 2), "64": (64, 4), "128": (128, 4), "mini": (256, 4), "512": (512, 4), "base": (768, 12)}
ROUNDS = 7


def matrices(width: int, layers: int) -> list[nn.Parameter]:
    """The hidden matrices of a BERT: in each layer four of attention and two of four times the width; the head's."""
    shapes = [*[(width, width)] * 4, (4 * width, width), (width, 4 * width)] * layers + [(width, width)]
    return [nn.Parameter(torch.randn(shape)) for shape in shapes]


def measure(width: int, layers: int, rounds: int = ROUNDS) -> dict[str, object]:
    """Medians of the milliseconds of a step in both ways, and what they compute and exchange."""
    torch.manual_seed(0)
    weights, device = matrices(width, layers), torch.device("cpu")
    dtype = torch.bfloat16 if has_native_bf16(device) else torch.float32
    muon = Muon(weights, lr=1e-3, weight_decay=0.1, dtype=dtype)
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    groups, counts = {"repeated": None, "dealt": distributed.group.WORLD}, {}
    times: dict[str, list[float]] = {name: [] for name in groups}
    for number in range(rounds + 2):
        for name, muon.group in groups.items():
            distributed.barrier()
            start = time.perf_counter()
            if number == 1:
                with CountOperations() as counter:
                    muon.step()
                counts[name] = counter.count
            else:
                muon.step()
            slowest = torch.tensor(time.perf_counter() - start)
            distributed.all_reduce(slowest, op=distributed.ReduceOp.MAX)
            if number > 1:
                times[name].append(1e3 * float(slowest))
    medians = {name: statistics.median(values) for name, values in times.items()}
    size = sum(weight.numel() for weight in weights) * torch.finfo(dtype).bits / 8
    return {
        "gflops": round(sum(newton_schulz_flops(weight.shape, 5) for weight in weights) / 1e9, 2),
        "exchanged_mb": round(size * (distributed.get_world_size() - 1) / 1e6, 2),
        "milliseconds": {name: round(value, 2) for name, value in medians.items()},
        "dealt_to_repeated": round(medians["dealt"] / medians["repeated"], 3),
        "operations": counts,
    }


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    keep_freed_memory()
    measured = {name: measure(*SHAPES[name]) for name in sys.argv[1:] or SHAPES}
    if distributed.get_rank() == 0:
        processes = distributed.get_world_size()
        print(json.dumps({"benchmark": "muon_ranks", "processes": processes} | measured | {"hardware": hardware()}))
    distributed.destroy_process_group()
