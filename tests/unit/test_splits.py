"""The parts of the training split."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertpre.errors import UserError
from bertpre.finetuning.examples import read_examples
from bertpre.finetuning.splits import chosen_on_test, read_parts, read_test, split_off_validation
from bertpre.recipe import Finetune
from bertpre.recipe.schema import Evaluate
from tests.unit.test_examples import examples_of, recipe_of, write_rows


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
def test_a_too_small_validation_part_is_refused(options: dict[str, Any], count: int, words: str | None) -> None:
    examples = examples_of([str(number) for number in range(count)])
    if words is None:
        assert len(split_off_validation(recipe_of(**options), examples)[1]) == 10
        return
    with pytest.raises(UserError, match=words):
        split_off_validation(recipe_of(**options), examples)


def test_without_validation_all_examples_train() -> None:
    parts = read_parts(recipe_of(validation_fraction=0))
    assert (len(parts.training), parts.validation) == (len(read_examples(Finetune(path="sample"), "train")), None)


def test_a_part_is_set_aside_for_the_test(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "label": number % 2} for number in range(40)]
    options = {"path": write_rows(tmp_path / "a.jsonl", rows), "test_fraction": 0.2, "validation_fraction": 0.25}
    recipe = recipe_of(validation_block=4, **options)
    parts = read_parts(recipe)
    assert read_test(recipe, parts) is parts.test
    assert [len(part) for part in (parts.training, parts.validation, parts.test)] == [24, 8, 8]
    every = parts.training.texts + parts.validation.texts + parts.test.texts
    assert sorted(every) == sorted(row["text"] for row in rows)
    numbers = [int(text.split()[1]) for text in parts.test.texts]
    assert numbers == sorted(numbers)
    assert len({number // 4 for number in numbers}) == 2


def test_the_test_texts_are_not_those_of_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": f"text {number}", "label": number % 2} for number in range(8)]
    path, other = (write_rows(tmp_path / name, rows) for name in ("a.jsonl", "b.jsonl"))
    monkeypatch.chdir(tmp_path)
    recipe = recipe_of(path=path, validation_path=other).model_copy(update={"evaluate": Evaluate(path="./a.jsonl")})
    with pytest.raises(UserError, match=r"evaluate: the classifier is trained on ./a.jsonl \(split train\)"):
        read_test(recipe, read_parts(recipe))
    assert not chosen_on_test(recipe)
    assert chosen_on_test(recipe.model_copy(update={"evaluate": Evaluate(path="./b.jsonl")}))
