"""Ten steps are the same bits as five steps, a kill, and the rest."""

import json
import signal
from pathlib import Path

import pytest

from bertpre.pretrain import pretrain
from bertpre.recipe import load_recipe
from tests.helpers import copy_run, read_metrics, run_cli, tree_hash

TIMES = {"elapsed_seconds", "tokens_per_second", "data_wait_fraction", "flops_utilization"}
KILLED_IN_STEP_8 = """
import os, signal
from bertpre.training.trainer import Trainer
original = Trainer.train_step
def train_step(self, *arguments):
    if self.step == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    original(self, *arguments)
Trainer.train_step = train_step
"""
KILLED_WHILE_SAVING_STEP_10 = """
import os, signal
from bertpre.training import checkpoint
original, calls = checkpoint.save_file, []
def save_file(tensors, file):
    original(tensors, file)
    calls.append(file)
    if len(calls) == 3:
        os.truncate(file, 100)
        os.kill(os.getpid(), signal.SIGKILL)
checkpoint.save_file = save_file
"""


def without_times(run: Path) -> list[dict]:
    return [{name: row[name] for name in row.keys() - TIMES} for row in read_metrics(run, "pretrain")]


def kill_and_resume(finished: Path, target: Path, code: str, overrides: tuple[str, ...] = ()) -> None:
    """Pretrain on the prepared data of a finished run, get killed, and go on to the end."""
    copy_run(finished, target, "prepare")
    arguments = ("pretrain", finished / "recipe.yaml", f"output_dir={target}", *overrides)
    killed = run_cli(*arguments, code=code)
    assert killed.returncode == -signal.SIGKILL
    assert not (target / "model").exists()
    assert "pretrain" not in json.loads((target / "results.json").read_text())
    assert (target / "checkpoints" / "step-00000005").is_dir()
    assert not (target / "checkpoints" / "step-00000010").exists()
    resumed = run_cli(*arguments)
    assert resumed.returncode == 0, resumed.stderr
    assert "going on from step 5" in resumed.stdout


@pytest.mark.parametrize(
    ("fixture", "code"), [("tiny_run", KILLED_IN_STEP_8), ("tiny_modern_run", KILLED_WHILE_SAVING_STEP_10)]
)
def test_a_killed_run_goes_on_to_the_same_bits(
    fixture: str, code: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    finished, target = request.getfixturevalue(fixture), tmp_path / "run"
    kill_and_resume(finished, target, code)
    assert tree_hash(target / "model") == tree_hash(finished / "model")
    for name in ("model.safetensors", "optimizer.safetensors"):
        last = Path("checkpoints") / "step-00000010" / name
        assert (target / last).read_bytes() == (finished / last).read_bytes()
    assert without_times(target) == without_times(finished)
    ours, theirs = (json.loads((run / "results.json").read_text())["pretrain"] for run in (target, finished))
    assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}
    assert not list(target.rglob("*.partial"))


def test_a_damaged_newest_checkpoint_costs_steps_and_nothing_else(
    tiny_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare", "pretrain")
    (target / "results.json").write_text(
        json.dumps({"prepare": json.loads((tiny_run / "results.json").read_text())["prepare"]})
    )
    file = target / "checkpoints" / "step-00000010" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 16
    file.write_bytes(content)
    pretrain(load_recipe(str(tiny_run / "recipe.yaml"), [f"output_dir={target}"]))
    assert "step-00000010 is damaged" in caplog.text
    assert tree_hash(target / "model") == tree_hash(tiny_run / "model")
    assert file.read_bytes() == (tiny_run / "checkpoints" / "step-00000010" / "model.safetensors").read_bytes()
    assert without_times(target) == without_times(tiny_run)


def test_a_run_killed_between_its_data_and_its_figures_goes_on(tiny_run: Path, tmp_path: Path) -> None:
    from bertpre.prepare import prepare

    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    (target / "results.json").unlink()
    before = tree_hash(target / "data")
    figures = prepare(load_recipe(str(tiny_run / "recipe.yaml"), [f"output_dir={target}"]))
    expected = json.loads((tiny_run / "results.json").read_text())["prepare"]
    assert {**figures, "seconds": 0} == {**expected, "seconds": 0}
    assert tree_hash(target / "data") == before
