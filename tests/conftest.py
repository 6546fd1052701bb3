"""Fixtures of all tests: a tiny recipe and finished tiny runs; no test needs a network."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.helpers import tiny_values, write_recipe


def pytest_configure(config: pytest.Config) -> None:
    """Before torch is imported: tiny models are fastest on one thread, and no test may reach for the Hub.

    Two pytest processes that load one model's code at once would write one file; so each has a folder for that.
    """
    modules = tempfile.mkdtemp(prefix="hf-modules-")
    config.add_cleanup(lambda: shutil.rmtree(modules, ignore_errors=True))
    settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("patient")
    os.environ |= {
        "HF_MODULES_CACHE": modules,
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "WANDB_MODE": "offline",
        "WANDB__SERVICE_WAIT": "300",
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
