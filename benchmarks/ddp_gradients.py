"""How DDP sums gradients in bf16: with what error, in how much memory, and how early; prints one JSON line.

torchrun --standalone --nproc_per_node 2 benchmarks/ddp_gradients.py

`sum_error` is the norm of the difference from the sum in fp64 of the processes' bf16 gradients, divided by that sum's
norm: of the all-reduce in bf16 and of one in fp32 (rounded to bf16 at its end, as the buckets are). `simulated_error`
is the same of random gradients that are added one process after the other, as a ring does. `held_mb` is what DDP holds
after a backward pass of weights of 67 MB, without and with `gradient_as_bucket_view`. `first_gradient` is the share of
the backward pass after which the first gradient is ready, compiled: at 1 nothing is sent while the pass computes.
"""

import json
import statistics
import time
from collections.abc import Callable

import psutil
import torch
from against_stock import SHAPES
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from training_step import hardware, random_batch

from bertpre.model.configuration_bertpre import BertPreConfig
from bertpre.model.modeling_bertpre import BertPreForPreTraining
from bertpre.training.step import layers_of

SIZES = SHAPES["mini_8k"][3]


def sum_in_fp32(state: object, bucket: distributed.GradBucket) -> torch.futures.Future[Tensor]:
    """A hook of DDP: the mean of the processes' gradients, added up in fp32."""
    wide = bucket.buffer().float().div_(distributed.get_world_size())
    work = distributed.all_reduce(wide, async_op=True)
    return work.get_future().then(lambda done: bucket.buffer().copy_(done.value()[0]))


def build(**options: bool) -> tuple[DistributedDataParallel, dict[str, Tensor]]:
    """A small model in bf16 under DDP, and this process's batch."""
    torch.manual_seed(0)
    model = BertPreForPreTraining(BertPreConfig(**SIZES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    model.set_attn_implementation("eager")
    torch.manual_seed(distributed.get_rank() + 1)
    batch = random_batch(16, 128, SIZES["vocab_size"], 0.15)
    return DistributedDataParallel(model.train().bfloat16(), **options), batch


def sum_error(hook: Callable | None) -> float:
    """The relative error of the summed gradients."""
    model, batch = build()
    with model.no_sync():
        model(**batch).loss.backward()
    own = torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])
    exact = own.double()
    distributed.all_reduce(exact)
    model.zero_grad()
    if hook is not None:
        model.register_comm_hook(None, hook)
    model(**batch).loss.backward()
    summed = torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])
    scaled = summed.double() * distributed.get_world_size()
    return float((scaled - exact).norm() / exact.norm())


def simulated_error(processes: int, in_fp32: bool) -> float:
    """The relative error of adding the random bf16 gradients of so many processes."""
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(100_000, generator=generator).bfloat16() for _ in range(processes)]
    exact = sum(each.double() for each in gradients)
    total = torch.zeros(100_000, dtype=torch.float32 if in_fp32 else torch.bfloat16)
    for each in gradients:
        total += each
    return float((total.bfloat16().double() - exact).norm() / exact.norm())


def held_mb(as_view: bool) -> float:
    """Megabytes that DDP adds to the weights by the end of a backward pass: buckets, gradients."""
    model = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(8))).bfloat16()
    start = psutil.Process().memory_info().rss
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=as_view)
    wrapped(torch.ones(1, 2048, dtype=torch.bfloat16)).sum().backward()
    return (psutil.Process().memory_info().rss - start) / 1e6


def first_ready(by_layer: bool, rounds: int = 5) -> float:
    """The median share of the backward pass after which the first gradient is ready, compiled."""
    model, batch = build()
    for part in layers_of(model.module) if by_layer else [model.module]:
        part.compile(dynamic=False)
    ready: list[float] = []
    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(lambda _: ready.append(time.perf_counter()))
    shares = []
    for number in range(rounds + 2):
        loss = model(**batch).loss
        ready.clear()
        start = time.perf_counter()
        loss.backward()
        if number > 1:
            shares.append((ready[0] - start) / (ready[-1] - start))
        model.zero_grad()
    return statistics.median(shares)


def main() -> None:
    """Measure everything and print the line."""
    distributed.init_process_group("gloo")
    row = {
        "benchmark": "ddp_gradients",
        "processes": distributed.get_world_size(),
        "held_mb": {str(as_view): round(held_mb(as_view)) for as_view in (False, True)},
        "sum_error": {"bf16": sum_error(None), "fp32": sum_error(sum_in_fp32)},
        "simulated_error": {
            str(count): {"bf16": simulated_error(count, False), "fp32": simulated_error(count, True)}
            for count in (2, 8, 16, 64)
        },
        "first_gradient": {name: round(first_ready(name == "layers"), 3) for name in ("whole", "layers")},
        "hardware": hardware(),
    }
    if distributed.get_rank() == 0:
        print(json.dumps(row))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
