"""Compare a step of the whole pretraining loop with the bare training step; prints one JSON line.

python benchmarks/loop.py [ROUNDS] [RECIPE] [KEY=VALUE ...]
    (default: 9 rounds of imdb-mini-cpu; a round has 10 steps, on a GPU 50, in turns; medians are reported)

The recipe's model, batch and optimizer on the embedded corpus; for a run directory that is prepared, on its data. The
loop fetches, masks and moves batches, counts targets and measures accuracies; log lines, evaluations and checkpoints
are not included. The bare step is the trainer's, with neither, on one batch that stays on the device.
"""

import json
import statistics
import sys
import tempfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from training_step import OwnStep, hardware
from turns import seconds_of

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

STEPS = {"cpu": 10, "cuda": 50}
CORPUS = "corpus={path: sample, split: train+unsupervised+articles}"
OVERRIDES = ["finetune=null", "training.budget=null", "training.max_steps=100000", "training.compile=true"]


def loop_of(recipe: Recipe, folder: Path) -> tuple[Trainer, PretrainingData]:
    """The trainer that `bertpre pretrain` would run."""
    accelerator, tokenizer = start_accelerator(), load_tokenizer(folder / "tokenizer")
    data = PretrainingData(recipe, tokenizer, folder / "data", accelerator)
    model = initial_model(recipe, tokenizer)
    dtype = choose_dtype("auto", accelerator.device)
    trainer = build_pretraining_trainer(recipe, accelerator, model, data, dtype, folder, is_rehearsal=True)
    trainer.log.every = 10**9  # one interval, whose wait for data is read at the end
    return trainer, data


def bare_step(recipe: Recipe, trainer: Trainer, data: PretrainingData) -> OwnStep:
    """The step alone, of a model of its own, on the first phase's batch of the same data, as often as a step has it."""
    training, batch = recipe.training, data.largest()[0]
    rows = training.phases[0].global_batch_size or training.global_batch_size
    model = BertPreForPreTraining(trainer.training_step.model.config)
    rates = {"learning_rate": training.learning_rate, "weight_decay": training.weight_decay}
    optimizers = partial(build_optimizers, name=training.optimizer, **rates)
    return OwnStep(
        model,
        batch,
        optimizers,
        dtype=choose_dtype("auto", trainer.accelerator.device),
        micro_batches=rows // len(batch["input_ids"]),
        dynamic=data.shapes_differ,
    )


def prepared(name: str, overrides: list[str], folder: Path) -> Recipe:
    """A recipe whose data is prepared, in `folder` where it is not yet."""
    if (Path(name) / "data").is_dir():
        return load_recipe(name, [*OVERRIDES, *overrides])
    recipe = load_recipe(name, [f"output_dir={folder}", CORPUS, *OVERRIDES, *overrides])
    prepare(recipe)
    return recipe


def main(rounds: str = "9", name: str = "imdb-mini-cpu", *overrides: str) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = prepared(name, list(overrides), Path(folder) / "run")
        trainer, data = loop_of(recipe, Path(recipe.output_dir))
        device = trainer.accelerator.device.type
        trainer.clock.start()
        with data.planned_ahead() if device == "cuda" else nullcontext(), trainer.batches:
            trainer.dry_run()
            step = bare_step(recipe, trainer, data)  # with the micro-batches that the dry run has chosen
            trainer.prefetch()
            turns = {"bare_step": step, "loop": trainer.take_step}
            for turn in turns.values():
                seconds_of(turn, 2, device)
            trainer.log.interval.wait_seconds = 0.0
            seconds: dict[str, list[float]] = {name: [] for name in turns}
            for _ in range(int(rounds)):
                for name, turn in turns.items():
                    seconds[name].append(seconds_of(turn, STEPS[device], device))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    line = {"benchmark": "loop", "rounds": int(rounds), "steps_a_round": STEPS[device]}
    line |= {"seconds_a_step": {name: round(value, 4) for name, value in medians.items()}}
    line["loop_over_bare_step"] = round(medians["bare_step"] / medians["loop"], 3)
    line["data_wait_share"] = round(trainer.log.interval.wait_seconds / STEPS[device] / sum(seconds["loop"]), 5)
    print(json.dumps(line | {"hardware": hardware(device)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
