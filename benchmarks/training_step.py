"""A training step of recipe imdb-mini-cpu as bertpre does it on a CPU, next to autocast and sdpa; prints one JSON line.

python benchmarks/training_step.py [ROUNDS]        (default: 9; the variants take turns, medians are reported)
"""

import json
import statistics
import sys
import time
from contextlib import nullcontext

import torch

from bertpre.model.configuration_bertpre import BertPreConfig
from bertpre.model.modeling_bertpre import BertPreForPreTraining
from bertpre.recipe import load_recipe
from bertpre.runtime import cpu_name, measured_flops
from bertpre.training.optimizer import WorkingCopy, build_optimizers

BATCH_SIZE, LENGTH, VOCABULARY = 64, 128, 16384
VARIANTS = {  # type of the working copy's weights, autocast or not, attention kernel
    "bf16_copy_eager": (torch.bfloat16, False, "eager"),  # bertpre's choice
    "bf16_copy_sdpa": (torch.bfloat16, False, "sdpa"),
    "autocast_eager": (torch.float32, True, "eager"),
    "fp32_eager": (torch.float32, False, "eager"),
}


class Variant:
    """One way to do a step: a compiled model with its optimizers."""

    def __init__(self, dtype: torch.dtype, autocast: bool, attention: str) -> None:
        torch.manual_seed(0)
        recipe = load_recipe("imdb-mini-cpu")
        self.master = BertPreForPreTraining(BertPreConfig(**recipe.model.model_dump(), vocab_size=VOCABULARY)).train()
        self.master.set_attn_implementation(attention)
        self.optimizers = build_optimizers(self.master, "muon", 3e-3, 0.01)
        self.working = WorkingCopy(self.master, dtype)
        self.working.model.compile(dynamic=False)
        self.autocast = autocast

    def step(self, batch: dict[str, torch.Tensor]) -> float:
        """One step; returns its seconds."""
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16) if self.autocast else nullcontext():
            loss = self.working.model(**batch).loss
        loss.backward()
        self.working.collect_gradients()
        torch.nn.utils.clip_grad_norm_(self.master.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.working.update()
        return time.perf_counter() - start


def random_batch() -> dict[str, torch.Tensor]:
    """Full-length pairs of random tokens with 20 % of the positions masked."""
    slots = round(0.2 * LENGTH)
    ids = torch.randint(5, VOCABULARY, (BATCH_SIZE, LENGTH))
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": (torch.arange(LENGTH) >= LENGTH // 2).long().expand(BATCH_SIZE, -1),
        "masked_positions": torch.rand(BATCH_SIZE, LENGTH).argsort(1)[:, :slots],
        "labels": torch.randint(5, VOCABULARY, (BATCH_SIZE, slots)),
        "next_sentence_label": torch.randint(0, 2, (BATCH_SIZE,)),
    }


def measure(rounds: int) -> dict[str, object]:
    """Median seconds of a step, and each variant's share of bertpre's own."""
    variants = {name: Variant(*choices) for name, choices in VARIANTS.items()}
    batch = random_batch()
    for variant in variants.values():
        variant.step(batch), variant.step(batch)  # compiles, then fills the optimizers' state
    seconds = {name: [] for name in variants}
    for _ in range(rounds):
        for name, variant in variants.items():
            seconds[name].append(variant.step(batch))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    own = medians["bf16_copy_eager"]
    device = torch.device("cpu")
    return {
        "benchmark": "training_step",
        "shape": {"batch_size": BATCH_SIZE, "max_length": LENGTH, "vocab_size": VOCABULARY},
        "rounds": rounds,
        "seconds": {name: round(value, 4) for name, value in medians.items()},
        "time_of_bf16_copy_eager_relative_to": {name: round(own / value, 3) for name, value in medians.items()},
        "hardware": {"cpu": cpu_name(), "threads": torch.get_num_threads(), "torch": torch.__version__},
        "bf16_gflops": round(measured_flops(device, torch.bfloat16) / 1e9),
    }


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 9)))
