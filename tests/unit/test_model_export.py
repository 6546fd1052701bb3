"""The check that an exported model computes what the run's model computes."""

from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from bertpre.errors import UserError
from bertpre.model import BertPreConfig, BertPreModel
from bertpre.model.export import TOLERANCE, export_model, export_run, largest_difference, random_inputs


@pytest.mark.parametrize("wrong", [2 * TOLERANCE, -2 * TOLERANCE, float("nan")])
def test_different_logits_are_refused_and_nan_too(wrong: float) -> None:
    expected = [torch.zeros(2, 3), torch.zeros(2, 2)]
    near = [torch.full((2, 3), TOLERANCE / 2), torch.zeros(2, 2)]
    assert largest_difference(expected, near, Path("export")) == pytest.approx(TOLERANCE / 2)
    near[1][1, 1] = wrong
    with pytest.raises(RuntimeError, match="export: the exported model's logits differ"):
        largest_difference(expected, near, Path("export"))


def test_an_encoder_alone_is_refused(tmp_path: Path) -> None:
    sizes = {
        "vocab_size": 64,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    BertPreModel(BertPreConfig(**sizes)).save_pretrained(tmp_path / "model")
    with pytest.raises(UserError, match="holds an encoder alone"):
        export_model(tmp_path / "model", "bertpre", tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def test_a_difference_is_measured_against_large_numbers() -> None:
    expected = [torch.full((4, 1), -3e6)]
    assert largest_difference(expected, [expected[0] + 0.25], Path("export")) == 0.25  # the rounding of fp32
    with pytest.raises(RuntimeError, match="differ from the run's by 3.0e\\+02"):
        largest_difference(expected, [expected[0] * 0.9999], Path("export"))


def test_random_inputs_have_padding_and_two_segments() -> None:
    inputs = random_inputs(BertPreConfig(vocab_size=90), length=12)
    assert inputs["attention_mask"].sum(dim=1).tolist() == [12, 11, 6, 2]
    assert inputs["token_type_ids"][:, 0].tolist() == [0, 0, 0, 0]
    assert (inputs["token_type_ids"] * inputs["attention_mask"]).any(dim=1).all()
    assert inputs["input_ids"].shape == (4, 12) and inputs["input_ids"].max() < 90
    assert not random_inputs(BertPreConfig(vocab_size=90, type_vocab_size=1), length=12)["token_type_ids"].any()


def test_a_full_disk_is_not_called_a_damaged_file(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("transformers.BertForPreTraining.save_pretrained", full)
    with pytest.raises(SafetensorError):
        export_run(tiny_run, None, tmp_path / "out", "encoder")
