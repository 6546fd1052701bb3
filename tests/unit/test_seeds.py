"""Several seeds: which one is kept, and when a finished one is reused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertpre.commands.finetune import finetune
from bertpre.finetuning.loading import load_any_classifier
from bertpre.finetuning.seeds import (
    best_of,
    examples_fingerprint,
    recipe_fingerprint,
    seeds_of,
    spread_of,
    tokenizer_for_others,
    weights_fingerprint,
)
from bertpre.recipe import Finetune, Recipe, load_recipe
from tests.unit.test_examples import examples_of


def recipe_with(**finetune: Any) -> Recipe:
    return Recipe(output_dir="out", seed=5, finetune={"path": "sample", "init": "a/model", **finetune})


def metrics_of(*values: float, metric: str = "accuracy") -> list[dict[str, Any]]:
    return [{"validation": {metric: value, "examples": 9}} for value in values]


def test_the_best_seed_in_validation_is_kept() -> None:
    settings = Finetune(path="x")
    assert best_of(metrics_of(0.5, 0.7, 0.6), settings) == 1
    assert best_of(metrics_of(0.5, 0.3, 0.4, metric="loss"), Finetune(path="x", metric="loss")) == 1
    assert best_of([{}, {}], Finetune(path="x", validation_fraction=0)) == 0
    assert spread_of(metrics_of(0.5, 0.7))["accuracy"]["mean"] == pytest.approx(0.6)
    assert list(spread_of(metrics_of(0.5, 0.7))) == ["accuracy"]  # not the number of examples
    assert spread_of([{}, {}]) == {}


def test_a_seed_is_reused_until_a_key_changes_that_it_depends_on() -> None:
    known = recipe_fingerprint(recipe_with())
    assert recipe_fingerprint(recipe_with(seeds=3)) == known
    assert recipe_fingerprint(recipe_with(learning_rate=1e-3)) != known
    assert list(seeds_of(recipe_with(seeds=3))) == [5, 6, 7]
    for section in ({"training": {"max_steps": 7}}, {"evaluate": {"limit": 3}}, {"model": {"num_hidden_layers": 1}}):
        changed = Recipe.model_validate(recipe_with().model_dump(exclude_unset=True) | section)
        assert recipe_fingerprint(changed) != known
    hub = Recipe.model_validate(recipe_with().model_dump(exclude_unset=True) | {"hub": {"repo_id": "a/b"}})
    assert recipe_fingerprint(hub) == known


def test_examples_are_the_same_by_their_texts_and_labels_in_order() -> None:
    known = examples_fingerprint([examples_of(["a", "b"])])
    assert examples_fingerprint([examples_of(["a", "b"])]) == known
    others = [examples_of(["a", "c"]), examples_of(["b", "a"]), examples_of(["a", "b"], labels=np.array([0, 0]))]
    others += [examples_of(["a", "b"], ["x", "y"]), replace(examples_of(["a", "b"]), classes=("yes", "no"))]
    assert len({examples_fingerprint([each]) for each in others} | {known}) == 6


@pytest.mark.parametrize(("truncation", "side"), [("head", "right"), ("tail", "left"), ("head_tail", "left")])
def test_the_tokenizer_for_others_cuts_where_the_classifier_learned_least(
    truncation: str, side: str, tiny_run: Path
) -> None:
    classifier, _ = load_any_classifier(str(tiny_run))
    assert tokenizer_for_others(replace(classifier, truncation=truncation)).truncation_side == side


def test_weights_that_were_trained_again_in_the_same_place_are_others(tmp_path: Path) -> None:
    assert weights_fingerprint(recipe_with()) == ""  # of the Hub
    recipe = recipe_with(init=str(tmp_path))
    known = set()
    for content in (b"one", b"other"):
        (tmp_path / "model.safetensors").write_bytes(content)
        known.add(weights_fingerprint(recipe))
    (tmp_path / "recipe.yaml").write_text("a run")
    known.add(weights_fingerprint(recipe))  # which has no model
    assert len(known) == 3 and "" in known


def test_the_second_of_several_seeds_is_that_seed_by_itself(tiny_run: Path, tmp_path: Path) -> None:
    def losses(name: str, *overrides: str) -> list[float]:
        keys = [f"output_dir={tmp_path / name}", f"finetune.init={tiny_run}", "finetune.validation_split=test"]
        finetune(load_recipe(str(tiny_run / "recipe.yaml"), [*keys, "finetune.epochs=1", *overrides]))
        lines = (tmp_path / name / "metrics.jsonl").read_text("utf-8").splitlines()
        return [row["loss"] for row in map(json.loads, lines) if row["split"] == "train"]

    both, second = losses("both", "seed=1", "finetune.seeds=2"), losses("second", "seed=2")
    assert len(both) == 2 * len(second)
    assert both[len(second) :] == second != both[: len(second)]
