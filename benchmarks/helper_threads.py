"""What it costs where a thread beside the training starts OpenMP threads of its own; prints one JSON line.

python benchmarks/helper_threads.py [ROUNDS] [RUN]        (default: 3 rounds of imdb-mini-cpu on the embedded corpus)

Compiled steps on the data of the run directory RUN: causal ones, then masked ones in the same process. The thread that
prepares batches computes with one thread (`alone`), or with as many as the training (`shared`), as before it called
`compute_alone`. Each round is a process for each, in turns; medians are reported.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from loop import loop_of, prepared
from training_step import hardware
from turns import seconds_of

from bertpre.training import batches

VARIANTS, PHASES = ("alone", "shared"), ("causal", "masked")
STEPS, WARM_UP = 30, 8  # of each phase; those before their time counts
KEYS = [
    f"training.max_steps={2 * STEPS}",
    "training.phases=[{share: 0.5, max_length: 128, objective: causal}, {share: 0.5, max_length: 128}]",
]


def measure(place: str) -> dict[str, float]:
    """The median seconds of a step in each phase."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = prepared(place, KEYS, Path(folder) / "run")
        trainer, _ = loop_of(recipe, Path(recipe.output_dir))
        trainer.clock.start()
        with trainer.batches:
            trainer.dry_run()
            trainer.prefetch()
            seconds = [seconds_of(trainer.take_step, 1, "cpu") for _ in range(2 * STEPS)]
    phases = seconds[:STEPS], seconds[STEPS:]
    return {name: statistics.median(each[WARM_UP:]) for name, each in zip(PHASES, phases, strict=True)}


def main(rounds: str = "3", place: str = "imdb-mini-cpu") -> None:
    """Measure and print."""
    found: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
    for _ in range(int(rounds)):
        for variant, each in found.items():
            command = [sys.executable, __file__, variant, place]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            each.append(json.loads(done.stdout.splitlines()[-1]))
    seconds = {
        variant: {name: round(statistics.median(row[name] for row in each), 4) for name in PHASES}
        for variant, each in found.items()
    }
    ratios = {name: round(seconds["alone"][name] / seconds["shared"][name], 3) for name in PHASES}
    line = {"benchmark": "helper_threads", "rounds": int(rounds), "seconds_a_step": seconds, "alone_to_shared": ratios}
    print(json.dumps(line | {"hardware": hardware("cpu")}))


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in VARIANTS:
        if sys.argv[1] == "shared":
            batches.compute_alone = lambda: None
        print(json.dumps(measure(sys.argv[2])))
    else:
        main(*sys.argv[1:])
