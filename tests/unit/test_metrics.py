"""What a pretraining step measures."""

from types import SimpleNamespace

import torch

from bertpre.pretraining.objective import PretrainingObjective
from bertpre.training.metrics import STEPS_WITH_PAIRS, STEPS_WITH_TARGETS
from bertpre.training.step_log import StepLog, means_of_steps


def test_pairs_without_a_label_do_not_count() -> None:
    objective, zero = PretrainingObjective(), torch.tensor(0.0)
    outputs = SimpleNamespace(
        loss=zero, mlm_loss=zero, nsp_loss=zero, prediction_logits=torch.ones(3, 1, 4),
        seq_relationship_logits=torch.tensor([[1.0, 0.0]] * 3),
    )  # fmt: skip
    for labels, pairs, accuracy in (([0, 1, -100], 2, 0.5), ([-100, -100, -100], 0, 0.0)):
        batch = {"labels": torch.zeros(3, 1, dtype=torch.long), "next_sentence_label": torch.tensor(labels)}
        counts = objective.counts(batch)
        assert counts["num_pairs_in_batch"] == pairs
        measured = objective.measure(outputs, batch, counts)
        assert (measured["nsp_accuracy"], measured[STEPS_WITH_PAIRS]) == (accuracy, float(pairs > 0))


def test_a_line_counts_pairs_in_the_steps_that_have_any_with_a_label() -> None:
    sums = {"loss": 3.0, "nsp_loss": 1.2, "nsp_accuracy": 1.0, STEPS_WITH_PAIRS: 2.0}
    assert means_of_steps(sums, 3) == {"loss": 1.0, "nsp_loss": 0.6, "nsp_accuracy": 0.5}
    assert means_of_steps(sums | {STEPS_WITH_PAIRS: 0.0}, 3) == {"loss": 1.0}
    assert means_of_steps({"loss": 3.0}, 3) == {"loss": 1.0}


def test_a_step_of_unknown_tokens_alone_is_no_part_of_the_means() -> None:
    empty = {"labels": torch.tensor([[-100]]), "masked_positions": torch.tensor([[0]])}
    outputs = SimpleNamespace(loss=torch.tensor(0.0), mlm_loss=torch.tensor(0.0), prediction_logits=torch.ones(1, 1, 7))
    measured = PretrainingObjective(has_pairs=False).measure(outputs, empty, {"num_items_in_batch": 0})
    assert set(map(float, measured.values())) == {0.0}
    sums = {"loss": 6.0, "mlm_loss": 6.0, "mlm_accuracy": 1.0, STEPS_WITH_TARGETS["mlm"]: 1.9999998}
    assert means_of_steps(sums, 3) == {"loss": 2.0, "mlm_loss": 3.0, "mlm_accuracy": 0.5}


def test_where_no_pair_has_a_label_nothing_is_said_of_pairs() -> None:
    sums = {"loss": 9.0, "mlm_loss": 8.0, "mlm_accuracy": 1.0, "nsp_loss": 1.0, "nsp_accuracy": 2.0}
    means = PretrainingObjective().means(sums, {"num_items_in_batch": 4, "num_pairs_in_batch": 2})
    assert means == {"loss": 2.5, "mlm_loss": 2.0, "mlm_accuracy": 0.25, "nsp_loss": 0.5, "nsp_accuracy": 1.0}
    means = PretrainingObjective().means(sums, {"num_items_in_batch": 4, "num_pairs_in_batch": 0})
    assert means == {"loss": 2.0, "mlm_loss": 2.0, "mlm_accuracy": 0.25}


def test_without_pairs_only_masked_tokens_are_measured() -> None:
    objective, one = PretrainingObjective(has_pairs=False), torch.tensor(1.0)
    outputs = SimpleNamespace(loss=one, mlm_loss=one, prediction_logits=torch.ones(3, 2, 4))
    batch = {"labels": torch.tensor([[0, 1], [0, -100], [2, -100]]), "masked_positions": torch.zeros(3, 2)}
    counts = objective.counts(batch)
    assert counts == {"num_items_in_batch": 4}
    measured = objective.measure(outputs, batch, counts)
    assert tuple(measured) == (*objective.metric_names, STEPS_WITH_TARGETS["mlm"]) and measured["mlm_accuracy"] == 0.5
    assert objective.means({"loss": 8.0, "mlm_loss": 8.0, "mlm_accuracy": 2.0}, counts) == {
        "loss": 2.0, "mlm_loss": 2.0, "mlm_accuracy": 0.5
    }  # fmt: skip
    causal = objective.measure(outputs, {"labels": batch["labels"]}, counts)
    assert tuple(causal) == ("loss", "clm_loss", "clm_accuracy", STEPS_WITH_TARGETS["clm"])
    sums = {"loss": 12.0, "mlm_loss": 4.0, "clm_loss": 8.0} | {name: 2.0 for name in STEPS_WITH_TARGETS.values()}
    assert means_of_steps(sums, 4) == {"loss": 3.0, "mlm_loss": 2.0, "clm_loss": 4.0}  # steps by turns


def test_a_line_that_a_checkpoint_cut_has_the_same_sums() -> None:
    accelerator = SimpleNamespace(reduce=lambda total: total, is_main_process=True, device="cpu")
    losses, cut = torch.rand(200) + 7, StepLog(output=None)
    for step, loss in enumerate(losses):
        cut.record({"loss": loss})
        cut.end_step(torch.tensor(1.0), 0.1)
        if step == 150:
            state, cut = cut.state(accelerator), StepLog(output=None)
            cut.restore(state, 0.0, 0, accelerator)
    assert cut.sums(accelerator) == {"loss": losses.double().sum().item()}
