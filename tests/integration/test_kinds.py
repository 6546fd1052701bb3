"""Preparation, pretraining and report with every kind of example and mask."""

from pathlib import Path

import pytest

from bertpre.commands.prepare import prepare
from bertpre.commands.pretrain import pretrain
from bertpre.recipe import load_recipe
from bertpre.reporting.report import write_report
from bertpre.run_directory import read_results
from tests.helpers import read_metrics


@pytest.mark.parametrize(
    ("kind", "masking", "more"),
    [
        ("sop", "words", ()),
        ("none", "spans", ("training.masked_lm_prob=0.3", "training.masked_lm_prob_end=0.1")),
        ("nsp", "tokens", ("training.mask_split=[1.0, 0.0, 0.0]",)),
    ],
)
def test_a_run_of_every_kind(kind: str, masking: str, more: tuple[str, ...], tiny_recipe: Path, tmp_path: Path) -> None:
    overrides = [f"output_dir={tmp_path / 'run'}", f"pairs.kind={kind}", f"training.masking={masking}", *more]
    recipe = load_recipe(str(tiny_recipe), overrides)
    prepare(recipe)
    pretrain(recipe)
    write_report(tmp_path / "run", recipe)
    results = read_results(tmp_path / "run")
    validation = results["pretrain"]["validation"]
    assert validation["mlm_loss"] < 7
    assert ("nsp_accuracy" in validation) == (kind != "none")
    assert ("pair_lengths_auc" in results["prepare"]) == (kind != "none")
    report = (tmp_path / "run" / "report.html").read_text()
    assert "MLM loss" in report
    assert [name in report for name in ("NSP accuracy", "SOP accuracy")] == [kind == "nsp", kind == "sop"]
    losses = [row["loss"] for row in read_metrics(tmp_path / "run") if row["split"] == "train"]
    assert all(0 < loss < 20 for loss in losses)
