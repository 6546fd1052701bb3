"""Counted parameters and FLOPs equal those of the model itself."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bertpre.model import BertPreConfig, BertPreForPreTraining
from bertpre.model.flops import count_parameters, flops_per_token

BATCH, SEQUENCE, SLOTS = 2, 16, 3


def build(architecture: str) -> BertPreForPreTraining:
    config = BertPreConfig(
        architecture=architecture, vocab_size=90, hidden_size=24, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=40, max_position_embeddings=SEQUENCE,
    )  # fmt: skip
    model = BertPreForPreTraining(config)
    model.set_attn_implementation("eager")  # the fused kernel recomputes in backward, which is not counted
    model.bert.encoder.register_forward_hook(lambda *_: None)  # watched, the last layer leaves nothing out
    return model


@pytest.mark.parametrize("architecture", ["bert", "modern"])
def test_parameters_equal_those_of_the_model(architecture: str) -> None:
    model = build(architecture)
    assert count_parameters(model.config) == model.num_parameters()


def test_bert_base_has_its_published_size() -> None:
    assert round(count_parameters(BertPreConfig()) / 1e6) == 110


@pytest.mark.parametrize("architecture", ["bert", "modern"])
@pytest.mark.parametrize("training", [False, True])
def test_flops_equal_those_that_torch_counts(architecture: str, training: bool) -> None:
    model = build(architecture)
    ids = torch.randint(5, 90, (BATCH, SEQUENCE))
    slots = torch.randint(0, SEQUENCE, (BATCH, SLOTS))
    with FlopCounterMode(display=False) as counter:
        output = model(ids, masked_positions=slots, labels=slots, next_sentence_label=torch.tensor([0, 1]))
        if training:
            output.loss.backward()
    counted = flops_per_token(model.config, SEQUENCE, SLOTS / SEQUENCE, training) * BATCH * SEQUENCE
    assert counted == pytest.approx(counter.get_total_flops(), rel=1e-9)


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="masked_fraction"):
        flops_per_token(BertPreConfig(), 128, 15.0)
