"""Ten steps are bit-identical to five steps, a kill, and a resume."""

import json
import signal
import sys
from pathlib import Path

import pytest

from bertpre.commands.pretrain import pretrain
from bertpre.recipe import load_recipe
from tests.helpers import copy_run, pretraining_with, read_metrics, run_cli, run_here, run_process, tree_hash

TIMES = {
    "elapsed_seconds", "tokens_per_second", "data_wait_fraction", "flops_utilization", "seconds_left", "peak_memory_mb",
}  # fmt: skip
KILLED_AFTER_STEP_7 = "step == 7 and os.kill(os.getpid(), signal.SIGKILL)"
# The kernel kills a process that writes beyond its limit, here within the weights of step 10's checkpoint.
KILLED_WHILE_SAVING_STEP_10 = """if step == 9:
        import resource
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"""


def without_times(run: Path, stage: str = "pretrain") -> list[dict]:
    return [{name: row[name] for name in row.keys() - TIMES} for row in read_metrics(run, stage)]


def killed(finished: Path, target: Path, hook: str, by: signal.Signals) -> tuple[object, ...]:
    """Pretrain on the prepared data of a finished run until `hook` ends the process; returns how to resume."""
    copy_run(finished, target, "prepare")
    arguments = (finished / "recipe.yaml", f"output_dir={target}")
    done = run_process([sys.executable, "-c", pretraining_with(hook), *map(str, arguments)])
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


def test_a_run_killed_between_two_checkpoints_resumes_bit_identically(tiny_run: Path, tmp_path: Path) -> None:
    arguments = killed(tiny_run, tmp_path / "run", KILLED_AFTER_STEP_7, signal.SIGKILL)
    assert max(row["step"] for row in read_metrics(tmp_path / "run")) == 7  # lines that must go
    resumed = run_cli(*arguments)
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming from step 5" in resumed.stdout
    assert_same_run(tmp_path / "run", tiny_run)


def test_a_run_killed_while_it_saves_resumes_bit_identically(tiny_modern_run: Path, tmp_path: Path) -> None:
    arguments = killed(tiny_modern_run, tmp_path / "run", KILLED_WHILE_SAVING_STEP_10, signal.SIGXFSZ)
    assert (tmp_path / "run" / "checkpoints" / "step-00000010.partial").is_dir()
    assert run_here(*arguments) == 0
    assert_same_run(tmp_path / "run", tiny_modern_run)


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


def test_a_run_killed_between_its_data_and_its_results_resumes(tiny_run: Path, tmp_path: Path) -> None:
    from bertpre.commands.prepare import prepare

    target = copy_run(tiny_run, tmp_path / "run", "prepare")
    (target / "results.json").unlink()
    before = tree_hash(target / "data")
    figures = prepare(load_recipe(str(tiny_run / "recipe.yaml"), [f"output_dir={target}"]))
    expected = json.loads((tiny_run / "results.json").read_text())["prepare"]
    assert {**figures, "seconds": 0} == {**expected, "seconds": 0}
    assert tree_hash(target / "data") == before


def test_a_killed_fine_tuning_restarts_and_its_first_log_lines_are_removed(
    tiny_modern_run: Path, tmp_path: Path
) -> None:
    target = copy_run(tiny_modern_run, tmp_path / "run", "prepare", "pretrain")
    with (target / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps({"stage": "finetune", "split": "train", "step": 3, "loss": 99.0}) + "\n")
    assert run_here("finetune", tiny_modern_run / "recipe.yaml", f"output_dir={target}") == 0
    assert tree_hash(target / "finetuned") == tree_hash(tiny_modern_run / "finetuned")
    for stage in ("pretrain", "finetune"):
        assert without_times(target, stage) == without_times(tiny_modern_run, stage)


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
