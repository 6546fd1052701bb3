"""Two processes under `accelerate launch` are one process: the same losses, the same weights."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.helpers import copy_run, read_metrics, run_process

# One in six digits of a logged figure, and what the order of additions costs.
TOLERANCE = {"abs": 2e-5, "rel": 2e-5}


def launch(script: str, run: Path, target: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    """Start a script on two CPU processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    accelerate = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"]
    options = ["--main_process_port", str(port), "--num_machines", "1", "--mixed_precision", "no"]
    arguments = [script, str(run / "recipe.yaml"), f"output_dir={target}", *overrides]
    return run_process([*accelerate, *options, *arguments])


def assert_same_figures(target: Path, expected: Path, stage: str) -> None:
    rows, expected_rows = read_metrics(target, stage), read_metrics(expected, stage)
    assert [(row["split"], row["step"]) for row in rows] == [(row["split"], row["step"]) for row in expected_rows]
    for row, other in zip(rows, expected_rows, strict=True):
        for name in row.keys() & {"loss", "mlm_loss", "nsp_loss", "accuracy", "mlm_accuracy", "nsp_accuracy", "tokens"}:
            assert row[name] == pytest.approx(other[name], **TOLERANCE), (row["split"], row["step"], name)
        if row["split"] == "train":
            assert row["learning_rate"] == other["learning_rate"]
            assert row["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)


def assert_same_weights(file: Path, other: Path) -> None:
    weights, expected = load_file(file), load_file(other)
    assert weights.keys() == expected.keys()
    for name, value in weights.items():
        assert (value - expected[name]).abs().max() < 2e-4, name


def test_pretraining_on_two_processes_is_pretraining_on_one(tiny_modern_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_modern_run, tmp_path / "run", "prepare")
    done = launch("pretrain.py", tiny_modern_run, target)
    assert done.returncode == 0, done.stderr
    assert_same_figures(target, tiny_modern_run, "pretrain")
    assert_same_weights(target / "model" / "model.safetensors", tiny_modern_run / "model" / "model.safetensors")
    assert done.stdout.count("pretrain: 10 steps") == 1


def test_fine_tuning_on_two_processes_is_fine_tuning_on_one(tiny_modern_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_modern_run, tmp_path / "run", "prepare", "pretrain")
    done = launch("finetune.py", tiny_modern_run, target)
    assert done.returncode == 0, done.stderr
    assert_same_figures(target, tiny_modern_run, "finetune")
    assert_same_weights(target / "finetuned" / "model.safetensors", tiny_modern_run / "finetuned" / "model.safetensors")


def test_a_mistake_is_told_once_by_two_processes(tiny_modern_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_modern_run, tmp_path / "run", "prepare")
    done = launch("pretrain.py", tiny_modern_run, target, "training.max_step=3")
    assert done.returncode != 0
    told = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(told) == 1
    assert "unknown key 'training.max_step'; did you mean 'training.max_steps'?" in told[0]
    assert not (target / "checkpoints").exists()
