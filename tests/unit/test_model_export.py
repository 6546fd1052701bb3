"""The check that an exported model computes what the run's model computes."""

from pathlib import Path

import pytest
import torch

from bertpre.model.export import TOLERANCE, largest_difference, random_inputs


@pytest.mark.parametrize("wrong", [2 * TOLERANCE, -2 * TOLERANCE, float("nan")])
def test_different_logits_are_refused_and_nan_too(wrong: float) -> None:
    expected = [torch.zeros(2, 3), torch.zeros(2, 2)]
    near = [torch.full((2, 3), TOLERANCE / 2), torch.zeros(2, 2)]
    assert largest_difference(expected, near, Path("export")) == pytest.approx(TOLERANCE / 2)
    near[1][1, 1] = wrong
    with pytest.raises(RuntimeError, match="export: the exported model's logits differ"):
        largest_difference(expected, near, Path("export"))


def test_random_inputs_have_padding_and_two_segments() -> None:
    inputs = random_inputs(vocab_size=90, length=12)
    assert inputs["attention_mask"].sum(dim=1).tolist() == [12, 11, 6, 2]
    assert inputs["token_type_ids"][:, 0].tolist() == [0, 0, 0, 0]
    assert (inputs["token_type_ids"] * inputs["attention_mask"]).any(dim=1).all()
    assert inputs["input_ids"].shape == (4, 12) and inputs["input_ids"].max() < 90
