"""Pretraining's batches: phases, the falling mask rate, shares of processes."""

from pathlib import Path

import pytest
from accelerate import Accelerator

from bertpre.data.sampler import Position
from bertpre.data.tokenizer import load_tokenizer
from bertpre.pretraining.batches import PretrainingData
from bertpre.recipe import load_recipe


def data_of(run: Path, *overrides: str) -> PretrainingData:
    recipe = load_recipe(str(run / "recipe.yaml"), list(overrides))
    return PretrainingData(recipe, load_tokenizer(run / "tokenizer"), run / "data", Accelerator(cpu=True))


def test_the_mask_rate_falls_linearly(tiny_run: Path) -> None:
    data = data_of(tiny_run, "training.masked_lm_prob=0.4", "training.masked_lm_prob_end=0.1")
    assert [data.masked_lm_prob_at(share) for share in (0.0, 0.5, 1.0)] == pytest.approx([0.4, 0.25, 0.1])
    counts = [int((data(Position(), share).micro_batches[0]["labels"] != -100).sum()) for share in (0.0, 0.69)]
    assert counts[0] > 1.5 * counts[1]
    assert data_of(tiny_run).masked_lm_prob_at(1.0) == 0.15


def test_a_new_phase_has_its_own_length_and_begins_a_new_epoch(tiny_run: Path) -> None:
    data = data_of(tiny_run)  # shares 0.7 and 0.3, lengths 32 and 48
    assert [data.phase_at(share) for share in (0.0, 0.69, 0.7, 1.0, 1.2)] == [0, 0, 1, 1, 1]
    step = data(Position(phase=0, epoch=2, offset=5), 0.7)
    assert step.micro_batches[0]["input_ids"].shape == (8, 48)
    assert step.after == Position(phase=1, epoch=3, offset=8)  # epoch 2's examples were partly seen
    assert data(step.after, 0.8).after == Position(phase=1, epoch=3, offset=16)


def test_batches_without_pairs_have_no_label_of_them(tiny_run: Path) -> None:
    for kind, has_label in (("none", False), ("nsp", True)):
        data = data_of(tiny_run, f"pairs.kind={kind}")
        batches = [*data(Position(), 0.0).micro_batches, *data.largest(), *data.validation_batches()]
        assert {"next_sentence_label" in batch for batch in batches} == {has_label}
