"""Training without padding is training with it: the same losses step by step, resumed, and on two processes."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from bertpre.commands.finetune import finetune
from bertpre.commands.prepare import prepare
from bertpre.commands.pretrain import pretrain
from bertpre.data.tokenizer import load_tokenizer
from bertpre.finetuning import fit
from bertpre.model import layers_bertpre
from bertpre.pretraining import batches
from bertpre.pretraining.batches import PretrainingData
from bertpre.recipe import load_recipe
from bertpre.runtime import start_accelerator
from bertpre.training.trainer import Trainer
from tests.helpers import at_step, copy_run, read_metrics, tiny_values, training_with, write_recipe
from tests.integration.test_processes import LOGGED_DIGIT, run_ranks

FORCED = "from bertpre.pretraining import batches; batches.choose_unpadding = lambda *_: True\n"
WEIGHTS = Path("model", "model.safetensors")
STEPS = ("training.optimizer=adamw", "training.max_steps=20", "training.eval_every=20")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of short pairs, whose rows are padded; not to be written to."""
    folder = tmp_path_factory.mktemp("short")
    file = write_recipe(folder / "tiny.yaml", tiny_values(folder / "run", "modern"))
    prepare(load_recipe(str(file), ["pairs.short_seq_prob=0.9"]))
    return folder / "run"


def trained(prepared: Path, target: Path, *settings: str, after_step: Callable[[Trainer], None] | None = None) -> Path:
    """Pretrain on a copy of the prepared run, or resume there."""
    if not target.exists():
        shutil.copytree(prepared, target)
    pretrain(load_recipe(str(target), [f"output_dir={target}", *STEPS, *settings]), after_step)
    return target


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many slots each call of the attention of rows has had; empty where padding is computed."""
    found, original = [], layers_bertpre.attention_of_rows

    def noted(module: object, query: object, key: object, *others: object, **more: object) -> object:
        found.append(key.shape[2])
        return original(module, query, key, *others, **more)

    monkeypatch.setattr(layers_bertpre, "attention_of_rows", noted)
    return found


def without_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (batches, fit):
        monkeypatch.setattr(module, "choose_unpadding", lambda *_: True)


def losses(run: Path, stage: str = "pretrain") -> list[float]:
    return [row["loss"] for row in read_metrics(run, stage)]


@pytest.mark.parametrize("architecture", ["bert", "modern"])
def test_pretraining_has_the_same_losses_also_resumed(
    architecture: str, prepared: Path, tmp_path: Path, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = f"model.architecture={architecture}"
    padded = trained(prepared, tmp_path / "padded", model)
    assert not calls
    without_padding(monkeypatch)
    whole = trained(prepared, tmp_path / "whole", model)
    assert len(set(calls)) > 2 and min(calls) < 8 * 32  # of micro-batches of 8 rows of 32, later of 48
    assert len(losses(whole)) == 22  # 20 steps, and validation before and after, whose padding is computed
    assert losses(whole) == pytest.approx(losses(padded), abs=1.5 * LOGGED_DIGIT)
    assert [row.get("tokens") for row in read_metrics(whole)] == [row.get("tokens") for row in read_metrics(padded)]

    def kill() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(prepared, tmp_path / "cut", model, after_step=at_step(13, kill))
    cut = trained(prepared, tmp_path / "cut", model)
    assert losses(cut) == losses(whole)
    assert (cut / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes()
    expected = load_file(padded / WEIGHTS)
    for name, weight in load_file(whole / WEIGHTS).items():
        assert (weight - expected[name]).abs().max() < 2e-4, name


def test_fine_tuning_has_the_same_losses(
    tiny_modern_run: Path, tmp_path: Path, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ["finetune.optimizer=adamw", "finetune.dropout=0"]
    for name in ("padded", "unpadded"):
        run = copy_run(tiny_modern_run, tmp_path / name, "prepare", "pretrain")
        finetune(load_recipe(str(tiny_modern_run / "recipe.yaml"), [f"output_dir={run}", *settings]))
        assert bool(calls) == (name == "unpadded")
        without_padding(monkeypatch)
    assert losses(tmp_path / "unpadded", "finetune") == pytest.approx(
        losses(tmp_path / "padded", "finetune"), abs=1.5 * LOGGED_DIGIT
    )


def test_two_processes_without_padding_are_one_with_it(prepared: Path, tmp_path: Path) -> None:
    one, two = trained(prepared, tmp_path / "one"), shutil.copytree(prepared, tmp_path / "two")
    program = FORCED + training_with("assert 'token_index' in trainer.batches.source.largest()[0]")
    done = run_ranks(program, two, two, *STEPS)
    assert done.returncode == 0, done.stderr
    assert losses(two) == pytest.approx(losses(one), abs=1.5 * LOGGED_DIGIT)


def test_a_sample_takes_as_much_memory_as_any_batch(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_padding(monkeypatch)
    recipe, tokenizer = load_recipe(str(prepared)), load_tokenizer(prepared / "tokenizer")
    data = PretrainingData(recipe, tokenizer, prepared / "data", start_accelerator())
    of_real_rows = []
    for phase, first in zip(data.phases, data.largest(), strict=True):
        sizes = [len(phase.sample(8)["token_index"]), phase.max_length * 8, len(first["token_index"])]
        assert sizes[0] > sizes[1] >= sizes[2]  # eight rows may be full
        of_real_rows.append(sizes[2] / sizes[1])
        assert phase.sample(8)["row_bounds"].shape == first["row_bounds"].shape
    assert min(of_real_rows) < 1
    assert not any("token_index" in batch for batch in data.validation_batches())
