"""What it costs that threads without work spin before they sleep; prints one JSON line.

python benchmarks/spinning.py [ROUNDS] [RUN]        (default: 3 rounds of quickstart on the embedded corpus)

Steps of the recipe's loop, on the data of the run directory RUN if one is given, with GNU OpenMP's own number of spins
(300,000 while it has no more threads than there are processors) and with others: alone, and beside another program that
computes, with one thread, the same with the least priority, or with all threads. Each round is a process for each, in
turns; medians are reported.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from loop import loop_of, prepared
from training_step import hardware
from turns import seconds_of

SPINS = ("", "10000", "1000")  # empty: as it comes
STEPS, WARM_UP = 30, 8
BUSY = (sys.executable, "-c", "import torch\nx = torch.randn(2048, 128)\nwhile True: torch.nn.functional.gelu(x @ x.T)")
ONE_THREAD = ("env", "OMP_NUM_THREADS=1")
OTHERS = {
    "beside one thread": (*ONE_THREAD, *BUSY),
    "beside one of least priority": ("nice", "-n", "19", *ONE_THREAD, *BUSY),
    "beside as many threads": BUSY,
}


def measure(place: str) -> float:
    """The median seconds of a step."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = prepared(place, ["training.compile=auto"], Path(folder) / "run")
        trainer, _ = loop_of(recipe, Path(recipe.output_dir))
        trainer.clock.start()
        with trainer.batches:
            trainer.dry_run()
            trainer.prefetch()
            seconds = [seconds_of(trainer.take_step, 1, "cpu") for _ in range(STEPS)]
    return statistics.median(seconds[WARM_UP:])


def medians(rounds: int, place: str) -> dict[str, float]:
    """The median seconds of a step with each number of spins."""
    found: dict[str, list[float]] = {spins: [] for spins in SPINS}
    for _ in range(rounds):
        for spins, seconds in found.items():
            command = [sys.executable, __file__, "measure", place]
            environment = os.environ | ({"GOMP_SPINCOUNT": spins} if spins else {})
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
            seconds.append(float(done.stdout.splitlines()[-1]))
    return {spins or "as it comes": round(statistics.median(seconds), 4) for spins, seconds in found.items()}


def main(rounds: str = "3", place: str = "quickstart") -> None:
    """Measure and print."""
    os.environ.pop("GOMP_SPINCOUNT", None)
    seconds = {"alone": medians(int(rounds), place)}
    for name, command in OTHERS.items():
        with subprocess.Popen(command) as other:
            try:
                seconds[name] = medians(int(rounds), place)
            finally:
                other.kill()
    line = {"benchmark": "spinning", "place": place, "rounds": int(rounds), "seconds_a_step": seconds}
    print(json.dumps(line | {"hardware": hardware("cpu")}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        print(measure(sys.argv[2]))
    else:
        main(*sys.argv[1:])
