"""How long `bertpre probe --pairs` takes, in batches of equal length and one sentence at a time; prints one JSON line.

python benchmarks/probe_pairs.py [PAIRS] [RECIPE]        (default: 200 pairs, imdb-mini-cpu; medians of 3 turns)

The model is the recipe's with random weights. A pair's sentences are random tokens that differ in one; their lengths
have the mean and deviation of BLiMP's, 9.3 and 3.6 tokens, with a vocabulary that holds its words. The simple way
scores each sentence alone, with all vocabulary logits of all copies. `compiled` is as `in_batches`, with compiled
layers, which `probe` uses for many pairs. `minutes_for_blimp` is for 67,000 pairs, without compiling. BLiMP's files
have 1,000 pairs each, which fill the batches better than few pairs do.
"""

import copy
import json
import statistics
import sys
import time

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertpre.data.tokenizer import learn_tokenizer
from bertpre.finetuning.inference import compile_layers
from bertpre.finetuning.pseudo_likelihood import score_tokens
from bertpre.hardware import cpu_name, measured_flops
from bertpre.model.configuration_bertpre import BertPreConfig
from bertpre.model.modeling_bertpre import BertPreForMaskedLM
from bertpre.recipe import load_recipe
from bertpre.runtime import start_accelerator

BLIMP_PAIRS, ROUNDS = 67_000, 3


def random_pairs(pairs: int, vocab_size: int) -> list[np.ndarray]:
    """Token ids of both sentences of each pair."""
    generator, rows = np.random.default_rng(0), []
    for length in np.clip(np.rint(generator.normal(9.3, 3.6, pairs)), 3, 31).astype(int):
        row = generator.integers(5, vocab_size, length)
        other = row.copy()
        other[generator.integers(length)] = generator.integers(5, vocab_size)
        rows += [row, other]
    return rows


@torch.no_grad()
def one_by_one(
    network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[np.ndarray]
) -> list[np.ndarray]:
    """Each token's log-likelihood when it is masked, by the simplest computation."""
    scores = []
    for ids in rows:
        places = torch.arange(len(ids))
        row = torch.tensor([tokenizer.cls_token_id, *ids.tolist(), tokenizer.sep_token_id])
        copies = row.repeat(len(ids), 1)
        copies[places, places + 1] = tokenizer.mask_token_id
        logits = network(input_ids=copies, attention_mask=torch.ones_like(copies)).logits
        log_probabilities = logits[places, places + 1].log_softmax(-1)
        scores.append(log_probabilities[places, torch.from_numpy(ids)].numpy())
    return scores


def measure(pairs: int, recipe_name: str) -> dict[str, object]:
    """Median seconds of both ways, which take turns."""
    start_accelerator()
    torch.manual_seed(0)
    recipe = load_recipe(recipe_name)
    network = BertPreForMaskedLM(BertPreConfig(**recipe.model.model_dump(), vocab_size=recipe.tokenizer.vocab_size))
    network.eval()
    tokenizer = learn_tokenizer(iter(["a few words"] * 3), 64, lowercase=True, max_length=64)  # for its special tokens
    rows = random_pairs(pairs, recipe.tokenizer.vocab_size)
    compiled = compile_layers(copy.deepcopy(network))
    start = time.perf_counter()
    score_tokens(compiled, tokenizer, rows)  # compiles
    first_seconds = time.perf_counter() - start
    ways = {
        "in_batches": lambda: [values for values, _ in score_tokens(network, tokenizer, rows)],
        "compiled": lambda: [values for values, _ in score_tokens(compiled, tokenizer, rows)],
        "one_by_one": lambda: one_by_one(network, tokenizer, rows),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    scores = {}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            start = time.perf_counter()
            scores[name] = np.concatenate(way())
            seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "benchmark": "probe_pairs",
        "processor": cpu_name(),
        "threads": torch.get_num_threads(),
        "fp32_gflops": round(measured_flops(torch.device("cpu"), torch.float32) / 1e9),
        "recipe": recipe_name,
        "pairs": pairs,
        "seconds": {name: round(value, 2) for name, value in medians.items()},
        "speedup": round(medians["one_by_one"] / medians["in_batches"], 2),
        "largest_difference": {
            name: float(np.abs(scores[name] - scores["one_by_one"]).max()) for name in ("in_batches", "compiled")
        },
        "compile_seconds": round(first_seconds - medians["compiled"], 1),
        "minutes_for_blimp": {
            name: round(medians[name] / pairs * BLIMP_PAIRS / 60, 1) for name in ("in_batches", "compiled")
        },
    }


if __name__ == "__main__":
    arguments = [*sys.argv[1:], *["200", "imdb-mini-cpu"][len(sys.argv) - 1 :]]
    print(json.dumps(measure(int(arguments[0]), arguments[1])))
