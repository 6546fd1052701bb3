"""Dropout as compiled for a CPU: share, scale, gradient, and the independence of positions, calls and seeds."""

import numpy as np
import pytest
import torch

from bertpre.compiler import can_compile
from bertpre.model import BertPreConfig, BertPreForSequenceClassification, BertPreModel
from bertpre.model.dropout_bertpre import drop, hash_bits

PROBABILITY, COUNT = 0.1, 200_000


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the compiler sees it, without waiting for a compiler."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)


def dropped(seed: int, calls: int = 1) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [drop(torch.ones(COUNT), PROBABILITY, training=True) == 0 for _ in range(calls)]


def test_the_share_and_the_scale_are_right(compiling: None) -> None:
    torch.manual_seed(0)
    states = torch.ones(COUNT, requires_grad=True)
    result = drop(states, PROBABILITY, training=True)
    is_kept = result != 0
    spread = (PROBABILITY * (1 - PROBABILITY) / COUNT) ** 0.5
    assert abs((~is_kept).float().mean().item() - PROBABILITY) < 5 * spread
    torch.testing.assert_close(result[is_kept], torch.full_like(result[is_kept], 1 / (1 - PROBABILITY)))
    result.sum().backward()
    torch.testing.assert_close(states.grad, result.detach())


def test_positions_calls_and_seeds_are_independent(compiling: None) -> None:
    first, second = dropped(seed=0, calls=2)
    pairs = [(first, second), (first, dropped(seed=1)[0])]
    pairs += [(first[step:], first[:-step]) for step in (1, 2, 64, 128, 4096, 16384)]
    for one, other in pairs:
        expected = PROBABILITY**2
        spread = (expected * (1 - expected) / len(one)) ** 0.5
        assert abs((one & other).float().mean().item() - expected) < 5 * spread


def test_the_same_seed_drops_the_same_positions(compiling: None) -> None:
    assert torch.equal(dropped(seed=3)[0], dropped(seed=3)[0])


def test_evaluation_drops_nothing(compiling: None) -> None:
    assert torch.equal(drop(torch.ones(9), PROBABILITY, training=False), torch.ones(9))


def test_without_a_compiler_it_is_torchs_own() -> None:
    torch.manual_seed(0)
    expected = torch.nn.functional.dropout(torch.ones(99), PROBABILITY)
    torch.manual_seed(0)
    assert torch.equal(drop(torch.ones(99), PROBABILITY, training=True), expected)


def test_the_hash_is_murmurs_finalizer() -> None:
    def reference(value: int) -> int:
        value = (value ^ value >> 16) * 0x85EBCA6B & 0xFFFFFFFF
        value = (value ^ value >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
        return value ^ value >> 16

    values = np.array([0, 1, 2, 12345, 2**31 - 1, 2**31, 2**32 - 1], dtype=np.uint32)
    ours = hash_bits(torch.from_numpy(values.view(np.int32))).numpy().view(np.uint32)
    assert ours.tolist() == [reference(int(value)) for value in values]


@pytest.mark.skipif(not can_compile(torch.device("cpu")), reason="needs a C++ compiler")
def test_the_compiled_function_drops_the_same_share() -> None:
    def function(states: torch.Tensor) -> torch.Tensor:
        return drop(states, PROBABILITY, training=True)

    share = (torch.compile(function)(torch.ones(1000, 200)) == 0).float().mean().item()
    assert abs(share - PROBABILITY) < 0.004


NONE = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0}
SMALL = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.mark.parametrize("name", NONE)
@pytest.mark.parametrize("architecture", ["bert", "modern"])
def test_each_probability_is_one_of_its_own(name: str, architecture: str) -> None:
    torch.manual_seed(0)
    config = BertPreConfig(architecture=architecture, **SMALL, **NONE | {name: 0.5})
    model = BertPreForSequenceClassification(config).train()
    ids = torch.randint(5, 64, (4, 12))
    logits = [model(input_ids=ids).logits for _ in range(2)]
    assert not torch.equal(*logits)
    assert (logits[0] != 0).all()  # nothing is dropped behind the classifier
    states = [model.bert(input_ids=ids).last_hidden_state for _ in range(2)]
    assert torch.equal(*states) == (name == "classifier_dropout")
    assert not any((state == 0).any() for state in states)  # what is dropped is added to a residual, then normalised


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("bert", {"embeddings": 0.25, "encoder.layer.0.attention.output": 0.25, "encoder.layer.0.output": 0.25}),
        ("modern", {"embeddings": 0.25, "encoder.layer.0.attn": 0.5, "encoder.layer.0.mlp": 0.25}),
    ],
)
def test_dropout_is_where_the_stock_class_has_it(architecture: str, expected: dict[str, float]) -> None:
    probabilities = {"hidden_dropout_prob": 0.25, "attention_probs_dropout_prob": 0.5}
    model = BertPreModel(BertPreConfig(architecture=architecture, **SMALL, **probabilities))
    layers = {name: part for name, part in model.named_modules() if isinstance(part, torch.nn.Dropout)}
    assert {name.removesuffix(".dropout"): part.p for name, part in layers.items()} == expected


def test_what_is_dropped_of_a_block_of_bert_is_not_its_input() -> None:
    block = BertPreModel(BertPreConfig(architecture="bert", **SMALL, hidden_dropout_prob=0.5)).encoder.layer[0].output
    torch.manual_seed(0)
    block.dense.weight.data.zero_()
    block.dense.bias.data.zero_()
    hidden, given = torch.randn(2, 4, 16), torch.randn(2, 4, 16)
    expected = block.LayerNorm(given)
    torch.testing.assert_close(block.train()(hidden, given), expected)  # all that dropout sees is zero
