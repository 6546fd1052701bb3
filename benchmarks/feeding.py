"""How fast one process of several is fed, and whether it waits where a group of shards ends; prints one JSON line.

python benchmarks/feeding.py RUN [KIND]        (default kind: none; about a minute)

RUN is a prepared run directory, such as `bertpre prepare wikipedia-base corpus.path=DIR output_dir=RUN` makes. A step
has 256 rows of 128 slots for each process. `group` is a group of shards, planned in this process. `feeding` makes the
batches of the last process of 1, 2 and 8 as fast as it can, within a group. Both count the seconds of this process on
a core. `steps` runs the trainer's loop as one process of 8 on a GPU that reads a million slots a second: instead of
the model there are some small operations, which need Python's lock as launching kernels does, and then a sleep. It
passes three borders between groups; no other program should run.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import Accelerator, DistributedType

from bertpre.data.sampler import Position
from bertpre.data.tokenizer import load_tokenizer
from bertpre.hardware import cpu_name
from bertpre.pretraining.batches import PretrainingData
from bertpre.pretraining.build import build_pretraining_trainer
from bertpre.pretraining.model import initial_model
from bertpre.recipe import Recipe, load_recipe

PROCESSES, BORDERS = (1, 2, 8), 3
LENGTH, ROWS, SLOTS_PER_SECOND = 128, 256, 1_000_000  # of one process
STEP_SECONDS = ROWS * LENGTH / SLOTS_PER_SECOND
STEPS, OPERATIONS = 32, 2_000  # steps of `feeding`; operations of a step


def recipe_of(run: Path, kind: str, processes: int, folder: str) -> Recipe:
    """The recipe with a model of no size and a step of `ROWS` rows for each process."""
    model = "{architecture: bert, hidden_size: 8, num_hidden_layers: 1, num_attention_heads: 1, intermediate_size: 8}"
    overrides = [
        f"output_dir={folder}", f"model={model}", f"pairs.kind={kind}",
        f"training.global_batch_size={ROWS * processes}",
        f"training.phases=[{{share: 1.0, max_length: {LENGTH}, micro_batch_size: {ROWS}}}]",
        "training.max_steps=1000000000", "training.budget=null", "training.log_every=1000000000", "finetune=null",
    ]  # fmt: skip
    return load_recipe(str(run / "recipe.yaml"), overrides)


def data_of(run: Path, recipe: Recipe, processes: int) -> PretrainingData:
    """The batches of the last of so many processes."""
    process: Any = SimpleNamespace(
        process_index=processes - 1, num_processes=processes, distributed_type=DistributedType.MULTI_GPU
    )
    return PretrainingData(recipe, load_tokenizer(run / "tokenizer"), run / "data", process)


def feed(run: Path, kind: str, processes: int) -> dict[str, float]:
    """Slots a second that one process can prepare, its own and those of the whole step."""
    data = data_of(run, recipe_of(run, kind, processes, "unused"), processes)
    position = data(Position(), 0.0).after  # the group is planned
    start = time.process_time()
    for _ in range(STEPS):
        position = data(position, 0.0).after
    rate = STEPS * ROWS * LENGTH / (time.process_time() - start)
    return {"own_slots_per_second": round(rate), "step_slots_per_second": round(rate * processes)}


def operate(numbers: torch.Tensor) -> float:
    """Many small operations; returns their seconds."""
    start = time.perf_counter()
    for _ in range(OPERATIONS):
        numbers.add_(1)
    return time.perf_counter() - start


def take_steps(run: Path, kind: str, processes: int) -> dict[str, float]:
    """The waits of the loop around a simulated step."""
    numbers, operating, waits, borders = torch.zeros(16), [], [], 0
    alone = statistics.median(operate(numbers) for _ in range(20))

    def simulated_step(*_: object) -> tuple[torch.Tensor, float]:
        start = time.perf_counter()
        operating.append(operate(numbers))
        time.sleep(max(0.0, start + STEP_SECONDS - time.perf_counter()))
        return torch.zeros(()), 0.0

    with tempfile.TemporaryDirectory() as folder:
        recipe = recipe_of(run, kind, processes, folder)
        data, accelerator, tokenizer = data_of(run, recipe, processes), Accelerator(cpu=True), run / "tokenizer"
        model = initial_model(recipe, load_tokenizer(tokenizer))
        trainer = build_pretraining_trainer(recipe, accelerator, model, data, torch.float32, run, is_rehearsal=True)
        trainer.training_step.run = simulated_step  # type: ignore[method-assign]  # in its place
        trainer.clock.start()
        with data.planned_ahead(), trainer.batches:
            trainer.prefetch()
            trainer.take_step()  # its wait is part of the start
            begin, operating[:] = time.perf_counter(), []
            while borders < BORDERS or trainer.progress.position.offset < ROWS * processes * 20:
                before, group = trainer.log.interval.wait_seconds, group_of(trainer.progress.position)
                trainer.take_step()
                waits.append(trainer.log.interval.wait_seconds - before)
                borders += group_of(trainer.progress.position) != group
            seconds = time.perf_counter() - begin
    return {
        "steps": len(waits), "borders": borders, "wait_share": round(sum(waits) / seconds, 5),
        "longest_wait_seconds": round(max(waits), 4),
        "own_slots_per_second": round(len(waits) * ROWS * LENGTH / seconds),
        "operations_alone_seconds": round(alone, 4),
        "operations_seconds": round(statistics.median(operating), 4),
        "operations_longest_seconds": round(max(operating), 4),
    }  # fmt: skip


def group_of(position: Position) -> tuple[int, int]:
    """Which group of which epoch."""
    return position.epoch, position.group


def plan(run: Path, kind: str) -> dict[str, float]:
    """The first group, and the seconds of planning it in this process."""
    recipe = recipe_of(run, kind, 1, "unused")
    data = data_of(run, recipe, 1).phases[0].dataset
    start = time.process_time()
    rows = len(data.plan(1)[1])
    seconds = time.process_time() - start
    return {"rows": rows, "slots": rows * LENGTH, "seconds": round(seconds, 3)}


def main(run: Path, kind: str) -> None:
    """Measure and print."""
    line = {"benchmark": "feeding", "processor": cpu_name(), "kind": kind, "group": plan(run, kind)}
    line["feeding"] = {f"{processes} processes": feed(run, kind, processes) for processes in PROCESSES}
    print(json.dumps(line | {"steps": take_steps(run, kind, PROCESSES[-1])}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "none")
