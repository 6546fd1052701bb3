"""Signals, full disks, two runs in one folder, a recipe changed on the way, trackers that cannot be reached."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers import ROOT, copy_run, read_metrics, run_cli, run_here, tree_hash

AT_STEP_7 = """
import os, signal, time
from bertpre.training.trainer import Trainer
original = Trainer.train_step
def train_step(self, *arguments):
    if self.step == 7 and not hasattr(self, "was_told"):
        self.was_told = True
        {action}
    original(self, *arguments)
Trainer.train_step = train_step
"""
TERM = "os.kill(os.getpid(), signal.SIGTERM)"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_saves_and_ends_well_and_the_same_command_goes_on(name: str, tiny_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    arguments = ("pretrain", tiny_run / "recipe.yaml", f"output_dir={target}")
    done = run_cli(*arguments, code=AT_STEP_7.format(action=f"os.kill(os.getpid(), signal.{name})"))
    assert done.returncode == 0, done.stderr
    assert f"stopped by {name} at step 8, which is saved; the same command goes on from there" in done.stdout
    assert (target / "checkpoints" / "step-00000008").is_dir()
    assert not (target / "model").exists()
    assert "pretrain" not in json.loads((target / "results.json").read_text())
    resumed = run_cli(*arguments)
    assert "going on from step 8" in resumed.stdout
    assert tree_hash(target / "model") == tree_hash(tiny_run / "model")


def test_a_second_signal_ends_at_once(tiny_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    arguments = ("pretrain", tiny_run / "recipe.yaml", f"output_dir={target}")
    done = run_cli(*arguments, code=AT_STEP_7.format(action=f"{TERM}; time.sleep(0.1); {TERM}"))
    assert done.returncode == -signal.SIGTERM
    assert not (target / "checkpoints" / "step-00000008").exists()


def test_run_stops_with_its_stage(tiny_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    done = run_cli("run", tiny_run / "recipe.yaml", f"output_dir={target}", code=AT_STEP_7.format(action=TERM))
    assert done.returncode == 0, done.stderr
    assert not (target / "finetuned").exists()


def launch_two(run: Path, target: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Pretrain on two processes that run `code` first."""
    script = target.parent / "script.py"
    script.write_text(f"{code}\nfrom bertpre.cli import launched\nlaunched('pretrain')\n")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script)]
    arguments = [str(run / "recipe.yaml"), f"output_dir={target}", "training.optimizer=adamw"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([*launcher, *arguments], capture_output=True, text=True, env=environment, timeout=300)


def test_a_signal_to_one_process_of_two_stops_both(tiny_modern_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_modern_run, tmp_path / "run", "prepare")
    action = f"{TERM} if self.accelerator.process_index == 1 else None"
    done = launch_two(tiny_modern_run, target, AT_STEP_7.format(action=action))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("stopped by SIGTERM at step 8") == 1
    assert (target / "checkpoints" / "step-00000008").is_dir()


def test_when_a_process_dies_the_others_end_and_the_run_goes_on_later(tiny_modern_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_modern_run, tmp_path / "run", "prepare")
    action = "os.kill(os.getpid(), signal.SIGKILL) if self.accelerator.process_index == 1 else None"
    assert launch_two(tiny_modern_run, target, AT_STEP_7.format(action=action)).returncode != 0
    assert (target / "checkpoints" / "step-00000005").is_dir()
    done = launch_two(tiny_modern_run, target, "")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("going on from step 5") == 1


def test_two_runs_in_one_folder_are_refused(tiny_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    arguments = ["pretrain", str(tiny_run / "recipe.yaml"), f"output_dir={target}"]
    code = AT_STEP_7.format(action="print('at step 7', flush=True); time.sleep(60)")
    command = [sys.executable, "-c", f"{code}\nfrom bertpre.cli import main\nmain()", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    ) as one:
        assert any("at step 7" in line for line in one.stdout)
        before = tree_hash(target)
        done = run_cli(*arguments)
        one.kill()
    assert done.returncode == 2
    assert "another process trains in" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert tree_hash(target) == before
    assert run_cli(*arguments).returncode == 0  # the lock went with its process


@pytest.mark.parametrize("failure", ["OSError(28, 'No space left on device')", "SafetensorError('IoError: no space')"])
def test_a_full_disk_is_one_message_and_costs_nothing_that_was_good(
    failure: str, tiny_run: Path, tmp_path: Path
) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    arguments = ("pretrain", tiny_run / "recipe.yaml", f"output_dir={target}")
    code = f"""
from safetensors import SafetensorError
from bertpre.training import checkpoint
original = checkpoint.save_file
def save_file(tensors, file):
    original(tensors, file)
    if "step-00000010" in str(file):
        raise {failure}
checkpoint.save_file = save_file
"""
    done = run_cli(*arguments, code=code)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "the checkpoint of step 10 cannot be written" in done.stderr
    names = sorted(path.name for path in (target / "checkpoints").iterdir())
    assert names == ["step-00000000", "step-00000005"]
    assert run_cli(*arguments).returncode == 0
    assert tree_hash(target / "model") == tree_hash(tiny_run / "model")


def test_what_changes_no_number_may_change_on_the_way(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    arguments = ("pretrain", tiny_run / "recipe.yaml", f"output_dir={target}")
    assert run_cli(*arguments, code=AT_STEP_7.format(action=TERM)).returncode == 0
    capsys.readouterr()
    assert run_here(*arguments, "training.learning_rate=5e-4") == 2
    refused = capsys.readouterr().err
    assert "differs in training.learning_rate" in refused
    assert "what may change in a training: training.log_every" in refused
    free = ("training.log_every=5", "checkpoint.every=1", "checkpoint.keep=9", "training.price_per_hour=3.6")
    assert run_here(*arguments, *free) == 0
    assert tree_hash(target / "model") == tree_hash(tiny_run / "model")
    last = read_metrics(target, "pretrain", "train")[-1]
    assert last["cost"] == pytest.approx(last["elapsed_seconds"] / 1000, rel=1e-4)


def test_wandb_goes_on_in_the_same_run(tiny_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    arguments = ("pretrain", tiny_run / "recipe.yaml", f"output_dir={target}", "training.wandb_project=films")
    assert run_cli(*arguments, code=AT_STEP_7.format(action=TERM)).returncode == 0
    time.sleep(1.1)  # wandb names a folder by the second
    assert run_cli(*arguments).returncode == 0
    runs = [path for path in (target / "wandb").iterdir() if path.name.startswith("offline-run-")]
    assert len(runs) == 2
    assert {path.name.rpartition("-")[2] for path in runs} == {(target / "wandb-pretrain.id").read_text()}


@pytest.mark.slow  # wandb tries for half a minute
def test_wandb_that_cannot_be_reached_costs_no_training(tiny_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    code = "import os\nos.environ |= {'WANDB_MODE': 'online', 'WANDB_API_KEY': '0' * 40, "
    code += "'WANDB_BASE_URL': 'http://127.0.0.1:9'}"
    project = "training.wandb_project=films"
    done = run_cli("pretrain", tiny_run / "recipe.yaml", f"output_dir={target}", project, code=code)
    assert done.returncode == 0, done.stderr
    assert "wandb cannot be reached" in done.stderr
    assert list((target / "wandb").glob("offline-run-*"))
    assert tree_hash(target / "model") == tree_hash(tiny_run / "model")


def test_tensorboard_that_is_not_installed_is_one_message(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert run_here("pretrain", tiny_run / "recipe.yaml", f"output_dir={target}", "training.tensorboard=true") == 2
    assert "pip install tensorboard" in capsys.readouterr().err


def test_tensorboard_gets_the_curves(tiny_run: Path, tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    assert run_here("pretrain", tiny_run / "recipe.yaml", f"output_dir={target}", "training.tensorboard=true") == 0
    events = reader.EventAccumulator(str(target / "tensorboard" / "pretrain")).Reload()
    curve = [(event.step, event.value) for event in events.Scalars("train/mlm_loss")]
    rows = read_metrics(target, "pretrain", "train")
    assert curve == [(row["step"], pytest.approx(row["mlm_loss"], rel=1e-5)) for row in rows]
