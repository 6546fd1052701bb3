"""How long a pass of fine-tuning takes uncompiled, with the whole model compiled, and with its layers compiled.

python benchmarks/finetune_step.py [ROUNDS] [RECIPE]        (default: 5 rounds, imdb-mini-cpu) prints one JSON line

The model is the recipe's with random weights; each batch has 32 rows of random tokens, a quarter of them shorter than
the longest, at four lengths that IMDB's batches have. A pass is forward and backward, in bf16 where the processor
multiplies it. The ways take turns; `tokens_per_second` are medians over rounds of all lengths
together. `first_seconds` is what the first pass at each of the first two lengths takes, with an empty cache; later
lengths need no program of their own. `break_even_seconds` is the uncompiled time from which compiling pays.
"""

import json
import statistics
import sys
import tempfile
import time
from os import environ

import torch
from training_step import hardware

from bertpre.compiler import prepare_compiler
from bertpre.finetuning.loading import configure_for_task
from bertpre.finetuning.task import Task
from bertpre.model.configuration_bertpre import BertPreConfig
from bertpre.model.modeling_bertpre import BertPreForSequenceClassification
from bertpre.recipe import Recipe, load_recipe
from bertpre.runtime import choose_dtype, keep_freed_memory, set_deterministic
from bertpre.training.precision import WorkingCopy
from bertpre.training.step import parts_to_compile

ROWS, LENGTHS = 32, (136, 248, 328, 504)
WAYS = ("uncompiled", "whole", "layers")


def build(way: str, recipe_name: str) -> torch.nn.Module:
    """A classifier, compiled in one of the ways."""
    model = WorkingCopy(classifier(load_recipe(recipe_name)), choose_dtype("auto", torch.device("cpu"))).model
    parts = {"uncompiled": [], "whole": [model], "layers": parts_to_compile(model)}[way]
    for part in parts:
        part.compile(dynamic=True)
    return model


def classifier(recipe: Recipe) -> BertPreForSequenceClassification:
    """The recipe's classifier, with random weights."""
    settings, task = recipe.required_finetune, Task("classification", ("0", "1"))
    config = BertPreConfig(**recipe.model.model_dump(), vocab_size=recipe.tokenizer.vocab_size)
    configure_for_task(config, settings, task)
    model = BertPreForSequenceClassification(config).train()
    model.set_attn_implementation("eager")
    return model


def random_rows(length: int, vocab_size: int) -> dict[str, torch.Tensor]:
    """A batch (ROWS, length) of random tokens; a quarter of the rows are a tenth shorter."""
    mask = torch.ones(ROWS, length, dtype=torch.long)
    mask[: ROWS // 4, length * 9 // 10 :] = 0
    ids = torch.randint(5, vocab_size, (ROWS, length))
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(0, 2, (ROWS,))}


def one_pass(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> float:
    """Seconds of a forward and backward pass."""
    start = time.perf_counter()
    model(**batch).loss.backward()
    model.zero_grad()
    return time.perf_counter() - start


def main(rounds: int, recipe_name: str) -> None:
    """Measure and print the line."""
    keep_freed_memory()
    set_deterministic(enabled=True)
    prepare_compiler()
    torch.manual_seed(0)
    models = {way: build(way, recipe_name) for way in WAYS}
    batches = [random_rows(length, load_recipe(recipe_name).tokenizer.vocab_size) for length in LENGTHS]
    first = {way: [one_pass(model, batch) for batch in batches[:2]] for way, model in models.items()}
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds + 1):
        for way, model in models.items():
            seconds = sum(one_pass(model, batch) for batch in batches)
            if number > 0:  # the other lengths are new in the first round
                times[way].append(seconds)
    medians = {way: statistics.median(values) for way, values in times.items()}
    tokens = ROWS * sum(LENGTHS)
    row = {"benchmark": "finetune_step", "recipe": recipe_name, "rounds": rounds} | hardware()
    row["tokens_per_second"] = {way: round(tokens / seconds) for way, seconds in medians.items()}
    row["first_seconds"] = {way: [round(each, 1) for each in seconds] for way, seconds in first.items()}
    row["layers_to_whole"] = round(medians["whole"] / medians["layers"], 2)
    row["layers_to_uncompiled"] = round(medians["uncompiled"] / medians["layers"], 2)
    saved = 1 - medians["layers"] / medians["uncompiled"]
    row["break_even_seconds"] = round(sum(first["layers"]) / saved) if saved > 0 else None
    print(json.dumps(row))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        main(int((sys.argv[1:] or ["5"])[0]), (sys.argv[2:] or ["imdb-mini-cpu"])[0])
