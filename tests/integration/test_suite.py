"""`bertpre suite`: all nine tasks from the original TSV files, with their official metrics."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file, save_file

from tests.helpers import copy_run, run_here
from tests.unit.test_glue import write_glue


def write_suite(folder: Path, init: Path, *tasks: str) -> Path:
    """A recipe that measures an encoder on these tasks of GLUE; all, where none is named."""
    values = {
        "output_dir": str(folder / "run"),
        "training": {"precision": "fp32", "compile": False},
        "finetune": {
            "path": str(write_glue(folder / "glue")), "init": str(init), "epochs": 1, "batch_size": 8,
            "max_length": 32, "validation_fraction": 0.4, "label_smoothing": 0.1,
        },
        "suite": {"tasks": list(tasks)} if tasks else {},
    }  # fmt: skip
    recipe = folder / "glue.yaml"
    recipe.write_text(yaml.safe_dump(values))
    return recipe


def fine_tunes(capsys: pytest.CaptureFixture[str], recipe: Path) -> bool:
    """Whether `bertpre suite` fine-tunes."""
    capsys.readouterr()
    assert run_here("suite", recipe) == 0
    return "finetune" in capsys.readouterr().out


def test_every_task_is_measured_and_averaged(
    tiny_modern_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_suite(tmp_path, tiny_modern_run)
    assert fine_tunes(capsys, recipe)
    measured = json.loads((tmp_path / "run" / "results.json").read_text())["glue"]
    assert {name: set(figures) for name, figures in measured["tasks"].items()} == {
        "cola": {"matthews"}, "sst2": {"accuracy"}, "mrpc": {"f1", "accuracy"}, "stsb": {"pearson", "spearman"},
        "qqp": {"f1", "accuracy"}, "mnli": {"accuracy", "accuracy_mismatched"}, "qnli": {"accuracy"},
        "rte": {"accuracy"}, "wnli": {"accuracy"},
    }  # fmt: skip
    means = {name: sum(figures.values()) / len(figures) for name, figures in measured["tasks"].items()}
    assert measured["average"] == pytest.approx(sum(means.values()) / 9)
    del means["wnli"]
    assert measured["average_without_wnli"] == pytest.approx(sum(means.values()) / 8)
    assert not fine_tunes(capsys, recipe)  # what is finished is kept
    assert run_here("suite", recipe, "finetune.epochs=2") == 2
    assert "started with another recipe, which differs in finetune.epochs" in capsys.readouterr().err


def test_other_weights_in_the_same_place_are_measured(
    tiny_modern_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = shutil.copytree(tiny_modern_run / "model", tmp_path / "encoder")
    recipe = write_suite(tmp_path, encoder, "rte")
    assert fine_tunes(capsys, recipe)
    weights = load_file(encoder / "model.safetensors")
    save_file({name: value + 0.01 for name, value in weights.items()}, encoder / "model.safetensors", {"format": "pt"})
    assert fine_tunes(capsys, recipe)


def test_a_removed_classifier_is_needed_only_where_its_figures_are_gone(
    tiny_modern_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, task = write_suite(tmp_path, tiny_modern_run, "rte"), tmp_path / "run" / "glue" / "rte"
    assert fine_tunes(capsys, recipe)
    shutil.rmtree(task / "finetuned")
    assert not fine_tunes(capsys, recipe)
    results = json.loads((task / "results.json").read_text())
    del results["evaluate"]
    (task / "results.json").write_text(json.dumps(results))
    assert fine_tunes(capsys, recipe)


def test_texts_without_the_columns_of_glue_are_refused(tiny_modern_run: Path, tmp_path: Path) -> None:
    other = copy_run(tiny_modern_run, tmp_path / "other", "prepare", "pretrain")
    assert run_here("suite", other) == 2
    assert not (other / "glue").exists()  # it would fix the recipe
