"""Ten steps are bit-identical to five steps, a kill, and a resume."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bertpre.commands.finetune import finetune
from bertpre.commands.prepare import prepare
from bertpre.commands.pretrain import pretrain
from bertpre.recipe import Recipe, load_recipe
from bertpre.training.trainer import Trainer
from tests.forked import run_forked
from tests.helpers import at_step, copy_run, read_metrics, run_here, run_process, training_with, tree_hash

TIMES = {
    "elapsed_seconds", "tokens_per_second", "data_wait_fraction", "flops_utilization", "seconds_left", "peak_memory_mb",
}  # fmt: skip
KILLED_AFTER_STEP_7 = "step == 7 and (trainer.saver.finish_writing(), os.kill(os.getpid(), signal.SIGKILL))"
# The kernel kills a process that writes beyond its limit, here within the weights of step 10's checkpoint.
KILLED_WHILE_SAVING_STEP_10 = """if step == 9:
        import resource
        trainer.saver.finish_writing()  # of step 5's
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"""


def without_times(run: Path, stage: str = "pretrain") -> list[dict]:
    return [{name: row[name] for name in row.keys() - TIMES} for row in read_metrics(run, stage)]


def killed(finished: Path, target: Path, hook: str, by: signal.Signals) -> tuple[object, ...]:
    """Pretrain on the prepared data of a finished run until `hook` ends the process; returns how to resume."""
    copy_run(finished, target, "prepare")
    arguments = (finished / "recipe.yaml", f"output_dir={target}")
    done = run_forked(training_with(hook), *arguments)
    assert done.returncode == -by, done.stderr
    assert not (target / "model").exists()
    assert "pretrain" not in json.loads((target / "results.json").read_text())
    assert (target / "checkpoints" / "step-00000005").is_dir()
    assert not (target / "checkpoints" / "step-00000010").exists()
    return ("pretrain", *arguments)


def assert_same_run(target: Path, finished: Path) -> None:
    assert tree_hash(target / "model") == tree_hash(finished / "model")
    for name in ("model.safetensors", "optimizer.safetensors"):
        last = Path("checkpoints") / "step-00000010" / name
        assert (target / last).read_bytes() == (finished / last).read_bytes()
    assert without_times(target) == without_times(finished)
    ours, theirs = (json.loads((run / "results.json").read_text())["pretrain"] for run in (target, finished))
    assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}
    assert not list(target.rglob("*.partial"))


def test_a_run_killed_between_two_checkpoints_resumes_bit_identically(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = killed(tiny_run, tmp_path / "run", KILLED_AFTER_STEP_7, signal.SIGKILL)
    assert max(row["step"] for row in read_metrics(tmp_path / "run")) == 7  # lines that must go
    assert run_here(*arguments) == 0
    assert "resuming from step 5" in capsys.readouterr().out
    assert_same_run(tmp_path / "run", tiny_run)


def test_a_run_killed_while_it_saves_resumes_bit_identically(tiny_modern_run: Path, tmp_path: Path) -> None:
    arguments = killed(tiny_modern_run, tmp_path / "run", KILLED_WHILE_SAVING_STEP_10, signal.SIGXFSZ)
    assert (tmp_path / "run" / "checkpoints" / "step-00000010.partial").is_dir()
    assert run_here(*arguments) == 0
    assert_same_run(tmp_path / "run", tiny_modern_run)


SLOW_DISK = """
import threading, time
from bertpre.training import checkpoint
begun = threading.Event()

def late(tensors, file):
    begun.set()
    time.sleep(600)

def slow_down():
    checkpoint.save_file = late
"""


def test_a_run_killed_while_step_5_is_written_in_the_background_resumes_bit_identically(
    tiny_run: Path, tmp_path: Path
) -> None:
    """The disk is slow: training is at step 7 when the kill comes, and only the checkpoint of step 0 is complete."""
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    hook = "step == 4 and slow_down()\n    step == 7 and begun.wait() and os.kill(os.getpid(), signal.SIGKILL)"
    arguments = (str(tiny_run / "recipe.yaml"), f"output_dir={target}")
    done = run_forked(SLOW_DISK + training_with(hook), *arguments)
    assert done.returncode == -signal.SIGKILL, done.stderr
    names = sorted(path.name for path in (target / "checkpoints").iterdir())
    assert names == ["step-00000000", "step-00000005.partial"]
    assert run_here("pretrain", *arguments) == 0
    assert_same_run(target, tiny_run)


def test_a_run_of_full_rows_resumes_bit_identically(tiny_run: Path, tmp_path: Path) -> None:
    """Rows without padding have no attention mask; two phases, 7 steps of 8 x 32 and 3 of 8 x 48 tokens."""
    whole, resumed = (
        load_recipe(str(tiny_run / "recipe.yaml"), [f"output_dir={tmp_path / name}", "pairs.kind=none"])
        for name in ("whole", "resumed")
    )
    prepare(whole)
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    assert pretrain(whole)["tokens"] == 7 * 8 * 32 + 3 * 8 * 48
    with pytest.raises(SystemExit):
        pretrain(resumed, at_step(4, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    pretrain(resumed)
    assert_same_run(tmp_path / "resumed", tmp_path / "whole")


@pytest.mark.parametrize("stopped_after", [4, 6, 7])  # before, at and after the change of objective
def test_a_run_with_a_causal_phase_resumes_bit_identically(
    stopped_after: int, tiny_modern_run: Path, tmp_path: Path
) -> None:
    phases = "[{share: 0.6, max_length: 32, objective: causal}, {share: 0.4, max_length: 32}]"
    settings = ["pairs.kind=none", f"training.phases={phases}", "training.log_every=4"]
    whole, resumed = (
        load_recipe(str(tiny_modern_run / "recipe.yaml"), [f"output_dir={tmp_path / name}", *settings])
        for name in ("whole", "resumed")
    )
    prepare(whole)
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    assert pretrain(whole)["tokens"] == 10 * 8 * 32
    with pytest.raises(SystemExit):
        pretrain(resumed, at_step(stopped_after, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    pretrain(resumed)
    assert_same_run(tmp_path / "resumed", tmp_path / "whole")
    rows = read_metrics(tmp_path / "whole", "pretrain", "train")
    names = [(row["step"], "clm_loss" if "clm_loss" in row else "mlm_loss") for row in rows]
    assert names == [(4, "clm_loss"), (6, "clm_loss"), (8, "mlm_loss"), (10, "mlm_loss")]  # a line ends with its phase
    assert not any({"clm_loss", "mlm_loss"} <= row.keys() for row in rows)
    assert all("mlm_loss" in row for row in read_metrics(tmp_path / "whole", "pretrain", "validation"))


@pytest.mark.parametrize("stopped_after", [4, 5])
def test_a_run_of_mixed_steps_resumes_bit_identically(
    stopped_after: int, tiny_modern_run: Path, tmp_path: Path
) -> None:
    phases = "[{share: 1.0, max_length: 32, objective: mixed}]"
    settings = ["pairs.kind=none", f"training.phases={phases}", "training.log_every=1"]
    whole, resumed = (
        load_recipe(str(tiny_modern_run / "recipe.yaml"), [f"output_dir={tmp_path / name}", *settings])
        for name in ("whole", "resumed")
    )
    prepare(whole)
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    pretrain(whole)
    with pytest.raises(SystemExit):
        pretrain(resumed, at_step(stopped_after, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    pretrain(resumed)
    assert_same_run(tmp_path / "resumed", tmp_path / "whole")
    rows = read_metrics(tmp_path / "whole", "pretrain", "train")
    assert ["clm_loss" in row for row in rows[:4]] == [False, True, False, True]
    assert ["mlm_loss" in row for row in rows[:4]] == [True, False, True, False]
    assert all("mlm_loss" in row for row in read_metrics(tmp_path / "whole", "pretrain", "validation"))


def test_a_run_killed_after_a_phase_ended_has_each_log_line_once(tiny_modern_run: Path, tmp_path: Path) -> None:
    """Killed after step 8; the checkpoint of step 6 is older than the line about that step, where a phase ends."""
    phases = "[{share: 0.6, max_length: 32, objective: causal}, {share: 0.4, max_length: 32}]"
    settings = ["pairs.kind=none", f"training.phases={phases}", "training.log_every=4", "checkpoint.every=6"]
    recipe = load_recipe(str(tiny_modern_run / "recipe.yaml"), [f"output_dir={tmp_path / 'run'}", *settings])
    prepare(recipe)
    with pytest.raises(ZeroDivisionError):
        pretrain(recipe, at_step(8, lambda: 1 / 0))
    assert [row["step"] for row in read_metrics(tmp_path / "run", "pretrain", "train")] == [4, 6, 8]
    pretrain(recipe)
    rows = read_metrics(tmp_path / "run", "pretrain", "train")
    assert [row["step"] for row in rows] == [4, 6, 8, 10]
    assert not any(row.get("tokens_per_second") == 0 for row in rows)


def test_a_damaged_newest_checkpoint_costs_only_steps(
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


def test_a_finished_run_without_checkpoints_is_not_trained_again(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare", "pretrain")
    shutil.rmtree(target / "checkpoints")
    before = tree_hash(target)
    assert run_here("pretrain", tiny_run / "recipe.yaml", f"output_dir={target}") == 2
    assert (
        "has finished, and no checkpoint of it is left; to train again, give another folder" in capsys.readouterr().err
    )
    assert tree_hash(target) == before


def test_a_training_that_resumes_elsewhere_says_so_and_keeps_what_it_ran_with(
    tiny_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    recipe = load_recipe(str(tiny_run / "recipe.yaml"), [f"output_dir={target}"])
    with pytest.raises(SystemExit):
        pretrain(recipe, at_step(8, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    file = target / "manifest.json"
    stages = json.loads(file.read_text())
    stages["pretrain"]["hardware"]["processes"] = 2
    file.write_text(json.dumps(stages))
    pretrain(recipe)
    assert "began with another hardware.processes (2 before, now 1)" in caplog.text
    facts = json.loads(file.read_text())["pretrain"]
    assert [each["hardware"]["processes"] for each in (*facts["before"], facts)] == [2, 1]
    assert tree_hash(target / "model") == tree_hash(tiny_run / "model")


def test_a_run_killed_between_its_data_and_its_results_resumes(tiny_run: Path, tmp_path: Path) -> None:
    from bertpre.commands.prepare import prepare

    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    (target / "results.json").unlink()
    before = tree_hash(target / "data")
    figures = prepare(load_recipe(str(tiny_run / "recipe.yaml"), [f"output_dir={target}"]))
    expected = json.loads((tiny_run / "results.json").read_text())["prepare"]
    assert {**figures, "seconds": 0} == {**expected, "seconds": 0}
    assert tree_hash(target / "data") == before


class Killed(BaseException):
    """Ends a training between two steps silently, as a kill does."""


def fine_tuned(recipe: Recipe, save_at: int, end_at: int, end: Callable[[], object]) -> None:
    """Fine-tune, saving after one step and calling `end` after another."""

    def after_step(trainer: Trainer) -> None:
        if trainer.progress.step == save_at:
            trainer.save()
        if trainer.progress.step == end_at:
            end()

    finetune(recipe, after_step)
    raise AssertionError("the fine-tuning was not interrupted")


def kill() -> None:
    raise Killed


def assert_same_classifier(target: Path, finished: Path) -> None:
    """The same weights, bit for bit, log lines and metrics; nothing is left over."""
    for stage in ("pretrain", "finetune"):
        assert without_times(target, stage) == without_times(finished, stage)
    ours, theirs = (load_file(run / "finetuned" / "model.safetensors") for run in (target, finished))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert tree_hash(target / "finetuned") == tree_hash(finished / "finetuned")
    ours, theirs = (json.loads((run / "results.json").read_text())["finetune"] for run in (target, finished))
    assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}
    assert not (target / "finetune-checkpoints").exists()
    assert not list(target.rglob("*.partial"))


@pytest.mark.parametrize(
    ("save_at", "end_at"),
    [(4, 6), (8, 8)],  # an epoch has 4 steps
)
def test_a_fine_tuning_interrupted_anywhere_resumes_bit_identically(
    save_at: int, end_at: int, tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare", "pretrain")
    recipe = load_recipe(str(tiny_run / "recipe.yaml"), [f"output_dir={target}"])
    with pytest.raises(Killed):
        fine_tuned(recipe, save_at, end_at, kill)
    finetune(recipe)
    assert f"resuming from step {save_at}" in capsys.readouterr().out
    assert_same_classifier(target, tiny_run)


def test_a_killed_fine_tuning_resumes_inside_its_epoch(tiny_modern_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_modern_run, tmp_path / "run", "prepare", "pretrain")
    arguments = (tiny_modern_run / "recipe.yaml", f"output_dir={target}")
    hook = "step == 5 and trainer.save(); step == 7 and os.kill(os.getpid(), signal.SIGKILL)"
    done = run_forked(training_with(hook, "finetune"), *arguments)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert max(row["step"] for row in read_metrics(target, "finetune")) == 7  # lines that must go
    assert run_here("finetune", *arguments) == 0
    assert_same_classifier(target, tiny_modern_run)


def test_a_signal_saves_a_fine_tuning(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare", "pretrain")
    recipe = load_recipe(str(tiny_run / "recipe.yaml"), [f"output_dir={target}"])
    with pytest.raises(SystemExit) as ended:
        finetune(recipe, at_step(6, lambda: signal.raise_signal(signal.SIGINT)))
    assert ended.value.code == 128 + signal.SIGINT
    assert "stopped by SIGINT after step 6 (saved). Run the same command to resume." in capsys.readouterr().out
    assert run_here("finetune", target) == 0
    assert "resuming from step 6" in capsys.readouterr().out
    assert_same_classifier(target, tiny_run)


def test_an_interrupted_fine_tuning_of_several_seeds_trains_each_once(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    several = ["finetune.seeds=2", "finetune.epochs=1", "finetune.unlabelled={path: sample, split: test, limit: 40}"]
    whole, target = (copy_run(tiny_run, tmp_path / name, "prepare", "pretrain") for name in ("whole", "run"))
    finetune(load_recipe(str(tiny_run / "recipe.yaml"), [f"output_dir={whole}", *several]))
    recipe = load_recipe(str(tiny_run / "recipe.yaml"), [f"output_dir={target}", *several])

    def kill_second_seed(trainer: Trainer) -> None:
        if trainer.log.output.stage == "finetune seed 2" and trainer.progress.step == 3:
            trainer.save()
            raise Killed

    with pytest.raises(Killed):
        finetune(recipe, kill_second_seed)
    assert list(target.glob("finetune-checkpoints/*/pseudo_labels.npy"))
    capsys.readouterr()
    finetune(recipe)
    said = capsys.readouterr().out
    assert "finetune: seed 1 is finished" in said
    assert "finetune seed 2: resuming from step 3" in said
    assert tree_hash(target / "finetuned") == tree_hash(whole / "finetuned")
    assert without_times(target, "finetune seed 2") == without_times(whole, "finetune seed 2")


def test_a_fine_tuning_with_another_recipe_or_other_texts_starts_from_scratch(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = copy_run(tiny_run, tmp_path / "run", "prepare", "pretrain")
    for changed in ("finetune.learning_rate=5e-4", "finetune.limit=79"):
        recipe = load_recipe(str(tiny_run / "recipe.yaml"), [f"output_dir={target}", changed])
        with pytest.raises(Killed):
            fine_tuned(recipe, 3, 3, kill)
    assert "the texts have changed since the interruption; starting from scratch" in capsys.readouterr().out
    finetune(load_recipe(str(tiny_run / "recipe.yaml"), [f"output_dir={target}"]))
    assert "resuming" not in capsys.readouterr().out
    assert_same_classifier(target, tiny_run)


@pytest.mark.slow  # two compilations of pretraining and of fine-tuning
def test_two_compiled_quickstarts_on_two_threads_are_bit_identical(tmp_path: Path) -> None:
    short = ["training.budget=null", "training.max_steps=40", "training.compile=true", "training.eval_every=40"]
    few = ["finetune.limit=300", "finetune.epochs=1", "evaluate.limit=50"]
    hashes = []
    for name in ("one", "two"):
        arguments = ["run", "quickstart", f"output_dir={tmp_path / name}", *short, *few]
        command = [sys.executable, "-c", "from bertpre.cli import main; main()", *arguments]
        done = run_process(command, timeout=1200, OMP_NUM_THREADS="2")
        assert done.returncode == 0, done.stderr
        hashes.append([tree_hash(tmp_path / name / part) for part in ("model", "finetuned")])
    assert hashes[0] == hashes[1]
