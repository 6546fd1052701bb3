"""What a CPU gains where rows of similar length stand together, without padding: short documents, in pairs.

python benchmarks/short_rows.py RUN [ROUNDS] [compile]        (a run directory with prepared data; default: 21 rounds)

Steps of RUN's own recipe, on its own rows: as one padded micro-batch, and sorted by length in micro-batches of 1,024 to
4,096 slots. Compiled, the padded one has a program for its length, the others one for any length. All take turns in one
process, on the same examples; medians are reported, and the sorted rows' share of slots with tokens. Prints one JSON
line.
"""

import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

from training_step import hardware

from bertpre.data.sampler import Position
from bertpre.data.tokenizer import load_tokenizer
from bertpre.pretraining.batches import PhaseBatches, PretrainingData, has_pairs
from bertpre.pretraining.model import initial_model
from bertpre.pretraining.objective import PretrainingObjective
from bertpre.recipe import Recipe, load_recipe
from bertpre.runtime import choose_dtype, start_accelerator
from bertpre.training.batches import StepBatch, add_counts, tokens_in
from bertpre.training.metrics import Batch
from bertpre.training.optimizer import build_optimizers
from bertpre.training.step import Arithmetic, TrainingStep

SLOTS, WARM_UP_STEPS = (1024, 2048, 4096), 3


class Variant:
    """A model with its optimizers, trained on micro-batches that are made in one of the ways."""

    def __init__(self, recipe: Recipe, folder: Path, phase: PhaseBatches, compiled: bool) -> None:
        accelerator, training = start_accelerator(), recipe.training
        model = initial_model(recipe, load_tokenizer(folder / "tokenizer"))
        model.set_attn_implementation("eager")
        rates = training.learning_rate, training.weight_decay, training.muon_learning_rate
        optimizers = build_optimizers(model, training.optimizer, *rates)
        dtype = choose_dtype(training.precision, accelerator.device)
        self.phase, self.objective = phase, PretrainingObjective(has_pairs(recipe))
        arithmetic = Arithmetic(dtype, compiled, dynamic_shapes=phase.sorts, deterministic=True)
        self.step = TrainingStep(accelerator, model, optimizers, self.objective, arithmetic, seed=0)
        self.seconds: list[float] = []
        self.filled: list[float] = []

    def turn(self, number: int) -> None:
        """The step of this number."""
        examples, _ = self.phase.dataset.take(
            Position(offset=number * self.phase.global_batch_size), self.phase.global_batch_size
        )
        batches: list[Batch] = list(self.phase.micro_batches(examples))
        counts = add_counts(map(self.objective.counts, batches))
        start = time.perf_counter()
        self.step.run(number, StepBatch(batches, Position()), counts, 1.0, lambda measured: None)
        self.seconds.append(time.perf_counter() - start)
        slots = sum(batch["input_ids"].numel() for batch in batches)
        self.filled.append(sum(map(tokens_in, batches)) / slots)


def main(folder: Path, rounds: int, compiled: bool) -> None:
    """Measure and print."""
    recipe = load_recipe(str(folder / "recipe.yaml"))
    data = PretrainingData(recipe, load_tokenizer(folder / "tokenizer"), folder / "data", start_accelerator())
    phase = data.phases[0]
    padded = replace(phase, sorts=False, micro_batch_size=phase.global_batch_size)
    variants = {"padded": Variant(recipe, folder, padded, compiled)}
    for slots in SLOTS:
        rows = max(1, slots // phase.max_length)
        variants[f"sorted_{slots}"] = Variant(
            recipe, folder, replace(phase, sorts=True, micro_batch_size=rows), compiled
        )
    for number in range(WARM_UP_STEPS + rounds):
        for variant in variants.values():
            variant.turn(number)
    medians = {name: statistics.median(variant.seconds[WARM_UP_STEPS:]) for name, variant in variants.items()}
    measured = {
        name: {
            "seconds": round(medians[name], 4),
            "relative": round(medians[name] / medians["padded"], 3),
            "filled": round(statistics.mean(variant.filled), 3),
        }
        for name, variant in variants.items()
    }
    print(json.dumps({"benchmark": "short_rows", "compiled": compiled, "steps": measured, "hardware": hardware()}))


if __name__ == "__main__":
    options = sys.argv[2:]
    numbers = [int(option) for option in options if option.isdigit()]
    main(Path(sys.argv[1]), numbers[0] if numbers else 21, "compile" in options)
