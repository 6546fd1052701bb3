"""`bertpre doctor`: reports on the machine, repeats the audit, finds damage, and writes nothing."""

import io
import re
import shutil
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from bertpre.commands.doctor import batch_lines, doctor, rate_lines, size_lines, time_lines
from bertpre.data.tokenizer import load_tokenizer
from bertpre.errors import UserError
from bertpre.model import BertPreConfig, BertPreForPreTraining
from bertpre.pretraining.batches import PretrainingData
from bertpre.recipe import load_recipe
from bertpre.run_directory import read_results
from bertpre.training.checkpoint import Checkpoints, save_checkpoint
from bertpre.training.optimizer import build_optimizers
from tests.helpers import copy_run, tree_hash


def examine(run: Path, capsys: pytest.CaptureFixture[str]) -> str:
    doctor(load_recipe(str(run / "recipe.yaml"), [f"output_dir={run}"]))
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def said(tiny_run: Path) -> str:
    """What it prints of a finished run, where it writes nothing."""
    before, printed = tree_hash(tiny_run), io.StringIO()
    with redirect_stdout(printed):
        doctor(load_recipe(str(tiny_run / "recipe.yaml"), [f"output_dir={tiny_run}"]))
    assert tree_hash(tiny_run) == before
    return printed.getvalue()


def test_it_repeats_the_audit_and_counts_the_masks(said: str, tiny_run: Path) -> None:
    audit = read_results(tiny_run)["prepare"]
    assert "GFLOP/s in fp32" in said or "GFLOP/s in float32" in said
    assert "GiB of disk" in said
    assert "torch.compile: " in said
    assert re.search(r"training: 64 \((positive|negative): \d+, (positive|negative): \d+\)", said)
    assert "files match their checksums" in said
    assert f"{audit['tokens']:,} tokens, about {audit['pairs']:,} examples per epoch" in said
    assert (
        f"without context {audit['context_free_loss']:.3f} nats (unigram entropy {audit['unigram_entropy']:.3f})"
        in said
    )
    assert "of the tokens are targets" in said


def test_without_data_it_names_the_command_that_makes_it(
    tiny_recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor(load_recipe(str(tiny_recipe), []))
    assert "run `bertpre prepare` to make it" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def test_a_flipped_bit_and_another_tokenizer_are_found(
    tiny_run: Path, tiny_modern_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copy_run(tiny_run, tmp_path / "copy", "prepare")
    file = next((run / "data").glob("*.tokens.npy"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=f"{file.name} is missing or damaged"):
        examine(run, capsys)
    content[-1] ^= 1
    file.write_bytes(content)
    (run / "tokenizer" / "tokenizer.json").write_text(
        (run / "tokenizer" / "tokenizer.json").read_text().replace('"the"', '"teh"')
    )
    with pytest.raises(UserError, match="made with another tokenizer"):
        examine(run, capsys)


def test_it_rehearses_the_training(said: str) -> None:
    assert "training.phases[0]: 8 pairs of 32 tokens a step = 8 in a pass x 1 passes x 1 processes" in said
    assert "the largest batches fit; running them took" in said
    assert "training.max_steps ends training after about 10 steps" in said
    assert "overfit one batch: MLM loss 6." in said
    assert "checkpoints of" in said
    assert "! fewer than 100 steps" in said


@pytest.mark.parametrize(("objective", "words"), [("mixed", "next-token loss"), ("causal", "next-token loss")])
def test_it_overfits_a_batch_of_the_first_phase(
    objective: str, words: str, tiny_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    phase = f"training.phases=[{{share: 0.9, max_length: 32, objective: {objective}}}, {{share: 0.1, max_length: 32}}]"
    doctor(load_recipe(str(tiny_run / "recipe.yaml"), [f"output_dir={tiny_run}", "pairs.kind=none", phase]))
    assert f"overfit one batch: {words} 6." in capsys.readouterr().out


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_size_of_a_checkpoint_is_that_of_its_files(optimizer: str, tmp_path: Path) -> None:
    model = BertPreForPreTraining(BertPreConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4))
    optimizers = build_optimizers(model, optimizer, 1e-3, 0.01)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    for each in optimizers:
        each.step()
    save_checkpoint(Checkpoints(tmp_path / "saved"), model, optimizers, {"step": 1})
    written = sum(file.stat().st_size for file in (tmp_path / "saved").rglob("*.safetensors"))
    trainer: Any = SimpleNamespace(training_step=SimpleNamespace(model=model, optimizers=optimizers))
    _, checkpoint, *_ = size_lines(load_recipe("quickstart"), trainer, torch.float32, tmp_path)
    keep = load_recipe("quickstart").checkpoint.keep
    assert f"checkpoints of {written / 2**20:,.0f} MB" in checkpoint
    assert f"at most {written * (keep + 1) / 2**20:,.0f} MB with the one being written" in checkpoint


@pytest.mark.parametrize(
    ("size", "expected"),
    [(8, "4 in a pass x 2 passes"), (7, "at most 4 in a pass x 2 passes")],
)
def test_it_counts_the_passes_over_short_rows(tiny_run: Path, size: int, expected: str) -> None:
    overrides = [f"training.global_batch_size={size}", "training.phases=[{share: 1.0, max_length: 512}]"]
    recipe = load_recipe(str(tiny_run / "recipe.yaml"), [*overrides, "model.max_position_embeddings=512"])
    data = PretrainingData(recipe, load_tokenizer(tiny_run / "tokenizer"), tiny_run / "data", Accelerator(cpu=True))
    (said,) = batch_lines(recipe, data)
    assert said == f"training.phases[0]: {size} pairs of 512 tokens a step = {expected} x 1 processes"


def test_a_rate_that_learns_nothing_is_found(tiny_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    doctor(load_recipe(str(tiny_run / "recipe.yaml"), [f"output_dir={tiny_run}", "training.learning_rate=1e-7"]))
    assert "! the model cannot overfit one batch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "finding"),
    [
        (["training.learning_rate=0.5"], "! training.learning_rate is 0.5; with adamw 2e-05 to 0.001 is usual"),
        (["training.warmup=0"], "! post-LN without warm-up tends to diverge"),
        (["training.optimizer=muon", "training.muon_learning_rate=3"], "! training.muon_learning_rate is 3"),
        (["training.masked_lm_prob=0.9"], "! training.masked_lm_prob is 0.9"),
    ],
)
def test_unusual_rates_are_reported(overrides: list[str], finding: str, tiny_run: Path) -> None:
    recipe = load_recipe(str(tiny_run / "recipe.yaml"), overrides)
    lines = list(rate_lines(recipe.training, recipe.model.architecture))
    assert [line for line in lines if line.startswith(finding)], lines
    usual = load_recipe(str(tiny_run / "recipe.yaml"), ["training.learning_rate=1e-4"])
    assert not [line for line in rate_lines(usual.training, usual.model.architecture) if line.startswith("!")]


@pytest.mark.parametrize(
    ("rate", "steps", "finding"),
    [
        (0.02, 20_000, None),
        (0.02, 50_000, "a step after 500 others, 1.0% of the training"),
        (0.005, 90_000, None),
    ],
)
def test_weights_that_forget_within_a_long_training_are_reported(rate: float, steps: int, finding: str | None) -> None:
    overrides = [f"training.muon_learning_rate={rate}", "training.budget=null", f"training.max_steps={steps}"]
    training = load_recipe("imdb-mini-cpu", overrides).training
    lines = list(time_lines(training, 0.5, 8192.0, 10**7, np.array([[0.4, 1.0, 1.0], [0.6, 1.0, 1.0]])))
    warnings = [line for line in lines if line.startswith("!")]
    assert len(warnings) == (finding is not None) and (finding or "") in " ".join(warnings)


def test_the_time_of_a_number_of_epochs_is_estimated() -> None:
    training = load_recipe("quickstart", ["training.budget=null", "training.max_epochs=2.5"]).training
    _, end = time_lines(training, 0.5, 1000.0, 80_000, np.array([[1.0, 1.0, 1.0]]))
    assert end == "training.max_epochs ends training after about 200 steps, 200,000 tokens, 1 min 40 s"


def test_the_first_limit_ends_the_training_and_its_hours_are_paid() -> None:
    overrides = ["training.budget=1h", "training.max_steps=1000", "training.price_per_hour=3.6"]
    training = load_recipe("quickstart", overrides).training
    _, end, *_ = time_lines(training, 0.5, 1000.0, 80_000, np.array([[0.5, 1.0, 1.0], [0.5, 2.0, 3.0]]))
    assert end == ("training.max_steps ends training after about 1,000 steps, 1,500,000 tokens, 16 min 40 s, cost 1.00")


def test_a_batch_larger_than_the_corpus_is_reported(tiny_run: Path) -> None:
    recipe = load_recipe(str(tiny_run / "recipe.yaml"), ["training.global_batch_size=4096"])
    tokenizer = load_tokenizer(tiny_run / "tokenizer")
    data = PretrainingData(recipe, tokenizer, tiny_run / "data", Accelerator(cpu=True))
    found = [line for line in batch_lines(recipe, data) if line.startswith("! a step takes more pairs than the corpus")]
    assert len(found) == len(recipe.training.phases)


def test_a_missing_compiler_is_reported_once(
    tiny_run: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    doctor(load_recipe(str(tiny_run / "recipe.yaml"), [f"output_dir={tiny_run}", "training.compile=auto"]))
    said = capsys.readouterr().out
    assert said.count("torch.compile is off because") == 1
    assert "the largest batches fit" in said
    assert not [record for record in caplog.records if "torch.compile" in record.message]
