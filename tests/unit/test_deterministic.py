"""Compiled runs on two threads are bit-identical, as shipped recipes run."""

import sys
from pathlib import Path

from tests.helpers import run_process, tree_hash

TWO_COMPILED_RUNS = """
import sys
from pathlib import Path
import torch
import tests.toys
from bertpre.training.step import Arithmetic

tests.toys.ROWS, tests.toys.LENGTH, tests.toys.WIDTH = 64, 128, 64
torch.set_num_threads(2)
for name in ("one", "two"):
    arithmetic = Arithmetic(compile=True, deterministic=sys.argv[2] == "deterministic")
    tests.toys.toy_trainer(Path(sys.argv[1]) / name, 20, arithmetic=arithmetic, every=0, log_every=20).train()
"""


def test_two_compiled_runs_on_two_threads_are_bit_identical(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TWO_COMPILED_RUNS, str(tmp_path), "deterministic"]
    done = run_process(command, OMP_NUM_THREADS="2")
    assert done.returncode == 0, done.stderr
    one, two = (tree_hash(tmp_path / name / "checkpoints" / "step-00000020") for name in ("one", "two"))
    assert one["model.safetensors"] == two["model.safetensors"]
    assert one["optimizer.safetensors"] == two["optimizer.safetensors"]
