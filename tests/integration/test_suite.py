"""`bertpre suite`: all nine tasks from the original TSV files, with their official metrics."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file, save_file

from tests.helpers import copy_run, run_here
from tests.unit.test_glue import write_glue


def test_every_task_is_measured_and_averaged(
    tiny_modern_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {
        "output_dir": str(tmp_path / "run"),
        "training": {"precision": "fp32", "compile": False},
        "finetune": {
            "path": str(write_glue(tmp_path / "glue")), "init": str(tiny_modern_run), "epochs": 1, "batch_size": 8,
            "max_length": 32, "validation_fraction": 0.4, "label_smoothing": 0.1,
        },
        "suite": {},
    }  # fmt: skip
    recipe = tmp_path / "glue.yaml"
    recipe.write_text(yaml.safe_dump(values))
    assert run_here("suite", recipe) == 0, capsys.readouterr().err
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
    capsys.readouterr()
    assert run_here("suite", recipe) == 0  # what is finished is kept
    assert "finetune" not in capsys.readouterr().out
    moved = tmp_path / "base"
    shutil.copytree(tiny_modern_run / "model", moved)
    few = (recipe, f"output_dir={tmp_path / 'few'}", f"finetune.init={moved}", "suite.tasks=[rte]")
    assert run_here("suite", *few) == 0
    weights = load_file(moved / "model.safetensors")
    save_file({name: value + 0.01 for name, value in weights.items()}, moved / "model.safetensors", {"format": "pt"})
    capsys.readouterr()
    assert run_here("suite", *few) == 0  # other weights in the same place
    assert "finetune" in capsys.readouterr().out
    task = tmp_path / "few" / "glue" / "rte"
    shutil.rmtree(task / "finetuned")
    capsys.readouterr()
    assert run_here("suite", *few) == 0  # its figures are known
    assert "finetune" not in capsys.readouterr().out
    results = json.loads((task / "results.json").read_text())
    del results["evaluate"]
    (task / "results.json").write_text(json.dumps(results))
    assert run_here("suite", *few) == 0  # what is to be measured is gone
    assert "finetune" in capsys.readouterr().out
    other = copy_run(tiny_modern_run, tmp_path / "other", "prepare", "pretrain")
    assert run_here("suite", other) == 2  # its labelled texts have no column of GLUE's
    assert not (other / "glue").exists()  # it would fix the recipe
    capsys.readouterr()
    assert run_here("suite", recipe, "finetune.epochs=2") == 2
    assert "started with another recipe, which differs in finetune.epochs" in capsys.readouterr().err
