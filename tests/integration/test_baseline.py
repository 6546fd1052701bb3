"""Baselines and the label curve: the same examples, one table."""

import json
from pathlib import Path

import pytest

from bertpre.finetuning.linear import linear_models
from bertpre.finetuning.loading import load_start
from bertpre.finetuning.task import Task
from bertpre.recipe import load_recipe
from tests.helpers import copy_run, run_here, write_recipe


def test_baselines_and_curve_use_the_same_examples(
    tiny_modern_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copy_run(tiny_modern_run, tmp_path / "run", "prepare", "pretrain", "finetune", "evaluate")
    recipe = run / "recipe.yaml"
    assert run_here("baseline", recipe, f"output_dir={run}") == 0, capsys.readouterr().err
    rows = json.loads((run / "results.json").read_text())["baseline"]
    assert set(rows) == {*linear_models("classification"), "no pretraining"}
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("baseline:")]
    assert len(lines) == 5
    assert "this run" in lines[-1]
    assert run_here("curve", recipe, f"output_dir={run}", "--fractions", "0.2,0.5") == 0, capsys.readouterr().err
    points = json.loads((run / "results.json").read_text())["curve"]
    shares = [(point["fraction"], point["init"], point["examples"]) for point in points]
    assert shares == [(0.2, "pretrained", 16), (0.2, "random", 16), (0.5, "pretrained", 40), (0.5, "random", 40)]
    capsys.readouterr()
    assert run_here("curve", recipe, f"output_dir={run}", "--fractions", "0.2") == 0
    again = [point for point in json.loads((run / "results.json").read_text())["curve"] if point["fraction"] == 0.2]
    assert again == points[:2]  # they were finished, to the seconds
    assert capsys.readouterr().out.count("curve: 20.0% of the labels (16), ") == 2
    file = run / "results.json"
    others = [point | {"recipe": "another"} for point in points]
    file.write_text(json.dumps(json.loads(file.read_text()) | {"curve": others}))
    assert run_here("curve", recipe, f"output_dir={run}", "--fractions", "0.2") == 0
    kept = json.loads(file.read_text())["curve"]
    assert [(point["fraction"], point["init"]) for point in kept] == [(0.2, "pretrained"), (0.2, "random")]
    stored = json.loads(file.read_text())
    assert stored["baseline_of"]
    file.write_text(json.dumps(stored | {"baseline_of": "other examples"}))
    assert run_here("evaluate", recipe, f"output_dir={run}") == 0
    assert "had other texts or settings; its rows are removed" in capsys.readouterr().out
    assert "baseline" not in json.loads(file.read_text())
    file.write_text(json.dumps({name: row for name, row in stored.items() if name != "finetune"}))
    assert run_here("evaluate", recipe, f"output_dir={run}") == 2  # a second fine-tuning was interrupted
    assert "no finished classifier" in capsys.readouterr().err
    for shares in ("0.2,2", "0", "few"):
        assert run_here("curve", recipe, f"output_dir={run}", "--fractions", shares) == 2
        assert "--fractions" in capsys.readouterr().err


def test_the_network_without_pretraining_is_the_one_that_finetune_init_names(
    tiny_modern_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finetune = {"path": "sample", "limit": 100, "epochs": 1, "max_length": 32, "init": str(tiny_modern_run)}
    values = {"output_dir": str(tmp_path / "run"), "finetune": finetune, "evaluate": {"split": "test", "limit": 50}}
    recipe = write_recipe(tmp_path / "tune.yaml", values)
    assert run_here("baseline", recipe) == 0, capsys.readouterr().err
    assert "no pretraining" in json.loads((tmp_path / "run" / "results.json").read_text())["baseline"]
    loaded, task = load_recipe(str(recipe)), Task("classification", ("negative", "positive"))
    model, tokenizer = load_start(loaded, "random", task, seed=0)
    trained, its_tokenizer = load_start(loaded, str(tiny_modern_run), task, seed=0)
    assert model.num_parameters() == trained.num_parameters()
    assert tokenizer.get_vocab() == its_tokenizer.get_vocab()
    names = [name for name, weight in model.state_dict().items() if weight.ndim == 2]
    assert not any(model.state_dict()[name].equal(trained.state_dict()[name]) for name in names)
