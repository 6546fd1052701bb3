"""The parts of the training split."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertpre.errors import UserError
from bertpre.finetuning.examples import read_examples
from bertpre.finetuning.label_advice import balance, contradictions, lone_labels, shifted_class
from bertpre.finetuning.splits import (
    Parts,
    chosen_on_test,
    draw_blocks,
    groups_of_alike,
    known_from_validation,
    overlap,
    place_of_test,
    read_parts,
    read_test,
    set_aside,
    split_off_validation,
)
from bertpre.recipe import Finetune
from bertpre.recipe.schema import Evaluate
from tests.unit.test_examples import examples_of, recipe_of, write_rows


def test_neighbours_stay_together() -> None:
    examples = examples_of([str(number) for number in range(100)])
    training, validation = split_off_validation(recipe_of(validation_fraction=0.2, validation_block=5), examples)
    assert sorted(training.texts + validation.texts) == sorted(examples.texts)
    blocks = np.bincount([int(text) // 5 for text in validation.texts], minlength=20)
    assert sorted(blocks.tolist()) == [0] * 16 + [5] * 4


@pytest.mark.parametrize("seed", range(8))
def test_neighbours_stay_together_beside_a_test_part_and_in_joined_splits(seed: int) -> None:
    recipe = recipe_of(validation_fraction=0.2, test_fraction=0.2, validation_block=5)
    recipe = recipe.model_copy(update={"seed": seed})
    examples = examples_of([str(number) for number in range(500)])
    training, _ = set_aside(recipe, examples.subset(np.delete(np.arange(500), [3, 77])))  # as without two empty texts
    joined = examples_of([str(number) for number in range(502)])
    names = [f"train/{number}" if number < 252 else f"extra/{number - 252}" for number in range(502)]
    for whole in (training, replace(joined, ids=names)):
        sides = [{block_of(name) for name in part.ids} for part in split_off_validation(recipe, whole)]
        assert not sides[0] & sides[1]


def block_of(name: str, size: int = 5) -> tuple[str, int]:
    split, row = name.split("/")
    return split, int(row) // size


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("block", "split"), [(1, split_off_validation), (25, split_off_validation), (25, set_aside)])
def test_each_part_has_the_whole_ones_proportions_of_the_classes(block: int, split: Any, seed: int) -> None:
    labels = np.repeat([0, 1], [250, 750])  # sorted by label, as IMDB is
    recipe = recipe_of(validation_fraction=0.1, test_fraction=0.1, validation_block=block)
    examples = examples_of([str(number) for number in range(1000)], labels=labels)
    training, held_out = split(recipe.model_copy(update={"seed": seed}), examples)
    assert np.bincount(held_out.labels).tolist() == [25, 75]
    assert sorted(map(int, training.texts + held_out.texts)) == list(range(1000))


@pytest.mark.parametrize("seed", range(8))
def test_equal_texts_are_on_one_side(seed: int) -> None:
    texts = [f"No {number}" if number < 90 else f"no  {number - 90}" for number in range(100)]  # ten repeat others
    pairs = [str(number % 95) for number in range(100)]  # with another second text
    for block, second in ((1, None), (10, None), (1, pairs), (10, pairs)):
        recipe = recipe_of(validation_fraction=0.3, validation_block=block).model_copy(update={"seed": seed})
        training, validation = split_off_validation(recipe, examples_of(texts, second))
        assert sorted(training.ids + validation.ids) == sorted(f"train/{number}" for number in range(100))
        assert not overlap(validation, [training]).any()


def test_a_part_that_repeated_texts_make_too_small_is_said(caplog: pytest.LogCaptureFixture) -> None:
    recipe = recipe_of(validation_fraction=0.2)
    split_off_validation(recipe, examples_of([str(number) for number in range(500)]))
    assert not caplog.messages
    texts = [str(max(0, number - 400)) for number in range(500)]  # one of them stands 401 times
    _, validation = split_off_validation(recipe, examples_of(texts))
    (message,) = caplog.messages
    assert f"finetune.validation_fraction: 0.2 of 500 examples are 100, but {len(validation)} were drawn" in message


def test_a_part_that_classes_of_one_text_make_too_small_says_so(caplog: pytest.LogCaptureFixture) -> None:
    labels = np.minimum(np.arange(200), 100)  # a hundred classes with one text each
    names = tuple(str(number) for number in range(101))
    examples = replace(examples_of([str(number) for number in range(200)], labels=labels), classes=names)
    draw_blocks(recipe_of().required_finetune, examples, 0.2, (0, 1), "finetune.test_fraction")
    (message,) = caplog.messages
    assert "but 20 were drawn: 100 classes have a single text each, and none of these is drawn" in message


def test_a_single_example_of_words_is_a_file_without_empty_lines(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("Mira B-PER\nsaw O\nOslo B-LOC\n")
    recipe = recipe_of(path=str(tmp_path / "words.txt"), task="tokens", test_fraction=0.2)
    with pytest.raises(UserError, match="there is one example; in a file with one word a line, an empty line ends"):
        read_parts(recipe)


@pytest.mark.parametrize("seed", range(8))
def test_a_class_is_never_held_out_as_a_whole(seed: int) -> None:
    labels = np.array([0] * 57 + [1] * 42 + [2])
    examples = replace(examples_of([str(number) for number in range(100)], labels=labels), classes=("a", "b", "c"))
    recipe = recipe_of(validation_fraction=0.49).model_copy(update={"seed": seed})
    training, validation = split_off_validation(recipe, examples)
    assert 2 in training.labels and 2 not in validation.labels


@pytest.mark.parametrize("seed", range(16))
def test_a_class_in_two_blocks_is_never_held_out_as_a_whole(seed: int) -> None:
    labels = np.zeros(80, dtype=int)
    labels[[40, 42, 43, 45, 47, 48, 49, 73]] = 1  # in two blocks of ten
    labels[[2, 32, 53, 74, 77]] = 2
    examples = replace(examples_of([str(number) for number in range(80)], labels=labels), classes=("a", "b", "c"))
    recipe = recipe_of(validation_fraction=0.3, validation_block=10).model_copy(update={"seed": seed})
    training, _ = split_off_validation(recipe, examples)
    assert set(training.labels) == {0, 1, 2}


def test_thousands_of_classes_need_no_table_of_texts_and_classes() -> None:
    classes = 10_000  # such a table, of 40,000 texts, takes 3.2 GB
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(classes), 4))
    examples = examples_of([str(number) for number in range(4 * classes)], labels=labels)
    examples = replace(examples, classes=tuple(map(str, range(classes))))
    _, validation = split_off_validation(recipe_of(validation_fraction=0.25), examples)
    assert sorted(validation.labels) == [*range(classes)]  # one text of each


def test_a_label_of_one_example_is_a_warning() -> None:
    examples = replace(examples_of(list("abcdef"), labels=np.array([0, 0, 1, 2, 2, 2])), classes=("a", "b", "c"))
    warning = lone_labels("classification", examples)
    assert warning is not None and "labels with one training example: 'b'; misspelt?" in warning
    several = replace(examples, labels=np.array([[1, 0, 1], [1, 0, 1], [0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 1, 0]]))
    assert lone_labels("multi_label", several) is None
    assert lone_labels("regression", examples) is None


@pytest.mark.parametrize("seed", range(8))
def test_every_task_is_stratified(seed: int) -> None:
    grades = np.repeat(np.arange(5, dtype=np.float32), 40)
    rare = np.arange(200) < 20  # one text in ten
    tasks = {"regression": grades, "multi_label": np.stack([rare, ~rare], axis=1).astype(np.float32)}
    tasks["tokens"] = [np.array([0, 1] if is_rare else [1]) for is_rare in rare]
    for task, labels in tasks.items():
        examples = examples_of([f"{number}" for number in range(200)], labels=labels)
        recipe = recipe_of(task=task, validation_fraction=0.1).model_copy(update={"seed": seed})
        _, validation = split_off_validation(recipe, examples)
        expected = {"regression": "20 (mean 2)", "multi_label": "20 (yes: 18, no: 2)", "tokens": "20 (yes: 20, no: 2)"}
        assert balance(task, validation) == expected[task]


def test_neighbours_are_counted_in_the_file_or_are_copies_of_one_text() -> None:
    examples = replace(examples_of(["text"] * 5), ids=["a/0", "a/9", "a/10", "b/9", "b/8"])
    distinct = replace(examples, texts=["one", "two", "three", "four", "five"])
    assert groups_of_alike(Finetune(path="x"), distinct) is None
    copies = groups_of_alike(Finetune(path="x"), replace(examples, texts=["one", "two", "One ", "two", "four"]))
    assert copies is not None and copies.tolist() == [0, 1, 0, 1, 2]
    blocks = groups_of_alike(Finetune(path="x", validation_block=10), examples)
    assert blocks is not None and blocks.tolist() == [0, 0, 1, 2, 2]


def test_the_balance_names_ten_classes() -> None:
    labels = np.repeat(np.arange(12), np.arange(12, 0, -1))
    names = tuple("abcdefghijkl")
    examples = replace(examples_of(["text"] * len(labels), labels=labels), classes=names)
    assert balance("classification", examples).endswith(
        "(a: 12, b: 11, c: 10, d: 9, e: 8, f: 7, g: 6, h: 5, i: 4, j: 3, 2 more classes)"
    )
    few = replace(examples, labels=labels[:50], texts=examples.texts[:50])  # of the first five classes
    assert balance("classification", few).endswith("(a: 12, b: 11, c: 10, d: 9, e: 8, f: 0, g: 0, h: 0, i: 0, j: 0)")


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


def test_texts_that_are_all_equal_are_named_as_such() -> None:
    examples = examples_of(["same"] * 30)
    with pytest.raises(UserError, match="finetune.validation_fraction: all 30 examples have the same text"):
        split_off_validation(recipe_of(validation_fraction=0.1), examples)


def test_a_column_of_numbers_is_not_taken_for_texts(tmp_path: Path) -> None:
    rows = [{"text": str(7 * number), "label": number % 2} for number in range(30)]
    recipe = recipe_of(path=write_rows(tmp_path / "a.csv", rows))
    with pytest.raises(UserError, match=r"finetune.text_column: every value of 'text' of .* is a number"):
        read_parts(recipe)
    rows[3]["text"] = "a film"
    assert len(read_parts(recipe_of(path=write_rows(tmp_path / "a.csv", rows))).training) > 20


def test_without_validation_all_examples_train() -> None:
    parts = read_parts(recipe_of(validation_fraction=0))
    assert (len(parts.training), parts.validation) == (len(read_examples(Finetune(path="sample"), "train")), None)


def test_a_part_is_set_aside_for_the_test(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "label": number % 2} for number in range(40)]
    options = {"path": write_rows(tmp_path / "a.jsonl", rows), "test_fraction": 0.2, "validation_fraction": 0.25}
    recipe = recipe_of(validation_block=4, **options)
    parts = read_parts(recipe)
    assert read_test(recipe, parts) is parts.test
    few = recipe.model_copy(update={"evaluate": Evaluate(limit=3)})
    assert parts.test is not None
    places = [parts.test.ids.index(each) for each in read_test(few, parts).ids]
    assert [3 * place // len(parts.test) for place in places] == [0, 1, 2]  # one of each third
    assert [len(part) for part in (parts.training, parts.validation, parts.test)] == [24, 8, 8]
    every = parts.training.texts + parts.validation.texts + parts.test.texts
    assert sorted(every) == sorted(row["text"] for row in rows)
    numbers = [int(text.split()[1]) for text in parts.test.texts]
    assert numbers == sorted(numbers)
    assert len({number // 4 for number in numbers}) == 2


def test_the_test_texts_are_not_those_of_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": f"text {number}", "label": number % 2} for number in range(8)]
    path = write_rows(tmp_path / "a.jsonl", rows)
    other = write_rows(tmp_path / "b.jsonl", [row | {"text": f"other {row['text']}"} for row in rows])
    monkeypatch.chdir(tmp_path)
    recipe = recipe_of(path=path, validation_path=other).model_copy(update={"evaluate": Evaluate(path="./a.jsonl")})
    with pytest.raises(UserError, match=r"evaluate: the classifier is trained on ./a.jsonl; give"):
        read_test(recipe, read_parts(recipe))
    assert not chosen_on_test(recipe)
    assert chosen_on_test(recipe.model_copy(update={"evaluate": Evaluate(path="./b.jsonl")}))
    copied = read_examples(recipe.required_finetune, "train", path=other).subset([0, 1, 2])
    assert known_from_validation(recipe.required_finetune, read_parts(recipe), copied) == 3
    assert known_from_validation(recipe_of(path=path).required_finetune, read_parts(recipe), copied) == 0


def test_files_without_splits_are_tested_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "test-1.csv").touch()
    for place, split in (("test-1.csv", "train"), ("test-*.csv", "train"), ("", "test")):
        evaluate = Evaluate(path=str(tmp_path / place))
        assert place_of_test(recipe_of().model_copy(update={"evaluate": evaluate}))[1] == split


def test_joined_splits_share_texts_with_each_of_their_parts(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"text": f"text {number}", "label": number % 2} for number in range(8)])
    recipe = recipe_of(path=path, split="train+test", validation_fraction=0)
    with pytest.raises(UserError, match="evaluate: the classifier is trained on"):
        read_test(recipe.model_copy(update={"evaluate": Evaluate(path=path, split="test")}), Parts(None, None, None))  # type: ignore[arg-type]
    recipe = recipe_of(path="elsewhere", validation_path=path, validation_split="train+test")
    assert chosen_on_test(recipe.model_copy(update={"evaluate": Evaluate(path=path, split="test")}))


@pytest.mark.parametrize("options", [{"validation_path": "a.jsonl"}, {"validation_split": "train"}])
def test_the_validation_texts_are_not_those_of_the_training(
    options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_rows(tmp_path / "a.jsonl", [{"text": f"text {number}", "label": number % 2} for number in range(8)])
    with pytest.raises(UserError, match=f"finetune.{next(iter(options))}: the classifier is trained on"):
        read_parts(recipe_of(path=path, test_fraction=0.25, **options))


def test_a_validation_file_with_one_class_is_refused(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "label": number % 2} for number in range(8)]
    path = write_rows(tmp_path / "a.jsonl", rows)
    other = write_rows(tmp_path / "b.jsonl", [row | {"text": "other", "label": 1} for row in rows])
    with pytest.raises(UserError, match=r"finetune.validation_path: .*b.jsonl .* it has one class only"):
        read_parts(recipe_of(path=path, validation_path=other))


def test_copies_of_training_texts_cannot_choose_the_best_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"text": f"text {number}", "label": number % 2} for number in range(8)]
    path, other = (write_rows(tmp_path / name, rows[:count]) for name, count in (("a.jsonl", 8), ("b.jsonl", 4)))
    with pytest.raises(UserError, match=r"finetune.validation_path: all 4 texts of .*b.jsonl equal a training text"):
        read_parts(recipe_of(path=path, validation_path=other))
    write_rows(tmp_path / "b.jsonl", [*rows[:3], {"text": "another", "label": 1}])
    assert len(read_parts(recipe_of(path=path, validation_path=other)).validation) == 4
    assert "finetune.validation_path: 3 of 4 validation texts equal a training text" in caplog.text


def test_texts_with_different_labels_are_a_warning() -> None:
    examples = replace(examples_of(list("abcab"), labels=np.array([0, 0, 1, 1, 0])), classes=("x", "y"))
    warning = contradictions("classification", examples)
    assert warning == "texts that occur with different labels in the training split: 1, e.g. 'a'"
    assert contradictions("classification", replace(examples, labels=np.array([0, 0, 1, 0, 0]))) is None
    assert contradictions("regression", examples) is None


def test_other_shares_of_the_classes_in_the_test_texts_are_a_warning() -> None:
    def examples(first: int, second: int) -> Any:
        labels = np.array([0] * first + [1] * second)
        return replace(
            examples_of([str(number) for number in range(first + second)], labels=labels), classes=("a", "b")
        )

    warning = shifted_class("classification", examples(60, 40), examples(10, 90))
    assert warning is not None and "'a' is the label of 60% of the training texts and of 10% of the test" in warning
    assert shifted_class("classification", examples(60, 40), examples(50, 50)) is None
    assert shifted_class("classification", examples(60, 40), examples(2, 8)) is None  # ten texts may differ by chance
    assert shifted_class("tokens", examples(60, 40), examples(10, 90)) is None
