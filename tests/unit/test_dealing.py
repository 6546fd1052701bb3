"""Items are dealt so that no process has much more work than another."""

import pytest
import torch

from bertpre.training.dealing import deal, machine_group
from bertpre.training.optimizer import build_optimizers, is_worth_dealing, newton_schulz_flops
from tests.unit.test_optimizer import tiny_model


def test_every_item_is_dealt_once_and_the_work_is_balanced() -> None:
    counts, costs = [49, 12, 12], [6.0, 18.0, 18.0]  # BERT-base's matrices of each shape
    taken = deal(counts, costs, 8)
    assert [sum(shares) for shares in taken] == counts
    loads = [sum(map(float.__mul__, costs, map(float, shares))) for shares in zip(*taken, strict=True)]
    assert max(loads) <= 1.1 * sum(loads) / 8


def test_processes_may_be_left_without_an_item() -> None:
    assert deal([1, 2], [1.0, 5.0], 4) == [[0, 0, 1, 0], [1, 1, 0, 0]]


def test_the_work_of_a_matrix_is_that_of_its_products() -> None:
    rows, columns = 8, 24
    products = 2 * rows * columns * rows + 2 * rows * rows * rows + 2 * rows * rows * columns
    assert newton_schulz_flops(torch.Size((rows, columns)), 5) == 5 * products
    assert newton_schulz_flops(torch.Size((columns, rows)), 5) == 5 * products


@pytest.mark.parametrize(("size", "is_worth"), [(16, False), (1024, True)])
def test_small_matrices_are_not_dealt(size: int, is_worth: bool) -> None:
    assert is_worth_dealing([torch.nn.Parameter(torch.zeros(size, size))]) == is_worth


def test_one_process_deals_nothing() -> None:
    assert machine_group() is None
    assert build_optimizers(tiny_model(), "muon", 1e-3, 0.01, group=machine_group())[1].group is None
