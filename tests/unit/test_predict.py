"""How `bertpre predict` shows what a classifier has put out."""

import numpy as np
import pytest

from bertpre.commands.predict import as_line, in_one_line
from bertpre.finetuning.prediction import named_prediction
from bertpre.finetuning.task import Task


@pytest.mark.parametrize(
    ("output", "value", "line"),
    [
        (0.00001234567, 0.00001234567, "1.235e-05\ta"),
        (3.25, 3.25, "3.2500\ta"),
        (1234567.25, 1234567.0, "1234567.0000\ta"),
        (0.0, 0.0, "0.0000\ta"),
    ],
)
def test_a_small_number_keeps_its_digits(output: float, value: float, line: str) -> None:
    prediction = named_prediction(Task("regression", ("score",)), "a", np.float32(output))
    assert prediction["value"] == pytest.approx(value, rel=1e-6)
    assert as_line("a", prediction) == line


def test_a_line_has_no_more_columns_than_it_says() -> None:
    assert in_one_line("a\tb\r\nc", "\t") == "a b c"
    assert in_one_line(("a\tb", "c"), "\t") == "a b\tc"
    assert in_one_line("a\tb\nc") == "a\tb c"  # in JSON


def test_a_label_is_chosen_by_the_probability_that_evaluate_reads() -> None:
    prediction = named_prediction(Task("multi_label", ("one", "two")), "a", np.array([0.5000004, 0.5]))
    assert prediction == {"labels": ["one"], "probabilities": {"one": 0.5, "two": 0.5}}
