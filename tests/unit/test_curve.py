"""The shares of the labels that the label curve trains on."""

from pathlib import Path

import numpy as np
import pytest

from bertpre.commands.curve import draw, print_point
from bertpre.data.tokenizer import learn_tokenizer
from bertpre.errors import UserError
from bertpre.finetuning.loading import can_start_at_random
from bertpre.finetuning.scores import mean_and_std
from bertpre.recipe import load_recipe
from tests.unit.test_linear import examples_of


def test_a_share_keeps_the_proportions_of_the_classes() -> None:
    examples = examples_of(list("abcdefghij"), [0] * 4 + [1] * 6, ("no", "yes"))
    drawn = draw(examples, 0.5, seed=1)
    assert np.bincount(drawn.labels).tolist() == [2, 3]
    assert drawn.texts == draw(examples, 0.5, seed=1).texts
    with pytest.raises(UserError, match=r"--fractions: 0.1 of 4 examples of no is none"):
        draw(examples, 0.1, seed=1)


def test_a_point_of_one_seed_has_no_deviation(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"fraction": 0.1, "examples": 2400, "init": "random", "accuracy": mean_and_std([0.8125])}
    print_point(row)
    print_point(row | {"accuracy": mean_and_std([0.5, 0.75])})
    assert capsys.readouterr().out.splitlines() == [
        "curve: 10.0% of the labels (2,400), random: 0.8125",
        "curve: 10.0% of the labels (2,400), random: 0.6250 ± 0.1768",
    ]


def test_a_missing_tokenizer_is_said_and_a_given_one_suffices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = load_recipe("quickstart", [f"output_dir={tmp_path / 'run'}"])
    assert not can_start_at_random(recipe, "curve")
    assert "curve: the network without pretraining is left out: no tokenizer in" in capsys.readouterr().out
    learn_tokenizer(["a good film"], vocab_size=128).save_pretrained(tmp_path / "given")
    given = load_recipe(recipe, [f"tokenizer.path={tmp_path / 'given'}"])
    assert can_start_at_random(given, "curve")
    assert not can_start_at_random(load_recipe(recipe, ["tokenizer.path=owner/nowhere"]), "curve")
    assert can_start_at_random(load_recipe(recipe, ["finetune.init=owner/encoder"]), "curve")  # it has its own
