"""What threads beyond a container's limit of processor time cost; prints one JSON line.

python benchmarks/container_threads.py [ROUNDS] [RUN]     (default: 3 rounds of quickstart on the embedded corpus)

Run it under such a limit, for instance in `docker run --cpus 1`. Steps of the recipe's loop, on the data of the run
directory RUN if one is given: with as many threads as torch starts by itself, one for each core of the machine, and
with as many as the limit lets run, which bertpre chooses. Each round is a process for each, in turns; medians.
"""

import json
import os
import statistics
import subprocess
import sys

import spinning
import torch
from joblib import cpu_count
from training_step import hardware


def main(rounds: str = "3", place: str = "quickstart") -> None:
    """Measure and print."""
    os.environ.pop("OMP_NUM_THREADS", None)
    threads = {"torch's": torch.get_num_threads(), "the limit's": cpu_count()}
    seconds: dict[str, list[float]] = {name: [] for name in threads}
    for _ in range(int(rounds)):
        for name, found in seconds.items():
            environment = os.environ | ({"OMP_NUM_THREADS": str(threads[name])} if name == "torch's" else {})
            command = [sys.executable, spinning.__file__, "measure", place]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
            found.append(float(done.stdout.splitlines()[-1]))
    line = {"benchmark": "container_threads", "place": place, "rounds": int(rounds), "threads": threads}
    line["seconds_a_step"] = {name: round(statistics.median(found), 4) for name, found in seconds.items()}
    print(json.dumps(line | {"hardware": hardware("cpu")}))


if __name__ == "__main__":
    main(*sys.argv[1:])
