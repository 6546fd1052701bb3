"""How long a classifier takes to read reviews of up to 512 tokens: in batches by number, by tokens, and compiled.

python benchmarks/evaluation_batches.py [TEXTS]        prints one JSON line: medians in seconds

The model is imdb-mini-cpu's with random weights; the texts are random tokens, with the lengths of IMDB's reviews
(mean 270, one in nine cut at 512). The three ways take turns. `compile_seconds` is what the first round of the compiled
model took beyond its median, and `break_even` the number of texts from which on compiling pays.
"""

import copy
import json
import statistics
import sys
import time

import numpy as np
import torch

from bertpre.finetuning.encoding import slices_by_tokens
from bertpre.finetuning.inference import CPU_BATCH_TOKENS
from bertpre.hardware import cpu_name
from bertpre.model import BertPreConfig
from bertpre.model.modeling_bertpre import BertPreForSequenceClassification
from bertpre.recipe import load_recipe
from bertpre.runtime import choose_dtype
from bertpre.training.step import parts_to_compile

BATCH_SIZE, ROUNDS = 64, 3


def read(model: torch.nn.Module, lengths: np.ndarray, tokens: int | None) -> float:
    """Seconds for all texts, shortest first."""
    start = time.perf_counter()
    with torch.no_grad():
        for part in slices_by_tokens(lengths, BATCH_SIZE, tokens):
            longest, each = int(lengths[part].max()), torch.tensor(lengths[part]).unsqueeze(1)
            mask = (torch.arange(longest) < each).long()
            model(input_ids=torch.randint(5, 16_000, mask.shape), attention_mask=mask)
    return time.perf_counter() - start


def main(texts: int) -> None:
    """Measure and print the line."""
    torch.manual_seed(0)
    recipe, dtype = load_recipe("imdb-mini-cpu"), choose_dtype("auto", torch.device("cpu"))
    config = BertPreConfig(**recipe.model.model_dump(), vocab_size=recipe.tokenizer.vocab_size, num_labels=2)
    model = BertPreForSequenceClassification(config).eval().to(dtype)
    compiled = copy.deepcopy(model)
    for part in parts_to_compile(compiled):
        part.compile(dynamic=True)
    drawn = np.random.default_rng(0).lognormal(5.4, 0.65, texts).astype(int) + 20
    lengths = np.sort(np.minimum(drawn, 512))
    ways = {
        "by_number": (model, None), "by_tokens": (model, CPU_BATCH_TOKENS), "compiled": (compiled, CPU_BATCH_TOKENS),
    }  # fmt: skip
    first = {name: read(network, lengths, tokens) for name, (network, tokens) in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, (network, tokens) in ways.items():
            times[name].append(read(network, lengths, tokens))
    medians = {name: statistics.median(values) for name, values in times.items()}
    compile_seconds, saved = first["compiled"] - medians["compiled"], medians["by_tokens"] - medians["compiled"]
    row = {"benchmark": "evaluation_batches", "processor": cpu_name(), "threads": torch.get_num_threads()}
    row |= {"dtype": str(dtype), "texts": texts} | {name: round(value, 2) for name, value in medians.items()}
    row |= {"number_to_tokens": round(medians["by_number"] / medians["by_tokens"], 3)}
    row |= {"compile_seconds": round(compile_seconds, 1)}
    row |= {"break_even": round(compile_seconds * texts / saved) if saved > 0 else None}
    print(json.dumps(row))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 512)
