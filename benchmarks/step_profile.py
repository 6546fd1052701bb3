"""Profile a training step of bertpre on a CPU; prints one JSON line.

python benchmarks/step_profile.py [SHAPE]        (default: base; or mini, mini_8k, as in against_stock.py)

Fractions of the time of three steps, by torch's profiler with a mark for each loop that torch.compile wrote. A loop
belongs to the first group below that its name contains; loops that fuse two groups count for the first.
"""

import json
import sys

import torch._inductor.config
from against_stock import WARM_UP_STEPS, prepare
from torch.profiler import ProfilerActivity, profile
from training_step import hardware

GROUPS = {  # what the profiler's names contain
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm"),
    "loss over the vocabulary": ("log_softmax", "nll_loss"),
    "attention's softmax, with its dropout": ("softmax",),
    "layer norms, with residuals and dropout": ("layer_norm",),
    "GELU": ("gelu",),
    "embeddings": ("embedding",),
    "other compiled loops": ("cpp_fused", "CompiledFxGraph"),
    "optimizer": ("adamw", "AdamW"),
    "clipping": ("linalg_vector_norm", "aten::mul_", "_foreach"),
    "copies, among them between fp32 and bf16": ("aten::copy_", "aten::fill_"),
}


def group_of(name: str) -> str:
    """The group that an event of the profiler belongs to."""
    return next((group for group, parts in GROUPS.items() if any(part in name for part in parts)), "everything else")


def main(shape: str) -> None:
    """Measure and print."""
    torch._inductor.config.cpp.enable_kernel_profile = True
    torch._inductor.config.cpp.descriptive_names = "original_aten"
    variant, batch = prepare("bertpre", shape)
    for _ in range(WARM_UP_STEPS):
        variant.step(batch)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            variant.step(batch)
    seconds = dict.fromkeys([*GROUPS, "everything else"], 0.0)
    for event in profiler.key_averages():
        seconds[group_of(event.key)] += event.self_cpu_time_total / 1e6
    total = sum(seconds.values())
    shares = {group: round(value / total, 3) for group, value in seconds.items()}
    line = {"benchmark": "step_profile", "shape": shape, "seconds_a_step": round(total / 3, 3), "shares": shares}
    print(json.dumps(line | {"hardware": hardware()}))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "base")
