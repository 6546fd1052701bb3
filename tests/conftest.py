"""Fixtures of all tests: a tiny recipe and finished tiny runs; no test needs a network."""

import os
from pathlib import Path

import pytest

from tests.helpers import tiny_values, write_recipe


def pytest_configure() -> None:
    """Before torch is imported: tiny models are fastest on one thread, and no test may reach for the Hub."""
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "WANDB_MODE": "offline",
    }


@pytest.fixture
def tiny_recipe(tmp_path: Path) -> Path:
    """The file of a tiny recipe whose `output_dir` is `tmp_path/run`."""
    return write_recipe(tmp_path / "tiny.yaml", tiny_values(tmp_path / "run"))


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the classic architecture; not to be written to."""
    return finished_run(tmp_path_factory.mktemp("tiny"), "bert")


@pytest.fixture(scope="session")
def tiny_modern_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the modern architecture; not to be written to."""
    return finished_run(tmp_path_factory.mktemp("tiny-modern"), "modern")


def finished_run(folder: Path, architecture: str) -> Path:
    """Run all stages of a tiny recipe."""
    from bertpre.commands.run import run
    from bertpre.recipe import load_recipe

    return run(load_recipe(str(write_recipe(folder / "tiny.yaml", tiny_values(folder / "run", architecture)))))
