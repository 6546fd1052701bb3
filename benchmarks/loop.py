"""Compare a step of the whole pretraining loop with the bare training step; prints one JSON line.

python benchmarks/loop.py [ROUNDS]        (default: 9 rounds of 10 steps each, in turns; medians are reported)

Recipe imdb-mini-cpu's model, batch and optimizer on the embedded corpus. The loop fetches, masks and moves batches,
counts targets, measures accuracies and checks each gradient; log lines, evaluations and checkpoints are not included.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from training_step import Variant, hardware

from bertpre.commands.prepare import prepare
from bertpre.data.tokenizer import load_tokenizer
from bertpre.model.modeling_bertpre import BertPreForPreTraining
from bertpre.pretraining.batches import PretrainingData
from bertpre.pretraining.build import build_pretraining_trainer
from bertpre.pretraining.model import initial_model
from bertpre.recipe import Recipe, load_recipe
from bertpre.runtime import choose_dtype, start_accelerator
from bertpre.training.optimizer import build_optimizers
from bertpre.training.trainer import Trainer

STEPS = 10
OVERRIDES = ["corpus={path: sample, limit: 4000}", "finetune=null", "training.budget=null", "training.max_steps=100000"]


def loop_of(recipe: Recipe, folder: Path) -> tuple[Trainer, PretrainingData]:
    """The trainer that `bertpre pretrain` would run."""
    accelerator, tokenizer = start_accelerator(), load_tokenizer(folder / "tokenizer")
    data = PretrainingData(recipe, tokenizer, folder / "data", accelerator)
    model = initial_model(recipe, tokenizer)
    dtype = choose_dtype("auto", accelerator.device)
    trainer = build_pretraining_trainer(recipe, accelerator, model, data, dtype, folder, is_rehearsal=True)
    trainer.log.every = 10**9  # one interval, whose wait for data is read at the end
    return trainer, data


def bare_step(recipe: Recipe, trainer: Trainer, data: PretrainingData) -> Callable[[], object]:
    """The step of the model benchmark, on one batch of the same data."""
    training, (batch,) = recipe.training, data.largest()
    model = BertPreForPreTraining(trainer.training_step.model.config)
    model.set_attn_implementation("eager")
    optimizers = build_optimizers(model, training.optimizer, training.learning_rate, training.weight_decay)
    variant = Variant(model, optimizers, choose_dtype("auto", trainer.accelerator.device))
    return lambda: variant.step(batch)


def seconds_of(function: Callable[[], object]) -> float:
    """The seconds of STEPS calls."""
    start = time.perf_counter()
    for _ in range(STEPS):
        function()
    return time.perf_counter() - start


def main(rounds: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = load_recipe("imdb-mini-cpu", [f"output_dir={folder}/run", *OVERRIDES])
        prepare(recipe)
        trainer, data = loop_of(recipe, Path(folder) / "run")
        step = bare_step(recipe, trainer, data)
        trainer.clock.start()
        with trainer.batches:
            trainer.dry_run()
            trainer.prefetch()
            turns = {"bare_step": step, "loop": trainer.take_step}
            for turn in turns.values():
                turn(), turn()
            seconds = {name: [] for name in turns}
            for _ in range(rounds):
                for name, turn in turns.items():
                    seconds[name].append(seconds_of(turn))
    medians = {name: statistics.median(values) / STEPS for name, values in seconds.items()}
    line = {"benchmark": "loop", "rounds": rounds, "steps_a_round": STEPS}
    line |= {"seconds_a_step": {name: round(value, 4) for name, value in medians.items()}}
    line["loop_over_bare_step"] = round(medians["bare_step"] / medians["loop"], 3)
    line["data_wait_share"] = round(trainer.log.interval.wait_seconds / sum(seconds["loop"]), 5)
    print(json.dumps(line | {"hardware": hardware()}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 9)
