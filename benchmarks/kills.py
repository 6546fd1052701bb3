"""A run that is killed at random moments and continued, next to one that is not; prints one JSON line.

python benchmarks/kills.py [KILLS] [SEED]        (defaults: 20, 0)

Both pretrain the same recipe on the embedded corpus, with dropout, two phases and a falling mask rate, and save every
second step. SIGKILL comes a random time after a start, also while bertpre starts; every other one waits from there for
the next checkpoint that is being written.
"""

import hashlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RECIPE = """
output_dir: unused
corpus: {path: sample, limit: 2000}
tokenizer: {vocab_size: 4000}
model: {architecture: modern, hidden_size: 128, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 256}
training:
  max_steps: 400
  global_batch_size: 16
  phases: [{share: 0.6, max_length: 64}, {share: 0.4, max_length: 128, global_batch_size: 32}]
  compile: false
  optimizer: muon
  masked_lm_prob: 0.3
  masked_lm_prob_end: 0.15
  log_every: 10
  eval_every: 100
checkpoint: {every: 2, keep: 3}
"""
FIGURES = ("loss", "mlm_accuracy", "grad_norm", "learning_rate", "tokens")


def bertpre(verb: str, recipe: Path, folder: Path) -> subprocess.Popen:
    """Start a verb in a process of its own."""
    command = [sys.executable, "-c", "from bertpre.cli import main; main()", verb, str(recipe), f"output_dir={folder}"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def finish(verb: str, recipe: Path, folder: Path) -> float:
    """Let a verb come to its end; returns its seconds."""
    start = time.perf_counter()
    assert bertpre(verb, recipe, folder).wait() == 0, f"{verb} failed"
    return time.perf_counter() - start


def weights(folder: Path) -> str:
    """The SHA-256 of the final weights."""
    return hashlib.sha256((folder / "model" / "model.safetensors").read_bytes()).hexdigest()


def logged(folder: Path) -> list[list[float]]:
    """The figures of all log lines that are no times."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [[row["step"], *(row.get(name) for name in FIGURES)] for row in rows]


def killed_run(recipe: Path, folder: Path, kills: int, longest: float, draw: random.Random) -> dict[str, int]:
    """Start, kill, start again, and at last let it end; returns how often it was in what."""
    happened = {"while_starting": 0, "while_writing": 0, "while_training": 0}
    for number in range(kills):
        before, left_over = newest(folder), being_written(folder)
        process = bertpre("pretrain", recipe, folder)
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
    finish("pretrain", recipe, folder)
    return happened


def being_written(folder: Path) -> tuple[tuple[str, int], ...]:
    """The checkpoint that is half written, if there is one, with the number of its folder on the disk."""
    partial = (folder / "checkpoints").glob("*.partial")
    return tuple((path.name, path.stat().st_ino) for path in partial if path.exists())


def newest(folder: Path) -> str:
    """The name of the newest checkpoint."""
    return max((path.name for path in (folder / "checkpoints").glob("step-*") if path.name[5:].isdigit()), default="")


def main(kills: int, seed: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as place:
        recipe, whole, killed = (Path(place) / name for name in ("recipe.yaml", "whole", "killed"))
        recipe.write_text(RECIPE)
        for folder in (whole, killed):
            finish("prepare", recipe, folder)
        seconds = finish("pretrain", recipe, whole)
        # Short enough for the steps to suffice for all of them.
        happened = killed_run(recipe, killed, kills, longest=6 + seconds / kills / 2, draw=random.Random(seed))
        line = {"benchmark": "kills", "kills": kills, **happened, "seconds_uninterrupted": round(seconds, 1)}
        same = {"same_weights": weights(whole) == weights(killed), "same_log": logged(whole) == logged(killed)}
        print(json.dumps(line | same))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
