"""What a mask of bools costs compiled layers on a CPU, against one that is added to the scores; prints one JSON line.

python benchmarks/attention_mask.py [ROUNDS] [RECIPE]        (default: 9 rounds, imdb-mini-cpu)

A pass of fine-tuning, forward and backward, as in finetune_step.py, with compiled layers: with bertpre's mask, with the
bools and `masked_fill` that it had before, and without a mask. The ways take turns; medians are reported.
"""

import json
import statistics
import sys

import torch
from finetune_step import build, one_pass, random_rows
from torch import Tensor
from training_step import hardware

from bertpre.compiler import prepare_compiler
from bertpre.model import layers_bertpre, modeling_bertpre
from bertpre.recipe import load_recipe
from bertpre.runtime import keep_freed_memory, set_deterministic

LENGTHS = (136, 248, 504)
OWN = layers_bertpre.eager_attention, modeling_bertpre.BertPreModel._kernel_mask


def with_bools(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **_: object
) -> tuple[Tensor, Tensor]:
    """`eager_attention` for a mask of bools."""
    scores = torch.matmul(query, key.transpose(-2, -1)) * scaling
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def bools(_: object, mask: Tensor | None, states: Tensor) -> Tensor | None:
    """The padding mask (B, S) as bools (B, 1, 1, S)."""
    return None if mask is None else mask[:, None, None, :].bool()


WAYS = {"added": OWN, "bools": (with_bools, bools), "none": OWN}


def seconds_of(way: str, model: torch.nn.Module, batch: dict[str, Tensor]) -> float:
    """The seconds of a pass."""
    layers_bertpre.eager_attention, modeling_bertpre.BertPreModel._kernel_mask = WAYS[way]
    return one_pass(model, batch if way != "none" else {key: batch[key] for key in ("input_ids", "labels")})


def main(rounds: int, recipe: str) -> None:
    """Measure and print the line."""
    keep_freed_memory()
    set_deterministic(enabled=True)
    prepare_compiler()
    torch.manual_seed(0)
    models, medians = {way: build("layers", recipe) for way in WAYS}, {}
    for length in LENGTHS:
        batch = random_rows(length, load_recipe(recipe).tokenizer.vocab_size)
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(rounds + 2):
            for way, model in models.items():
                times[way].append(seconds_of(way, model, batch))
        medians[length] = {way: round(statistics.median(values[2:]), 4) for way, values in times.items()}
    ratios = {length: round(row["bools"] / row["added"], 2) for length, row in medians.items()}
    line = {"benchmark": "attention_mask", "recipe": recipe, "rounds": rounds, "seconds": medians}
    print(json.dumps(line | {"bools_to_added": ratios, "hardware": hardware()}))


if __name__ == "__main__":
    main(int((sys.argv[1:] or ["9"])[0]), (sys.argv[2:] or ["imdb-mini-cpu"])[0])
