"""The facts of a run for `manifest.json`: versions, commit, command and hardware."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from bertpre.hardware import cpu_name

PACKAGES = ("bertpre", "torch", "transformers", "tokenizers", "datasets", "accelerate", "numpy", "wandb")


def manifest(device: torch.device, dtype: torch.dtype, num_processes: int) -> dict[str, Any]:
    """The date, versions, commit, command and hardware of this run, for `manifest.json`."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
        "commit": commit(),
        "command": command(),
        "hardware": {
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
            "cpu_count": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "processes": num_processes,
            "precision": str(dtype).removeprefix("torch."),
        },
    }


def command() -> str:
    """The command of bertpre that runs; of another program its name alone, since its arguments may be secrets."""
    program, package = Path(sys.argv[0]).resolve(), Path(__file__).resolve().parent
    entries = [package.parent / "pretrain.py", package.parent / "finetune.py"]
    is_ours = program.name == "bertpre" or program.parent == package or program in entries
    return " ".join(sys.argv if is_ours else sys.argv[:1])


def version(package: str) -> str | None:
    """An installed package's version; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit of bertpre's checkout, with `+` if files have changed since.

    Of an installed package the environment variable GIT_COMMIT, which the container sets; None without it.
    """
    folder = Path(__file__).parent.parent
    if not (folder / ".git").exists():
        return os.environ.get("GIT_COMMIT") or None

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
