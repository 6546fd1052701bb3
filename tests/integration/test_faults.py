"""Signals, full disks, two runs in one folder, a recipe changed between runs, trackers that cannot be reached."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from bertpre.commands.finetune import finetune
from bertpre.commands.pretrain import pretrain
from bertpre.errors import UserError
from bertpre.recipe import Recipe, load_recipe
from bertpre.training.checkpoint import list_checkpoints
from bertpre.training.trackers import MetricsLog, WandbTracker, run_id, start_trackers
from bertpre.training.trainer import Trainer
from tests.forked import run_forked
from tests.helpers import (
    ROOT,
    at_step,
    copy_run,
    read_metrics,
    run_cli,
    run_here,
    training_with,
    tree_hash,
)


def recipe_of(run: Path, target: Path, *overrides: str) -> Recipe:
    return load_recipe(str(run / "recipe.yaml"), [f"output_dir={target}", *overrides])


def send(number: int) -> None:
    """Send a signal to this process."""
    os.kill(os.getpid(), number)


def stopped_after_step_8(run: Path, target: Path, *overrides: str, by: int = signal.SIGTERM) -> None:
    """Pretrain until a signal stops it."""
    with pytest.raises(SystemExit) as end:
        pretrain(recipe_of(run, target, *overrides), at_step(8, lambda: send(by)))
    assert end.value.code == 128 + by


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_saves_and_the_same_command_resumes(
    name: str, tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    stopped_after_step_8(tiny_run, target, by=signal.Signals[name])
    assert f"stopped by {name} after step 8 (saved). Run the same command to resume." in capsys.readouterr().out
    assert (target / "checkpoints" / "step-00000008").is_dir()
    assert not (target / "model").exists()
    assert "pretrain" not in json.loads((target / "results.json").read_text())
    assert run_here("pretrain", tiny_run / "recipe.yaml", f"output_dir={target}") == 0
    assert "resuming from step 8" in capsys.readouterr().out
    assert tree_hash(target / "model") == tree_hash(tiny_run / "model")


def test_a_signal_during_the_last_evaluation_loses_nothing(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    evaluate = Trainer.evaluate

    def evaluate_signalled(trainer: Trainer) -> None:
        if trainer.progress.step == 10:
            send(signal.SIGTERM)
        evaluate(trainer)

    with monkeypatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr(Trainer, "evaluate", evaluate_signalled)
        pretrain(recipe_of(tiny_run, target))
    assert end.value.code == 128 + signal.SIGTERM
    assert "stopped by SIGTERM after step 10 (saved)" in capsys.readouterr().out
    assert not (target / "model").exists()
    assert run_here("pretrain", tiny_run / "recipe.yaml", f"output_dir={target}") == 0
    assert tree_hash(target / "model") == tree_hash(tiny_run / "model")


def pretrain_with(hook: str, run: Path, target: Path) -> subprocess.CompletedProcess[str]:
    return run_forked(training_with(hook), run / "recipe.yaml", f"output_dir={target}")


@pytest.mark.parametrize("first", ["SIGINT", "SIGTERM"])
def test_a_ctrl_c_after_another_signal_ends_at_once(first: str, tiny_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    both = f"step == 8 and [os.kill(os.getpid(), number) for number in (signal.{first}, signal.SIGINT)]"
    assert pretrain_with(both, tiny_run, target).returncode == -signal.SIGINT
    assert not (target / "checkpoints" / "step-00000008").exists()


def test_a_repeated_sigterm_changes_nothing(tiny_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    twice = "step == 8 and [os.kill(os.getpid(), signal.SIGTERM) for _ in range(2)]"
    done = pretrain_with(twice, tiny_run, target)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert "stopped by SIGTERM after step 8" in done.stdout
    assert (target / "checkpoints" / "step-00000008").is_dir()


LONG = ("training.max_steps=1000000", "training.budget=1m", "training.optimizer=adamw", "checkpoint.every=1000000")


def signalled_after_step_3(
    command: list[str], run: Path, target: Path, send: Callable[[subprocess.Popen[str]], object]
) -> tuple[int, str]:
    """Train for long, and do something to the process after step 3; returns its status and what was printed then."""
    arguments = [sys.executable, *command, str(run / "recipe.yaml"), f"output_dir={target}", *LONG]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert any("pretrain: step 3 " in line for line in process.stdout)
        send(process)
        rest = process.stdout.read()  # to the end of the last process that holds the pipe
    return process.returncode, rest


def assert_saved(target: Path) -> None:
    """A step after the third one was saved when the signal came."""
    assert list_checkpoints(target / "checkpoints")[-1].name >= "step-00000003"
    assert not (target / "finetuned").exists()


def test_run_stops_with_its_stage(tiny_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    command = ["-c", "from bertpre.cli import main; main()", "run"]
    status, said = signalled_after_step_3(command, tiny_run, target, subprocess.Popen.terminate)
    assert status == 128 + signal.SIGTERM
    assert "stopped by SIGTERM" in said
    assert_saved(target)


def test_a_sigterm_to_accelerate_launch_with_one_process_saves(tiny_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    command = ["-m", "accelerate.commands.launch", "--cpu", "-m", "bertpre.pretrain"]
    _, said = signalled_after_step_3(command, tiny_run, target, subprocess.Popen.terminate)
    assert "stopped by SIGTERM" in said
    assert_saved(target)


def terminate_twice(launcher: subprocess.Popen[str]) -> None:
    """What a queue does: SIGTERM to every process; the launcher passes its own on, and the queue repeats itself.

    Signals of one kind that arrive together are one: hence the pause.
    """
    everyone = [psutil.Process(launcher.pid), *psutil.Process(launcher.pid).children(recursive=True)]
    for processes in (everyone[1:], everyone):
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        time.sleep(0.5)


LAUNCHERS = {
    "torchrun": ("torch.distributed.run", "--standalone", "--nproc_per_node", "2"),
    "accelerate": ("accelerate.commands.launch", "--cpu", "--num_processes", "2"),
}
# Step 3 lasts until both signals have come, and a file beside the script says so.
LONG_STEP = """
import time
from pathlib import Path
from bertpre.cli import launched
from bertpre.training.trainer import Trainer
between_steps = Trainer.between_steps

def slowly(trainer):
    between_steps(trainer)
    while trainer.progress.step == 3 and not Path(__file__).with_suffix(".go").exists():
        time.sleep(0.1)

Trainer.between_steps = slowly
launched("pretrain")
"""


@pytest.mark.parametrize("launcher", ["accelerate", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_sigterms_to_all_processes_and_their_launcher_save(launcher: str, tiny_run: Path, tmp_path: Path) -> None:
    target, script = copy_run(tiny_run, tmp_path / "run", "prepare"), tmp_path / "script.py"
    script.write_text(LONG_STEP)

    def signal_and_go_on(launched: subprocess.Popen[str]) -> None:
        try:
            terminate_twice(launched)
        finally:
            script.with_suffix(".go").touch()

    _, said = signalled_after_step_3(["-m", *LAUNCHERS[launcher], str(script)], tiny_run, target, signal_and_go_on)
    assert said.count("stopped by a signal after step 3 (saved)") == 1
    assert [path.name for path in list_checkpoints(target / "checkpoints")] == ["step-00000000", "step-00000003"]


def test_a_sigterm_to_the_launcher_alone_saves(tiny_run: Path, tmp_path: Path) -> None:
    """`accelerate launch` has started torchrun, which has started two processes: each tells the next."""
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    command = ["-m", *LAUNCHERS["accelerate"], "-m", "bertpre.pretrain"]
    _, said = signalled_after_step_3(command, tiny_run, target, subprocess.Popen.terminate)
    assert said.count("stopped by") == 1
    assert_saved(target)


def launch_two(run: Path, target: Path, hook: str) -> subprocess.CompletedProcess[str]:
    """Pretrain on two processes, with a hook after each step."""
    arguments = (run / "recipe.yaml", f"output_dir={target}", "training.optimizer=adamw")
    return run_forked(training_with(hook), *arguments, ranks=2)


ON_ONE_PROCESS = "step == 8 and trainer.accelerator.process_index == 1 and os.kill(os.getpid(), signal.{})"


def test_a_signal_to_one_process_of_two_stops_both(tiny_modern_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_modern_run, tmp_path / "run", "prepare")
    done = launch_two(tiny_modern_run, target, ON_ONE_PROCESS.format("SIGTERM"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("stopped by SIGTERM after step 8") == 1
    assert (target / "checkpoints" / "step-00000008").is_dir()


def test_when_a_process_dies_the_others_end_and_the_run_resumes_later(tiny_modern_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_modern_run, tmp_path / "run", "prepare")
    assert launch_two(tiny_modern_run, target, ON_ONE_PROCESS.format("SIGKILL")).returncode != 0
    assert (target / "checkpoints" / "step-00000005").is_dir()
    done = launch_two(tiny_modern_run, target, "pass")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("resuming from step 5") == 1


def test_two_runs_in_one_folder_are_refused(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    arguments = ("pretrain", tiny_run / "recipe.yaml", f"output_dir={target}")

    def start_another(trainer: Trainer) -> None:
        if trainer.progress.step != 7:
            return
        trainer.saver.finish_writing()  # of step 5's
        before = tree_hash(target)
        capsys.readouterr()
        assert run_here(*arguments) == 2
        said = capsys.readouterr().err
        assert "another process works in" in said
        assert len(said.splitlines()) == 1
        assert tree_hash(target) == before

    pretrain(recipe_of(tiny_run, target), start_another)
    assert tree_hash(target / "model") == tree_hash(tiny_run / "model")


def test_a_full_disk_is_one_message_and_the_earlier_checkpoints_stay(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resource = pytest.importorskip("resource")
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def no_room(trainer: Trainer) -> None:
        if trainer.progress.step == 9:
            trainer.saver.finish_writing()  # of step 5's
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))  # bytes of a file

    try:
        with pytest.raises(UserError, match="checkpoints: the checkpoint of step 10 cannot be written: .*to resume"):
            pretrain(recipe_of(tiny_run, target), no_room)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    names = sorted(path.name for path in (target / "checkpoints").iterdir())
    assert names == ["step-00000000", "step-00000005"]
    assert run_here("pretrain", tiny_run / "recipe.yaml", f"output_dir={target}") == 0
    assert tree_hash(target / "model") == tree_hash(tiny_run / "model")


def test_run_does_not_take_the_place_of_several_processes(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    stopped_after_step_8(tiny_run, target)
    facts = json.loads((target / "manifest.json").read_text())
    facts["pretrain"]["hardware"]["processes"] = 4
    (target / "manifest.json").write_text(json.dumps(facts))
    assert run_here("run", target) == 2
    assert "4 processes have begun to pretrain here, and have not finished. To resume, start" in capsys.readouterr().err
    assert run_here("pretrain", target) == 0


def test_keys_that_change_no_result_may_change_between_runs(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    arguments = ("pretrain", tiny_run / "recipe.yaml", f"output_dir={target}")
    stopped_after_step_8(tiny_run, target)
    capsys.readouterr()
    assert run_here(*arguments, "training.learning_rate=5e-4") == 2
    refused = capsys.readouterr().err
    assert "differs in training.learning_rate" in refused
    assert f"{target} --to bertpre --output-dir {target}-model` writes" in refused
    free = (
        "training.log_every=5",
        "training.eval_every=3",
        "checkpoint.every=1",
        "checkpoint.keep=9",
        "training.price_per_hour=3.6",
    )
    free += ("training.phases.0.micro_batch_size=8", "training.compile=false")  # what this run has anyway
    assert run_here(*arguments, *free) == 0
    assert tree_hash(target / "model") == tree_hash(tiny_run / "model")
    last = read_metrics(target, "pretrain", "train")[-1]
    assert last["cost"] == pytest.approx(last["elapsed_seconds"] / 1000, rel=1e-4)


def test_wandb_resumes_the_same_run(tiny_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    stopped_after_step_8(tiny_run, target, "training.wandb_project=films")
    time.sleep(1.1)  # wandb names a folder by the second
    pretrain(recipe_of(tiny_run, target, "training.wandb_project=films"))
    runs = [path for path in (target / "wandb").iterdir() if path.name.startswith("offline-run-")]
    assert len(runs) == 2
    (tmp_path / "emptied.id").touch()
    assert len(run_id(tmp_path / "emptied.id")) == 8
    assert {path.name.rpartition("-")[2] for path in runs} == {(target / "wandb-pretrain.id").read_text()}
    sent = b"".join(file.read_bytes() for file in (target / "wandb").rglob("*") if file.is_file())
    assert b"mlm_loss" in sent and b"guesses for" not in sent and b"context-free" not in sent


def test_a_training_in_wandb_is_a_run_of_its_own_and_failed_where_it_ends_early(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb
    from wandb.sdk.wandb_run import Run

    codes: list[tuple[str, int | None]] = []
    finish = Run.finish

    def finish_noted(run: Run, exit_code: int | None = None) -> None:
        codes.append((run.id, exit_code))
        finish(run, exit_code)

    def fail() -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(Run, "finish", finish_noted)
    target, project = copy_run(tiny_run, tmp_path / "run", "prepare"), "training.wandb_project=films"
    recipe = recipe_of(tiny_run, target, project)
    mine = wandb.init(project="mine", dir=str(tmp_path))
    with pytest.raises(RuntimeError, match="a fault"):
        pretrain(recipe, at_step(4, fail))
    stopped_after_step_8(tiny_run, target, project)
    pretrain(recipe)
    (target / "model" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match="finetune.init"):
        finetune(recipe)
    ids = [(target / f"wandb-{stage}.id").read_text() for stage in ("pretrain", "finetune")]
    assert codes == [(ids[0], 1), (ids[0], 1), (ids[0], 0), (ids[1], 1)]
    assert wandb.run is mine
    mine.finish()


def test_an_open_run_of_a_sweep_gets_the_metrics_and_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    wandb.teardown()  # it reads the environment once
    monkeypatch.setenv("WANDB_SWEEP_ID", "search")
    monkeypatch.setenv("WANDB_RUN_ID", "trial")
    mine = wandb.init(dir=str(tmp_path))
    for stage in ("pretrain", "finetune"):
        tracker = WandbTracker("films", tmp_path, stage, {})
        tracker.log("train", 7, {"loss": 1.0})
        tracker.close()
    assert (tracker.run, mine.step) == (mine, 2)  # none is left out as a step that was there before
    mine.finish()
    wandb.teardown()


def test_a_fault_of_wandb_at_the_end_costs_no_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tracker = WandbTracker("films", tmp_path, "pretrain", {})

    def fail(exit_code: int) -> None:
        raise ConnectionResetError("Connection lost")

    finish, tracker.run.finish = tracker.run.finish, fail
    tracker.close()
    finish()
    assert "wandb: the run was not finished: Connection lost" in caplog.text


def test_wandb_mode_may_be_empty_and_a_wrong_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    wandb.teardown()  # it reads the environment once
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_MODE", "sometimes")
    with pytest.raises(UserError, match="WANDB_MODE: Input should be 'online', 'offline'"):
        WandbTracker("films", tmp_path, "pretrain", {})
    monkeypatch.setenv("WANDB_MODE", "")
    tracker = WandbTracker("films", tmp_path, "pretrain", {})
    assert tracker.run.settings.mode == "offline"
    tracker.close()
    wandb.teardown()


def test_wandb_that_cannot_log_offline_either_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    def fail(**settings: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(wandb, "init", fail)
    with pytest.raises(UserError, match=r"cannot log offline either \(the disk is full\); set WANDB_MODE=disabled"):
        WandbTracker("films", tmp_path, "pretrain", {})


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
    assert "pip install 'bertpre[tensorboard]'" in capsys.readouterr().err


def test_tensorboard_has_the_points_of_one_training_once(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    training = load_recipe("quickstart", ["training.tensorboard=true"]).training

    def steps_after(steps: range, known: int) -> list[int]:
        (tracker,) = start_trackers(tmp_path, "pretrain", training, {}, resumes=known >= 0)
        tracker.forget_after(known)
        for step in steps:
            tracker.log("train", step, {"loss": 1 / step})
        tracker.close()
        events = reader.EventAccumulator(str(tmp_path / "tensorboard" / "pretrain")).Reload()
        return [event.step for event in events.Scalars("train/loss")]

    assert steps_after(range(1, 8), known=-1) == [1, 2, 3, 4, 5, 6, 7]
    assert steps_after(range(4, 10), known=3) == [1, 2, 3, 4, 5, 6, 7, 8, 9]  # killed after step 7
    assert steps_after(range(1, 3), known=-1) == [1, 2]


def test_tensorboard_keeps_the_evaluation_of_a_checkpoint_inside_a_line(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    training = load_recipe("quickstart", ["training.tensorboard=true"]).training

    def log_of_steps(resumes: bool) -> MetricsLog:
        return MetricsLog(
            tmp_path / "metrics.jsonl",
            "pretrain",
            active=True,
            trackers=start_trackers(tmp_path, "pretrain", training, {}, resumes=resumes),
        )

    with log_of_steps(resumes=False) as log:
        for split, step in (("train", 14), ("validation", 20), ("train", 21)):
            log.write(split, step, {"loss": 1.0}, 0.5)
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('12\n{"a": 1}\n')
    with log_of_steps(resumes=True) as log:
        log.forget_after(19, 20)  # a checkpoint of step 20, between two lines
        log.write("train", 21, {"loss": 1.0}, 0.5)
    events = reader.EventAccumulator(str(tmp_path / "tensorboard" / "pretrain")).Reload()
    assert [event.step for event in events.Scalars("validation/loss")] == [20]
    assert [event.step for event in events.Scalars("train/loss")] == [14, 21]
    assert [row["step"] for row in read_metrics(tmp_path)] == [14, 20, 21]


def test_tensorboard_gets_the_curves(tiny_run: Path, tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    assert run_here("pretrain", tiny_run / "recipe.yaml", f"output_dir={target}", "training.tensorboard=true") == 0
    events = reader.EventAccumulator(str(target / "tensorboard" / "pretrain")).Reload()
    curve = [(event.step, event.value) for event in events.Scalars("train/mlm_loss")]
    rows = read_metrics(target, "pretrain", "train")
    assert curve == [(row["step"], pytest.approx(row["mlm_loss"], rel=1e-5)) for row in rows]
