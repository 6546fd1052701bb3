"""Compare a run that is killed at random moments and resumed with an uninterrupted run; prints one JSON line.

python benchmarks/kills.py [RECIPE] [key=value ...] [--kills 20] [--seed 0] [--steps 400]

Both pretrain the shipped recipe, compiled and on all cores, for a fixed number of steps instead of its budget, and save
every second step. SIGKILL comes a random time after a start, also while bertpre starts. Every second kill then waits
until the next checkpoint is being written.
"""

import argparse
import hashlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bertpre.hardware import cpu_name

FIGURES = ("loss", "mlm_accuracy", "grad_norm", "learning_rate", "tokens")


def bertpre(verb: str, arguments: list[str], folder: Path) -> subprocess.Popen:
    """Start a command in its own process."""
    command = [sys.executable, "-c", "from bertpre.cli import main; main()", verb, *arguments, f"output_dir={folder}"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def finish(verb: str, arguments: list[str], folder: Path) -> tuple[float, float]:
    """Run a command to its end; returns its seconds, and the seconds until its first step was saved."""
    start, process, first = time.perf_counter(), bertpre(verb, arguments, folder), 0.0
    while process.poll() is None:
        if not first and newest(folder) > "step-00000000":
            first = time.perf_counter() - start
        time.sleep(0.05)
    assert process.returncode == 0, f"{verb} failed"
    return time.perf_counter() - start, first


def weights(folder: Path) -> str:
    """The SHA-256 of the final weights."""
    return hashlib.sha256((folder / "model" / "model.safetensors").read_bytes()).hexdigest()


def logged(folder: Path) -> list[list[float]]:
    """The metrics of all log lines, without times and speeds."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [[row["step"], *(row.get(name) for name in FIGURES)] for row in rows]


def killed_run(arguments: list[str], folder: Path, kills: int, longest: float, draw: random.Random) -> dict[str, int]:
    """Start, kill and restart a run, and finally let it end; counts what each kill interrupted."""
    happened = {"while_starting": 0, "while_writing": 0, "while_training": 0}
    for number in range(kills):
        before, left_over = newest(folder), being_written(folder)
        process = bertpre("pretrain", arguments, folder)
        time.sleep(draw.uniform(0, longest))
        while number % 2 and process.poll() is None and being_written(folder) in ((), left_over):
            time.sleep(0.001)
        assert process.poll() is None, "it ended before the kill: more steps are needed"
        process.send_signal(signal.SIGKILL)
        process.wait()
        if being_written(folder) not in ((), left_over):
            happened["while_writing"] += 1
        else:
            happened["while_starting" if newest(folder) == before else "while_training"] += 1
    finish("pretrain", arguments, folder)
    return happened


def being_written(folder: Path) -> tuple[tuple[str, int], ...]:
    """The partly written checkpoint, if there is one, with its folder's inode number."""
    partial = (folder / "checkpoints").glob("*.partial")
    return tuple((path.name, path.stat().st_ino) for path in partial if path.exists())


def newest(folder: Path) -> str:
    """The name of the newest checkpoint."""
    return max((path.name for path in (folder / "checkpoints").glob("step-*") if path.name[5:].isdigit()), default="")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe", nargs="?", default="quickstart")
    parser.add_argument("overrides", nargs="*")
    for name, default in (("kills", 20), ("seed", 0), ("steps", 400)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    duration = ["training.budget=null", f"training.max_steps={given.steps}", "training.log_every=10"]
    arguments = [given.recipe, *duration, "checkpoint.every=2", *given.overrides]
    with tempfile.TemporaryDirectory() as place:
        first, whole, killed = (Path(place) / name for name in ("first", "whole", "killed"))
        for folder in (first, whole, killed):
            finish("prepare", arguments, folder)
        finish("pretrain", [*arguments, "training.max_steps=2"], first)  # fills the compiler's caches
        seconds, startup = finish("pretrain", arguments, whole)
        # Short enough that the steps last for all kills.
        longest = startup + (seconds - startup) / given.kills / 2
        happened = killed_run(arguments, killed, given.kills, longest, random.Random(given.seed))
        line = {"benchmark": "kills", "recipe": given.recipe, "steps": given.steps, "kills": given.kills, **happened}
        line |= {"processor": cpu_name(), "seconds_uninterrupted": round(seconds, 1)}
        same = {"same_weights": weights(whole) == weights(killed), "same_log": logged(whole) == logged(killed)}
        print(json.dumps(line | same))


if __name__ == "__main__":
    main()
