"""Linear models of n-grams, on cases worked out by hand."""

import numpy as np
import pytest

from bertpre.finetuning.examples import Examples
from bertpre.finetuning.linear import fit_nbsvm, linear_models


def examples_of(texts: list[str], labels: list[int], classes: tuple[str, ...]) -> Examples:
    return Examples([f"train/{number}" for number in range(len(texts))], texts, None, np.array(labels), classes)


@pytest.mark.parametrize("name", linear_models("classification"))
@pytest.mark.parametrize("count", [2, 3])
def test_a_model_learns_which_words_mean_which_class(name: str, count: int) -> None:
    words, classes = ("dull", "fine", "odd"), ("a", "b", "c")[:count]
    texts = [f"a {words[number % count]} film {number % 7}" for number in range(60)]
    training = examples_of(texts, [number % count for number in range(60)], classes)
    predict = linear_models("classification")[name](training)
    probabilities = predict(examples_of([f"one {word} one" for word in words[:count]], [0] * count, classes))
    assert probabilities.argmax(1).tolist() == list(range(count))
    np.testing.assert_allclose(probabilities.sum(1), 1)


@pytest.mark.parametrize("name", linear_models("classification"))
def test_a_class_missing_in_training_is_never_predicted(name: str) -> None:
    training = examples_of(["dull dull", "fine fine"] * 4, [0, 2] * 4, ("a", "b", "c"))
    assert (linear_models("classification")[name](training)(training).argmax(1) == training.labels).all()


@pytest.mark.parametrize("name", linear_models("multi_label"))
def test_each_label_has_its_own_model(name: str) -> None:
    texts = ["dull", "fine", "dull fine", "odd"] * 5
    labels = np.array([[1, 0, 1, 0], [0, 1, 1, 0], [1, 1, 1, 0], [0, 0, 1, 0]] * 5)  # the third all have, none the last
    training = examples_of(texts, labels, ("dull", "fine", "every", "none"))
    assert ((linear_models("multi_label")[name](training)(training) > 0.5) == labels).all()
    single = examples_of(texts, labels[:, :1], ("dull",))
    assert ((linear_models("multi_label")[name](single)(single) > 0.5) == labels[:, :1]).all()


def test_a_regression_learns_from_words() -> None:
    examples = examples_of(["dull", "fine", "fine fine", "dull dull"] * 5, [0, 1, 1, 0] * 5, ("grade",))
    for build in linear_models("regression").values():
        low, high = build(examples)(examples_of(["dull", "fine"], [0, 0], ("grade",)))
        assert low < 0.3 < 0.7 < high


def test_texts_without_common_words_or_letters_can_be_fitted() -> None:
    for texts in (["alpha", "beta", "gamma", "delta"], ["\N{GRINNING FACE}", "\N{SKULL}", "a", "b"]):
        examples = examples_of(texts, [0, 1, 0, 1], ("no", "yes"))
        for build in linear_models("classification").values():
            assert (build(examples)(examples).argmax(1) == examples.labels).all()


@pytest.mark.parametrize("name", linear_models("classification"))
def test_vowel_signs_belong_to_words_and_words_need_no_spaces(name: str) -> None:
    hindi = ["यह किताब अच्छी है", "यह कताब अच्छी है"]  # they differ in one vowel sign
    japanese = ["この映画はとても面白かったです", "この映画はとてもつまらなかったです"]
    for texts in (hindi, japanese):
        several = [f"{text}{number}" for text in texts for number in range(5)]
        training = examples_of(several, [0] * 5 + [1] * 5, ("a", "b"))
        predict = linear_models("classification")[name](training)
        assert predict(examples_of([f"{text}9" for text in texts], [0, 1], ("a", "b"))).argmax(1).tolist() == [0, 1]


def test_nbsvm_reads_ngrams() -> None:
    texts = ["not good at all", "good at last", "not bad at all", "bad at last"] * 5
    training = examples_of(texts, [0, 1, 1, 0] * 5, ("no", "yes"))
    assert (fit_nbsvm(training)(training).argmax(1) == training.labels).all()
