"""What several tests share: a tiny recipe, the command line in its own process, copies of runs, hashes of trees."""

import hashlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import psutil
import yaml

if TYPE_CHECKING:
    from bertpre.training.trainer import Trainer

ROOT = Path(__file__).parent.parent
LIMIT = 1200  # seconds; it ends what hangs, and nothing that is slow
LEFT_BY = {  # what each stage leaves in the run directory
    "prepare": ("recipe.yaml", "tokenizer", "data"),
    "pretrain": ("checkpoints", "model"),
    "finetune": ("finetuned",),
    "evaluate": ("predictions.parquet",),
}


def tiny_values(output_dir: Path, architecture: str = "bert") -> dict[str, Any]:
    """A recipe whose whole run takes seconds: `bert` with dropout and AdamW, `modern` without dropout and with Muon."""
    dropout = 0.1 if architecture == "bert" else 0.0
    modern = {"optimizer": "muon", "schedule": "trapezoid"} if architecture == "modern" else {}
    return {
        "output_dir": str(output_dir),
        "seed": 1,
        "corpus": {"path": "sample", "split": "train+articles", "limit": 120},
        "tokenizer": {"vocab_size": 512},
        "pairs": {"validation_fraction": 0.1},
        "model": {
            "architecture": architecture,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "max_position_embeddings": 64,
            "hidden_dropout_prob": dropout,
            "attention_probs_dropout_prob": dropout,
        },
        "training": {
            "max_steps": 10,
            "global_batch_size": 8,
            "phases": [{"share": 0.7, "max_length": 32}, {"share": 0.3, "max_length": 48}],
            "precision": "fp32",
            "compile": False,
            "learning_rate": 1e-3,
            "warmup": 0.2,
            "log_every": 1,
            "eval_every": 5,
            "eval_pairs": 16,
            **modern,
        },
        "checkpoint": {"every": 5, "keep": 2},
        "finetune": {
            "path": "sample",
            "limit": 80,
            "epochs": 2,
            "batch_size": 16,
            "max_length": 48,
            "learning_rate": 1e-3,
            "dropout": dropout,
            "validation_fraction": 0.2,
        },
        "evaluate": {"limit": 40},
    }


def write_recipe(file: Path, values: dict[str, Any]) -> Path:
    """Write a recipe as YAML; returns its path."""
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    return file


def run_cli(*arguments: object, code: str = "", timeout: float = LIMIT) -> subprocess.CompletedProcess[str]:
    """`bertpre ARGUMENTS` in a process of its own, after running `code` there."""
    command = [sys.executable, "-c", f"{code}\nfrom bertpre.cli import main\nmain()", *map(str, arguments)]
    return run_process(command, timeout)


def run_here(*arguments: object) -> int:
    """`bertpre ARGUMENTS` in this process, where torch is already imported; returns the exit status."""
    from bertpre.cli import main

    with mock.patch.object(sys, "argv", ["bertpre", *map(str, arguments)]):
        try:
            main()
        except SystemExit as end:
            return end.code or 0
    return 0


def training_with(hook: str, stage: str = "pretrain") -> str:
    """A program that trains `RECIPE [KEY=VALUE ...]` and runs the statement `hook` after each step of `trainer`."""
    return f"""
import os, signal, sys, time
from bertpre.commands.{stage} import {stage}
from bertpre.recipe import load_recipe

def after_step(trainer):
    step = trainer.progress.step
    {hook}

{stage}(load_recipe(sys.argv[1], sys.argv[2:]), after_step)
"""


def at_step(number: int, action: Callable[[], object]) -> Callable[["Trainer"], None]:
    """A hook that does something once, after step `number`."""
    done: list[object] = []

    def hook(trainer: "Trainer") -> None:
        if trainer.progress.step == number and not done:
            done.append(action())

    return hook


def run_process(command: list[str], timeout: float = LIMIT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command from the repository's root, offline."""
    environment = {**os.environ, **environment}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, cwd=ROOT, env=environment, check=False
    )


def free_port() -> int:
    """A port that no process listens on, below those that the system gives to processes which name none."""
    while True:
        port = random.SystemRandom().randrange(15_000, 30_000)
        with suppress(OSError), socket.socket() as server:
            server.bind(("127.0.0.1", port))
            return port


def wait_until(condition: Callable[[], object], seconds: float = LIMIT) -> None:
    """Return when the condition holds; raises TimeoutError where that takes too long."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.02)


def has_ended(process: psutil.Process) -> bool:
    """Whether a process runs no more; what is left of one whose parent is gone may stay in the list for ever."""
    with suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def copy_run(run: Path, target: Path, *stages: str) -> Path:
    """Copy what the named stages left in a finished run, as if the later ones had never begun."""
    target.mkdir(parents=True)
    for name in (name for stage in stages for name in LEFT_BY[stage]):
        (shutil.copytree if (run / name).is_dir() else shutil.copy)(run / name, target / name)
    results = json.loads((run / "results.json").read_text())
    (target / "results.json").write_text(json.dumps({stage: results[stage] for stage in stages}))
    rows = [json.dumps(row) + "\n" for row in read_metrics(run) if row["stage"] in stages]
    if rows:
        (target / "metrics.jsonl").write_text("".join(rows))
    return target


def read_metrics(run: Path, stage: str | None = None, split: str | None = None) -> list[dict[str, Any]]:
    """The rows of `metrics.jsonl`, of one stage and split where they are named."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if stage in (None, row["stage"]) and split in (None, row["split"])]


def tree_hash(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file below a folder, by relative path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
