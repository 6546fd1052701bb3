"""The parts of the training split."""

from typing import Any

import numpy as np
import pytest

from bertpre.errors import UserError
from bertpre.finetuning.examples import read_examples
from bertpre.finetuning.splits import read_parts, split_off_validation
from bertpre.recipe import Finetune
from tests.unit.test_examples import examples_of, recipe_of


def test_neighbours_stay_together() -> None:
    examples = examples_of([str(number) for number in range(100)])
    training, validation = split_off_validation(recipe_of(validation_fraction=0.2, validation_block=5), examples)
    assert sorted(training.texts + validation.texts) == sorted(examples.texts)
    blocks = np.bincount([int(text) // 5 for text in validation.texts], minlength=20)
    assert sorted(blocks.tolist()) == [0] * 16 + [5] * 4


@pytest.mark.parametrize(
    ("options", "count", "words"),
    [
        ({"validation_fraction": 0.05}, 9, "leaves nothing to measure on"),
        ({"validation_fraction": 0.1, "validation_block": 10}, 100, None),
        ({"validation_fraction": 0.1}, 10, "too small a validation part, as it has one class only"),
    ],
)
def test_a_validation_part_too_small_is_refused(options: dict[str, Any], count: int, words: str | None) -> None:
    examples = examples_of([str(number) for number in range(count)])
    if words is None:
        assert len(split_off_validation(recipe_of(**options), examples)[1]) == 10
        return
    with pytest.raises(UserError, match=words):
        split_off_validation(recipe_of(**options), examples)


def test_without_validation_all_examples_train() -> None:
    parts = read_parts(recipe_of(validation_fraction=0))
    assert (len(parts.training), parts.validation) == (len(read_examples(Finetune(path="sample"), "train")), None)
