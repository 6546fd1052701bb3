"""The quickstart as shipped, but for a fixed number of steps: minutes on two cores."""

from pathlib import Path

import pytest

from benchmarks.plain_opinions import measure
from bertpre.commands.run import run
from bertpre.recipe import load_recipe
from bertpre.run_directory import read_results


@pytest.mark.slow
def test_the_quickstarts_classifier_reads_plain_opinions(tmp_path: Path) -> None:
    overrides = [f"output_dir={tmp_path / 'run'}", "training.budget=null", "training.max_steps=300"]
    folder = run(load_recipe("quickstart", overrides))
    results = read_results(folder)
    assert results["pretrain"]["validation"]["mlm_loss"] < results["pretrain"]["context_free_loss"]
    tested = results["evaluate"]
    assert tested["bag_of_words"]["accuracy"] < 0.85 < tested["accuracy"]
    assert tested["overlap"] == 0
    measured = measure(str(folder))
    assert measured["accuracy"] >= 0.85, measured  # 140 to 146 of 160 in several runs, at 9d47896 and 8ad7423
