"""What one step of Muon costs in fp32 and in bf16, on the quickstart's matrices and on those of imdb-mini-cpu.

python benchmarks/muon_step.py        prints one JSON line: medians in seconds, and the ratio of bf16 to fp32

torch's Muon orthogonalises in bf16. Ours does so only where the processor multiplies bf16 natively. Both types take
turns on the same weights and gradients.
"""

import json
import statistics
import time

import torch

from bertpre.hardware import cpu_name, has_native_bf16
from bertpre.model import BertPreConfig, BertPreForPreTraining
from bertpre.recipe import load_recipe
from bertpre.training.optimizer import Muon, build_optimizers

ROUNDS = 5


def step_seconds(recipe_name: str) -> dict[str, float]:
    """The median seconds of a step in each type, on a recipe's model with random gradients."""
    recipe = load_recipe(recipe_name)
    model = BertPreForPreTraining(BertPreConfig(**recipe.model.model_dump(), vocab_size=recipe.tokenizer.vocab_size))
    muon = build_optimizers(model, "muon", learning_rate=1e-3, weight_decay=0.01)[1]
    assert isinstance(muon, Muon)
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)
    times: dict[str, list[float]] = {"fp32": [], "bf16": []}
    for number in range(ROUNDS + 1):  # the first round warms up
        for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            muon.dtype, start = dtype, time.perf_counter()
            muon.step()
            if number:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Measure both recipes and print the line."""
    row: dict[str, object] = {
        "benchmark": "muon_step", "processor": cpu_name(), "threads": torch.get_num_threads(),
        "native_bf16": has_native_bf16(torch.device("cpu")),
    }  # fmt: skip
    for recipe_name in ("quickstart", "imdb-mini-cpu"):
        seconds = step_seconds(recipe_name)
        row[recipe_name] = {name: round(value, 4) for name, value in seconds.items()} | {
            "bf16_to_fp32": round(seconds["bf16"] / seconds["fp32"], 1)
        }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
