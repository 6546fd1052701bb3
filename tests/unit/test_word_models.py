"""Baselines for words, on cases worked out by hand."""

import numpy as np

from bertpre.commands.baseline import measure
from bertpre.finetuning.examples import Examples
from bertpre.finetuning.word_models import fit_majority_tags, fit_word_features, shape

CLASSES = ("B-LOC", "B-PER", "O")


def examples_of(*texts: str) -> Examples:
    """Texts of `word/tag` pairs, the tag by its number."""
    pairs = [[part.rsplit("/", 1) for part in text.split()] for text in texts]
    words = [[word for word, _ in text] for text in pairs]
    tags = [np.array([int(tag) for _, tag in text]) for text in pairs]
    return Examples([str(number) for number in range(len(texts))], words, None, tags, CLASSES)


def test_a_word_has_its_most_frequent_tag_and_a_new_one_the_most_frequent_of_all() -> None:
    predict = fit_majority_tags(examples_of("Paris/0 is/2 nice/2", "Paris/1 met/2 Paris/0"))
    one, two = predict(examples_of("Paris/0 was/2", "met/2"))
    np.testing.assert_allclose(one, [[2 / 3, 1 / 3, 0], [2 / 6, 1 / 6, 3 / 6]])
    np.testing.assert_allclose(two, [[0, 0, 1]])


def test_neighbours_and_shape_decide_about_new_words() -> None:
    names = ["Anna", "Bruno", "Clara", "Doris"]
    training = examples_of(*(f"Mr/2 {name}/1 saw/2 it/2" for name in names), *(f"in/2 {name}/0 ./2" for name in names))
    test = examples_of("Mr/2 Emil/1 saw/2 it/2", "in/2 Emil/0 ./2", "Mr/2 3-12/2 saw/2")
    found = [row.argmax(-1).tolist() for row in fit_word_features(training)(test)]
    assert found[:2] == [[2, 1, 2, 2], [2, 0, 2]]
    figures = measure("tokens", fit_word_features(training), training, test.subset([0, 1]))
    assert (figures["f1"], figures["validation"]) == (1.0, 1.0)


def test_a_tag_missing_in_training_has_probability_zero() -> None:
    training = examples_of("Anna/1 saw/2 it/2", "Bruno/1 left/2")
    for fit in (fit_majority_tags, fit_word_features):
        rows = fit(training)(examples_of("Anna/1 left/2", "Oslo/0"))
        assert [row.shape for row in rows] == [(2, 3), (1, 3)]
        assert all((row[:, 0] == 0).all() and np.allclose(row.sum(-1), 1) for row in rows)


def test_the_shape_of_a_word() -> None:
    assert [shape(word) for word in ("Berlin", "3-12", "NATO", "e.V.", "")] == ["Xx", "d-d", "X", "x.X.", ""]
