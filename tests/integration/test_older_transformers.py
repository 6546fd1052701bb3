"""Exports load in versions of transformers that bertpre itself does not run with; pip downloads each version."""

import json
import sys
from pathlib import Path

import pytest

from bertpre.commands.export import export
from tests.helpers import run_process
from tests.integration.test_export import MASKED, TEXTS, WITHOUT_BERTPRE, check_against_run

STOCK = {"tiny_run": "bert", "tiny_modern_run": "modernbert"}
# What transformers imports where it is installed: the versions of this environment are too new for the old ones.
WITHOUT_OTHERS = """
import sys
for name in ("accelerate", "datasets", "peft", "scipy", "sentence_transformers", "sklearn", "tensorboard", "wandb"):
    sys.modules[name] = None
"""


@pytest.mark.slow  # half a minute of installation each
@pytest.mark.parametrize("version", ["4.48.3", "4.57.1", "5.0.0", "5.8.0", "5.12.0", "5.15.0", "5.17.0"])
def test_exports_load_and_give_the_same_numbers(
    version: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    packages = tmp_path_factory.mktemp("packages")
    install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(packages), f"transformers=={version}"]
    done = run_process(install)
    if done.returncode:
        pytest.skip(f"pip cannot install transformers {version}: {done.stderr.strip().splitlines()[-1]}")
    for run_name, to in STOCK.items():
        run: Path = request.getfixturevalue(run_name)
        folder = export(str(run), to, str(tmp_path_factory.mktemp(to) / to))
        code = WITHOUT_OTHERS + WITHOUT_BERTPRE + "import transformers; print(transformers.__version__)"
        command = [sys.executable, "-W", "ignore", "-c", code, str(folder), "False", MASKED, *TEXTS]
        done = run_process(command, PYTHONPATH=str(packages), HF_HUB_OFFLINE="1")
        assert done.returncode == 0, done.stderr
        *_, answers, used = done.stdout.splitlines()
        assert used == version
        _, guesses, classes = json.loads(answers)
        check_against_run(run, {int(token): score for token, score in guesses.items()}, classes)
