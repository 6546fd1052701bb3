"""Dropout as compiled for a CPU: share, scale, gradient, and the independence of positions, calls and seeds."""

import numpy as np
import pytest
import torch

from bertpre.model.dropout_bertpre import drop, hash_bits
from bertpre.runtime import can_compile

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
