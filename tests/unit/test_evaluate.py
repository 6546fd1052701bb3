"""The lines that `bertpre evaluate` prints, and the overlap of test and training texts."""

import numpy as np
import pytest

from bertpre.commands.evaluate import measure_overlap, never_predicted, summary
from bertpre.finetuning.mistakes import worst_mistakes
from bertpre.reporting.evaluation import overlap_text
from tests.unit.test_examples import examples_of


def test_the_summary_has_the_confidence_interval_and_the_spread() -> None:
    metrics = {"accuracy": 0.9, "f1": 0.8, "matthews": 0.7, "loss": 0.3, "intervals": {"accuracy": [0.85, 0.95]}}
    assert summary("classification", metrics) == "accuracy 0.9000 (95 % CI 0.8500-0.9500), f1 0.8000, matthews 0.7000"
    metrics["intervals"]["accuracy"] = [-0.05, 0.95]
    assert "(95 % CI -0.0500 to 0.9500)" in summary("classification", metrics)
    seeds = {"accuracy": {"mean": 0.88, "std": 0.01, "values": [0.87, 0.89]}}
    assert summary("classification", metrics | {"seeds": seeds}).endswith(", over 2 seeds 0.8800 ± 0.0100")


def test_classes_that_are_never_predicted_are_named() -> None:
    labels, always_second = np.array([0, 1, 1, 1]), np.eye(2)[[1, 1, 1, 1]]
    named = "the classifier never predicts 'bad' (1 of 4 test texts); 'f1' is that of 'good'"
    assert never_predicted(("bad", "good"), labels, always_second) == named
    assert never_predicted(("bad", "good"), labels[1:], always_second[1:]) is None  # 'bad' is not in the test texts
    assert never_predicted(("bad", "good"), labels, np.eye(2)[[0, 1, 1, 1]]) is None
    many = never_predicted([str(number) for number in range(14)], np.arange(14), np.eye(14)[[0] * 14])
    assert many is not None and many.endswith("'5' (1 of 14 test texts) and 8 more classes")


def test_the_most_confident_mistakes_come_first_and_right_answers_not_at_all() -> None:
    test = examples_of([f"text {number}" for number in range(30)], labels=np.zeros(30, dtype=int))
    shares = np.linspace(0.3, 0.95, 30)  # of the second class, which is wrong
    found = worst_mistakes("classification", test, test.labels, np.stack([1 - shares, shares], axis=1))
    assert [row["text"] for row in found] == [f"text {number}" for number in range(29, 19, -1)]
    assert found[0]["probability"] == pytest.approx(0.95) and found[0]["prediction"] == "yes"
    right = np.stack([shares > -1, shares < -1], axis=1).astype(float)
    assert worst_mistakes("classification", test, test.labels, right) == []


def test_test_texts_that_were_learned_are_counted_and_left_out_of_a_second_accuracy() -> None:
    test = examples_of(["a", "b", "c", "d", "e"])
    training, validation, unlabelled = examples_of(["x", " B"]), examples_of(["d"]), examples_of(["e", "d", "y"])
    outputs = np.eye(2)[[0, 1, 1, 1, 0]]  # a, b, d and e are right
    found = measure_overlap("classification", [training, validation], unlabelled, test, test.labels, outputs)
    assert (found["overlap"], found["overlap_unlabelled"]) == (3, 1)
    assert (found["without_overlap"]["accuracy"], found["without_overlap"]["examples"]) == (0.5, 2)
    text = overlap_text(found | {"examples": 5})
    assert text == "3 of 5 test texts equal a training text (1 only an unlabelled one); accuracy without them 0.5000"
    found = measure_overlap("classification", [training], None, test, test.labels, outputs)
    assert overlap_text(found | {"examples": 5}).startswith("1 of 5 test texts equal a training text; accuracy")


@pytest.mark.parametrize("texts", [["x"], ["a", "b"]])
def test_without_other_texts_there_is_no_second_accuracy(texts: list[str]) -> None:
    test, training = examples_of(["a", "b"]), examples_of(texts)
    found = measure_overlap("classification", [training], None, test, test.labels, np.eye(2))
    assert found == {"overlap": len(texts) if "a" in texts else 0}


def test_pairs_and_words_overlap_as_a_whole() -> None:
    test, training = examples_of(["a", "a"], ["b", "c"]), examples_of(["a", "b"], ["b", "a"])
    found = measure_overlap("classification", [training], None, test, test.labels, np.eye(2))
    assert found["overlap"] == 1
    labels = [np.array([0, 1]), np.array([1])]
    words, others = examples_of([["a", "b"], ["b"]], labels=labels), examples_of([["b"], ["a"]], labels=labels)
    found = measure_overlap("tokens", [others], None, words, labels, [np.eye(2)[row] for row in labels])
    assert (found["overlap"], found["without_overlap"]["accuracy"]) == (1, 1.0)
