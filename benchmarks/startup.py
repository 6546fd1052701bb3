"""How long torch.compile takes with an empty cache, the whole model or its layers, and what a step takes then.

python benchmarks/startup.py [SHAPE] [ROUNDS]        (default: quickstart, 9 rounds; or imdb-mini-cpu, mini, mini_8k)

Prints one JSON line. Each way is compiled in a process of its own, with an empty cache (torch keeps its precompiled
headers elsewhere). `seconds` is until the end of the first forward and backward pass, without imports; `cpu_seconds` of
all processes, which depends less on what else the machine does. Steps take turns in one process, medians are reported.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import torch
from against_stock import SHAPES
from training_step import hardware, random_batch

from bertpre.compiler import prepare_compiler
from bertpre.model.configuration_bertpre import BertPreConfig
from bertpre.model.modeling_bertpre import BertPreForPreTraining
from bertpre.recipe import load_recipe
from bertpre.runtime import choose_dtype, keep_freed_memory, set_deterministic
from bertpre.training.precision import WorkingCopy
from bertpre.training.step import parts_to_compile

WAYS = ("whole", "layers", "uncompiled")
LENGTH, MASKED_SHARE = 128, 0.2


def sizes_of(shape: str) -> tuple[int, dict]:
    """The batch size and the model's sizes, of a recipe or of a shape of against_stock.py."""
    if shape in SHAPES:
        return SHAPES[shape][1], SHAPES[shape][3]
    recipe = load_recipe(shape)
    return recipe.training.global_batch_size, recipe.model.model_dump() | {"vocab_size": recipe.tokenizer.vocab_size}


def build(way: str, shape: str) -> Callable[[], None]:
    """A forward and backward pass, compiled in one of the ways."""
    keep_freed_memory()
    set_deterministic(enabled=True)
    prepare_compiler()
    torch.manual_seed(0)
    rows, sizes = sizes_of(shape)
    master = BertPreForPreTraining(BertPreConfig(**sizes)).train()
    master.set_attn_implementation("eager")
    model = WorkingCopy(master, choose_dtype("auto", torch.device("cpu"))).model
    parts = {"whole": [model], "layers": parts_to_compile(model), "uncompiled": []}[way]
    for part in parts:
        part.compile(dynamic=False)
    batch = random_batch(rows, LENGTH, sizes["vocab_size"], MASKED_SHARE)

    def one_pass() -> None:
        model(**batch).loss.backward()
        model.zero_grad()

    return one_pass


def first_pass(way: str, shape: str) -> dict[str, float]:
    """Seconds of the first pass in this process."""
    one_pass, start, spent = build(way, shape), time.perf_counter(), cpu_seconds()
    one_pass()
    return {"seconds": round(time.perf_counter() - start, 1), "cpu_seconds": round(cpu_seconds() - spent, 1)}


def cpu_seconds() -> float:
    """Of this process and those that it has waited for, such as the C++ compiler."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def with_empty_cache(way: str, shape: str) -> dict[str, float]:
    """`first_pass` in a new process with an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": folder}
        command = [sys.executable, __file__, "first_pass", way, shape]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(shape: str, rounds: int) -> dict[str, object]:
    """Both measurements of every way."""
    passes = {way: build(way, shape) for way in WAYS}
    for one_pass in passes.values():
        one_pass(), one_pass()
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, one_pass in passes.items():
            start = time.perf_counter()
            one_pass()
            seconds[way].append(time.perf_counter() - start)
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    return {
        "benchmark": "startup",
        "shape": shape,
        "first_pass_with_empty_cache": {way: with_empty_cache(way, shape) for way in WAYS},
        "step_seconds": {way: round(value, 4) for way, value in medians.items()},
        "step_relative_to_whole": {way: round(value / medians["whole"], 3) for way, value in medians.items()},
        "hardware": hardware(),
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["first_pass"]:
        print(json.dumps(first_pass(*sys.argv[2:4])))
    else:
        arguments = [*sys.argv[1:2], "quickstart"][0], int(sys.argv[2]) if len(sys.argv) > 2 else 9
        print(json.dumps(measure(*arguments)))
