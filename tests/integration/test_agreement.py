"""Processes resume from one checkpoint, hold the same weights, and end together with one message where they cannot."""

import shutil
import textwrap
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from bertpre.commands.pretrain import pretrain
from bertpre.errors import UserError
from bertpre.recipe import load_recipe
from bertpre.training import agreement
from bertpre.training.agreement import (
    bit_sums,
    broadcast_from_first,
    on_every_process,
    processes,
    refuse_different_weights,
)
from bertpre.training.checkpoint import read_state
from tests.forked import run_forked
from tests.helpers import copy_run, read_metrics
from tests.toys import ToyModel

# What one process sees of the shared folder: checkpoint 10 is damaged, or not listed yet.
DAMAGED = """
read_state = checkpoint.read_state
checkpoint.read_state = lambda path: None if path.name == "step-00000010" else read_state(path)
"""
STALE = """
list_checkpoints = checkpoint.list_checkpoints
checkpoint.list_checkpoints = lambda folder: [each for each in list_checkpoints(folder) if each.name < "step-00000010"]
"""
# After step 7 one process's weights change, as by a faulty device.
DRIFTED = """
import torch
from bertpre.training.trainer import Trainer
between_steps = Trainer.between_steps

def drifting(trainer):
    if trainer.progress.step == 7:
        with torch.no_grad():
            next(trainer.training_step.model.parameters()).view(-1)[3] += 1e-6
    between_steps(trainer)

Trainer.between_steps = drifting
"""
FULL_DISK = """
save_file = checkpoint.save_file

def no_space(tensors, file):
    if "step-0000000{step}" in str(file):
        raise OSError("no space left")
    save_file(tensors, file)

checkpoint.save_file = no_space
"""


# However late the first process is; the others are ended when it has ended.
FIRST_SPEAKS = "from bertpre import guard\nguard.SECONDS_FOR_MAIN_PROCESS = 3600"
FULL_LOG = """
import errno
from bertpre.training.trackers import MetricsLog
write = MetricsLog.write

def no_space(log, split, step, *values):
    if (split, step) == ("{split}", 5):
        raise OSError(errno.ENOSPC, "No space left on device")
    write(log, split, step, *values)

MetricsLog.write = no_space
"""


# Sizes are tried on the CPU too; above three rows one process has too little memory.
TRIED = """
from bertpre.pretraining import batches
batches.sizes_to_try = lambda share, accelerator: [4, 2, 1]
"""
SHORT_OF_MEMORY = """
import torch
from bertpre.model import BertPreForPreTraining
forward = BertPreForPreTraining.forward

def limited(self, input_ids, **others):
    if torch.is_grad_enabled() and len(input_ids) > 3:
        raise torch.OutOfMemoryError("CUDA out of memory.")
    return forward(self, input_ids, **others)

BertPreForPreTraining.forward = limited
"""


def pretrain_on(
    count: int,
    run: Path,
    target: Path,
    rank: int,
    trouble: str,
    everywhere: str = "",
    ends_others: bool = True,
) -> CompletedProcess[str]:
    """Pretrain on `count` processes, with some trouble on one of them."""
    lines = [
        "import os", "from bertpre.training import checkpoint", FIRST_SPEAKS, everywhere,
        f"if os.environ['RANK'] == '{rank}':",
        *(f"    {line}" for line in trouble.splitlines()), "from bertpre.cli import launched", "launched('pretrain')",
    ]  # fmt: skip
    arguments = (run / "recipe.yaml", f"output_dir={target}", "training.optimizer=adamw")
    return run_forked("\n".join(lines), *arguments, ranks=count, ends_others=ends_others)


def errors(done: CompletedProcess[str]) -> list[str]:
    assert done.returncode != 0
    return [line for line in done.stderr.splitlines() if line.startswith("error: ")]


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in read_metrics(run, "pretrain", "train")]


@pytest.fixture(scope="module")
def trained_with_adamw(tiny_modern_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained on one process with AdamW, without its model; not to be written to."""
    target = copy_run(tiny_modern_run, tmp_path_factory.mktemp("adamw") / "run", "prepare")
    pretrain(load_recipe(str(tiny_modern_run / "recipe.yaml"), [f"output_dir={target}", "training.optimizer=adamw"]))
    shutil.rmtree(target / "model")
    return target


@pytest.fixture
def adamw_run(trained_with_adamw: Path, tmp_path: Path) -> Path:
    """A copy of that run."""
    return shutil.copytree(trained_with_adamw, tmp_path / "run")


@pytest.mark.parametrize("trouble", [DAMAGED, STALE], ids=["damaged", "stale"])
def test_all_processes_resume_from_what_the_first_one_chooses(
    trouble: str, adamw_run: Path, tiny_modern_run: Path
) -> None:
    on_one_process = losses(adamw_run)
    done = pretrain_on(2, tiny_modern_run, adamw_run, 0, trouble)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("resuming from step 5") == 1
    assert losses(adamw_run) == pytest.approx(on_one_process, abs=1.5e-5)  # logged with six digits
    assert (adamw_run / "model").is_dir()


def test_the_process_with_the_least_memory_sets_the_micro_batch(adamw_run: Path, tmp_path: Path) -> None:
    target = copy_run(adamw_run, tmp_path / "two", "prepare")
    done = pretrain_on(2, adamw_run, target, 1, SHORT_OF_MEMORY, TRIED)
    assert done.returncode == 0, done.stderr
    assert [done.stdout.count(f"micro-batches of 2 rows of {length} tokens") for length in (32, 48)] == [1, 1]
    state = read_state(target / "checkpoints" / "step-00000010")
    assert state is not None and state["micro_batches"] == [[4, 2], [4, 2]]
    assert losses(target) == pytest.approx(losses(adamw_run), abs=1.5e-5)  # logged with six digits


def test_a_stale_listing_on_another_process_does_not_matter(adamw_run: Path, tiny_modern_run: Path) -> None:
    done = pretrain_on(2, tiny_modern_run, adamw_run, 1, STALE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("resuming from step 10") == 1


def test_a_checkpoint_that_one_process_cannot_read_is_one_message(adamw_run: Path, tiny_modern_run: Path) -> None:
    said = errors(pretrain_on(2, tiny_modern_run, adamw_run, 1, DAMAGED))
    assert len(said) == 1
    assert said[0].startswith("error: process 1: ")
    assert "step-00000010: this checkpoint, which the first process resumes from, is missing, damaged" in said[0]
    assert not (adamw_run / "model").exists()


def test_weights_that_differ_are_one_message_and_are_not_saved(tiny_modern_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_modern_run, tmp_path / "run", "prepare")
    said = errors(pretrain_on(2, tiny_modern_run, target, 1, DRIFTED))
    assert len(said) == 1
    assert "the weights of step 10 differ between processes: process 0 against process 1. Nothing was saved" in said[0]
    assert not (target / "checkpoints" / "step-00000010").exists()


@pytest.mark.parametrize("step", [0, 5])  # waited for, in the background
def test_a_checkpoint_that_cannot_be_written_ends_all_processes(
    step: int, tiny_modern_run: Path, tmp_path: Path
) -> None:
    target = copy_run(tiny_modern_run, tmp_path / "run", "prepare")
    said = errors(pretrain_on(2, tiny_modern_run, target, 0, FULL_DISK.replace("{step}", str(step))))
    assert len(said) == 1
    assert f"the checkpoint of step {step} cannot be written: no space left" in said[0]


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_log_that_cannot_be_written_ends_all_processes(split: str, tiny_modern_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_modern_run, tmp_path / "run", "prepare")
    at_once = "guard.SECONDS_FOR_MAIN_PROCESS = 0"
    trouble = FULL_LOG.replace("{split}", split)
    done = pretrain_on(2, tiny_modern_run, target, 0, trouble, at_once, ends_others=False)
    other, first = sorted(errors(done))
    assert first.startswith("error: the disk is full")
    assert other.startswith("error: process 0: OSError: [Errno 28] No space left")


def test_one_process_agrees_with_itself() -> None:
    def fail() -> None:
        raise UserError("no")

    assert on_every_process(lambda: 3, None) == broadcast_from_first(lambda: 3, None) == 3
    refuse_different_weights(ToyModel(), 1, False, None)
    with pytest.raises(UserError, match="^no$"):
        broadcast_from_first(fail, None)


def test_processes_at_different_steps_are_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "gathered", lambda value, group: [value, value + 1, value])
    with pytest.raises(UserError, match="different steps: step 4 on processes 0, 2; step 5 on process 1; end them all"):
        refuse_different_weights(ToyModel(), 4, False, object())


def test_the_sums_show_the_last_bit_of_a_weight() -> None:
    import torch

    model, other = ToyModel(), ToyModel()
    assert bit_sums(model) == bit_sums(other)
    with torch.no_grad():
        weight = other.classifier.weight
        weight[2, 3] = torch.nextafter(weight[2, 3], torch.tensor(9.0))
    assert [ours == theirs for ours, theirs in zip(bit_sums(model), bit_sums(other), strict=True)] == [1, 0, 1]


def test_many_processes_are_shortened() -> None:
    assert processes([3]) == "process 3"
    assert processes(list(range(10))) == "processes 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"


@pytest.mark.parametrize(
    ("stage", "override", "named"),
    [
        ("pretrain", "training.masked_lm_prob=0.3", "training.masked_lm_prob (0.15 on process 0, 0.3 on process 1)"),
        ("pretrain", "training.eval_every=7", "training.eval_every"),  # the processes would wait for each other
        ("pretrain", "output_dir={other}", "the data's checksum"),
        ("finetune", "finetune.batch_size=2", "finetune.batch_size"),
    ],
)
def test_processes_that_were_started_differently_are_one_message(
    stage: str, override: str, named: str, tiny_modern_run: Path, tmp_path: Path
) -> None:
    target, other = (copy_run(tiny_modern_run, tmp_path / name, "prepare", "pretrain") for name in ("run", "other"))
    manifest = other / "data" / "manifest.json"
    manifest.write_text(manifest.read_text() + "\n")  # the same data to read, by another checksum
    program = (
        f"import os, sys\nfrom bertpre.cli import launched\n{FIRST_SPEAKS}\n"
        f"sys.argv += [{override.format(other=other)!r}] * int(os.environ['RANK'])\nlaunched({stage!r})"
    )
    said = errors(run_forked(program, tiny_modern_run / "recipe.yaml", f"output_dir={target}", ranks=2))
    assert len(said) == 1
    assert f"the processes were started with different values of {named}" in said[0]


@pytest.mark.parametrize("split", ["train", "validation"])
def test_processes_that_divide_the_checksums_end_together(split: str, tiny_modern_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_modern_run, tmp_path / "run", "prepare")
    file = next((target / "data").glob(f"*.{split}*.tokens.npy"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    program = f"from bertpre.cli import launched\n{FIRST_SPEAKS}\nlaunched('pretrain')"
    arguments = (tiny_modern_run / "recipe.yaml", f"output_dir={target}")
    said = errors(run_forked(program, *arguments, ranks=2))
    assert len(said) == 1 and f"{file.name} is missing or damaged" in said[0]


@pytest.mark.parametrize("stage", ["pretrain", "finetune"])
def test_processors_that_multiply_other_types_are_one_message(
    stage: str, tiny_modern_run: Path, tmp_path: Path
) -> None:
    """In fp32, too, since Muon has a type of its own."""
    target = copy_run(tiny_modern_run, tmp_path / "run", "prepare", "pretrain")
    program = (
        f"import os\nfrom bertpre import runtime\nfrom bertpre.cli import launched\n{FIRST_SPEAKS}\n"
        "runtime.has_native_bf16 = lambda device: os.environ['RANK'] == '0'\n"
        f"launched({stage!r})"
    )
    arguments = (f"output_dir={target}", "training.precision=fp32", "finetune.optimizer=muon")
    said = errors(run_forked(program, tiny_modern_run / "recipe.yaml", *arguments, ranks=2))
    assert len(said) == 1
    assert "bf16 in the processor, for muon (True on process 0, False on process 1)" in said[0]


# What the second process sees of the shared folder: the first seed is not finished yet.
UNSEEN = """
from bertpre.finetuning import seeds
figures_in = seeds.figures_in
seeds.figures_in = lambda folder, made_from: None
"""


def test_the_first_process_says_which_seeds_are_finished(tiny_modern_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_modern_run, tmp_path / "run", "prepare", "pretrain")
    program = (
        "import os\nfrom bertpre.cli import launched\n"
        f"if os.environ['RANK'] == '1':\n{textwrap.indent(UNSEEN, '    ')}\n"
        "launched('finetune')"
    )
    arguments = (tiny_modern_run / "recipe.yaml", f"output_dir={target}", "finetune.seeds=2")
    done = run_forked(program, *arguments, ranks=2)
    assert done.returncode == 0, done.stderr
    (target / "seeds" / "2" / "figures.json").unlink()  # as after an interruption in the second seed
    done = run_forked(program, *arguments, ranks=2)
    assert done.returncode == 0, done.stderr
    assert "seed 1 is finished" in done.stdout and "seed 2 is finished" not in done.stdout


def test_labelled_texts_that_one_process_cannot_read_are_one_message(tiny_modern_run: Path, tmp_path: Path) -> None:
    target = copy_run(tiny_modern_run, tmp_path / "run", "prepare", "pretrain")
    program = (
        f"import os, sys\nfrom bertpre.cli import launched\n{FIRST_SPEAKS}\n"
        "sys.argv += ['finetune.path=./nowhere'] * int(os.environ['RANK'])\nlaunched('finetune')"
    )
    said = errors(run_forked(program, tiny_modern_run / "recipe.yaml", f"output_dir={target}", ranks=2))
    assert len(said) == 1
    assert said[0].startswith("error: process 1: finetune.path: './nowhere' is neither")
