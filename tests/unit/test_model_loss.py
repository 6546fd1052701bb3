"""The loss over the vocabulary, whose gradient is computed a few rows at a time on a CPU."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bertpre.model import losses_bertpre
from bertpre.model.configuration_bertpre import BertPreConfig
from bertpre.model.losses_bertpre import IGNORE_INDEX, cross_entropy, vocabulary_loss
from bertpre.model.modeling_bertpre import BertPreForPreTraining

ROWS, CLASSES, WEIGHT = 23, 50, 3.0


def loss_and_gradient(logits: Tensor, labels: Tensor, num_items: Tensor | None) -> tuple[Tensor, Tensor]:
    logits = logits.clone().requires_grad_()
    loss = cross_entropy(logits, labels, num_items)
    (loss * WEIGHT).backward()  # as several processes scale it
    assert logits.grad is not None
    return loss.detach(), logits.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cached", [1, CLASSES * 5, CLASSES * ROWS - 1])  # 1, 5 and 22 rows at a time
@pytest.mark.parametrize("num_items", [None, torch.tensor(7.0)])
def test_loss_and_gradient_are_torchs_own(
    dtype: torch.dtype, cached: int, num_items: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(1, ROWS, CLASSES, generator=generator).to(dtype)
    labels = torch.randint(0, CLASSES, (1, ROWS), generator=generator)
    labels[0, ::4] = IGNORE_INDEX
    expected = logits.float().clone().requires_grad_()
    count = (labels != IGNORE_INDEX).sum() if num_items is None else num_items
    loss_sum = F.cross_entropy(expected[0], labels[0], ignore_index=IGNORE_INDEX, reduction="sum")
    (loss_sum / count * WEIGHT).backward()
    monkeypatch.setattr(losses_bertpre, "CACHED_LOGITS", cached)
    loss, gradient = loss_and_gradient(logits, labels, num_items)
    assert gradient.dtype == dtype
    assert expected.grad is not None
    torch.testing.assert_close(loss, (loss_sum / count).detach())
    torch.testing.assert_close(
        gradient.float(), expected.grad, rtol=1e-5 if dtype == torch.float32 else 0.01, atol=1e-6
    )
    assert not gradient[0, ::4].any()


def test_without_a_label_the_loss_and_its_gradient_are_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses_bertpre, "CACHED_LOGITS", 1)
    labels = torch.full((ROWS,), IGNORE_INDEX)
    loss, gradient = loss_and_gradient(torch.randn(ROWS, CLASSES), labels, None)
    assert loss == 0
    assert not gradient.any()


def test_logits_of_the_forward_pass_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses_bertpre, "CACHED_LOGITS", 1)
    logits = torch.randn(ROWS, CLASSES, requires_grad=True)
    before = logits.detach().clone()
    cross_entropy(logits, torch.zeros(ROWS, dtype=torch.long), None).backward()
    assert torch.equal(logits.detach(), before)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int16])
def test_labels_of_any_integer_type_are_taken(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses_bertpre, "CACHED_LOGITS", 1)
    logits, labels = torch.randn(ROWS, CLASSES, requires_grad=True), torch.arange(ROWS) % CLASSES
    assert torch.equal(cross_entropy(logits, labels.to(dtype), None), cross_entropy(logits, labels, None))


def test_small_gradients_in_fp16_survive_until_the_loss_is_scaled() -> None:
    logits = torch.zeros(1, 600, 500, dtype=torch.float16, requires_grad=True)
    assert logits.numel() > losses_bertpre.CACHED_LOGITS
    (cross_entropy(logits, torch.zeros(1, 600, dtype=torch.long), 10**6) * 2.0**16).backward()
    assert logits.grad is not None
    expected = torch.full((1, 600, 499), 2.0**16 / 500 / 10**6)
    torch.testing.assert_close(logits.grad[..., 1:].float(), expected, rtol=0.01, atol=0)


@pytest.mark.parametrize("label", [-1, -101])
def test_a_negative_label_that_is_not_minus_100_is_refused(label: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses_bertpre, "CACHED_LOGITS", 1)
    logits = torch.randn(ROWS, CLASSES, requires_grad=True)
    with pytest.raises(IndexError, match=f"{label} is out of bounds"):
        cross_entropy(logits, torch.tensor([label] + [IGNORE_INDEX] * (ROWS - 1)), None)


def test_a_second_derivative_is_refused_and_never_a_wrong_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses_bertpre, "CACHED_LOGITS", 1)
    logits, labels = torch.randn(ROWS, CLASSES, requires_grad=True), torch.arange(ROWS) % CLASSES
    with pytest.raises(RuntimeError, match=r"no second derivative; call the model without labels"):
        torch.autograd.grad(cross_entropy(logits * 2, labels, None), logits, create_graph=True)


def test_torch_func_differentiates_the_loss_as_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses_bertpre, "CACHED_LOGITS", 1)
    logits, labels = torch.randn(4, 5), torch.arange(4)
    for transform in (torch.func.grad, torch.func.hessian):
        ours = transform(lambda given: cross_entropy(given, labels, None))(logits)
        torch.testing.assert_close(
            ours, transform(lambda given: torch.nn.functional.cross_entropy(given, labels))(logits)
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [4, ROWS])  # in six parts, or in one
def test_without_scores_loss_gradients_and_right_labels_are_the_same(
    dtype: torch.dtype, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses_bertpre, "CACHED_LOGITS", CLASSES * 3)
    monkeypatch.setattr(losses_bertpre, "SCORED_ROWS", rows)
    torch.manual_seed(0)
    states, weight, bias = torch.randn(1, ROWS, 8), 2 * torch.randn(CLASSES, 8), torch.randn(CLASSES)
    given = [each.to(dtype).requires_grad_() for each in (states, weight, bias)]
    expected = [each.detach().float().requires_grad_() for each in given]
    scores = F.linear(*expected)
    labels = scores.argmax(-1).where(torch.arange(ROWS) % 3 == 0, torch.arange(ROWS))
    labels[0, ::4] = IGNORE_INDEX
    loss, num_right = vocabulary_loss(*given, labels, torch.tensor(7.0))
    (loss * WEIGHT).backward()
    loss_sum = F.cross_entropy(scores[0], labels[0], ignore_index=IGNORE_INDEX, reduction="sum")
    (loss_sum / 7 * WEIGHT).backward()
    is_exact = dtype == torch.float32
    torch.testing.assert_close(loss, (loss_sum / 7).detach(), rtol=1e-5 if is_exact else 0.01, atol=0)
    assert num_right == (scores.argmax(-1) == labels).sum() > 3
    for ours, theirs in zip(given, expected, strict=True):
        assert ours.grad is not None and theirs.grad is not None and ours.grad.dtype == dtype
        error = (ours.grad.float() - theirs.grad).norm() / theirs.grad.norm()
        assert error < (1e-5 if is_exact else 0.03)


def test_a_label_that_shares_the_highest_score_counts_half(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, bias = torch.tensor([[1.0], [1.0], [0.0]], requires_grad=True), torch.zeros(3)
    _, num_right = vocabulary_loss(torch.ones(2, 1), weight, bias, torch.tensor([1, 2]), None)
    assert num_right == 0.5


def test_a_model_in_training_gives_scores_only_where_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses_bertpre, "CACHED_LOGITS", 1)
    config = BertPreConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    torch.manual_seed(0)
    model = BertPreForPreTraining(config).eval()  # without dropout
    batch = {"input_ids": torch.arange(24).reshape(2, 12), "labels": torch.arange(1, 25).reshape(2, 12)}
    kept, dropped = model(**batch), model(**batch, needs_logits=False)
    assert dropped.prediction_logits is None and kept.num_right is None
    assert dropped.num_right == (kept.prediction_logits.argmax(-1) == batch["labels"]).sum()
    gradients = [torch.autograd.grad(each.loss, list(model.bert.parameters())[:3]) for each in (kept, dropped)]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)
    with torch.no_grad():  # in validation the scores are read
        assert model(**batch, needs_logits=False).prediction_logits is not None


@pytest.mark.parametrize("needs_logits", [True, False])
@pytest.mark.parametrize("setting", ["float64", "autocast"])
def test_a_training_model_has_its_loss_in_float64_and_under_autocast(
    setting: str, needs_logits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses_bertpre, "CACHED_LOGITS", 1)
    torch.set_default_dtype(torch.float64 if setting == "float64" else torch.float32)
    try:
        config = BertPreConfig(
            vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
        )
        model = BertPreForPreTraining(config).eval()
        ids = torch.arange(24).reshape(2, 12)
        with torch.autocast("cpu", torch.bfloat16, enabled=setting == "autocast"):
            loss = model(ids, labels=ids, needs_logits=needs_logits).loss
        loss.backward()
        expected = F.cross_entropy(model(ids).prediction_logits.flatten(0, 1), ids.flatten())
        torch.testing.assert_close(loss.float(), expected.float(), rtol=0.02, atol=0)
    finally:
        torch.set_default_dtype(torch.float32)
