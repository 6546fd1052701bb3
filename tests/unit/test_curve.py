"""The shares of the labels that the label curve trains on."""

import numpy as np
import pytest

from bertpre.commands.curve import draw
from bertpre.errors import UserError
from tests.unit.test_linear import examples_of


def test_a_share_keeps_the_proportions_of_the_classes() -> None:
    examples = examples_of(list("abcdefghij"), [0] * 4 + [1] * 6, ("no", "yes"))
    drawn = draw(examples, 0.5, seed=1)
    assert np.bincount(drawn.labels).tolist() == [2, 3]
    assert drawn.texts == draw(examples, 0.5, seed=1).texts
    with pytest.raises(UserError, match=r"--fractions: 0.1 of 4 examples of no is none"):
        draw(examples, 0.1, seed=1)
